"""Pieces in groups that one blob has room for."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

P = TypeVar("P")


def blob_groups(pieces: Iterable[P], length_of: Callable[[P], int], most: int) -> Iterator[tuple[P, ...]]:
    """All pieces in order, as many at a time as have `most` bytes together; one alone may have more."""
    group, size = list[P](), 0
    for piece in pieces:
        if group and size + length_of(piece) > most:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += length_of(piece)
    if group:
        yield tuple(group)
