"""Errors of searches."""

from icepuffin.ops.errors import ArgumentError, TableStateError


class QueryError(ArgumentError):
    """Raised for a query that cannot be run: wrong dimensions, NaN, a zero vector under cosine, k under 1."""


class UnknownColumnError(ArgumentError):
    """Raised when a column to return is not in the snapshot's schema."""


class IndexUnavailableError(TableStateError):
    """Raised, where the policy forbids another path, when no usable version covers the snapshot, or a shard of the one
    that was opened cannot be read any more; and when all versions have a layout that was given up.
    """


class FilterError(ArgumentError):
    """Raised when a condition cannot be parsed, or does not fit the snapshot's schema."""
