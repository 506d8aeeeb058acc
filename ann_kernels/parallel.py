"""The same work on many parts, by several threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def for_each(work: Callable[[T], object], parts: Iterable[T], *, threads: int) -> None:
    """Call `work` with each part; raises the first error that a call raises.

    One thread is the caller's own: a process that ends, which waits for its threads, gives them no new ones.
    """
    if threads <= 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(threads) as executor:
        for _ in executor.map(work, parts):
            pass
