"""Packs of file sketches: files that several versions share. See docs/concepts.md.

A version names packs of the one before instead of copying them, and has its other sketches in a file of its own. Once
those are worth it they become a pack, merged with all that are no larger, where there would be too many: each sketch is
copied a few times, the more seldom the longer it stays (a log-structured merge tree with tiers, O'Neil et al. 1996).
What is shared follows from lengths alone, so that equal versions are equal to the byte.

A version is a snapshot in the table's metadata, for good or until it is expired. So few small files that were only
added are left to a later version, and are read once more then.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

PACK_BYTES = 256 * 1024
"""Bytes of sketches that are worth a pack. Fewer lie in the version's own file, and the next version copies them."""
FEW_FILES = 8
FEW_VALUES = 1 << 20
"""Data files and values, rows times columns, that take no longer to be read again than a commit does"""
_CLASS = 8
"""Ratio of the sizes of two classes, a power of two; packs of one class and below are fewer than this"""
_MIN_PART_IN_USE = 0.5
"""Share of a pack's bytes that a version must use; else its sketches are copied"""

_Pack = TypeVar("_Pack", bound=Hashable)


def are_few(values: Collection[int]) -> bool:
    """Whether data files are so few that no version is worth keeping their sketches. values: those of each file."""
    return len(values) <= FEW_FILES and sum(values) <= FEW_VALUES


def packs_to_share(used_bytes: Mapping[_Pack, tuple[int, int]], other_bytes: int) -> tuple[Sequence[_Pack], bool]:
    """(packs to share, whether all other sketches become a pack).

    used_bytes: (bytes of the sketches in use, bytes of all its sketches) of each pack. other_bytes: bytes of sketches
    that are in none.
    """
    shared = {pack: size for pack, (size, total) in used_bytes.items() if size >= max(1, _MIN_PART_IN_USE * total)}
    other_bytes += sum(size for pack, (size, _) in used_bytes.items() if pack not in shared)
    if other_bytes < PACK_BYTES:
        return tuple(shared), False
    while True:
        size_class = _size_class(other_bytes)
        similar = [pack for pack, size in shared.items() if _size_class(size) <= size_class]
        if len(similar) < _CLASS - 1:
            return tuple(shared), True
        other_bytes += sum(shared.pop(pack) for pack in similar)


def _size_class(length: int) -> int:
    return max(0, (length // PACK_BYTES).bit_length() - 1) // (_CLASS.bit_length() - 1)
