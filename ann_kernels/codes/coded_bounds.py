"""Lower bounds of Euclidean distances by one-byte codes: a quarter of the bytes are read, and no bound is too high.

A vector is no nearer than its code, less the distance between the two (triangle inequality). The same holds for the
query. Distances of codes are sums of integers, so nothing else is rounded away.
"""

from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, U8, read_only
from icepuffin.ann_kernels.codes.scalar_quantization import LIMIT, ZERO, ScalarCodes, encode
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.simd.byte_products import BLOCK, dot

ROUNDING = 2.0**-48
"""Relative error of a few sums in float64, at most"""
_ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class CodedBounds:
    """N vectors by their codes."""

    codes: ScalarCodes
    norms: F64
    """f64[N]: squared lengths of the vectors as their codes have them, without the offset that all share"""
    errors: F64
    """f64[N]: distance of each vector from what its code stands for, at least"""

    @classmethod
    def from_vectors(cls, vectors: F32) -> "CodedBounds | None":
        """Code vectors f32[N, D]. None where they have no codes (see `scalar_quantization.encode`), or are so far apart
        that a float cannot hold the difference.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            codes = encode(vectors) if len(vectors) and _spans_floats(vectors) else None
        if codes is None:
            return None
        of_rows = codes.space.codes.reshape(len(vectors), -1)[:, : vectors.shape[1]]
        offset, errors = codes.offset.astype(np.float64), np.empty(len(vectors))
        for start in range(0, len(vectors), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            gaps = vectors[rows] - offset - codes.scale * (of_rows[rows].astype(np.float64) - ZERO)
            errors[rows] = np.sqrt(np.einsum("ij,ij->i", gaps, gaps))
        norms = codes.scale**2 * codes.space.norms.astype(np.float64)
        largest = np.linalg.norm(offset) + np.sqrt(norms)
        return cls(codes, norms, errors + ROUNDING * (errors + largest))

    def least_distances(self, query: F64) -> F64:
        """f64[N]: a Euclidean distance that no vector is under, from a query f64[D]."""
        offset = self.codes.offset.astype(np.float64)
        gaps = query - offset
        scale = np.abs(gaps).max(initial=0.0) / LIMIT or 1.0
        code = np.zeros(self.codes.row_bytes, np.int8)
        code[: len(query)] = np.rint(gaps / scale)
        rounded = gaps - scale * code[: len(query)]
        norm = scale**2 * float(np.square(code.astype(np.int64)).sum())
        products = np.empty(len(self.norms), np.int32)
        _products(read_only(self.codes.space.codes), read_only(code), products)
        unsigned = ZERO * int(code.sum(dtype=np.int64))
        magnitudes = norm + self.norms
        squared = magnitudes - (2 * scale * self.codes.scale) * (products - np.float64(unsigned))
        squared -= ROUNDING * magnitudes
        distances = np.sqrt(np.maximum(squared, 0.0))
        error = np.sqrt(rounded @ rounded) + ROUNDING * (np.linalg.norm(query) + np.linalg.norm(offset))
        return np.asarray(np.maximum(distances * (1 - ROUNDING) - (1 + ROUNDING) * error - self.errors, 0.0))


def _spans_floats(vectors: F32) -> bool:
    """Whether differences of any two components, and the scale of codes, are floats."""
    widest = vectors.max().astype(np.float64) - vectors.min().astype(np.float64)
    return bool(2 * widest < np.finfo(np.float32).max)


@kernel
def _products(codes: U8, query: I8, out: I32) -> None:
    """Dot products int32[N] of codes u8[N * P], as they are stored, with a query of signed codes int8[P]."""
    for row in range(out.size):
        out[row] = dot(codes, row * query.size, query, 0, query.size // BLOCK)
