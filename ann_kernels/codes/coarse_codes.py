"""The upper half of each one-byte code, beside all that a bound of a distance takes: so most vectors are ruled out for
one cache line each, up to 112 dimensions, where their codes and what is known of these lie on four.

A half h stands for scale * (16 h - 120.5), the middle of the sixteen codes that have it. A vector is no farther from
that than from its code, and the code from there: no vector is read to find how far.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, U8, read_only
from icepuffin.ann_kernels.codes.coded_bounds import ROUNDING
from icepuffin.ann_kernels.codes.scalar_quantization import ROWS_PER_TASK, ZERO
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.byte_products import BLOCK

STEPS = 16
"""Codes that have the same half"""
CENTER = (ZERO - (STEPS - 1) / 2) / STEPS
"""The half that would stand for the offset: 7.53125, of which float64 has all multiples that occur"""
_TERMS = 8
"""Bytes of what is known of a row, at its end: the sum of squares, then the error"""


class CoarseTable(NamedTuple):
    """N rows, as kernels take them."""

    halves: U8
    """u8[N * width]: the first bytes of a row, half of D, are its halves, as `row_bytes` has them"""
    squares: I32
    """int32[..]: every `step`-th is the sum of (32 h - 241)^2 of a row"""
    errors: F32
    """f32[..]: every `step`-th is how far a vector is from what its halves stand for, at most; inf where that is
    unknown
    """
    width: int
    step: int

    @classmethod
    def from_rows(cls, rows: U8, dims: int) -> "CoarseTable":
        """From the bytes of the rows, u8[N * P]: three views of the same memory, so that a row is read at once."""
        width = row_bytes(dims)
        step = width // 4
        squares, errors = rows.view(np.int32)[step - 2 :], rows.view(np.float32)[step - 1 :]
        return cls(read_only(rows), read_only(squares), read_only(errors), width, step)

    @classmethod
    def of_scan(cls, rows: U8, dims: int) -> "CoarseTable":
        """From the same bytes, for who reads all rows in order: what is known of a row lies apart where its halves then
        take a cache line less, as with 128 dimensions. That is a copy.
        """
        width, by_row = scanned_bytes(dims) - _TERMS, rows.reshape(-1, row_bytes(dims))
        if width + _TERMS == row_bytes(dims):
            return cls.from_rows(rows, dims)
        halves = in_memory((len(by_row), width), np.uint8)
        halves[:] = by_row[:, :width]
        squares, errors = by_row.view(np.int32)[:, -2].copy(), by_row.view(np.float32)[:, -1].copy()
        return cls(read_only(halves.reshape(-1)), read_only(squares), read_only(errors), width, 1)


def row_bytes(dims: int) -> int:
    """P: bytes of a row of D dimensions, whole cache lines. Byte i has the half of dimension i below, and above it that
    of dimension i + (D + 1) // 2.
    """
    size = (dims + 1) // 2 + _TERMS
    return size + -size % BLOCK


def scanned_bytes(dims: int) -> int:
    """Bytes of a row of D dimensions in `CoarseTable.of_scan`."""
    size = (dims + 1) // 2
    apart = size + -size % BLOCK + _TERMS
    return min(apart, row_bytes(dims))


def encode(
    codes: U8,
    dims: int,
    scale: float,
    errors: Callable[[slice], F64],
    *,
    threads: int = 1,
    allocate: Allocate = in_memory,
) -> U8:
    """The rows u8[N * P] of N codes of D dimensions, u8[N, ..]. `errors` gives of some rows, f64[n], how far the
    vectors are from what their codes stand for, at most.
    """
    count, width = len(codes), row_bytes(dims)
    rows = allocate((count, width), np.uint8)

    def encode_rows(start: int) -> None:
        part = slice(start, start + ROWS_PER_TASK)
        part_rows = rows[part]
        squares, gaps = np.empty(len(part_rows), np.int32), np.empty(len(part_rows), np.int32)
        _encode(read_only(codes[part]), dims, part_rows, squares, gaps)
        farthest = (scale / 2 * np.sqrt(gaps.astype(np.float64)) + errors(part)) * (1 + ROUNDING)
        with np.errstate(over="ignore"):  # then it is unknown
            part_rows.view(np.float32)[:, -1] = np.nextafter(farthest.astype(np.float32), np.float32(np.inf))
        part_rows.view(np.int32)[:, -2] = squares

    for_each(encode_rows, range(0, count, ROWS_PER_TASK), threads=threads)
    return rows.reshape(-1)


@kernel
def _encode(codes: U8, dims: int, rows: U8, squares: I32, gaps: I32) -> None:
    """Halves into u8[n, P]; the sums of (32 h - 241)^2, and of (2 l - 15)^2 of the lower halves l, into int32[n]."""
    half = (dims + 1) // 2
    for row in range(codes.shape[0]):
        rows[row] = np.uint8(0)
        total, gap = np.int32(0), np.int32(0)
        for d in range(dims):
            code = np.int32(codes[row, d])
            value = np.int32(32 * (code >> 4) - 241)
            rest = np.int32(2 * (code & 15) - 15)
            total = np.int32(total + value * value)
            gap = np.int32(gap + rest * rest)
        for i in range(half):
            rows[row, i] = codes[row, i] >> np.uint8(4)
        for i in range(dims - half):
            rows[row, i] |= codes[row, half + i] & np.uint8(0xF0)
        squares[row], gaps[row] = total, gap


@kernel
def arranged(code: I8, dims: int) -> I8:
    """The code int8[..] of a query of D dimensions, as `four_bit_dot` multiplies rows with it: int8[2 P]."""
    half = (dims + 1) // 2
    size = half + _TERMS
    query = np.zeros(2 * (size + -size % BLOCK), np.int8)  # so what is at the end of a row counts nothing
    for d in range(dims):
        byte, above = (d, 0) if d < half else (d - half, BLOCK)
        query[byte // BLOCK * 2 * BLOCK + above + byte % BLOCK] = code[d]
    return query
