"""Lower bounds of distances in float32: fast, and never above the true distance, whatever was rounded away.

There are two ways, each with the error bound of its sums (Higham, Accuracy and Stability of Numerical Algorithms, 3.1:
n operations in any order are off by at most n u / (1 - n u), u = 2^-24, relative to the sum of magnitudes):

- By differences, for few queries: the error is relative to the distance itself.
- By a matrix product, for many: |x - q|^2 = |x|^2 - 2 x q + |q|^2, whose error is relative to |x|^2 + |q|^2. So all
  vectors are moved by the mean of some rows first, and scaled by a power of two, so that squares stay in float32's
  range. One more dimension holds |x|^2 less the largest possible error: the product gives the bound at once.

Where numbers leave float32's range there is no bound (NaN), and the rows are compared in float64.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I64, Bool, Floats, read_only
from icepuffin.ann_kernels.compilation import fast_kernel
from icepuffin.ann_kernels.distances.distance_computers import L2Queries, distance, prefetch_node, query_computer
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.prefetching import prefetch_row

Limits: TypeAlias = Callable[[F64], F64]
"""A function from distances f64[Q], as they are reported, to limits f64[Q]"""

QUERIES_AT_ONCE = 256
FEW_QUERIES = 10
"""Number of queries below which comparing rows in place is faster than copying them for a matrix product"""
_BLOCK_BYTES = 4 * 1024**2
"""Size of a block's bounds and of its rows, which stay in the cache until they are compared"""
_MIN_ROWS = 256
_UNIT = 2.0**-24
"""Largest relative error of one operation"""
_STRETCH = 2.0**-20
_VANISHED = 2.0**-120
"""Upper bound of what a product in one dimension loses where it was rounded to zero"""
_LARGEST = 1e38
_ROWS_AHEAD = 8
"""Rows between the one that is compared and the one that is requested from memory"""
_CACHED_BYTES = 512 * 1024
_CENTER_ROWS = 64
"""Rows whose mean is the centre of a block: any centre will do"""


@dataclass(frozen=True, slots=True, eq=False)
class LowerBounds:
    """Lower bounds of the distances of Q queries from N rows."""

    least: F32
    """f32[Q, N] in the units of `limit`; NaN where there is no bound"""
    limit: Limits
    """The largest `least` that a row within a distance can have"""

    def may_be_within(self, distances: F64) -> Bool:
        """bool[Q, N]: False for rows that surely are farther from a query than its distance (f64[Q])."""
        with np.errstate(over="ignore", invalid="ignore"):
            limits = self.limit(distances)
            limits = np.where(limits < _LARGEST, np.nextafter(limits.astype(np.float32), np.float32(np.inf)), np.inf)
        return ~(self.least > limits.astype(np.float32)[:, None])


def bounds_of(
    vectors: Floats, queries: int, metric: Metric, *, rounded: bool, rows: I64 | None = None
) -> Iterator[tuple[I64, Callable[[F64], LowerBounds]]]:
    """Bounds of the distances from vectors, block by block.

    Parameters
    ----------
    vectors : f32 or f64 [N, D]
        Of unit length under cosine.
    queries : int
        How many queries there will be.
    metric : Metric
    rounded : bool
        Whether the vectors were rounded to f32 from f64.
    rows : int64[n], optional
        The rows of `vectors` to bound; default all.

    Yields
    ------
    tuple
        Some of the rows, and a function from at most QUERIES_AT_ONCE queries f64[Q, D] to their bounds.
    """
    all_rows = np.arange(len(vectors), dtype=np.int64) if rows is None else rows
    few = queries < FEW_QUERIES
    width = queries if few else max(vectors.shape[1], min(queries, QUERIES_AT_ONCE))
    step = max(_MIN_ROWS, _BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, len(all_rows), step):
        block = all_rows[start : start + step]
        yield block, (_by_differences if few else _by_products)(vectors, block, metric, rounded=rounded)


def _by_differences(vectors: Floats, rows: I64, metric: Metric, *, rounded: bool) -> Callable[[F64], LowerBounds]:
    """Bounds of vectors[rows], f32 or f64 [N, D], compared in place."""
    error = _relative_error(vectors.shape[1])
    vanished = vectors.shape[1] * _VANISHED

    def product_bounds(queries: F64) -> LowerBounds:
        narrow = queries.astype(vectors.dtype)
        least = np.empty((len(queries), len(rows)), np.float32)
        underflowed = (np.abs(narrow - queries) > 2 * _UNIT * np.abs(queries)).any(axis=1)  # too small for f32
        with np.errstate(over="ignore"):
            shares = (2 * error * np.linalg.norm(queries, axis=1)).astype(np.float32)
        for query, part in _cached_parts(len(queries), rows, vectors[:1].nbytes):
            _least_product(read_only(vectors), rows[part], narrow[query], shares[query], least[query, part])
        least[underflowed | (shares < _VANISHED)] = np.nan
        return LowerBounds(least, lambda distances: distances + vanished)

    def distance_bounds(queries: F64) -> LowerBounds:
        narrow = queries.astype(vectors.dtype)
        least = np.empty((len(queries), len(rows)), np.float32)
        l2_queries = L2Queries(read_only(vectors), read_only(narrow))
        for query, part in _cached_parts(len(queries), rows, vectors[:1].nbytes):
            _squared_gaps(l2_queries, query, rows[part], least[query, part])
        rounding = rounding_of_units(vectors.shape[1]) if rounded else 0.0
        off = 1.001 * np.linalg.norm(narrow - queries, axis=1) + rounding

        def limit(distances: F64) -> F64:
            return np.asarray((1 + error) * (_euclidean(distances, metric) + off) ** 2 + vanished)

        return LowerBounds(least, limit)

    return product_bounds if metric is Metric.INNER_PRODUCT else distance_bounds


def _by_products(vectors: Floats, rows: I64, metric: Metric, *, rounded: bool) -> Callable[[F64], LowerBounds]:
    """Bounds of vectors[rows] by one matrix product with all queries; memory: a copy of the rows."""
    inner = metric is Metric.INNER_PRODUCT
    dims = vectors.shape[1]
    error = _relative_error(dims)
    sample = vectors[rows[:: max(1, len(rows) // _CENTER_ROWS)]].astype(np.float64)
    rounded_center = sample.mean(axis=0).astype(vectors.dtype)
    scale = _power_of_two(np.abs(sample - rounded_center).max(initial=0.0))
    right = np.empty((len(rows), dims + 1), np.float32)
    share = 2 * error + 4 * _UNIT if inner else 1 - (3.2 * error + 2.0**-25)
    narrow_scale = rounded_center.dtype.type(scale)
    _center_rows(read_only(vectors), rows, rounded_center, narrow_scale, np.float32(share), inner, right)
    center = rounded_center.astype(np.float64)
    longest = float(np.fmax.reduce(right[:, -1], initial=0.0)) / share
    longest = longest if inner else longest**0.5

    def bounds(queries: F64) -> LowerBounds:
        left = np.empty((len(queries), dims + 1), np.float32)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            limit = _inner_limit(queries, left) if inner else _squared_limit(queries, left)
            least = left @ right.T
            sums = np.linalg.norm(left[:, :-1].astype(np.float64), axis=1) * longest + longest**2
            least[~(sums < _LARGEST)] = np.nan
            return LowerBounds(least, limit)

    def _squared_limit(queries: F64, left: F32) -> Limits:
        left[:, :-1] = -2 * scale * (queries - center)
        left[:, -1] = 1
        halves = left[:, :-1].astype(np.float64) / 2
        norms = np.einsum("ij,ij->i", halves, halves)
        off = rounding_of_units(dims) * scale if rounded else 0.0

        def limit(distances: F64) -> F64:
            squared = (1 + _STRETCH) * (scale * _euclidean(distances, metric) + off) ** 2
            return np.asarray(squared - norms * (1 - error - 2.0**-26) + dims * _VANISHED)

        return limit

    def _inner_limit(queries: F64, left: F32) -> Limits:
        factors = np.array([_power_of_two(value) for value in np.abs(queries).max(axis=1, initial=0.0)])
        scaled = queries * factors[:, None]
        norms = np.linalg.norm(scaled, axis=1)
        left[:, :-1] = -scaled
        left[:, -1] = -norms * (1 + 2.0**-10)
        moved = queries @ center
        noise = dims * 2.0**-50 * np.linalg.norm(queries, axis=1) * np.linalg.norm(center)

        def limit(distances: F64) -> F64:
            rounding = noise + dims * 2.0**-50 * np.abs(distances)
            return np.asarray((distances + moved + rounding) * scale * factors + dims * _VANISHED)

        return limit

    return bounds


def _cached_parts(queries: int, rows: I64, row_bytes: int) -> Iterator[tuple[int, slice]]:
    """(query, part of the rows): rows stay in the cache until all queries were compared with them."""
    step = max(1, _CACHED_BYTES // row_bytes) if queries > 1 else max(1, len(rows))
    for start in range(0, len(rows), step):
        for query in range(queries):
            yield query, slice(start, start + step)


def _relative_error(dims: int) -> float:
    """Largest relative error of a sum over the dimensions, and of a little arithmetic around it."""
    steps = (dims + 8) * _UNIT
    return steps / (1 - steps)


def rounding_of_units(dims: int) -> float:
    """The largest distance of a unit vector in f64 from the same vector in f32."""
    return 1.01 * _UNIT + math.sqrt(dims) * 2.0**-149


def _euclidean(distances: F64, metric: Metric) -> F64:
    """Reported distances as Euclidean ones."""
    if metric is Metric.HAMMING:
        return np.asarray(np.sqrt(distances))
    return np.asarray(np.sqrt(2 * distances)) if metric is Metric.COSINE else distances


def _power_of_two(largest: float) -> float:
    """The factor that brings the largest of some numbers to about 1."""
    exponent = math.frexp(largest)[1]
    return math.ldexp(1.0, min(max(1 - exponent, -120), 120)) if largest > 0 else 1.0


@fast_kernel
def _squared_gaps(queries: L2Queries, query: int, rows: I64, out: F32) -> None:
    """Squared distances f32[N] of one query from rows int64[N]."""
    computer = query_computer(queries, query)
    for index in range(rows.size):
        if index + _ROWS_AHEAD < rows.size:
            prefetch_node(computer, rows[index + _ROWS_AHEAD])
        out[index] = distance(computer, rows[index])


@fast_kernel
def _least_product(vectors: Floats, rows: I64, query: Floats, error: np.float32, out: F32) -> None:
    """f32[N]: minus the dot product with vectors[rows], less `error` times the length of the row.

    That is no less than the sum of magnitudes, times the query's (Cauchy-Schwarz), and costs one fused operation.
    """
    vanished = np.float32(query.size * _VANISHED)  # squares that were rounded to zero where products were not
    for index in range(rows.size):
        if index + _ROWS_AHEAD < rows.size:
            prefetch_row(vectors, rows[index + _ROWS_AHEAD])
        row = rows[index]
        total, squares = np.float32(0), np.float32(0)
        for d in range(query.size):
            value = vectors[row, d]
            total -= np.float32(value * query[d])
            squares += np.float32(value * value)
        least = total - error * np.sqrt(squares + vanished)
        out[index] = least if abs(least) < np.inf else np.float32(np.nan)


@fast_kernel
def _center_rows(
    vectors: Floats, rows: I64, center: Floats, scale: np.floating, share: np.float32, inner: bool, out: F32
) -> None:
    """(vectors[rows] - center) * scale into out f32[N, D + 1].

    The last column is `share` times the length of each row, or times its square, where the metric is not `inner`.
    """
    dims = center.size
    for index in range(rows.size):
        row = rows[index]
        total = np.float32(0)
        for d in range(dims):
            gap = np.float32((vectors[row, d] - center[d]) * scale)
            out[index, d] = gap
            total += gap * gap
        length = np.sqrt(total) if inner else total
        out[index, dims] = length * share if total < np.inf else np.float32(np.nan)
