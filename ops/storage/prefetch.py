"""Many ranges of one stored object: planned into few requests, which a store answers side by side."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from icepuffin.ops.storage.base import ObjectSource, Storage

GAP = 1 << 20
"""Bytes between two ranges that are cheaper to read than another request"""
_LONGEST = 8 << 20
"""Of one request, but for a single range that is longer: more than one is under way then"""


def coalesced(ranges: Iterable[tuple[int, int]], *, longest: int | None = None) -> list[tuple[int, int]]:
    """(offset, length) of few ranges that hold all of `ranges`, ascending; none is made longer than `longest`."""
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if merged:
            start, size = merged[-1]
            end = max(start + size, offset + length)
            if offset - (start + size) <= GAP and (longest is None or end - start <= longest):
                merged[-1] = (start, end - start)
                continue
        merged.append((offset, length))
    return merged


class PrefetchedSource(ObjectSource):
    """A stored object as a range source, of which `fetch` holds some ranges. Not to be shared between threads."""

    def __init__(self, storage: Storage, path: str) -> None:
        super().__init__(storage, path)
        self._held: list[tuple[int, bytes]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Hold these (offset, length), in place of what was held before. Raises what the store raises."""
        self._held = []
        planned = coalesced(ranges, longest=_LONGEST)
        data = self._storage.read_ranges(self._path, planned)
        self._held = [(offset, piece) for (offset, _), piece in zip(planned, data, strict=True)]

    def read_range(self, offset: int, length: int) -> bytes:
        at = bisect_right(self._held, offset, key=lambda piece: piece[0]) - 1
        if at >= 0:
            start, data = self._held[at]
            if offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return super().read_range(offset, length)
