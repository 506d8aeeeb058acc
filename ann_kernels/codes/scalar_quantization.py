"""Scalar quantization to one byte per dimension (SQ8), for integer distances in builds and searches.

A code is 128 + round((x - offset[d]) / scale), clipped to 1..255: one scale for all dimensions, so that distances of
codes are distances of vectors, but for rounding. `neighbor_check` tells whether vectors are spread too widely.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, I8, I32, U8, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel, numpy_kernel
from icepuffin.ann_kernels.distances.distance_computers import CodeQueries, CodeSpace
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.byte_products import BLOCK

MAX_CODE_DIMS = 16_384
"""Dimensions up to which all sums fit 32 bits"""
_FINEST = 2.0**-126
"""Smallest width of a code: the inverse of a smaller one leaves float's range"""
ZERO = 128
"""Byte that stands for the code 0"""
LIMIT = 127
"""Largest code"""
SAMPLE_ROWS = 4_096
"""Vectors by which the scale of codes is chosen"""
_COVERED = 0.9995
"""Share of the sample's values that the scale covers; the rest is clipped"""
ROWS_PER_TASK = 8_192
"""Vectors that a thread encodes at once"""


@dataclass(frozen=True, slots=True, eq=False)
class ScalarCodes:
    """N vectors as one byte per dimension."""

    space: CodeSpace
    offset: F32
    """Mean of a sample of the vectors, f32[D]"""
    scale: float
    """Width of one code"""

    @property
    def row_bytes(self) -> int:
        """P: bytes per row."""
        return len(self.space.codes) // max(1, len(self.space.norms))

    def queries(self, vectors: F32, metric: Metric) -> CodeQueries:
        """Queries f32[Q, D] as bytes, each with a scale of its own.

        Distances come out in units of the scale: squared L2 but for a constant per query, or minus the dot product.
        """
        inner = metric is Metric.INNER_PRODUCT
        codes = np.zeros((len(vectors), self.row_bytes), np.int8)
        weights = np.empty(len(vectors), np.float32)
        _encode_queries(read_only(vectors), self.offset, np.float32(2 / self.scale), inner, codes, weights)
        return CodeQueries(self.space.codes, self.space.norms, codes, np.float32(not inner), weights)


def encode(
    vectors: F32, *, extra: F32 | None = None, threads: int = 1, allocate: Allocate = in_memory
) -> ScalarCodes | None:
    """Codes of prepared vectors f32[N, D]; `extra` f32[N] is one dimension more. None where there are no codes:
    D is over MAX_CODE_DIMS, the vectors are too small, or too far apart for a float to hold the difference.
    """
    last = np.empty((len(vectors), 0), np.float32) if extra is None else extra[:, None]
    count, dims = len(vectors), vectors.shape[1] + last.shape[1]
    if dims > MAX_CODE_DIMS:
        return None
    step = max(1, count // SAMPLE_ROWS)
    sample = np.concatenate([vectors[::step], last[::step]], axis=1)
    mean = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    with np.errstate(over="ignore"):
        sample -= mean
    scale = _scale(np.abs(sample, out=sample).reshape(-1))
    if not _FINEST <= scale < np.inf:
        return None
    width = dims + -dims % BLOCK
    codes = allocate((count, width), np.uint8)
    norms, sums = allocate((count,), np.int32), allocate((count,), np.int32)
    offset = allocate((dims,), np.float32)
    offset[:] = mean
    inverse = np.float32(1 / scale)

    def encode_rows(start: int) -> None:
        rows = slice(start, start + ROWS_PER_TASK)
        _encode(read_only(vectors[rows]), read_only(last[rows]), offset, inverse, codes[rows], norms[rows], sums[rows])

    for_each(encode_rows, range(0, count, ROWS_PER_TASK), threads=threads)
    return ScalarCodes(CodeSpace(codes.reshape(-1), norms, sums), offset, scale)


def _scale(gaps: F32) -> float:
    """The scale that covers most of some gaps f32[n], which it puts in another order."""
    covered = min(gaps.size - 1, int(_COVERED * gaps.size))
    if gaps.size:
        gaps.partition(covered)
    widest = float(gaps[covered]) if gaps.size else 0.0
    widest = widest or float(gaps.max(initial=0))
    return widest / LIMIT if widest > 0 else 1.0


@numpy_kernel
def _encode_queries(queries: F32, offset: F32, unit: np.float32, inner: bool, codes: I8, dot_weights: F32) -> None:
    """Each query by a scale of its own, so that none is clipped. For inner product the offset is not subtracted."""
    for row in range(queries.shape[0]):
        widest = np.float32(0)
        for d in range(queries.shape[1]):
            gap = queries[row, d] if inner else queries[row, d] - offset[d]
            widest = max(widest, abs(gap))
        scale = widest / np.float32(LIMIT)
        if scale == 0:
            scale = np.float32(1)
        for d in range(queries.shape[1]):
            gap = queries[row, d] if inner else queries[row, d] - offset[d]
            codes[row, d] = np.int8(np.rint(gap / scale))
        dot_weights[row] = np.float32(1) if inner else unit * scale


@inline_kernel
def _code(value: Any) -> np.int32:
    limit = np.float32(LIMIT)
    return np.int32(np.floor(min(max(value, -limit), limit) + np.float32(0.5)))


@kernel
def _encode(vectors: F32, last: F32, offset: F32, inverse: np.float32, codes: U8, norms: I32, sums: I32) -> None:
    """Codes u8[n, P] of vectors f32[n, D] and of their last dimension f32[n, 0 or 1]; their norms and sums."""
    dims = vectors.shape[1]
    for row in range(vectors.shape[0]):
        norm, total = np.int32(0), np.int32(0)
        for d in range(dims):
            code = _code((vectors[row, d] - offset[d]) * inverse)
            codes[row, d] = np.uint8(code + ZERO)
            norm = np.int32(norm + code * code)
            total = np.int32(total + code)
        for d in range(dims, codes.shape[1]):
            code = _code((last[row, d - dims] - offset[d]) * inverse) if d < dims + last.shape[1] else np.int32(0)
            codes[row, d] = np.uint8(code + ZERO)
            norm = np.int32(norm + code * code)
            total = np.int32(total + code)
        norms[row] = norm
        sums[row] = total


def ranked_exactly(k: int) -> int:
    """How many of the nearest by code a search puts in order by exact distance, for the k nearest."""
    return max(2 * k, k + 10)
