"""How errors end a run."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from icepuffin.ops.errors import IcepuffinError


@contextmanager
def no_vain_retries() -> Iterator[None]:
    """An error that would come again, such as a missed recall target, fails the step without the policy's retries."""
    try:
        yield
    except IcepuffinError as error:
        if error.retryable:
            raise
        raise dg.Failure(str(error), allow_retries=False) from error
