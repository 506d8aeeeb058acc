"""Plans of reads of many ranges of one object, by few requests that a store answers in parallel."""

from collections.abc import Iterable

GAP = 1 << 20
"""Largest gap, in bytes, that is cheaper to read than to skip with another request"""


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
