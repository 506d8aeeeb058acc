"""A table's snapshots: which there are, and which rows of which files are live in one."""
