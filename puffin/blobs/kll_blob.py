"""Blob `presto-kll-sketch-bytes-v1`: the image of a KLL sketch of 64-bit integers or of doubles.

Little-endian: u8 preamble ints, u8 serial version, u8 family 15, u8 flags (1 empty, 2 level 0 is sorted, 4 one value),
u16 k, u8 m = 8, u8 0. Then nothing (2 preamble ints, version 1: empty), or the one value (2, version 2), or (5,
version 1) i64 count, u16 least k, u8 levels, u8 0, u32 offset of each level, smallest value, largest value, and the
items, level 0 first. Offsets count items from the start of an array that is filled from its end, whose length is the
capacity of so many levels. Source: `KllPreambleUtil` of datasketches-java, whose `KllItemsSketch` with the serializers
of Long or Double arrays it is; datasketches-cpp writes the same.

What the values are does not stand in the image. Read: what is written here, by Java and by C++; none of sketches of
several k, and none that Java calls updatable.
"""

import struct

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.sketches.kll import MAX_K, MAX_LEVELS, MIN_CAPACITY, KllSketch, capacity
from icepuffin.puffin.errors import BadBlobError

_FAMILY = 15
_EMPTY, _SORTED, _SINGLE = 1, 2, 4
_HEAD = 8
_FULL_HEAD = 20
_FORMS = {(2, 1): "empty", (2, 2): "single", (5, 1): "full"}
"""Forms by preamble ints and serial version"""


def encode(sketch: KllSketch) -> bytes:
    """The image of a sketch, as Java's `KllItemsSketch.toByteArray` gives it for the same items."""
    values = np.concatenate(sketch.levels).astype(sketch.levels[0].dtype.newbyteorder("<"), copy=False)
    if sketch.count < 2:
        form = (2, 2, _FAMILY, _SORTED | _SINGLE) if sketch.count else (2, 1, _FAMILY, _EMPTY)
        return struct.pack("<BBBBHBB", *form, sketch.k, MIN_CAPACITY, 0) + values.tobytes()
    levels = len(sketch.levels)
    sizes = [len(level) for level in sketch.levels]
    offsets = capacity(sketch.k, levels) - len(values) + np.cumsum([0, *sizes[:-1]])
    head = struct.pack(
        "<BBBBHBBqHBB", 5, 1, _FAMILY, _SORTED, sketch.k, MIN_CAPACITY, 0, sketch.count, sketch.k, levels, 0
    )
    ends = np.array([sketch.minimum, sketch.maximum], values.dtype)
    return head + offsets.astype("<u4").tobytes() + ends.tobytes() + values.tobytes()


def decode(image: bytes | bytearray | memoryview, is_float: bool) -> KllSketch:
    """Read an image of doubles or of 64-bit integers. Raises BadBlobError on anything else, hostile bytes included."""
    data = memoryview(image).cast("B")
    if len(data) < _HEAD:
        raise BadBlobError(f"a KLL sketch has at least {_HEAD} bytes, these are {len(data)}")
    ints, version, family, flags, k, least, _ = struct.unpack_from("<BBBBHBB", data)
    form = _FORMS.get((ints, version))
    if family != _FAMILY:
        raise BadBlobError(f"byte 2: family {family} is no KLL sketch, which is {_FAMILY}")
    if form is None:
        raise BadBlobError(f"bytes 0-1: {ints} preamble ints, serial version {version} are not read, only {_FORMS}")
    if (form == "empty") != bool(flags & _EMPTY):
        raise BadBlobError(f"byte 3: flags {flags:#x} in an image whose form is {form}")
    if least != MIN_CAPACITY or not MIN_CAPACITY <= k <= MAX_K:
        raise BadBlobError(f"bytes 4-6: k {k}, m {least}; k is {MIN_CAPACITY} to {MAX_K}, m {MIN_CAPACITY}")
    dtype = "<f8" if is_float else "<i8"
    if form == "full":
        return _full(data, k, dtype, ordered=bool(flags & _SORTED))
    values = _items(data, _HEAD, 1 if form == "single" else 0, dtype)
    lowest = values[0].item() if len(values) else None
    return _checked(KllSketch(k, len(values), lowest, lowest, (values,)))


def _items(data: memoryview, start: int, count: int, dtype: str) -> npt.NDArray[np.generic]:
    if len(data) != start + 8 * count:
        raise BadBlobError(f"{count} values from byte {start} on need {start + 8 * count} bytes, these are {len(data)}")
    return np.frombuffer(data, dtype, count, start).astype(dtype[1:])


def _full(data: memoryview, k: int, dtype: str, *, ordered: bool) -> KllSketch:
    if len(data) < _FULL_HEAD:
        raise BadBlobError(f"this form has at least {_FULL_HEAD} bytes, these are {len(data)}")
    count, least_k, levels, _ = struct.unpack_from("<qHBB", data, _HEAD)
    start = _FULL_HEAD + 4 * levels
    if least_k != k:
        raise BadBlobError(f"bytes 16-17: a sketch of k {k} into which one of k {least_k} was merged is not read")
    if not 1 <= levels <= MAX_LEVELS or len(data) < start:
        raise BadBlobError(f"byte 18: {levels} levels in {len(data)} bytes; there are 1 to {MAX_LEVELS}")
    room = capacity(k, levels)
    offsets = np.append(np.frombuffer(data, "<u4", levels, _FULL_HEAD).astype(np.int64), room)
    if bool(np.any(offsets[1:] < offsets[:-1])):
        raise BadBlobError(f"byte {_FULL_HEAD}: offsets {offsets.tolist()}, the last the capacity, do not ascend")
    values = _items(data, start, 2 + room - int(offsets[0]), dtype)
    lowest, highest = (value.item() for value in values[:2])
    parts = np.split(values[2:], offsets[1:-1] - offsets[0])
    if not ordered:
        parts[0] = np.sort(parts[0])
    return _checked(KllSketch(k, count, lowest, highest, tuple(parts)))


def _checked(sketch: KllSketch) -> KllSketch:
    weight = sum(len(level) << i for i, level in enumerate(sketch.levels))
    if weight != sketch.count or (weight == 0) != (sketch.minimum is None):
        raise BadBlobError(f"the items stand for {weight} values, the image says {sketch.count}")
    for number, level in enumerate(sketch.levels):
        inside = len(level) == 0 or bool(level[0] >= sketch.minimum and level[-1] <= sketch.maximum)
        if not inside or bool(np.any(~(level[1:] >= level[:-1]))):  # no comparison with NaN holds
            raise BadBlobError(f"level {number} does not ascend from the smallest value to the largest")
    return sketch
