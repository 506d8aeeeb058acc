"""Vectors prepared for kernels, and distances as they are reported."""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, AnyArray, Floats
from icepuffin.ann_kernels.distances.exact_distances import as_float64, lengths
from icepuffin.ann_kernels.errors import DimensionError, NonFiniteVectorError, ZeroVectorError
from icepuffin.ann_kernels.metric import Metric

MAX_DIMS = 65_536
_ROWS_PER_BLOCK = 2_048
_VALUES_PER_BLOCK = 2**20
"""Values that are held as doubles at a time"""
_SHORTEST = 1e-150
"""Length below which squares leave the range of doubles, and a direction would be wrong"""


def prepare(vectors: AnyArray, metric: Metric) -> F32:
    """Vectors as kernels take them: f32[N, D] in C order, finite, of unit length for cosine.

    `vectors` is any float array [N, D]. Raises DimensionError, NonFiniteVectorError (with the row) and ZeroVectorError
    (with the row; cosine only, shorter than 1e-150).
    """
    if vectors.ndim != 2 or not 1 <= vectors.shape[1] <= MAX_DIMS:
        raise DimensionError(f"vectors have shape {vectors.shape}, not (rows, 1 to {MAX_DIMS} dimensions)")
    out = np.ascontiguousarray(vectors, dtype=np.float32)
    for start in range(0, len(out), _ROWS_PER_BLOCK):
        finite = np.isfinite(out[start : start + _ROWS_PER_BLOCK])
        if np.count_nonzero(finite) != finite.size:  # `all` would take longer
            raise NonFiniteVectorError(start + int(np.argmin(finite.all(axis=1))))
    return _normalized(vectors, out) if metric is Metric.COSINE else out


def prepare_exact(vectors: AnyArray, metric: Metric) -> F64:
    """Queries for exact answers: as `prepare`, but f64[N, D] and not rounded.

    Raises as `prepare` does: a value that float32 cannot hold counts as not finite.
    """
    if vectors.dtype == np.float32:  # which nothing rounds
        rounded = prepare(vectors, metric)
    else:
        with np.errstate(over="ignore"):
            rounded = prepare(vectors, metric)
    return as_float64(vectors) if metric is not Metric.COSINE else _normalized(vectors, np.empty(rounded.shape))


def _normalized(vectors: AnyArray, like: Floats) -> Floats:
    out = np.empty_like(like)
    step = max(1, _VALUES_PER_BLOCK // vectors.shape[1])
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step].astype(np.float64)  # squares of f32 may leave f32's range
        norms = lengths(block)
        if (short := norms < _SHORTEST).any():
            raise ZeroVectorError(start + int(np.argmax(short)))
        out[start : start + len(block)] = block / norms[:, None]
    return out


def reported(internal: Floats, metric: Metric) -> F64:
    """Distances as they are reported, f64, of those that kernels use: squared L2 (under cosine too) and minus dot."""
    distances = internal.astype(np.float64)
    if metric is Metric.INNER_PRODUCT:
        return distances
    squares = np.maximum(distances, 0.0)
    if metric is Metric.L2:
        return np.sqrt(squares)
    return squares / 2 if metric is Metric.COSINE else squares
