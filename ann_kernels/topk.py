"""Exact k nearest, streaming, and the merge of sorted runs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from ann_kernels.distance import internal_pairwise, reported
from ann_kernels.errors import KernelError
from ann_kernels.metric import Metric
from ann_kernels.spaces import FAST, DotTarget, FloatTarget, aim, distance, fetch, frozen

Neighbors = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
_LIVE_ROWS = 8_192
_FEW_QUERIES = 8
"""Comparing rows with fewer where they lie is faster than copying them for a matrix product"""
_AHEAD = 8
"""Rows that are fetched before they are compared"""
_BLOCK_BYTES = 4 * 1024**2


class ExactTopK:
    """Keeps the k nearest of all vectors shown so far. Ties go to the smaller id.

    `queries` f32[Q, D] and all vectors are prepared for `metric`. Distances of the head are recomputed in float64 from
    differences, so that near-duplicates are ranked right where the matrix product cancels.
    """

    def __init__(self, queries: npt.NDArray[np.float32], k: int, metric: Metric) -> None:
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        self._queries = queries
        self._metric = metric
        self._ids = np.full((len(queries), k), -1, np.int64)
        self._distances = np.full((len(queries), k), np.inf, np.float32)

    def update(self, vectors: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> None:
        """Show vectors f32[N, D] under ids int64[N]."""
        block = max(1, _BLOCK_BYTES // (4 * max(1, len(self._queries))))
        for start in range(0, len(vectors), block):
            self._update_block(vectors[start : start + block], ids[start : start + block])

    def update_in_place(self, vectors: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> None:
        """Show vectors[ids], without a copy of them; for few queries."""
        kind = DotTarget if self._metric is Metric.INNER_PRODUCT else FloatTarget
        target = kind(frozen(vectors), frozen(self._queries))
        rough = np.empty((len(self._queries), len(ids)), np.float32)
        for row, far in enumerate(rough):
            _compare(target, row, ids, far)
        near = ids[self._head(rough)]
        self._keep(near, _exact_distances(self._queries, vectors, near, self._metric))

    def _update_block(self, vectors: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> None:
        head = self._head(internal_pairwise(self._queries, vectors, self._metric))
        self._keep(ids[head], _exact_distances(self._queries, vectors, head, self._metric))

    def _head(self, rough: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Columns, a row for each query, among which the nearest are; distances f32[Q, N] are about `rough`."""
        count = rough.shape[1]
        wide = min(count, 2 * self._ids.shape[1] + 10)
        if wide < count:
            return np.argpartition(rough, wide - 1, axis=1)[:, :wide]
        return np.broadcast_to(np.arange(wide), (len(rough), wide))

    def _keep(self, ids: npt.NDArray[np.int64], exact: npt.NDArray[np.float32]) -> None:
        """The nearest of what was kept and of these, ids int64[Q, N] with distances f32[Q, N]."""
        k = self._ids.shape[1]
        all_ids = np.concatenate([self._ids, ids], axis=1)
        all_distances = np.concatenate([self._distances, exact], axis=1)
        order = np.lexsort((np.where(all_ids < 0, np.iinfo(np.int64).max, all_ids), all_distances), axis=1)[:, :k]
        self._ids = np.take_along_axis(all_ids, order, axis=1)
        self._distances = np.take_along_axis(all_distances, order, axis=1)

    def result(self) -> Neighbors:
        """(ids int64[Q, k], -1 where there are fewer; reported distances f32[Q, k], inf there)."""
        missing = self._ids < 0
        distances = reported(np.where(missing, np.float32(0), self._distances), self._metric)
        return self._ids, np.where(missing, np.float32(np.inf), distances).astype(np.float32)


def _exact_distances(
    queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32], head: npt.NDArray[np.int64], metric: Metric
) -> npt.NDArray[np.float32]:
    out = np.empty(head.shape, np.float64)
    for row, columns in enumerate(head):
        near = vectors[columns].astype(np.float64)
        if metric is Metric.INNER_PRODUCT:
            out[row] = -(near @ queries[row].astype(np.float64))
        else:
            gap = near - queries[row]
            out[row] = np.einsum("ij,ij->i", gap, gap)
    with np.errstate(over="ignore"):  # further than f32 reaches is infinitely far
        return out.astype(np.float32)


@njit(nogil=True, cache=True, fastmath=FAST)
def _compare(target, row, ids, distances):  # type: ignore[no-untyped-def]
    """Distances f32[N] of one query of a target from nodes ids int64[N]."""
    point = aim(target, row)
    for place in range(ids.size):
        if place + _AHEAD < ids.size:
            fetch(point, ids[place + _AHEAD])
        distances[place] = distance(point, ids[place])


def exact_top_k(
    queries: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
    k: int,
    metric: Metric,
    *,
    live: npt.NDArray[np.bool_] | None = None,
) -> Neighbors:
    """The k nearest of `vectors` f32[N, D], both arrays prepared; `live` bool[N] leaves some out.

    -> (ids int64[Q, k], -1 where there are fewer; distances f32[Q, k], inf there).
    """
    top = ExactTopK(queries, k, metric)
    if live is None or live.all():
        top.update(vectors, np.arange(len(vectors), dtype=np.int64))
        return top.result()
    ids = np.flatnonzero(live).astype(np.int64)
    if len(queries) < _FEW_QUERIES:
        top.update_in_place(vectors, ids)
        return top.result()
    for start in range(0, len(ids), _LIVE_ROWS):  # some at a time: a copy of all would double a build's memory
        some = ids[start : start + _LIVE_ROWS]
        top.update(vectors[some], some)
    return top.result()


def merge_top_k(runs: Sequence[Neighbors], k: int) -> tuple[npt.NDArray[np.int32], *Neighbors]:
    """Merge runs of (ids[Q, ki], distances[Q, ki]), each ascending, into the k nearest: a loser tree per query.

    -> (run int32[Q, k], ids int64[Q, k], distances f32[Q, k]); -1, -1, inf where there are fewer.
    Ties go to the smaller id, then to the earlier run: of runs that are sorted so the result does not depend on how
    rows were dealt to them. Source: Knuth, TAOCP 3, 5.4.1.
    """
    queries = len(runs[0][0])
    widest = max(ids.shape[1] for ids, _ in runs)
    ids = np.full((queries, len(runs), widest), -1, np.int64)
    distances = np.full((queries, len(runs), widest), np.inf, np.float32)
    for number, (run_ids, run_distances) in enumerate(runs):
        ids[:, number, : run_ids.shape[1]] = run_ids
        distances[:, number, : run_ids.shape[1]] = run_distances
    out_runs = np.full((queries, k), -1, np.int32)
    out_ids = np.full((queries, k), -1, np.int64)
    out_distances = np.full((queries, k), np.inf, np.float32)
    _merge(ids, distances, out_runs, out_ids, out_distances)
    return out_runs, out_ids, out_distances


@njit(nogil=True, cache=True)
def _beats(a, b, at, ids, distances):  # type: ignore[no-untyped-def]
    """Whether run a's head comes before run b's; run -1 is empty and loses."""
    if a < 0 or b < 0:
        return b < 0 <= a
    x = distances[a, at[a]] if at[a] < distances.shape[1] else np.float32(np.inf)
    y = distances[b, at[b]] if at[b] < distances.shape[1] else np.float32(np.inf)
    if x != y or at[a] >= ids.shape[1] or at[b] >= ids.shape[1]:
        return x < y or (x == y and a < b)
    i, j = ids[a, at[a]], ids[b, at[b]]
    return i < j or (i == j and a < b)


@njit(nogil=True, cache=True)
def _merge(ids, distances, out_runs, out_ids, out_distances):  # type: ignore[no-untyped-def]
    queries, count, width = ids.shape
    leaves = 1
    while leaves < count:
        leaves *= 2
    loser = np.empty(leaves, np.int32)
    winner = np.empty(2 * leaves, np.int32)
    at = np.empty(count, np.int64)
    for query in range(queries):
        at[:] = 0
        for leaf in range(leaves):
            winner[leaves + leaf] = leaf if leaf < count else -1
        for node in range(leaves - 1, 0, -1):
            left, right = winner[2 * node], winner[2 * node + 1]
            ahead = _beats(left, right, at, ids[query], distances[query])
            winner[node] = left if ahead else right
            loser[node] = right if ahead else left
        best = winner[1]
        for place in range(out_ids.shape[1]):
            if best < 0 or at[best] >= width or ids[query, best, at[best]] < 0:
                break
            out_runs[query, place] = best
            out_ids[query, place] = ids[query, best, at[best]]
            out_distances[query, place] = distances[query, best, at[best]]
            at[best] += 1
            node = (leaves + best) // 2
            while node > 0:
                if _beats(loser[node], best, at, ids[query], distances[query]):
                    best, loser[node] = loser[node], best
                node //= 2
