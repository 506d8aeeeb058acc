"""Rows of data files: read as the snapshot has them, addressed, and kept by column."""
