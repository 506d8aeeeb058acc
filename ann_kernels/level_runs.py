"""Runs of equal or packed numbers, as Parquet pages have their levels and places in a dictionary ("RLE/bit-packing
hybrid" in the Parquet specification).

Data may be anything: no kernel reads past its end, and each says whether the numbers are there.
"""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import F32, U8, read_only
from icepuffin.ann_kernels.compilation import kernel

_MOST_BITS = 32
_GROUP = 8
"""Numbers per group of packed ones"""


@kernel
def _varint(data: U8, position: Any) -> tuple[Any, Any]:
    """(value, next position); (0, -1) where it is cut off or over 35 bits."""
    value = np.int64(0)
    for step in range(5):
        if position >= data.size:
            break
        byte = np.int64(data[position])
        position += 1
        value |= (byte & 127) << (7 * step)
        if byte < 128:
            return value, np.int64(position)
    return np.int64(0), np.int64(-1)


@kernel
def _number(data: U8, position: Any, count: int) -> Any:
    """The number in `count` bytes, little-endian."""
    value = np.int64(0)
    for i in range(count):
        value |= np.int64(data[position + i]) << (8 * i)
    return value


@kernel
def _packed(data: U8, position: Any, bits: int, place: int) -> Any:
    """The number at a place among packed ones that begin at `position`."""
    if bits == 1:
        return (np.int64(data[position + (place >> 3)]) >> (place & 7)) & 1
    bit = place * bits
    start = position + (bit >> 3)
    word = _number(data, start, min(5, data.size - start))
    return (word >> (bit & 7)) & ((np.int64(1) << bits) - 1)


@kernel
def _follows(data: U8, bits: int, first: int, count: int, period: int, at_start: int, elsewhere: int) -> bool:
    width = (bits + 7) >> 3
    position, place, phase = np.int64(0), 0, first % period
    while place < count:
        header, position = _varint(data, position)
        length = (header >> 1) * (_GROUP if header & 1 else 1)
        size = (header >> 1) * bits if header & 1 else width
        if position < 0 or not length or position + size > data.size:
            return False
        length = min(length, count - place)
        if header & 1:
            for i in range(length):
                if _packed(data, position, bits, i) != (elsewhere if phase else at_start):
                    return False
                phase = phase + 1 if phase + 1 < period else 0
        else:
            value = _number(data, position, width)
            if (phase == 0 or phase + length > period) and value != at_start:
                return False
            if period > 1 and (phase or length > 1) and value != elsewhere:
                return False
            phase = (phase + length) % period
        position += size
        place += length
    return True


@kernel
def _look_up(data: U8, bits: int, dictionary: F32, out: F32) -> bool:
    width = (bits + 7) >> 3
    position, place = np.int64(0), 0
    while place < out.size:
        header, position = _varint(data, position)
        length = (header >> 1) * (_GROUP if header & 1 else 1)
        size = (header >> 1) * bits if header & 1 else width
        if position < 0 or not length or position + size > data.size:
            return False
        length = min(length, out.size - place)
        if header & 1:
            for i in range(length):
                number = _packed(data, position, bits, i)
                if number >= dictionary.size:
                    return False
                out[place + i] = dictionary[number]
        else:
            number = _number(data, position, width)
            if number >= dictionary.size:
                return False
            out[place : place + length] = dictionary[number]
        position += size
        place += length
    return True


def are_periodic(data: U8, bits: int, first: int, count: int, period: int, at_start: int, elsewhere: int) -> bool:
    """Whether runs have `count` numbers that repeat after `period`: `at_start` at its start, and then `elsewhere`.

    data: u8[n], the runs. bits: of a number, 1 to 32. first: places in all before these. False also where the runs end
    early.
    """
    return _fits(bits) and bool(_follows(read_only(data), bits, first, count, period, at_start, elsewhere))


def look_up(data: U8, bits: int, dictionary: F32, out: F32) -> bool:
    """Fill `out` f32[count] with the values of a dictionary f32[m] at the numbers that runs have.

    data: u8[n], the runs. bits: of a number, 1 to 32. False where the runs end early, or a number is not below m; then
    `out` is filled in part.
    """
    return _fits(bits) and bool(_look_up(read_only(data), bits, read_only(dictionary), out))


def _fits(bits: int) -> bool:
    return 1 <= bits <= _MOST_BITS
