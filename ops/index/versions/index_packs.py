"""Packs: files of shards, and of the values of included columns, that several versions of an index share. See
docs/concepts.md.

A version names the bytes that it has in common with its base version, instead of copying them. Which ones, and which
others go to a new pack, follows from lengths alone, so that equal versions are equal to the byte.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from icepuffin.ops.binding.bound_versions import BoundPack, DerivedVersion
from icepuffin.ops.model import ObjectRange
from icepuffin.ops.storage.multipart import S3_LIMITS, part_share

PACK_BYTES = 64 * 1024**2
"""Bytes that are worth a pack. Fewer lie in the version's own file, and the next version copies them."""
WORTH_SHARE = 1 / 128
"""Fraction of the bytes that a version shares from which others are worth a new pack"""
MAX_PACKS = 32
"""Packs of one version that are worth merging"""
MAX_PACK_BYTES = 2**40
"""Bytes of one new pack, about, at most: S3 and GCS take objects of 5 TiB"""
MAX_PACK_PARTS = 4000
"""Parts that one new pack is uploaded in, at most: S3 takes 10,000, and later ones would be large in memory"""
MAX_SHARDS = MAX_PACKS // 2 * MAX_PACK_PARTS // 2
"""Shards of a build, at most: of two parts each, they fill half as many packs as a version may have"""
_MERGED_PART = 8
"""Part of the packs that are written into the new one where there would be more: an eighth, those with the fewest bytes
in use. Of 100 versions that add as much each, merging one at a time would copy 111 times that, and four at a time 68
times: packs grow as they are merged.
"""
_MIN_USE = 0.5
"""Share of the bytes of its packs that a version must use"""


class _Blob(Protocol):
    """A blob, and where its bytes lie now."""

    @property
    def sources(self) -> tuple[ObjectRange, ...]: ...


B = TypeVar("B", bound=_Blob)


def divided(blobs: Iterable[B]) -> list[list[B]]:
    """The blobs of each new pack, in order. More blobs behind them change no pack but the last."""
    packs: list[list[B]] = []
    size, parts = 0, 0.0
    for blob in blobs:
        own_size = sum(source.length for source in blob.sources)
        own_parts = sum(part_share(source.length, S3_LIMITS) for source in blob.sources)
        size, parts = size + own_size, parts + own_parts
        if not packs or size > MAX_PACK_BYTES or parts > MAX_PACK_PARTS:
            packs.append([])
            size, parts = own_size, own_parts
        packs[-1].append(blob)
    return packs


def is_pack(size: int, shared_bytes: int = 0) -> bool:
    """Whether so many bytes are worth a pack of their own, in a version that shares `shared_bytes`."""
    return size >= (min(PACK_BYTES, WORTH_SHARE * shared_bytes) if shared_bytes else PACK_BYTES)


def packs_to_share(version: DerivedVersion, kept: Iterable[ObjectRange]) -> tuple[BoundPack, ...]:
    """Packs of the base version that the new one shares, of those that the `kept` bytes lie in.

    They are used by half, all together. So vectors stay beside graphs that were written again since.
    """
    used_bytes = Counter[str]()
    for location in kept:
        used_bytes[location.path] += location.length
    in_use = [pack for pack in version.packs if pack.is_kept and used_bytes[pack.path]]
    shared = sorted(in_use, key=lambda pack: used_bytes[pack.path] / pack.size)  # sorts are stable
    while sum(used_bytes[pack.path] for pack in shared) < _MIN_USE * sum(pack.size for pack in shared):
        del shared[0]
    # two that are larger would not fit into one
    small = [pack for pack in shared if used_bytes[pack.path] <= MAX_PACK_BYTES // 2]
    if len(small) >= MAX_PACKS:
        small.sort(key=lambda pack: -used_bytes[pack.path])
        merged = small[MAX_PACKS - max(1, MAX_PACKS // _MERGED_PART) :]
        shared = [pack for pack in shared if pack not in merged]
    return tuple(pack for pack in version.packs if pack in shared)


def pack_number(location: ObjectRange, packs: Sequence[BoundPack]) -> int:
    """Number, from 1, of the pack among `packs` that bytes lie in; 0 where they lie in none."""
    paths = [pack.path for pack in packs]
    return paths.index(location.path) + 1 if location.path in paths else 0
