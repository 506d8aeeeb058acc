"""Errors of SQL statements."""

from icepuffin.ops.errors import ArgumentError

MAX_DIGITS = 1_000
"""Digits of a number, at most; Python refuses 4,301, and no column has more than 38"""


class SqlError(ArgumentError):
    """Raised when a statement cannot be read, or cannot be run here; the message says what to write instead."""


class NotIndexableError(SqlError):
    """Raised by the parser for a query that no index can answer; the message names the part."""


class UnknownTableError(NotIndexableError):
    """Raised when the session knows no table of the name that a statement gives; Spark may know one."""


class IndexNotBuiltError(SqlError):
    """Raised where CREATE INDEX has defined an index and could not build its version; the message says what is left."""
