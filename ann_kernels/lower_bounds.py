"""Lower bounds of distances in float32: fast, and never above the true distance, whatever was rounded away.

Two ways, each with the error bound of its sums (Higham, Accuracy and Stability of Numerical Algorithms, 3.1: n
operations in any order are off by at most n u / (1 - n u), u = 2^-24, relative to the sum of magnitudes):

- By differences, for few queries: their error is relative to the distance itself.
- By a matrix product, for many: |x - q|^2 = |x|^2 - 2 x q + |q|^2, whose error is relative to |x|^2 + |q|^2. So all are
  moved by the mean of some rows first, and scaled by a power of two, so that squares stay in float32's range. One more
  dimension holds |x|^2 less all the error there may be: the product gives the bound at once.

Where numbers leave float32's range there is no bound (NaN), and the rows are compared in float64.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.distance_computers import FAST, FloatTarget, aim, distance, fetch, frozen
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd import prefetch_row

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
QUERIES_AT_ONCE = 256
_FEW_QUERIES = 10
"""Comparing rows with fewer where they lie is faster than copying them for a matrix product"""
_BLOCK_BYTES = 4 * 1024**2
"""Of the bounds of a block, and of its rows, which stay in the cache until they are compared"""
_FEWEST_ROWS = 256
_UNIT = 2.0**-24
"""Largest relative error of one operation"""
_STRETCH = 2.0**-20
_VANISHED = 2.0**-120
"""A product that is smaller may have been rounded to nothing: more than a dimension can lose so"""
_LARGEST = 1e38
_AHEAD = 8
"""Rows that are fetched before they are compared"""
_CACHED_BYTES = 512 * 1024
_SAMPLED = 64
"""Rows whose mean is the centre of a block: any centre will do"""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """Of Q queries and N rows."""

    least: npt.NDArray[np.float32]
    """f32[Q, N] in units of `limit`; NaN where nothing is known"""
    limit: Callable[[Doubles], Doubles]
    """What `least` of a row is at most, if the row lies within distances f64[Q], as they are reported"""

    def may_be_within(self, distances: Doubles) -> npt.NDArray[np.bool_]:
        """bool[Q, N]: False for rows that surely are farther from a query than its distance (f64[Q])."""
        with np.errstate(over="ignore", invalid="ignore"):
            limits = self.limit(distances)
            limits = np.where(limits < _LARGEST, np.nextafter(limits.astype(np.float32), np.float32(np.inf)), np.inf)
        return ~(self.least > limits.astype(np.float32)[:, None])


def bounds_of(
    vectors: npt.NDArray[Any], queries: int, metric: Metric, *, rounded: bool, rows: Ints | None = None
) -> Iterator[tuple[Ints, Callable[[Doubles], Bound]]]:
    """(some rows, a function from at most QUERIES_AT_ONCE queries f64 to their bounds), until there are no more rows.

    `vectors` f32 or f64 [N, D], of unit length under cosine; `rounded`: f64 ones, rounded to f32. `rows`: default all.
    `queries`: how many there will be.
    """
    shown = np.arange(len(vectors), dtype=np.int64) if rows is None else rows
    few = queries < _FEW_QUERIES
    width = queries if few else max(vectors.shape[1], min(queries, QUERIES_AT_ONCE))
    block = max(_FEWEST_ROWS, _BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, len(shown), block):
        some = shown[start : start + block]
        yield some, (_by_differences if few else _by_products)(vectors, some, metric, rounded=rounded)


def _by_differences(
    vectors: npt.NDArray[Any], rows: Ints, metric: Metric, *, rounded: bool
) -> Callable[[Doubles], Bound]:
    """Bounds of vectors[rows], f32 or f64 [N, D], where they lie. `rounded`: they are unit vectors that were f64."""

    def bound(queries: Doubles) -> Bound:
        near = queries.astype(vectors.dtype)
        least = np.empty((len(queries), len(rows)), np.float32)
        error = _relative_error(vectors.shape[1])
        vanished = vectors.shape[1] * _VANISHED
        if metric is Metric.INNER_PRODUCT:
            lost = (np.abs(near - queries) > 2 * _UNIT * np.abs(queries)).any(axis=1)  # too small for f32
            with np.errstate(over="ignore"):
                shares = (2 * error * np.linalg.norm(queries, axis=1)).astype(np.float32)
            for row, part in _stretches(len(queries), rows, vectors[:1].nbytes):
                _least_product(frozen(vectors), rows[part], near[row], shares[row], least[row, part])
            least[lost | (shares < _VANISHED)] = np.nan
            return Bound(least, lambda distances: distances + vanished)
        target = FloatTarget(frozen(vectors), frozen(near))
        for row, part in _stretches(len(queries), rows, vectors[:1].nbytes):
            _squared_gaps(target, row, rows[part], least[row, part])
        off = 1.001 * np.linalg.norm(near - queries, axis=1) + (rounding_of_units(vectors.shape[1]) if rounded else 0.0)
        return Bound(least, lambda distances: (1 + error) * (_reach(distances, metric) + off) ** 2 + vanished)

    return bound


def _by_products(vectors: npt.NDArray[Any], rows: Ints, metric: Metric, *, rounded: bool) -> Callable[[Doubles], Bound]:
    """The same by one matrix product with all queries; memory: a copy of the rows."""
    inner = metric is Metric.INNER_PRODUCT
    dims = vectors.shape[1]
    error = _relative_error(dims)
    some = vectors[rows[:: max(1, len(rows) // _SAMPLED)]].astype(np.float64)
    center = some.mean(axis=0).astype(vectors.dtype)
    scale = _power_of_two(np.abs(some - center).max(initial=0.0))
    right = np.empty((len(rows), dims + 1), np.float32)
    share = 2 * error + 4 * _UNIT if inner else 1 - (3.2 * error + 2.0**-25)
    _centered(frozen(vectors), rows, center, center.dtype.type(scale), np.float32(share), inner, right)
    middle = center.astype(np.float64)
    longest = float(np.fmax.reduce(right[:, -1], initial=0.0)) / share
    longest = longest if inner else longest**0.5

    def bound(queries: Doubles) -> Bound:
        left = np.empty((len(queries), dims + 1), np.float32)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            limit = _inner_limit(queries, left) if inner else _squared_limit(queries, left)
            least = left @ right.T
            sums = np.linalg.norm(left[:, :-1].astype(np.float64), axis=1) * longest + longest**2
            least[~(sums < _LARGEST)] = np.nan
            return Bound(least, limit)

    def _squared_limit(queries: Doubles, left: npt.NDArray[np.float32]) -> Callable[[Doubles], Doubles]:
        left[:, :-1] = -2 * scale * (queries - middle)
        left[:, -1] = 1
        halves = left[:, :-1].astype(np.float64) / 2
        norms = np.einsum("ij,ij->i", halves, halves)
        off = rounding_of_units(dims) * scale if rounded else 0.0

        def limit(distances: Doubles) -> Doubles:
            reach = (1 + _STRETCH) * (scale * _reach(distances, metric) + off) ** 2
            return np.asarray(reach - norms * (1 - error - 2.0**-26) + dims * _VANISHED)

        return limit

    def _inner_limit(queries: Doubles, left: npt.NDArray[np.float32]) -> Callable[[Doubles], Doubles]:
        factors = np.array([_power_of_two(value) for value in np.abs(queries).max(axis=1, initial=0.0)])
        scaled = queries * factors[:, None]
        norms = np.linalg.norm(scaled, axis=1)
        left[:, :-1] = -scaled
        left[:, -1] = -norms * (1 + 2.0**-10)
        moved = queries @ middle
        noise = dims * 2.0**-50 * np.linalg.norm(queries, axis=1) * np.linalg.norm(middle)

        def limit(distances: Doubles) -> Doubles:
            slack = noise + dims * 2.0**-50 * np.abs(distances)
            return np.asarray((distances + moved + slack) * scale * factors + dims * _VANISHED)

        return limit

    return bound


def _stretches(queries: int, rows: Ints, row_bytes: int) -> Iterator[tuple[int, slice]]:
    """(query, part of the rows): rows stay in the cache until all queries have seen them."""
    step = max(1, _CACHED_BYTES // row_bytes) if queries > 1 else max(1, len(rows))
    for start in range(0, len(rows), step):
        for query in range(queries):
            yield query, slice(start, start + step)


def _relative_error(dims: int) -> float:
    """Of a sum over the dimensions, and of a little arithmetic around it."""
    steps = (dims + 8) * _UNIT
    return steps / (1 - steps)


def rounding_of_units(dims: int) -> float:
    """How far a unit vector of f64 lies from the same in f32, at most."""
    return 1.01 * _UNIT + math.sqrt(dims) * 2.0**-149


def _reach(distances: Doubles, metric: Metric) -> Doubles:
    """Reported distances as Euclidean ones."""
    return np.asarray(np.sqrt(2 * distances)) if metric is Metric.COSINE else distances


def _power_of_two(largest: float) -> float:
    """What brings the largest of some numbers to about 1."""
    exponent = math.frexp(largest)[1]
    return math.ldexp(1.0, min(max(1 - exponent, -120), 120)) if largest > 0 else 1.0


@njit(nogil=True, cache=True, fastmath=FAST)
def _squared_gaps(target, row, rows, out):  # type: ignore[no-untyped-def]
    """f32[N], one query of a target from nodes int64[N]."""
    point = aim(target, row)
    for place in range(rows.size):
        if place + _AHEAD < rows.size:
            fetch(point, rows[place + _AHEAD])
        out[place] = distance(point, rows[place])


@njit(nogil=True, cache=True, fastmath=FAST)
def _least_product(vectors, rows, query, error, out):  # type: ignore[no-untyped-def]
    """f32[N]: - the dot product with vectors[rows], less `error` times the length of the row.

    That is no less than the sum of magnitudes, times the query's (Cauchy-Schwarz), and costs one fused operation.
    """
    lost = np.float32(query.size * _VANISHED)  # squares that were rounded to nothing, where products were not
    for place in range(rows.size):
        if place + _AHEAD < rows.size:
            prefetch_row(vectors, rows[place + _AHEAD])
        node = rows[place]
        total, squares = np.float32(0), np.float32(0)
        for d in range(query.size):
            one = vectors[node, d]
            total -= np.float32(one * query[d])
            squares += np.float32(one * one)
        least = total - error * np.sqrt(squares + lost)
        out[place] = least if abs(least) < np.inf else np.float32(np.nan)


@njit(nogil=True, cache=True, fastmath=FAST)
def _centered(vectors, rows, center, scale, share, inner, out):  # type: ignore[no-untyped-def]
    """(vectors[rows] - center) * scale, and behind each its length, or the square of that, times `share`."""
    dims = center.size
    for place in range(rows.size):
        node = rows[place]
        total = np.float32(0)
        for d in range(dims):
            gap = np.float32((vectors[node, d] - center[d]) * scale)
            out[place, d] = gap
            total += gap * gap
        length = np.sqrt(total) if inner else total
        out[place, dims] = length * share if total < np.inf else np.float32(np.nan)
