"""Reads of many ranges of one object, planned into few requests that a store answers in parallel."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from icepuffin.ops.storage.base import ObjectSource, Storage

GAP = 1 << 20
"""Largest gap, in bytes, that is cheaper to read than to skip with another request"""
_LONGEST = 8 << 20
"""Largest request in bytes, except for a single longer range; several smaller ones run in parallel"""


def coalesced(
    ranges: Iterable[tuple[int, int]], *, longest: int | None = None, gap: int = GAP
) -> list[tuple[int, int]]:
    """(offset, length) of few ranges that hold all of `ranges`, ascending; none is made longer than `longest`, or over
    a gap of more than `gap` bytes.
    """
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if merged:
            start, size = merged[-1]
            end = max(start + size, offset + length)
            if offset - (start + size) <= gap and (longest is None or end - start <= longest):
                merged[-1] = (start, end - start)
                continue
        merged.append((offset, length))
    return merged


class PrefetchedSource(ObjectSource):
    """A stored object as a range source, with ranges that `fetch` reads ahead. Not to be shared between threads.

    `size`: its bytes, where they are known.
    """

    def __init__(self, storage: Storage, path: str, *, size: int | None = None) -> None:
        super().__init__(storage, path)
        self._size = size
        self._pieces: list[tuple[int, bytes]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges (offset, length), in place of those fetched before. Raises what the store raises."""
        self._pieces = []
        planned = coalesced(ranges, longest=_LONGEST)
        data = self._storage.read_ranges(self._path, planned)
        self._pieces = [(offset, piece) for (offset, _), piece in zip(planned, data, strict=True)]

    def read_range(self, offset: int, length: int) -> bytes:
        index = bisect_right(self._pieces, offset, key=lambda piece: piece[0]) - 1
        if index >= 0:
            start, data = self._pieces[index]
            if offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return super().read_range(offset, length)
