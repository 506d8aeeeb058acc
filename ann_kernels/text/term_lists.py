"""Lists of the rows that have a term, with how often each has it: made of the terms of rows, packed, and unpacked.

A packed list is blocks of up to 128 rows: one byte with the bits of a row's step from the one before, one with those of
a count, then the steps less one and the counts less one, least bits first, both filled up to a byte.
"""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import I32, I64, U8, U32, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.errors import KernelError

_BLOCK = 128
_WIDEST = 32
"""Bits of a step or of a count, at most"""


@kernel
def _invert(terms: I32, row_ends: I64, starts: I64, rows: U32, counts: U32) -> None:
    """`starts` int64[T + 1] is filled with numbers of rows before those of each term; then rows and counts."""
    number = starts.shape[0] - 1
    last = np.full(number, -1, np.int64)
    place = np.zeros(number, np.int64)
    for fills in range(2):
        begin = np.int64(0)
        for row in range(row_ends.shape[0]):
            for i in range(begin, row_ends[row]):
                term = terms[i]
                if term < 0:
                    continue
                if last[term] != row:
                    last[term] = row
                    if fills:
                        rows[place[term]] = row
                        counts[place[term]] = 1
                    place[term] += 1
                elif fills:
                    counts[place[term] - 1] += np.uint32(1)
            begin = row_ends[row]
        if not fills:
            for term in range(number):
                starts[term + 1] = starts[term] + place[term]
                place[term] = starts[term]
                last[term] = -1


def invert(terms: I32, row_ends: I64, number: int) -> tuple[I64, U32, U32]:
    """The rows of each of `number` terms: (starts int64[number + 1], rows u32[n] ascending per term, counts u32[n]).

    `terms` int32[words] of all rows in order, -1 for none; `row_ends` int64[N]: words before the end of each row.
    """
    if len(terms) and (terms.min() < -1 or terms.max() >= number):
        raise KernelError(f"terms {terms.min()} to {terms.max()} are not among {number}")
    if len(row_ends) and (row_ends[0] < 0 or (np.diff(row_ends) < 0).any() or row_ends[-1] > len(terms)):
        raise KernelError(f"ends of rows must ascend within {len(terms)} words")
    starts = np.zeros(number + 1, np.int64)
    room = np.empty(len(terms), np.uint32), np.empty(len(terms), np.uint32)
    _invert(read_only(terms), read_only(row_ends), starts, *room)
    rows, counts = (array[: starts[-1]] for array in room)
    return starts, rows, counts


@inline_kernel
def _pack_bits(values: Any, count: Any, width: Any, out: Any, at: Any) -> Any:
    """Write numbers of `width` bits. Returns the place behind them."""
    word, have = np.uint64(0), np.int64(0)
    for i in range(count):
        word |= np.uint64(values[i]) << np.uint64(have)
        have += width
        while have >= 8:
            out[at] = np.uint8(word & np.uint64(0xFF))
            at += 1
            word >>= np.uint64(8)
            have -= 8
    if have > 0:
        out[at] = np.uint8(word & np.uint64(0xFF))
        at += 1
    return at


@inline_kernel
def _width(value: Any) -> Any:
    width = np.int64(0)
    while value > 0:
        width += 1
        value >>= np.uint32(1)
    return width


@kernel
def _pack(order: I64, starts: I64, rows: U32, counts: U32, out: U8, ends: I64) -> None:
    steps, more = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    at = np.int64(0)
    for n in range(order.shape[0]):
        before = np.int64(-1)
        for first in range(starts[order[n]], starts[order[n] + 1], _BLOCK):
            size = min(np.int64(_BLOCK), starts[order[n] + 1] - first)
            every_step, every_count = np.uint32(0), np.uint32(0)
            for i in range(size):
                steps[i] = np.uint32(np.int64(rows[first + i]) - before - 1)
                before = np.int64(rows[first + i])
                more[i] = counts[first + i] - np.uint32(1)
                every_step |= steps[i]
                every_count |= more[i]
            out[at], out[at + 1] = _width(every_step), _width(every_count)
            after = _pack_bits(steps, size, np.int64(out[at]), out, at + 2)
            at = _pack_bits(more, size, np.int64(out[at + 1]), out, after)
        ends[n] = at


def pack(order: I64, starts: I64, rows: U32, counts: U32) -> tuple[U8, I64]:
    """(packed lists of terms in an order int64[T], bytes before the end of each int64[T]), of what `invert` gives."""
    blocks = int((-(-np.diff(starts) // _BLOCK)).sum())
    out, ends = np.empty(blocks * 4 + 8 * len(rows), np.uint8), np.empty(len(order), np.int64)
    _pack(read_only(order), read_only(starts), read_only(rows), read_only(counts), out, ends)
    return out[: ends[-1] if len(ends) else 0], ends


@inline_kernel
def _unpack_bits(data: Any, at: Any, count: Any, width: Any, out: Any) -> None:
    """Read numbers of `width` bits; the caller knows that all lie within the data."""
    word, have, mask = np.uint64(0), np.int64(0), np.uint64((np.int64(1) << width) - 1)
    for i in range(count):
        while have < width:
            word |= np.uint64(data[at]) << np.uint64(have)
            at += 1
            have += 8
        out[i] = np.uint32(word & mask)
        word >>= np.uint64(width)
        have -= width


@kernel
def _unpack(data: U8, limit: Any, rows: U32, counts: U32) -> Any:
    """Whether the data are a list of so many rows under `limit`, and nothing else."""
    at, last = np.int64(0), np.int64(-1)
    for first in range(np.int64(0), rows.shape[0], _BLOCK):
        size = min(np.int64(_BLOCK), rows.shape[0] - first)
        if at + 2 > data.shape[0]:
            return False
        step_bits, count_bits = np.int64(data[at]), np.int64(data[at + 1])
        of_steps, of_counts = (size * step_bits + 7) >> 3, (size * count_bits + 7) >> 3
        at += 2
        if step_bits > _WIDEST or count_bits > _WIDEST or at + of_steps + of_counts > data.shape[0]:
            return False
        _unpack_bits(data, at, size, step_bits, rows[first : first + size])
        _unpack_bits(data, at + of_steps, size, count_bits, counts[first : first + size])
        at += of_steps + of_counts
        for i in range(first, first + size):
            last += np.int64(rows[i]) + 1
            if last >= limit or counts[i] == 0xFFFFFFFF:
                return False
            rows[i] = last
            counts[i] += np.uint32(1)
    return at == data.shape[0]


def unpack(data: U8, count: int, limit: int) -> tuple[U32, U32]:
    """(rows u32[count] ascending, under `limit`; how often each has the term u32[count]) of a packed list.

    Raises KernelError where the data are no such list.
    """
    if count > (_BLOCK // 2) * len(data):  # a block has two bytes at least
        raise KernelError(f"a list of {len(data)} bytes cannot have {count} rows")
    rows, counts = np.empty(count, np.uint32), np.empty(count, np.uint32)
    if not _unpack(read_only(data), np.int64(limit), rows, counts):
        raise KernelError(f"{len(data)} bytes are no list of {count} among {limit} rows")
    return rows, counts


def warm() -> None:
    """Compile every kernel of this module into numba's cache, for the array types that the product uses."""
    starts, rows, counts = invert(np.zeros(2, np.int32), np.array([1, 2]), 1)
    packed, _ = pack(np.zeros(1, np.int64), starts, rows, counts)
    unpack(packed, 2, 2)
