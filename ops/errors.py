"""Errors of the ops room. Each message names the table, the snapshot or the file, and what to do next."""


class IcepuffinError(Exception):
    """Base of every error that icepuffin raises about a table, a snapshot, an index or a store."""
