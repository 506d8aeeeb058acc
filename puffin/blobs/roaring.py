"""Reading portable Roaring bitmaps out of hostile bytes: one pass, every length checked before it is used.

CRoaring finds malformed bitmaps too, but not the offset, needs the end of each, and puts no limit on
what a few bytes of runs may expand to: hence this one.
Source: RoaringFormatSpec, with Iceberg's 64-bit extension (u64 count, u32 key before each).
"""

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs.cursor import Cursor
from icepuffin.puffin.errors import BadBlobError

MAX_POSITIONS = 1 << 27
"""Values that one bitmap may expand to (1 GiB of int64): a run of 4 bytes stands for 65,536."""

_COOKIE_PLAIN = 12346
_COOKIE_WITH_RUNS = 12347
_NO_OFFSET_THRESHOLD = 4
_MAX_ARRAY = 4096
_MAX_CONTAINERS = 65536
_BITSET_BYTES = 8192

Values = npt.NDArray[np.uint64]


def decode_roaring64(data: bytes, *, max_values: int = MAX_POSITIONS) -> Values:
    """Values u64 ascending of a 64-bit bitmap; every byte must be used. Raises BadBlobError, saying where."""
    bitmaps = Cursor(data, "Roaring bitmaps")
    (count,) = bitmaps.unpack("Q", "their number")
    last_key = -1
    parts = [np.empty(0, np.uint64)]
    values_left = max_values
    for number in range(count):
        (key,) = bitmaps.unpack("I", "a key")
        if key <= last_key:
            raise BadBlobError(f"Roaring bitmap {number}: key {key} after {last_key}")
        for values in _decode_roaring32(bitmaps, values_left):
            parts.append(values | np.uint64(key << 32))
            values_left -= len(values)
        last_key = key
    bitmaps.finish()
    return np.concatenate(parts)


def _fault(source: Cursor, problem: str) -> BadBlobError:
    return BadBlobError(f"Roaring bitmap, before byte {source.position}: {problem}")


def _decode_roaring32(source: Cursor, max_values: int) -> list[Values]:
    """The values of each container of the 32-bit bitmap at the position."""
    (cookie,) = source.unpack("I", "a head")
    runs = b""
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = bytes(source.take((count + 7) // 8, "flags of runs"))
    elif cookie == _COOKIE_PLAIN:
        (count,) = source.unpack("I", "a head")
    else:
        raise _fault(source, f"cookie {cookie:#x} is unknown")
    if count > _MAX_CONTAINERS:
        raise _fault(source, f"{count} containers, there are at most {_MAX_CONTAINERS}")
    heads = source.array("<u2", 2 * count, "keys").astype(np.int64).reshape(count, 2)
    if (heads[1:, 0] <= heads[:-1, 0]).any():
        raise _fault(source, "container keys do not ascend")
    cards = heads[:, 1] + 1
    if cards.sum() > max_values:
        raise _fault(source, f"{int(cards.sum()):,} values, over the limit of {max_values:,}")
    if not runs or count >= _NO_OFFSET_THRESHOLD:
        source.take(4 * count, "offsets")  # containers follow each other, so they say nothing new
    out = []
    for number, (key, card) in enumerate(zip(heads[:, 0].tolist(), cards.tolist(), strict=True)):
        is_run = bool(runs and runs[number // 8] >> (number % 8) & 1)
        low = _runs(source) if is_run else _bitset(source) if card > _MAX_ARRAY else _array(source, card)
        if len(low) != card:
            raise _fault(source, f"container {number} declares {card} values and holds {len(low)}")
        out.append(low.astype(np.uint64) | np.uint64(key << 16))
    return out


def _array(source: Cursor, card: int) -> npt.NDArray[np.int64]:
    low = source.array("<u2", card, "values").astype(np.int64)
    if (low[1:] <= low[:-1]).any():
        raise _fault(source, "array values do not ascend")
    return low


def _bitset(source: Cursor) -> npt.NDArray[np.int64]:
    bits = np.unpackbits(source.array("u1", _BITSET_BYTES, "a bitset"), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64)


def _runs(source: Cursor) -> npt.NDArray[np.int64]:
    (count,) = source.unpack("H", "runs")
    pairs = source.array("<u2", 2 * count, "runs").astype(np.int64).reshape(count, 2)
    starts, lengths = pairs[:, 0], pairs[:, 1] + 1
    ends = starts + lengths
    if (starts[1:] < ends[:-1]).any() or (ends > 1 << 16).any():
        raise _fault(source, "runs overlap, do not ascend, or leave their container")
    skipped = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1]))[:count], lengths)
    return np.arange(len(skipped), dtype=np.int64) + skipped
