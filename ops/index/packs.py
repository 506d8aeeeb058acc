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
"""Packs of one version. The ones with the fewest bytes in use are written into a new one."""
_LEAST_USE = 0.5
"""Share of a pack's bytes that a version must use; else what it uses is written to a new pack or to the file"""


def is_pack(size: int, shared_bytes: int = 0) -> bool:
    """Whether so many bytes are worth a pack of their own, in a version that shares `shared_bytes`."""
    return size >= (min(PACK_BYTES, WORTH_SHARE * shared_bytes) if shared_bytes else PACK_BYTES)


def packs_to_share(version: DerivedVersion, kept: Iterable[ObjectRange]) -> tuple[BoundPack, ...]:
    """Packs of the base version that the new one shares, of those that the `kept` bytes lie in."""
    used_bytes = Counter[str]()
    for place in kept:
        used_bytes[place.path] += place.length
    full = [pack for pack in version.packs if pack.is_kept and used_bytes[pack.path] >= max(1, _LEAST_USE * pack.size)]
    fullest = sorted(full, key=lambda pack: -used_bytes[pack.path])[: MAX_PACKS - 1]  # the sort is stable
    return tuple(pack for pack in full if pack in fullest)


def pack_number(place: ObjectRange, packs: Sequence[BoundPack]) -> int:
    """Number, from 1, of the pack among `packs` that bytes lie in; 0 where they lie in none."""
    paths = [pack.path for pack in packs]
    return paths.index(place.path) + 1 if place.path in paths else 0
