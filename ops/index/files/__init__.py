"""The files of versions: how they are laid out, written and shared."""
