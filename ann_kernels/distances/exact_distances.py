"""Distances in float64: those by which exact answers are ranked, and those that are reported.

The same pair of vectors gives the same bits on every path and every machine, whatever else is compared. Sums go by
whole blocks (`simd.double_blocks`), then one element at a time.
"""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64, Floats, read_only
from icepuffin.ann_kernels.compilation import strict_inner_kernel, strict_kernel
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.double_blocks import BLOCK_VALUES, block_products, block_squared_gaps

_L2, _COSINE = Metric.L2.code, Metric.COSINE.code
INNER_PRODUCT = Metric.INNER_PRODUCT.code
_HAMMING = Metric.HAMMING.code


@strict_inner_kernel
def _squared_gap(vectors: Floats, node: Any, query: Floats, factor: float) -> Any:
    """f64: squared L2 distance of factor * vectors[node] from a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // BLOCK_VALUES
    total = block_squared_gaps(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks), factor)
    for i in range(blocks * BLOCK_VALUES, size):
        gap = np.float64(vectors[node, i]) * factor - query[i]
        total += gap * gap
    return total


@strict_inner_kernel
def _product(vectors: Floats, node: Any, query: Floats) -> Any:
    """f64: the dot product of vectors[node] and a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // BLOCK_VALUES
    total = block_products(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks))
    for i in range(blocks * BLOCK_VALUES, size):
        total += np.float64(vectors[node, i]) * query[i]
    return total


@strict_inner_kernel
def exact_distance(vectors: Floats, node: np.int64, query: F64, metric: int) -> Any:
    """The distance that a metric reports, f64, of vectors[node] from a query f64[D].

    Under cosine query and vectors have unit length. The metric is the code of a `Metric`: numba takes 11 microseconds
    to recognise a member of an enum, at each call.
    """
    if metric == INNER_PRODUCT:
        return -_product(vectors, node, query)
    if metric == _L2:
        return np.sqrt(_squared_gap(vectors, node, query, 1.0))
    if metric == _HAMMING:
        return _squared_gap(vectors, node, query, 1.0)
    return _squared_gap(vectors, node, query, 1.0) / 2


@strict_kernel
def _fill_pair_distances(
    queries: F64, vectors: Floats, query_rows: I64, rows: I64, metric: int, raw: bool, out: F64
) -> None:
    for i in range(query_rows.size):
        query = queries[query_rows[i]]
        if raw and metric == _COSINE:
            factor = 1.0 / np.sqrt(_product(vectors, rows[i], vectors[rows[i]]))
            out[i] = _squared_gap(vectors, rows[i], query, factor) / 2
        else:
            out[i] = exact_distance(vectors, rows[i], query, metric)


@strict_kernel
def _fill_squared_lengths(vectors: Floats, out: F64) -> None:
    for row in range(out.size):
        out[row] = _product(vectors, row, vectors[row])


def lengths(vectors: Floats) -> F64:
    """Lengths f64[N] of vectors f32 or f64 [N, D]; a row gives the same bits whatever the other rows are."""
    out = np.empty(len(vectors))
    _fill_squared_lengths(read_only(np.ascontiguousarray(vectors)), out)
    return np.asarray(np.sqrt(out))


def pair_distances(
    queries: Floats, vectors: Floats, query_rows: I64, rows: I64, metric: Metric, *, raw: bool = False
) -> F64:
    """Reported distances f64[n] of the pairs queries[query_rows[i]] and vectors[rows[i]].

    `queries` and `vectors` are f32 or f64 [.., D], `query_rows` and `rows` int64[n]. Under cosine all vectors have unit
    length; with `raw`, `vectors` are as the table has them.
    """
    out = np.empty(len(query_rows))
    _fill_pair_distances(
        read_only(as_float64(queries)),
        read_only(np.ascontiguousarray(vectors)),
        read_only(np.ascontiguousarray(query_rows)),
        read_only(np.ascontiguousarray(rows)),
        metric.code,
        raw,
        out,
    )
    return out


def as_float64(vectors: Floats) -> F64:
    """The same numbers in C order; copied only where dtype or order differ."""
    return np.ascontiguousarray(vectors, np.float64)
