"""Exact k nearest, streaming, and the merge of sorted runs.

A row is among the k nearest by its distance in float64 (`exact_distances`); ties go to the smaller id. Most rows are
passed over by a bound in float32, which no rounding can put above the true distance (`lower_bounds`): it decides what
an answer costs, never what it is. So an answer does not depend on what else is asked or shown at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.exact_distances import as_float64, pair_distances
from icepuffin.ann_kernels.lower_bounds import QUERIES_AT_ONCE, Bound, bounds_of
from icepuffin.ann_kernels.metric import Metric

Neighbors = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
Ints = npt.NDArray[np.int64]
Names = Ints | Callable[[Ints], Ints]
"""What rows are called: int64[N], or a function from the numbers of some rows, as few of them are asked for"""
_NONE = np.empty(0, np.intp)
_CROWD = 64
"""Rows that are compared without a look for the nearest among them, beside four times k"""
_NO_ID = np.iinfo(np.int64).max


class ExactTopK:
    """Keeps the k nearest of all vectors shown so far. Ties go to the smaller id. Memory: 16 bytes a query and k.

    `queries` f32 or f64 [Q, D], finite and of unit length under cosine.
    """

    def __init__(self, queries: npt.NDArray[Any], k: int, metric: Metric) -> None:
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        self._queries = as_float64(queries)
        self._metric = metric
        self._ids = np.full((len(queries), k), _NO_ID, np.int64)
        self._distances = np.full((len(queries), k), np.inf)

    def update(
        self,
        vectors: npt.NDArray[Any],
        ids: Names,
        *,
        rows: Ints | None = None,
        raw: npt.NDArray[Any] | None = None,
    ) -> None:
        """Show vectors[rows] (default: all) of f32 or f64 [N, D], under their ids, each once.

        `raw`, under cosine: the vectors as the table has them, of which `vectors` are the directions, rounded to f32.
        """
        count = len(self._queries)
        for some, bound_of in bounds_of(vectors, count, self._metric, rows=rows, rounded=raw is not None):
            for first in range(0, count, QUERIES_AT_ONCE):
                asked = slice(first, first + QUERIES_AT_ONCE)
                self._update_block(
                    asked,
                    bound_of(self._queries[asked]),
                    _Shown(vectors if raw is None else raw, raw is not None, some, ids),
                )

    def _update_block(self, asked: slice, bound: Bound, shown: "_Shown") -> None:
        """Compare what the bounds do not rule out."""
        k = self._ids.shape[1]
        farthest = self._distances[asked, 0]
        near = bound.may_be_within(farthest)
        crowded = np.flatnonzero(near.sum(axis=1) > 4 * k + _CROWD) if k < near.shape[1] else _NONE
        if len(crowded):  # the nearest by their bounds first: they rule out others
            least = bound.least[crowded]
            first = np.zeros_like(near)
            first[crowded] = least <= np.partition(least, k - 1, axis=1)[:, k - 1 : k]
            self._compare(asked, first, shown)
            near = bound.may_be_within(farthest) & ~first
        self._compare(asked, near, shown)

    def _compare(self, asked: slice, near: npt.NDArray[np.bool_], shown: "_Shown") -> None:
        queries, places = np.divmod(np.flatnonzero(near), near.shape[1])
        rows = shown.rows[places]
        far = pair_distances(self._queries[asked], shown.vectors, queries, rows, self._metric, raw=shown.raw)
        names = shown.ids(rows) if callable(shown.ids) else shown.ids[rows]
        _keep(queries, names, far, self._ids[asked], self._distances[asked])

    def result(self) -> Neighbors:
        """(ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there), nearest first."""
        order = np.lexsort((self._ids, self._distances), axis=1)
        ids = np.take_along_axis(self._ids, order, axis=1)
        return np.where(ids == _NO_ID, -1, ids), np.take_along_axis(self._distances, order, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """Some rows of some vectors."""

    vectors: npt.NDArray[Any]
    raw: bool
    rows: Ints
    ids: Names


@njit(nogil=True, cache=True)
def _keep(queries, ids, far, kept_ids, kept):  # type: ignore[no-untyped-def]
    """Replace what is kept of a query, a heap with the farthest at the root, by what is nearer (of ties, smaller)."""
    k = kept.shape[1]
    for at in range(queries.size):
        query = queries[at]
        if far[at] > kept[query, 0] or (far[at] == kept[query, 0] and ids[at] > kept_ids[query, 0]):
            continue
        place = 0
        while 2 * place + 1 < k:
            child = 2 * place + 1
            if child + 1 < k and (
                kept[query, child + 1] > kept[query, child]
                or (
                    kept[query, child + 1] == kept[query, child] and kept_ids[query, child + 1] > kept_ids[query, child]
                )
            ):
                child += 1
            if kept[query, child] < far[at] or (kept[query, child] == far[at] and kept_ids[query, child] < ids[at]):
                break
            kept[query, place] = kept[query, child]
            kept_ids[query, place] = kept_ids[query, child]
            place = child
        kept[query, place] = far[at]
        kept_ids[query, place] = ids[at]


def exact_top_k(
    queries: npt.NDArray[Any],
    vectors: npt.NDArray[Any],
    k: int,
    metric: Metric,
    *,
    live: npt.NDArray[np.bool_] | None = None,
    ids: Names | None = None,
) -> Neighbors:
    """The k nearest of `vectors` [N, D], both arrays prepared; `live` bool[N] leaves some out.

    -> (ids int64[Q, k], -1 where there are fewer; distances f64[Q, k], inf there). `ids`: what the vectors are called,
    and ties go by; default their places.
    """
    top = ExactTopK(queries, k, metric)
    rows = None if live is None or live.all() else np.flatnonzero(live).astype(np.int64)
    top.update(vectors, (lambda places: places) if ids is None else ids, rows=rows)
    return top.result()


def merge_top_k(runs: Sequence[Neighbors], k: int) -> tuple[npt.NDArray[np.int32], *Neighbors]:
    """Merge runs of (ids[Q, ki], distances[Q, ki]), each ascending, into the k nearest: a loser tree per query.

    -> (run int32[Q, k], ids int64[Q, k], distances f64[Q, k]); -1, -1, inf where there are fewer.
    Ties go to the smaller id, then to the earlier run: of runs that are sorted so the result does not depend on how
    rows were dealt to them. Source: Knuth, TAOCP 3, 5.4.1.
    """
    queries = len(runs[0][0])
    widest = max(ids.shape[1] for ids, _ in runs)
    ids = np.full((queries, len(runs), widest), -1, np.int64)
    distances = np.full((queries, len(runs), widest), np.inf)
    for number, (run_ids, run_distances) in enumerate(runs):
        ids[:, number, : run_ids.shape[1]] = run_ids
        distances[:, number, : run_ids.shape[1]] = run_distances
    out_runs = np.full((queries, k), -1, np.int32)
    out_ids = np.full((queries, k), -1, np.int64)
    out_distances = np.full((queries, k), np.inf)
    _merge(ids, distances, out_runs, out_ids, out_distances)
    return out_runs, out_ids, out_distances


@njit(nogil=True, cache=True)
def _beats(a, b, at, ids, distances):  # type: ignore[no-untyped-def]
    """Whether run a's head comes before run b's; run -1 is empty and loses."""
    if a < 0 or b < 0:
        return b < 0 <= a
    x = distances[a, at[a]] if at[a] < distances.shape[1] else np.inf
    y = distances[b, at[b]] if at[b] < distances.shape[1] else np.inf
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
