"""How long tests wait for what other threads and processes do: a busy machine is no failure."""

import time
from collections.abc import Callable

PATIENCE = 600
"""Seconds after which what a test waits for counts as lost"""


def until(happened: Callable[[], bool]) -> None:
    """Wait for what gives no event."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)
