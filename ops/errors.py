"""Errors of the ops room. Each message names the table, the snapshot or the file, and what to do next."""

from typing import ClassVar


class IcepuffinError(Exception):
    """Base of every error that icepuffin raises about a table, a snapshot, an index or a store."""

    retryable: ClassVar[bool] = True
    """Whether the same work might succeed when it is done again. False: rows, definition or settings must change."""
