"""How long a catalog may take to connect, and to answer."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CONNECT_SECONDS = 5
ANSWER_SECONDS = 60
_LIMIT: ContextVar[float] = ContextVar("limit", default=math.inf)


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Limit how long a REST catalog may take within the block to connect, and to answer each request."""
    token = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def request_limits() -> tuple[float, float]:
    """Seconds in which a request must connect, and in which it must be answered."""
    return min(CONNECT_SECONDS, _LIMIT.get()), min(ANSWER_SECONDS, _LIMIT.get())
