"""Vectors made ready for kernels, and distances between many of them at once."""

from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.errors import DimensionError, NonFiniteVectorError, ZeroVectorError
from icepuffin.ann_kernels.exact_distances import as_float64, lengths
from icepuffin.ann_kernels.metric import Metric

MAX_DIMS = 65_536
_BLOCK = 2_048
_BLOCK_VALUES = 2**20
"""That are doubles at a time"""


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
    return _normalized(vectors, out) if metric is Metric.COSINE else out


def prepare_exact(vectors: npt.NDArray[Any], metric: Metric) -> npt.NDArray[np.float64]:
    """The same in f64, unrounded: queries for exact answers. What float32 cannot hold is not finite here, too."""
    with np.errstate(over="ignore"):
        rounded = prepare(vectors, metric)
    return as_float64(vectors) if metric is not Metric.COSINE else _normalized(vectors, np.empty(rounded.shape))


def _normalized(vectors: npt.NDArray[Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    out = np.empty_like(like)
    step = max(1, _BLOCK_VALUES // vectors.shape[1])
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step].astype(np.float64)  # squares of f32 may leave f32's range
        norms = lengths(block)
        if (norms == 0).any():
            raise ZeroVectorError(start + int(np.argmax(norms == 0)))
        out[start : start + len(block)] = block / norms[:, None]
    return out


def reported(internal: npt.NDArray[Any], metric: Metric) -> npt.NDArray[np.float64]:
    """Kernel distances -> reported ones, f64. Kernels use squared L2 (under cosine too) and - dot."""
    far = internal.astype(np.float64)
    if metric is Metric.L2:
        return np.sqrt(np.maximum(far, 0.0))
    return np.maximum(far, 0.0) / 2 if metric is Metric.COSINE else far


def internal_pairwise(
    queries: npt.NDArray[Any], vectors: npt.NDArray[np.float32], metric: Metric
) -> npt.NDArray[np.float32]:
    """Kernel distances f32[Q, N] of prepared arrays, rounded: their order is not that of the true ones.

    All are moved by the mean of the vectors first, as a large offset that they share would leave nothing but rounding.
    """
    if queries.shape[1] != vectors.shape[1]:
        raise DimensionError(f"queries have {queries.shape[1]} dimensions, vectors {vectors.shape[1]}")
    if metric is Metric.INNER_PRODUCT:
        return -(queries.astype(np.float32) @ vectors.T)
    middle = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    near, moved = (queries - middle).astype(np.float32), vectors - middle
    squares = np.einsum("ij,ij->i", moved, moved)[None, :] + np.einsum("ij,ij->i", near, near)[:, None]
    return np.asarray(squares - 2 * (near @ moved.T))
