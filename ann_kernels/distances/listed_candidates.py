"""The nearest of some vectors to each of many queries, where each query has candidates of its own.

As in `coded_comparison`, codes of one byte rule most of them out, and the others are compared in float64.
"""

from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, I64, U32, read_only
from icepuffin.ann_kernels.codes.coded_distances import SLACK, CodeTable, bound_reached, coded_query, distance_bounds
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.distances.candidate_list import new_candidates
from icepuffin.ann_kernels.distances.coded_comparison import ROWS_AHEAD, CodedVectors, keep_smallest
from icepuffin.ann_kernels.distances.exact_distances import exact_distance
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.byte_products import BLOCK, dot
from icepuffin.ann_kernels.simd.prefetching import prefetch, prefetch_lines, prefetch_row
from icepuffin.ann_kernels.simd.sort_keys import insert_key, key_distance, sort_key

_NO_CODES = CodeTable(
    read_only(np.empty(0, np.uint8)),
    read_only(np.empty(0, np.int32)),
    read_only(np.empty(0, np.float32)),
    1.0,
    read_only(np.empty(0, np.uint8)),
    1.0,
)


@dataclass(frozen=True, slots=True, eq=False)
class NearestListed:
    """The nearest candidates of Q queries, one after another."""

    queries: I64
    """int64[n], ascending"""
    nodes: I64
    """int64[n], those of a query in any order"""
    distances: F64
    """f64[n], reported"""
    compared: I64
    """int64[Q]: candidates of each query"""


def nearest_listed(
    vectors: F32 | CodedVectors,
    metric: Metric,
    queries: F64,
    candidates: tuple[I64, U32],
    k: int,
    *,
    first: int = 0,
    doubt: float = 0.0,
) -> NearestListed:
    """All candidates of each query that are no farther than its k-th nearest.

    Parameters
    ----------
    vectors : f32[N, D] or CodedVectors
        Prepared for the metric.
    metric : Metric
    queries : f64[Q, D]
        Prepared for the metric.
    candidates : (int64[Q + 1], u32[n])
        Numbers of the candidates before those of each query; candidates, each the number of a vector, plus `first`.
        Others are left out.
    k : int
    first : int
    doubt : float
        Under cosine: Euclidean distance from the k-th nearest direction within which others are taken, too.
    """
    coded = isinstance(vectors, CodedVectors)
    codes, floats = (vectors.table, vectors.vectors) if isinstance(vectors, CodedVectors) else (_NO_CODES, vectors)
    starts, nodes = candidates
    numbers, distances = np.empty(len(nodes), np.int64), np.empty(len(nodes))
    counts = np.zeros((len(queries), 2), np.int64)
    count = _fill_nearest(
        codes,
        read_only(floats),
        read_only(queries),
        read_only(starts),
        read_only(nodes),
        (first, first + len(floats)),
        (metric.code, metric is Metric.INNER_PRODUCT, k, doubt, coded),
        numbers,
        distances,
        counts,
    )
    return NearestListed(
        np.repeat(np.arange(len(queries)), counts[:, 0]), numbers[:count], distances[:count], counts[:, 1]
    )


@kernel
def _fill_nearest(
    coded: CodeTable,
    vectors: F32,
    queries: F64,
    starts: I64,
    candidates: U32,
    span: tuple[int, int],
    how: tuple[int, bool, int, float, bool],
    nodes: I64,
    distances: F64,
    counts: I64,
) -> int:
    """`nearest_listed`: fills nodes and distances, and counts int64[Q, 2] of (nearest, candidates) of each query.

    Returns the number of the nearest of all queries.
    """
    metric, inner, k, doubt, has_codes = how
    most = 0
    for query in range(starts.size - 1):
        most = max(most, starts[query + 1] - starts[query])
    offsets, least = np.empty(most, np.int32), np.empty(most, np.float32)
    code = np.zeros(coded.codes.size // max(1, coded.norms.size), np.int8)
    own_distances, smallest = np.empty(most), np.empty(k)
    filled = 0
    for query in range(starts.size - 1):
        count = 0
        for index in range(starts[query], starts[query + 1]):
            node = np.int64(candidates[index])
            if span[0] <= node < span[1]:
                offsets[count], least[count] = node - span[0], -np.inf
                count += 1
        counts[query, 1] = count
        if count == 0:
            continue
        nearest = min(k, count)
        if has_codes and count > nearest:
            count = _rule_out(coded, queries[query], inner, nearest, doubt, code, offsets[:count], least)
        best = smallest[:nearest]
        _compare(vectors, queries[query], metric, doubt, offsets[:count], least, own_distances, best)
        limit = best[nearest - 1]
        if doubt:
            limit = (np.sqrt(2 * limit) + doubt) ** 2 / 2 * (1 + SLACK)
        for index in range(count):
            if own_distances[index] <= limit:
                nodes[filled], distances[filled] = offsets[index], own_distances[index]
                filled += 1
                counts[query, 0] += 1
    return filled


@inner_kernel
def _compare(
    vectors: F32, query: F64, metric: int, doubt: float, rows: I32, least: F32, distances: F64, best: F64
) -> None:
    """Distances f64[n] of the rows that may be among the nearest, inf of the others; f64[k] of the k nearest."""
    best[:] = np.inf
    for index in range(rows.size):
        if index + ROWS_AHEAD < rows.size:
            prefetch_row(vectors, rows[index + ROWS_AHEAD])
        distances[index] = np.inf
        if not least[index] > bound_reached(best[best.size - 1], metric) + doubt:
            distances[index] = exact_distance(vectors, np.int64(rows[index]), query, metric)
            keep_smallest(distances[index], best)


@inner_kernel
def _rule_out(coded: CodeTable, query: F64, inner: bool, k: int, doubt: float, code: I8, rows: I32, least: F32) -> int:
    """Keep the rows that may be among the k nearest, with lower bounds of their distances f32[n]. Returns their number.

    `code` int8[P] is filled with the query's own.
    """
    codes, norms, errors = coded.codes, coded.norms, coded.errors
    code_query = coded_query(query, coded, inner, code)
    width = code.size
    keys = new_candidates(k)
    limit, kept = np.inf, 0
    for index in range(rows.size):
        if index + ROWS_AHEAD < rows.size:
            following = np.intp(rows[index + ROWS_AHEAD])
            prefetch_lines(codes, following * width, width)
            prefetch(norms, following)
            prefetch(errors, following)
        row = np.intp(rows[index])
        product = dot(codes, row * width, code, np.intp(0), np.intp(width // BLOCK))
        low, high = distance_bounds(code_query, product, norms[row], errors[row])
        if not np.float32(low) > limit:  # what is no number rules out nothing
            rows[kept], least[kept] = row, low
            key = sort_key(np.float32(high + SLACK * abs(high)), np.int32(kept))
            kept += 1
            if key < keys[k - 1]:
                insert_key(keys, k - 1, key)
                if kept >= k:
                    limit = np.float64(key_distance(keys[k - 1])) + doubt
    count = 0
    for index in range(kept):
        if not least[index] > limit:
            rows[count], least[count] = rows[index], least[index]
            count += 1
    return count
