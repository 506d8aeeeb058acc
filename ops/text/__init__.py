"""Words of columns of texts: read of index versions and data files, and scored at a snapshot."""
