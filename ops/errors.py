"""Errors of `icepuffin.ops`. Each message names the table, the snapshot or the file, and what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import UnionType
from typing import ClassVar


class IcepuffinError(Exception):
    """Base of every error that icepuffin raises about a table, a snapshot, an index or a store."""

    retryable: ClassVar[bool] = True
    """Whether the same work might succeed when it is done again. False: rows, definition or settings must change."""


class ArgumentError(IcepuffinError):
    """Base of errors about what was asked for: call again with another argument, definition or setting."""

    retryable = False


class TableStateError(IcepuffinError):
    """Base of errors about a table, or an index, that is not as the work needs it: change that first."""


class UnreachableError(IcepuffinError):
    """Base of errors about a catalog, a store or executors that do not answer or refuse: look after them, then try
    again.
    """


class FileDamageError(IcepuffinError):
    """Base of errors about a file that is lost, damaged or not what it is said to be: make it anew, or restore it."""


class LimitError(IcepuffinError):
    """Base of errors about a limit that the work would exceed or a target that it misses: set another limit, or give
    it more room.
    """


class CatalogUnavailableError(UnreachableError):
    """Raised when a catalog cannot be opened or does not answer."""


class TableFaultError(TableStateError):
    """Raised where a table's metadata has something that nothing here is made for."""

    retryable = False


@contextmanager
def faults_of(table: str) -> Iterator[None]:
    """Name the table in an error of the block that is none of icepuffin's own: whoever goes through several tables
    handles `IcepuffinError`. Raises TableFaultError.
    """
    try:
        yield
    except IcepuffinError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error!s:.200}".splitlines()[0]
        raise TableFaultError(
            f"{table}: its metadata has something that icepuffin cannot use ({what}). Other tables are not affected. "
            "Look at what wrote to it last: its properties, summaries, times and statistics entries"
        ) from error


def require_type(value: object, expected: type | UnionType, argument: str, remedy: str) -> None:
    """Raises TypeError for an argument of another type, such as the name of a table in place of the table.

    `argument` names the expected argument, and `remedy` says what to do, both for the message.
    """
    if not isinstance(value, expected):
        actual = f"the text {value!r:.60}" if isinstance(value, str) else f"a value of type {type(value).__name__}"
        raise TypeError(f"{argument}, not {actual}: {remedy}")
