"""One bit per dimension beside codes of four: by them a walk rules nodes out whose codes it then need not read.

A code stands for a vector v from the offset on, in units of each dimension's width. The signs of v, times a factor,
differ from v by a rest that is orthogonal to it, where the factor is |v|^2 over the product of v and its signs. So a
product with v is the factor times that with the signs, but for an error: the product with the rest, whose components
count as random signs of one size. Source of the estimator: RaBitQ (J. Gao, C. Long, SIGMOD 2024), here without a
rotation, and with the widths of `four_bit_quantization`.
"""

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, I8, U8, U64, read_only
from icepuffin.ann_kernels.codes.scalar_quantization import ROWS_PER_TASK
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.distances.distance_computers import CENTER, QUERY_STEP, FourBitSpace, SignSpace
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.bits import bits_of
from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ann_kernels.simd.sign_products import PLANES, WORDS

NO_SIGNS = SignSpace(np.empty(0, np.uint64), np.empty((0, 2), np.float32))
"""The signs of codes that have none"""
DEVIATIONS = 2.0
"""Standard deviations of the error beyond which a node is ruled out"""
_SHIFT = QUERY_STEP.bit_length() - 1
_FACTOR_SQUARED = 3
"""Square of a factor over that of the error: where components are normally distributed it is 2.75"""


def encode(space: FourBitSpace, widths: F32, *, threads: int = 1, allocate: Allocate = in_memory) -> SignSpace:
    """The signs of N four-bit codes, whose widths are f32[D]."""
    count = len(space.norms)
    codes = space.codes.reshape(count, -1)
    squares = np.zeros(2 * codes.shape[1], np.float32)
    squares[: len(widths)] = np.square(widths)
    words = allocate((count, _row_words(2 * codes.shape[1])), np.uint64)
    terms = allocate((count, 2), np.float32)

    def encode_rows(start: int) -> None:
        rows = slice(start, start + ROWS_PER_TASK)
        _encode(read_only(codes[rows]), read_only(space.norms[rows]), squares, words[rows], terms[rows])

    for_each(encode_rows, range(0, count, ROWS_PER_TASK), threads=threads)
    return SignSpace(words.reshape(-1), terms)


def query_planes(codes: I8) -> tuple[U64, F32]:
    """Planes u64[Q, ..] and terms f32[Q, 3], as `FourBitQueries` has them, of queries as signed bytes int8[Q, 2 P]."""
    words = _row_words(codes.shape[1])
    planes = in_memory((len(codes), PLANES * words), np.uint64)
    terms = np.empty((len(codes), 3), np.float32)
    _encode_queries(read_only(codes), planes, terms)
    terms[:, 2] *= np.float32(DEVIATIONS)
    return planes, terms


def no_planes(codes: I8) -> tuple[U64, F32]:
    """What takes the place of `query_planes` where there are no signs."""
    return np.empty((len(codes), 0), np.uint64), np.zeros((len(codes), 3), np.float32)


def _row_words(dims: int) -> int:
    """Words per row: whole cache lines."""
    return -(-dims // (BLOCK * WORDS)) * WORDS


@kernel
def _encode(codes: U8, norms: F32, squares: F32, words: U64, terms: F32) -> None:
    """Words u64[n, ..] and terms f32[n, 2] of codes u8[n, P]; squares f32[2 P] of the widths."""
    center, total = np.float32(CENTER), np.float32(0)
    for square in squares:
        total += square
    for row in range(codes.shape[0]):
        low, high = np.float32(0), np.float32(0)
        words[row] = np.uint64(0)
        for block in range(codes.shape[1] // BLOCK):
            first = block * BLOCK
            words[row, 2 * block] = bits_of(codes[row], np.intp(first), np.uint8(0x08))
            words[row, 2 * block + 1] = bits_of(codes[row], np.intp(first), np.uint8(0x80))
            for i in range(BLOCK):
                both = codes[row, first + i]
                low += abs(np.float32(both & np.uint8(15)) - center) * squares[2 * first + i]
                high += abs(np.float32(both >> np.uint8(4)) - center) * squares[2 * first + BLOCK + i]
        factor = norms[row] / (low + high)
        terms[row, 0] = factor
        terms[row, 1] = np.sqrt(max(np.float32(0), factor * factor - norms[row] / total))


@kernel
def _encode_queries(codes: I8, planes: U64, terms: F32) -> None:
    """Planes u64[Q, ..] of the small integers, and terms f32[Q, 3], but for the number of deviations."""
    half, highest = np.int32(QUERY_STEP // 2), np.int32((1 << (PLANES - 1)) - 1)
    integers = np.empty(codes.shape[1], np.uint8)
    for row in range(codes.shape[0]):
        total, rounded, length, rounding = np.int32(0), np.int32(0), np.int32(0), np.int32(0)
        for d in range(codes.shape[1]):
            code = np.int32(codes[row, d])
            integer = min(np.int32((code + half) >> np.int32(_SHIFT)), highest)
            gap = np.int32(code - (integer << np.int32(_SHIFT)))
            total = np.int32(total + code)
            rounded = np.int32(rounded + integer)
            length = np.int32(length + code * code)
            rounding = np.int32(rounding + gap * gap)
            integers[d] = np.uint8(integer & np.int32((1 << PLANES) - 1))
        planes[row] = np.uint64(0)
        for word in range(codes.shape[1] // BLOCK):
            first = word // WORDS * (PLANES * WORDS) + word % WORDS
            for plane in range(PLANES):
                chosen = bits_of(integers, np.intp(word * BLOCK), np.uint8(1 << plane))
                planes[row, first + plane * WORDS] = chosen
        terms[row, 0] = np.float32(QUERY_STEP) * np.float32(rounded)
        terms[row, 1] = np.float32(CENTER) * np.float32(total)
        terms[row, 2] = np.sqrt(np.float32(length) + np.float32(_FACTOR_SQUARED) * np.float32(rounding))
