"""Reading portable Roaring bitmaps out of hostile bytes: one pass, every length checked before it is used.

CRoaring finds malformed bitmaps too, but not the offset, needs the end of each, and puts no limit on
what a few bytes of runs may expand to: hence this one.
Source: RoaringFormatSpec, with Iceberg's 64-bit extension (u64 count, u32 key before each).
"""

import struct

import numpy as np
import numpy.typing as npt

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
    bitmaps = _Bytes(data)
    (count,) = bitmaps.unpack("<Q")
    last_key = -1
    parts = [np.empty(0, np.uint64)]
    values_left = max_values
    for number in range(count):
        (key,) = bitmaps.unpack("<I")
        if key <= last_key:
            raise BadBlobError(f"Roaring bitmap {number}: key {key} after {last_key}")
        for values in _decode_roaring32(bitmaps, values_left):
            parts.append(values | np.uint64(key << 32))
            values_left -= len(values)
        last_key = key
    if bitmaps.offset != len(data):
        raise BadBlobError(f"{len(data) - bitmaps.offset} bytes follow the last of {count} Roaring bitmaps")
    return np.concatenate(parts)


class _Bytes:
    """A position in bytes that is never moved past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.offset = 0

    def take(self, length: int) -> memoryview:
        if self.offset + length > len(self._data):
            raise BadBlobError(f"Roaring bitmap is cut off: {length} bytes at {self.offset} of {len(self._data)}")
        self.offset += length
        return self._data[self.offset - length : self.offset]

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def fail(self, problem: str) -> BadBlobError:
        return BadBlobError(f"Roaring bitmap, before byte {self.offset}: {problem}")


def _decode_roaring32(source: _Bytes, max_values: int) -> list[Values]:
    """The values of each container of the 32-bit bitmap at the position."""
    (cookie,) = source.unpack("<I")
    runs = b""
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = bytes(source.take((count + 7) // 8))
    elif cookie == _COOKIE_PLAIN:
        (count,) = source.unpack("<I")
    else:
        raise source.fail(f"cookie {cookie:#x} is unknown")
    if count > _MAX_CONTAINERS:
        raise source.fail(f"{count} containers, there are at most {_MAX_CONTAINERS}")
    heads = np.frombuffer(source.take(4 * count), "<u2").astype(np.int64).reshape(count, 2)
    if (heads[1:, 0] <= heads[:-1, 0]).any():
        raise source.fail("container keys do not ascend")
    cards = heads[:, 1] + 1
    if cards.sum() > max_values:
        raise source.fail(f"{int(cards.sum()):,} values, over the limit of {max_values:,}")
    if not runs or count >= _NO_OFFSET_THRESHOLD:
        source.take(4 * count)  # offsets: containers follow each other, so they say nothing new
    out = []
    for number, (key, card) in enumerate(zip(heads[:, 0].tolist(), cards.tolist(), strict=True)):
        is_run = bool(runs and runs[number // 8] >> (number % 8) & 1)
        low = _runs(source) if is_run else _bitset(source) if card > _MAX_ARRAY else _array(source, card)
        if len(low) != card:
            raise source.fail(f"container {number} declares {card} values and holds {len(low)}")
        out.append(low.astype(np.uint64) | np.uint64(key << 16))
    return out


def _array(source: _Bytes, card: int) -> npt.NDArray[np.int64]:
    low = np.frombuffer(source.take(2 * card), "<u2").astype(np.int64)
    if (low[1:] <= low[:-1]).any():
        raise source.fail("array values do not ascend")
    return low


def _bitset(source: _Bytes) -> npt.NDArray[np.int64]:
    bits = np.unpackbits(np.frombuffer(source.take(_BITSET_BYTES), np.uint8), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64)


def _runs(source: _Bytes) -> npt.NDArray[np.int64]:
    (count,) = source.unpack("<H")
    pairs = np.frombuffer(source.take(4 * count), "<u2").astype(np.int64).reshape(count, 2)
    starts, lengths = pairs[:, 0], pairs[:, 1] + 1
    ends = starts + lengths
    if (starts[1:] < ends[:-1]).any() or (ends > 1 << 16).any():
        raise source.fail("runs overlap, do not ascend, or leave their container")
    skipped = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1]))[:count], lengths)
    return np.arange(len(skipped), dtype=np.int64) + skipped
