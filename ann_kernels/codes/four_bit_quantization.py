"""Scalar quantization to four bits per dimension (SQ4), for the walk of a search: half the bytes of SQ8.

A code is 0 to 15, and stands for offset[d] + scale * widths[d] * (code - 7.5). The width of each dimension is
multiplied into the query: so a distance is one product of bytes, and a dimension of little spread keeps its four bits.
"""

from dataclasses import dataclass, replace

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, I8, U8, read_only
from icepuffin.ann_kernels.codes import sign_quantization
from icepuffin.ann_kernels.codes.scalar_quantization import (
    LIMIT,
    MAX_CODE_DIMS,
    ROWS_PER_TASK,
    SAMPLE_ROWS,
)
from icepuffin.ann_kernels.compilation import kernel, numpy_kernel
from icepuffin.ann_kernels.distances.distance_computers import CENTER, FourBitQueries, FourBitSpace, SignSpace
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.byte_products import BLOCK

MIN_DIMS = 256
"""Dimensions below which there are no such codes: fewer cache lines are saved then, and more recall is lost"""
_CODES = 16
_STEP = 0.3352
"""Width of a code in standard deviations of its dimension: of 16 even steps the one of the least squared error for a
normal distribution (J. Max, Quantizing for Minimum Distortion, 1960, table II)"""
_MIN_WIDTH = 2.0**-20
"""Relative width of a code in a dimension that is the same in all rows"""
_FINEST = 2.0**-100
"""Smallest scale: products with the least width stay in float's range"""


@dataclass(frozen=True, slots=True, eq=False)
class FourBitCodes:
    """N vectors as four bits per dimension."""

    space: FourBitSpace
    offset: F32
    """Mean of a sample of the vectors, f32[D]"""
    widths: F32
    """Relative width of one code in each dimension, f32[D], at most 1"""
    scale: float
    """Width of one code in the dimension of the largest spread"""
    signs: SignSpace | None = None
    """Their signs, by which walks rule nodes out; None where walks read all codes"""

    @property
    def row_bytes(self) -> int:
        """P: bytes per row."""
        return len(self.space.codes) // max(1, len(self.space.norms))

    def queries(self, vectors: F32, metric: Metric) -> FourBitQueries:
        """Queries f32[Q, D] times the widths, as bytes, each with a scale of its own.

        Distances come out in units of the scale: squared L2 but for a constant per query.

        Raises
        ------
        KernelError
            The metric is the inner product.
        """
        if metric is Metric.INNER_PRODUCT:
            raise KernelError("codes of four bits have no inner product")
        codes = np.zeros((len(vectors), 2 * self.row_bytes), np.int8)
        weights = np.empty(len(vectors), np.float32)
        _encode_queries(read_only(vectors), self.offset, self.widths, np.float32(2 / self.scale), codes, weights)
        signs, planes = sign_quantization.NO_SIGNS, sign_quantization.no_planes
        if self.signs is not None:
            signs, planes = self.signs, sign_quantization.query_planes
        return FourBitQueries(*self.space, codes, weights, *signs, *planes(codes))

    def with_signs(self, *, threads: int = 1, allocate: Allocate = in_memory) -> "FourBitCodes":
        """The same codes, with their signs: an eighth of a byte more per dimension, and eight bytes."""
        signs = sign_quantization.encode(self.space, self.widths, threads=threads, allocate=allocate)
        return replace(self, signs=signs)


def encode(
    vectors: F32, *, fewest_dims: int = MIN_DIMS, threads: int = 1, allocate: Allocate = in_memory
) -> FourBitCodes | None:
    """Codes of prepared vectors f32[N, D]. None where there are no codes: D is under `fewest_dims` or over
    MAX_CODE_DIMS, or the vectors are too small or too large.
    """
    count, dims = vectors.shape
    if not count or not fewest_dims <= dims <= MAX_CODE_DIMS:
        return None
    sample = vectors[:: max(1, count // SAMPLE_ROWS)]
    mean = sample.mean(axis=0, dtype=np.float64)
    spreads = sample.std(axis=0, dtype=np.float64)
    scale = _STEP * float(spreads.max())
    if not _FINEST < scale < np.inf:
        return None
    width = (dims + -dims % (2 * BLOCK)) // 2
    codes, norms = allocate((count, width), np.uint8), allocate((count,), np.float32)
    offset, widths = allocate((dims,), np.float32), allocate((dims,), np.float32)
    offset[:] = mean
    widths[:] = np.maximum(_STEP * spreads / scale, _MIN_WIDTH)

    def encode_rows(start: int) -> None:
        rows = slice(start, start + ROWS_PER_TASK)
        _encode(read_only(vectors[rows]), offset, widths, np.float32(scale), codes[rows], norms[rows])

    for_each(encode_rows, range(0, count, ROWS_PER_TASK), threads=threads)
    return FourBitCodes(FourBitSpace(codes.reshape(-1), norms), offset, widths, scale)


@numpy_kernel
def _encode_queries(queries: F32, offset: F32, widths: F32, unit: np.float32, codes: I8, dot_weights: F32) -> None:
    """Each query by a scale of its own, so that none is clipped."""
    for row in range(queries.shape[0]):
        widest = np.float32(0)
        for d in range(queries.shape[1]):
            gap = (queries[row, d] - offset[d]) * widths[d]
            widest = max(widest, abs(gap))
        scale = widest / np.float32(LIMIT)
        if scale == 0:
            scale = np.float32(1)
        for d in range(queries.shape[1]):
            gap = (queries[row, d] - offset[d]) * widths[d]
            codes[row, d] = np.int8(np.rint(gap / scale))
        dot_weights[row] = unit * scale


@kernel
def _encode(vectors: F32, offset: F32, widths: F32, scale: np.float32, codes: U8, norms: F32) -> None:
    """Codes u8[n, P] of vectors f32[n, D], and squared norms f32[n] of what they stand for, in units of the scale."""
    center, highest = np.float32(CENTER), np.float32(_CODES - 1)
    for row in range(vectors.shape[0]):
        norm = np.float32(0)
        codes[row] = np.uint8(0)
        for d in range(vectors.shape[1]):
            code = np.rint((vectors[row, d] - offset[d]) / (scale * widths[d]) + center)
            code = min(max(code, np.float32(0)), highest)
            value = (code - center) * widths[d]
            norm += value * value
            byte = d // (2 * BLOCK) * BLOCK + d % BLOCK
            codes[row, byte] |= np.uint8(code) << np.uint8(4 if d // BLOCK % 2 else 0)
        norms[row] = norm
