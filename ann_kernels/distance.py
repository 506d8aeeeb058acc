"""Vectors made ready for kernels, and distances between many of them at once."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ann_kernels.errors import DimensionError, NonFiniteVectorError, ZeroVectorError
from ann_kernels.metric import Metric

MAX_DIMS = 65_536
_BLOCK = 2_048


def prepare(vectors: npt.NDArray[Any], metric: Metric) -> npt.NDArray[np.float32]:
    """Any float [N, D] -> f32[N, D], C order, finite; of unit length for cosine.

    Raises DimensionError, NonFiniteVectorError (the row), ZeroVectorError (the row; cosine only).
    """
    if vectors.ndim != 2 or not 1 <= vectors.shape[1] <= MAX_DIMS:
        raise DimensionError(f"vectors have shape {vectors.shape}, not (rows, 1 to {MAX_DIMS} dimensions)")
    out = np.ascontiguousarray(vectors, dtype=np.float32)
    for start in range(0, len(out), _BLOCK):
        finite = np.isfinite(out[start : start + _BLOCK])
        if not finite.all():
            raise NonFiniteVectorError(start + int(np.argmin(finite.all(axis=1))))
    return _normalized(out) if metric is Metric.COSINE else out


def _normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out = np.empty_like(vectors)
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK].astype(np.float64)  # squares of f32 may leave f32's range
        norms = np.sqrt(np.einsum("ij,ij->i", block, block))
        if (norms == 0).any():
            raise ZeroVectorError(start + int(np.argmax(norms == 0)))
        out[start : start + len(block)] = block / norms[:, None]
    return out


def reported(internal: npt.NDArray[np.float32], metric: Metric) -> npt.NDArray[np.float32]:
    """Kernel distances -> reported ones. Kernels use squared L2 (also for unit vectors under cosine) and - dot."""
    if metric is Metric.L2:
        return np.sqrt(np.maximum(internal, np.float32(0)))
    if metric is Metric.COSINE:
        return np.asarray(np.maximum(internal, np.float32(0)) / np.float32(2))
    return internal


def internal_pairwise(
    queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32], metric: Metric
) -> npt.NDArray[np.float32]:
    """Kernel distances f32[Q, N] of prepared arrays."""
    if queries.shape[1] != vectors.shape[1]:
        raise DimensionError(f"queries have {queries.shape[1]} dimensions, vectors {vectors.shape[1]}")
    dots = queries @ vectors.T
    if metric is Metric.INNER_PRODUCT:
        return -dots
    squares = np.einsum("ij,ij->i", vectors, vectors)[None, :] + np.einsum("ij,ij->i", queries, queries)[:, None]
    return np.asarray(squares - 2 * dots)
