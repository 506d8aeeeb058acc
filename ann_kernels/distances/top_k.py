"""Exact k nearest, streaming, and the merge of sorted runs.

A row is among the k nearest by its distance in float64 (`exact_distances`); ties go to the smaller id. Most rows are
ruled out by a bound in float32, which no rounding can put above the true distance (`lower_bounds`): it decides what an
answer costs, never what it is. So an answer does not depend on the other queries and rows of the same call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I32, I64, Bool, Floats
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.distances.exact_distances import as_float64, pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import QUERIES_AT_ONCE, LowerBounds, bounds_of
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.metric import Metric

Neighbors: TypeAlias = tuple[I64, F64]
"""(ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there), nearest first"""
RowIds: TypeAlias = I64 | Callable[[I64], I64]
"""Ids of rows: int64[N], or a function from some rows to their ids, which is called for few rows"""
_NO_QUERIES = np.empty(0, np.intp)
_CROWD = 64
"""Number of rows, beside four times k, that are compared without looking for the nearest among them first"""
_NO_ID = np.iinfo(np.int64).max


class ExactTopK:
    """The k nearest of all vectors given so far. Ties go to the smaller id. Memory: 16 bytes per query and k.

    Parameters
    ----------
    queries : f32 or f64 [Q, D]
        Finite, and of unit length under cosine.
    k : int
        At least 1; else KernelError.
    metric : Metric
    """

    def __init__(self, queries: Floats, k: int, metric: Metric) -> None:
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        self._queries = as_float64(queries)
        self._metric = metric
        self._ids = np.full((len(queries), k), _NO_ID, np.int64)
        self._distances = np.full((len(queries), k), np.inf)

    def update(self, vectors: Floats, ids: RowIds, *, rows: I64 | None = None, raw: Floats | None = None) -> None:
        """Compare vectors[rows] with the queries. Raises DimensionError where they differ in dimensions.

        Parameters
        ----------
        vectors : f32 or f64 [N, D]
            Prepared for the metric.
        ids : RowIds
            The ids of the vectors, each given once.
        rows : int64[n], optional
            The rows to compare; default all.
        raw : f32 or f64 [N, D], optional
            Under cosine: the vectors as the table has them, of which `vectors` are the directions, rounded to f32.
        """
        count, dims = self._queries.shape
        if vectors.shape[1] != dims:
            raise DimensionError(f"queries have {dims} dimensions, vectors {vectors.shape[1]}")
        source = vectors if raw is None else raw
        for block, bounds_for in bounds_of(vectors, count, self._metric, rows=rows, rounded=raw is not None):
            rows_of_block = _Rows(source, raw is not None, block, ids)
            for first in range(0, count, QUERIES_AT_ONCE):
                part = slice(first, first + QUERIES_AT_ONCE)
                self._update_block(part, bounds_for(self._queries[part]), rows_of_block)

    def _update_block(self, part: slice, bounds: LowerBounds, rows: "_Rows") -> None:
        """Compare a part of the queries with the rows that the bounds do not rule out."""
        k = self._ids.shape[1]
        farthest = self._distances[part, 0]
        candidates = bounds.may_be_within(farthest)
        crowded = _NO_QUERIES
        if k < candidates.shape[1]:
            crowded = np.flatnonzero(candidates.sum(axis=1) > 4 * k + _CROWD)
        if len(crowded):  # the nearest by their bounds first: they rule out others
            least = bounds.least[crowded]
            first = np.zeros_like(candidates)
            first[crowded] = least <= np.partition(least, k - 1, axis=1)[:, k - 1 : k]
            self._compare(part, first, rows)
            candidates = bounds.may_be_within(farthest) & ~first
        self._compare(part, candidates, rows)

    def _compare(self, part: slice, candidates: Bool, rows: "_Rows") -> None:
        queries, indices = np.divmod(np.flatnonzero(candidates), candidates.shape[1])
        chosen = rows.rows[indices]
        distances = pair_distances(self._queries[part], rows.vectors, queries, chosen, self._metric, raw=rows.raw)
        ids = rows.ids(chosen) if callable(rows.ids) else rows.ids[chosen]
        _keep_nearest(queries, ids, distances, self._ids[part], self._distances[part])

    @property
    def farthest(self) -> F64:
        """f64[Q]: distance of the k-th nearest vector so far; inf where there are fewer."""
        return self._distances[:, 0]

    def result(self) -> Neighbors:
        """(ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there), nearest first."""
        order = np.lexsort((self._ids, self._distances), axis=1)
        ids = np.take_along_axis(self._ids, order, axis=1)
        return np.where(ids == _NO_ID, -1, ids), np.take_along_axis(self._distances, order, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Some rows of some vectors."""

    vectors: Floats
    """f32 or f64 [N, D]"""
    raw: bool
    """Whether the vectors are as the table has them"""
    rows: I64
    """int64[n]"""
    ids: RowIds


@kernel
def _keep_nearest(queries: I64, ids: I64, distances: F64, kept_ids: I64, kept: F64) -> None:
    """Put rows among the k that a query keeps: a heap with the farthest at the root. Of ties the smaller id stays."""
    k = kept.shape[1]
    for i in range(queries.size):
        query = queries[i]
        if distances[i] > kept[query, 0] or (distances[i] == kept[query, 0] and ids[i] > kept_ids[query, 0]):
            continue
        index = 0
        while 2 * index + 1 < k:
            child = 2 * index + 1
            if child + 1 < k and (
                kept[query, child + 1] > kept[query, child]
                or (
                    kept[query, child + 1] == kept[query, child] and kept_ids[query, child + 1] > kept_ids[query, child]
                )
            ):
                child += 1
            if kept[query, child] < distances[i] or (
                kept[query, child] == distances[i] and kept_ids[query, child] < ids[i]
            ):
                break
            kept[query, index] = kept[query, child]
            kept_ids[query, index] = kept_ids[query, child]
            index = child
        kept[query, index] = distances[i]
        kept_ids[query, index] = ids[i]


def exact_top_k(
    queries: Floats, vectors: Floats, k: int, metric: Metric, *, is_live: Bool | None = None, ids: RowIds | None = None
) -> Neighbors:
    """The k vectors nearest to each query.

    Parameters
    ----------
    queries : f32 or f64 [Q, D]
        Prepared for the metric.
    vectors : f32 or f64 [N, D]
        Prepared for the metric.
    k : int
        At least 1; else KernelError.
    metric : Metric
    is_live : bool[N], optional
        The vectors that may be returned; default all.
    ids : RowIds, optional
        The ids of the vectors, by which ties go; default their indices.

    Returns
    -------
    tuple
        (ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there), nearest first.
    """
    top = ExactTopK(queries, k, metric)
    rows = None if is_live is None or is_live.all() else np.flatnonzero(is_live).astype(np.int64)
    top.update(vectors, (lambda indices: indices) if ids is None else ids, rows=rows)
    return top.result()


def merge_top_k(runs: Sequence[Neighbors], k: int) -> tuple[I32, I64, F64]:
    """Merge runs of (ids[Q, ki], distances[Q, ki]), each ascending, into the k nearest: a loser tree per query.

    Returns (run int32[Q, k], ids int64[Q, k], distances f64[Q, k]); -1, -1, inf where there are fewer. Ties go to the
    smaller id, then to the earlier run: for runs sorted so, the result does not depend on how rows were distributed
    over them. Source: Knuth, TAOCP 3, 5.4.1.
    """
    queries = len(runs[0][0])
    widest = max(ids.shape[1] for ids, _ in runs)
    ids = np.full((queries, len(runs), widest), -1, np.int64)
    distances = np.full((queries, len(runs), widest), np.inf)
    for run, (run_ids, run_distances) in enumerate(runs):
        ids[:, run, : run_ids.shape[1]] = run_ids
        distances[:, run, : run_ids.shape[1]] = run_distances
    out_runs = np.full((queries, k), -1, np.int32)
    out_ids = np.full((queries, k), -1, np.int64)
    out_distances = np.full((queries, k), np.inf)
    _merge(ids, distances, out_runs, out_ids, out_distances)
    return out_runs, out_ids, out_distances


@inner_kernel
def _beats(a: int, b: int, heads: I64, ids: I64, distances: F64) -> bool:
    """Whether the head of run a comes before that of run b; run -1 is empty and loses."""
    if a < 0 or b < 0:
        return b < 0 <= a
    x = distances[a, heads[a]] if heads[a] < distances.shape[1] else np.inf
    y = distances[b, heads[b]] if heads[b] < distances.shape[1] else np.inf
    if x != y or heads[a] >= ids.shape[1] or heads[b] >= ids.shape[1]:
        return x < y or (x == y and a < b)
    i, j = ids[a, heads[a]], ids[b, heads[b]]
    return i < j or (i == j and a < b)


@kernel
def _merge(ids: I64, distances: F64, out_runs: I32, out_ids: I64, out_distances: F64) -> None:
    """Merge ids int64[Q, runs, width] and distances f64[Q, runs, width]."""
    queries, count, width = ids.shape
    leaves = 1
    while leaves < count:
        leaves *= 2
    loser = np.empty(leaves, np.int32)
    winner = np.empty(2 * leaves, np.int32)
    heads = np.empty(count, np.int64)
    for query in range(queries):
        heads[:] = 0
        for leaf in range(leaves):
            winner[leaves + leaf] = leaf if leaf < count else -1
        for node in range(leaves - 1, 0, -1):
            left, right = winner[2 * node], winner[2 * node + 1]
            left_wins = _beats(left, right, heads, ids[query], distances[query])
            winner[node] = left if left_wins else right
            loser[node] = right if left_wins else left
        best = winner[1]
        for index in range(out_ids.shape[1]):
            if best < 0 or heads[best] >= width or ids[query, best, heads[best]] < 0:
                break
            out_runs[query, index] = best
            out_ids[query, index] = ids[query, best, heads[best]]
            out_distances[query, index] = distances[query, best, heads[best]]
            heads[best] += 1
            node = (leaves + best) // 2
            while node > 0:
                if _beats(loser[node], best, heads, ids[query], distances[query]):
                    best, loser[node] = loser[node], best
                node //= 2
