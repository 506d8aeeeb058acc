"""Errors that end a run at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from icepuffin.ops.errors import IcepuffinError


@contextmanager
def no_vain_retries() -> Iterator[None]:
    """Fail the step without retries for an error that would occur again, such as a missed recall target."""
    try:
        yield
    except IcepuffinError as error:
        if error.retryable:
            raise
        raise dg.Failure(str(error), allow_retries=False) from error
