"""Errors that nobody foresaw, from the metadata of one of several tables: they cost that table alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from icepuffin.ops.errors import IcepuffinError


class TableFaultError(IcepuffinError):
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
