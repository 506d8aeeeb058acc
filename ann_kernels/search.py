"""Searching one graph: beam search by exact distances or by PQ codes; tombstones are walked through, never returned."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ann_kernels.beam import NEGATED_DOT, PQ_TABLE, SQUARED_L2, beam_search
from ann_kernels.distance import prepare, reported
from ann_kernels.errors import DimensionError, KernelError
from ann_kernels.metric import Metric
from ann_kernels.quantize import distance_tables
from ann_kernels.vamana import Graph

_QUERIES_A_PIECE = 64


@dataclass(frozen=True, slots=True, eq=False)
class SearchStats:
    """What a search did, per query."""

    expanded: npt.NDArray[np.int64]
    """int64[Q]: nodes whose neighbours were looked at"""
    distances: npt.NDArray[np.int64]
    """int64[Q]: distances computed"""


class Searcher:
    """Searches one graph. Immutable and thread-safe.

    With `vectors` f32[N, D] (prepared for `metric`) distances are exact. Without, `pq` = (codebook f32[m, 256, D / m],
    codes u8[N, m]) gives approximate ones, and the caller ranks the candidates again by exact distance.
    `live` bool[N] marks what may be returned.
    """

    def __init__(
        self,
        graph: Graph,
        vectors: npt.NDArray[np.float32] | None,
        metric: Metric,
        *,
        live: npt.NDArray[np.bool_] | None = None,
        pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None = None,
    ) -> None:
        if vectors is None and pq is None:
            raise KernelError("a search needs vectors or PQ codes")
        for name, array in (("vectors", vectors), ("live", live), ("PQ codes", pq and pq[1])):
            if array is not None and len(array) != graph.count:
                raise DimensionError(f"the graph has {graph.count} nodes, but there are {len(array)} {name}")
        self._graph = graph
        self._metric = metric
        self._live = np.ones(graph.count, np.bool_) if live is None else live
        self._live_count = int(self._live.sum())
        self._codebook, self._codes = pq if vectors is None and pq is not None else _NO_PQ
        self._vectors = (
            vectors
            if vectors is not None
            else np.empty((0, self._codebook.shape[0] * self._codebook.shape[2]), np.float32)
        )
        self._exact = vectors is not None

    @property
    def live_count(self) -> int:
        return self._live_count

    def search(
        self, queries: npt.NDArray[Any], k: int, *, search_list: int, threads: int = 1
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], SearchStats]:
        """The k nearest live nodes of raw queries [Q, D].

        -> (ids int64[Q, k], -1 where there are fewer; reported distances f32[Q, k], inf there; stats).
        `search_list` is widened where tombstones crowd the live ones out.
        """
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        ready = prepare(queries, self._metric)
        if ready.shape[1] != self._vectors.shape[1]:
            raise DimensionError(f"queries have {ready.shape[1]} dimensions, the index {self._vectors.shape[1]}")
        ids = np.full((len(ready), k), -1, np.int64)
        distances = np.full((len(ready), k), np.inf, np.float32)
        stats = SearchStats(np.zeros(len(ready), np.int64), np.zeros(len(ready), np.int64))
        wanted = min(k, self._live_count)
        width = max(search_list, k)
        todo = np.arange(len(ready))
        while wanted and len(todo):
            self._search_some(ready, todo, width, ids, distances, stats, threads)
            if width >= self._graph.count:
                break
            todo = todo[ids[todo, wanted - 1] < 0]
            width *= 2
        found = ids >= 0
        shown = reported(np.where(found, distances, np.float32(0)), self._metric)
        return ids, np.where(found, shown, np.float32(np.inf)).astype(np.float32), stats

    def _search_some(
        self,
        ready: npt.NDArray[np.float32],
        todo: npt.NDArray[np.int64],
        width: int,
        ids: npt.NDArray[np.int64],
        distances: npt.NDArray[np.float32],
        stats: SearchStats,
        threads: int,
    ) -> None:
        width = min(width, max(1, self._graph.count))

        def piece(start: int) -> None:
            rows = todo[start : start + _QUERIES_A_PIECE]
            tables = np.empty((len(rows), 0, 0), np.float32)
            if not self._exact:
                tables = distance_tables(
                    ready[rows], self._codebook, inner_product=self._metric is Metric.INNER_PRODUCT
                )
            kind = PQ_TABLE if not self._exact else NEGATED_DOT if self._metric is Metric.INNER_PRODUCT else SQUARED_L2
            _search_rows(
                kind, self._vectors, ready, rows, self._codes, tables, self._graph.neighbors, self._graph.degrees,
                self._graph.medoid, self._live, width, ids, distances, stats.expanded, stats.distances,
            )  # fmt: skip

        starts = range(0, len(todo), _QUERIES_A_PIECE)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                piece(start)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(piece, starts))


_NO_PQ = (np.empty((0, 256, 0), np.float32), np.empty((0, 0), np.uint8))


@njit(nogil=True, cache=True)
def _search_rows(  # type: ignore[no-untyped-def]
    kind,
    vectors,
    queries,
    rows,
    codes,
    tables,
    neighbors,
    degrees,
    medoid,
    live,
    width,
    ids,
    distances,
    expanded_count,
    computed_count,
):
    seen = np.zeros(neighbors.shape[0], np.uint32)
    pool_ids = np.empty(width, np.int32)
    pool_distances = np.empty(width, np.float32)
    expanded = np.empty(width, np.bool_)
    path_ids = np.empty(0, np.int32)
    path_distances = np.empty(0, np.float32)
    for i in range(rows.size):
        row = rows[i]
        size, _, computed = beam_search(
            kind,
            vectors,
            queries[row],
            codes,
            tables[i],
            neighbors,
            degrees,
            medoid,
            seen,
            np.uint32(i + 1),
            pool_ids,
            pool_distances,
            expanded,
            path_ids,
            path_distances,
        )
        computed_count[row] += computed
        expanded_count[row] += size
        place = 0
        for at in range(size):
            if place == ids.shape[1]:
                break
            if live[pool_ids[at]]:
                ids[row, place] = pool_ids[at]
                distances[row, place] = pool_distances[at]
                place += 1
