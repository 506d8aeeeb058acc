"""Definitions of indexes: what they name, how a table keeps them, and what was tuned for them."""
