"""Distances in float64: what exact answers are ranked by, and what is reported.

The same pair of vectors gives the same bits on every path and every machine, whatever was compared besides.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.distance_computers import frozen
from icepuffin.ann_kernels.double_sums import product, scaled_squared_gap, squared_gap
from icepuffin.ann_kernels.metric import Metric

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_L2 = int(Metric.L2)
_INNER_PRODUCT = int(Metric.INNER_PRODUCT)


@njit(nogil=True, cache=True, fastmath=False)
def exact_distance(vectors, node, query, metric, raw):  # type: ignore[no-untyped-def]
    """The distance that the metric (its number) reports, f64, of vectors[node] from a query f64[D].

    Under cosine the query is of unit length, and so are the vectors, unless they are `raw`.
    """
    if metric == _INNER_PRODUCT:
        return -product(vectors, node, query)
    if metric == _L2:
        return np.sqrt(squared_gap(vectors, node, query))
    if raw:
        factor = 1.0 / np.sqrt(product(vectors, node, vectors[node]))
        return scaled_squared_gap(vectors, node, factor, query) / 2
    return squared_gap(vectors, node, query) / 2


@njit(nogil=True, cache=True, fastmath=False)
def _pairs(queries, vectors, asked, rows, metric, raw, out):  # type: ignore[no-untyped-def]
    for at in range(asked.size):
        out[at] = exact_distance(vectors, rows[at], queries[asked[at]], metric, raw)


@njit(nogil=True, cache=True, fastmath=False)
def _squares(vectors, out):  # type: ignore[no-untyped-def]
    for row in range(out.size):
        out[row] = product(vectors, row, vectors[row])


def lengths(vectors: npt.NDArray[Any]) -> Floats:
    """f64[N], of vectors f32 or f64 [N, D]: of each the same bits, whatever the others are."""
    out = np.empty(len(vectors))
    _squares(frozen(np.ascontiguousarray(vectors)), out)
    return np.asarray(np.sqrt(out))


def pair_distances(
    queries: npt.NDArray[Any], vectors: npt.NDArray[Any], asked: Ints, rows: Ints, metric: Metric, *, raw: bool = False
) -> Floats:
    """f64[n], reported distances of pairs: queries[asked[i]] and vectors[rows[i]], both f32 or f64, `asked` and `rows`
    int64[n]. Under cosine all are of unit length, but vectors that are `raw`, as the table has them.
    """
    out = np.empty(len(asked))
    _pairs(
        frozen(as_float64(queries)),
        frozen(np.ascontiguousarray(vectors)),
        frozen(asked),
        frozen(rows),
        int(metric),
        raw,
        out,
    )
    return out


def as_float64(vectors: npt.NDArray[Any]) -> Floats:
    """The same numbers in C order; copied only where they are others."""
    return np.ascontiguousarray(vectors, np.float64)
