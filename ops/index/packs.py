"""Packs: files of shards, and of the values of included columns, that several versions of an index share. See
docs/concepts.md.

A version names the bytes that it has in common with its base version, instead of copying them. Which ones, and which
others go to a new pack, follows from lengths alone, so that equal versions are equal to the byte.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from icepuffin.ops.catalog.bound_versions import BoundPack, DerivedVersion
from icepuffin.ops.model import ObjectRange

PACK_BYTES = 64 * 1024**2
"""Bytes that are worth a pack. Fewer lie in the version's own file, and the next version copies them."""
WORTH_SHARE = 1 / 128
"""Fraction of the bytes that a version shares from which others are worth a new pack"""
MAX_PACKS = 32
"""Packs of one version"""
_MERGED_PART = 8
"""Part of the packs that are written into the new one where there would be more: an eighth, those with the fewest bytes
in use. Of 100 versions that add as much each, merging one at a time would copy 111 times that, and four at a time 68
times: packs grow as they are merged.
"""
_LEAST_USE = 0.5
"""Share of the bytes of its packs that a version must use"""


def is_pack(size: int, shared_bytes: int = 0) -> bool:
    """Whether so many bytes are worth a pack of their own, in a version that shares `shared_bytes`."""
    return size >= (min(PACK_BYTES, WORTH_SHARE * shared_bytes) if shared_bytes else PACK_BYTES)


def packs_to_share(version: DerivedVersion, kept: Iterable[ObjectRange]) -> tuple[BoundPack, ...]:
    """Packs of the base version that the new one shares, of those that the `kept` bytes lie in.

    They are used by half, all together. So vectors stay beside graphs that were written again since.
    """
    used_bytes = Counter[str]()
    for place in kept:
        used_bytes[place.path] += place.length
    in_use = [pack for pack in version.packs if pack.is_kept and used_bytes[pack.path]]
    shared = sorted(in_use, key=lambda pack: used_bytes[pack.path] / pack.size)  # sorts are stable
    while sum(used_bytes[pack.path] for pack in shared) < _LEAST_USE * sum(pack.size for pack in shared):
        del shared[0]
    if len(shared) >= MAX_PACKS:
        shared.sort(key=lambda pack: -used_bytes[pack.path])
        del shared[MAX_PACKS - max(1, MAX_PACKS // _MERGED_PART) :]
    return tuple(pack for pack in version.packs if pack in shared)


def pack_number(place: ObjectRange, packs: Sequence[BoundPack]) -> int:
    """Number, from 1, of the pack among `packs` that bytes lie in; 0 where they lie in none."""
    paths = [pack.path for pack in packs]
    return paths.index(place.path) + 1 if place.path in paths else 0
