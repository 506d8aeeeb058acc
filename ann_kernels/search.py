"""Searching one graph. Tombstones are walked through, never returned.

Where vectors are at hand the beam walks by their SQ8 codes, a quarter of the bytes, and the nearest it found are ranked
by exact distances; where codes would not rank as the vectors do, and for few vectors, it walks by the vectors.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ann_kernels.beam import beam_search, key_node, next_stamp
from ann_kernels.codes import Codes, encode, faithful
from ann_kernels.distance import prepare, reported
from ann_kernels.errors import DimensionError, KernelError
from ann_kernels.graph import Graph
from ann_kernels.metric import Metric
from ann_kernels.quantize import distance_tables
from ann_kernels.simd import key_distance
from ann_kernels.spaces import (
    FAST,
    CodeTarget,
    DotTarget,
    FloatTarget,
    PqTarget,
    aim,
    distance,
    fetch,
    frozen,
)

FEWEST_CODED = 1_024
"""Fewer vectors fit the caches as they are"""
_QUERIES_A_PIECE = 64
_STARTS = 128
_NODES_A_START = 64
"""Fewer nodes than this for each start: the way from the medoid is short"""
_NO_PQ = (np.empty((0, 256, 0), np.float32), np.empty((0, 0), np.uint8))
Rows = slice | npt.NDArray[np.int64]
"""Which queries: all from one place to another, or some"""
Target = FloatTarget | DotTarget | CodeTarget | PqTarget


@dataclass(frozen=True, slots=True, eq=False)
class SearchStats:
    """What a search did, per query."""

    expanded: npt.NDArray[np.int64]
    """int64[Q]: nodes whose neighbours were looked at"""
    distances: npt.NDArray[np.int64]
    """int64[Q]: distances computed in the walk"""


class Searcher:
    """Searches one graph. Immutable and thread-safe.

    With `vectors` f32[N, D] (prepared for `metric`) distances are exact; N x D bytes are taken for codes. Without, `pq`
    = (codebook f32[m, 256, D / m], codes u8[N, m]) gives approximate ones, and the caller ranks the candidates again.
    `live` bool[N] marks what may be returned. `codes`: those of an earlier searcher of the same vectors, kept because
    making them reads all vectors. Without, fewer than `coded_from` vectors are searched as they are.
    """

    def __init__(
        self,
        graph: Graph,
        vectors: npt.NDArray[np.float32] | None,
        metric: Metric,
        *,
        live: npt.NDArray[np.bool_] | None = None,
        pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None = None,
        threads: int = 1,
        codes: Codes | None = None,
        coded_from: int = FEWEST_CODED,
    ) -> None:
        if vectors is None and pq is None:
            raise KernelError("a search needs vectors or PQ codes")
        for name, array in (("vectors", vectors), ("live", live), ("PQ codes", pq and pq[1])):
            if array is not None and len(array) != graph.count:
                raise DimensionError(f"the graph has {graph.count} nodes, but there are {len(array)} {name}")
        self._graph = graph
        self._neighbors = np.require(graph.neighbors, np.int32, ["C", "W"])
        self._degrees = np.require(graph.degrees, np.int32, ["C", "W"])
        self._metric = metric
        self._vectors = None if vectors is None else frozen(vectors)
        self._pq = pq
        self._codes = codes
        if codes is None and vectors is not None and len(vectors) >= coded_from:
            coded = encode(vectors, threads=threads)
            self._codes = coded if coded and faithful(coded, vectors, metric) else None
        self._starts = _starts(graph)
        self._start_data = self._data_of(self._starts)
        self._marks: list[_Marks] = []
        self._live = np.ones(graph.count, np.bool_) if live is None else np.require(live, np.bool_, ["C", "W"])
        self._live_count = int(self._live.sum())

    def masked(self, live: npt.NDArray[np.bool_]) -> "Searcher":
        """The same searcher, codes and all, which returns only what `live` bool[N] marks."""
        if len(live) != self._graph.count:
            raise DimensionError(f"the graph has {self._graph.count} nodes, but there are {len(live)} live")
        other = copy.copy(self)
        other._live = np.require(live, np.bool_, ["C", "W"])  # noqa: SLF001  # its own kind
        other._live_count = int(live.sum())  # noqa: SLF001
        return other

    @property
    def metric(self) -> Metric:
        return self._metric

    @property
    def codes(self) -> Codes | None:
        """What the beam walks by; None where it walks by the vectors themselves, or by PQ codes."""
        return self._codes

    @property
    def live_count(self) -> int:
        return self._live_count

    @property
    def dims(self) -> int:
        if self._vectors is not None:
            return int(self._vectors.shape[1])
        codebook = (self._pq or _NO_PQ)[0]
        return int(codebook.shape[0] * codebook.shape[2])

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
        if ready.shape[1] != self.dims:
            raise DimensionError(f"queries have {ready.shape[1]} dimensions, the index {self.dims}")
        ids = np.full((len(ready), k), -1, np.int64)
        distances = np.full((len(ready), k), np.inf, np.float32)
        stats = SearchStats(np.zeros(len(ready), np.int64), np.zeros(len(ready), np.int64))
        wanted = min(k, self._live_count)
        width = min(max(search_list, k), self._graph.count)
        starts = range(0, len(ready), _QUERIES_A_PIECE)
        todo: list[Rows] = [slice(start, start + _QUERIES_A_PIECE) for start in starts] if wanted else []
        while todo:
            self._search_some(ready, todo, width, ids, distances, stats, threads)
            if width == self._graph.count:
                break
            short = np.flatnonzero(ids[:, wanted - 1] < 0)
            todo = [short[start : start + _QUERIES_A_PIECE] for start in range(0, len(short), _QUERIES_A_PIECE)]
            width = min(2 * width, self._graph.count)
        return ids, reported(distances, self._metric), stats

    def _search_some(
        self,
        ready: npt.NDArray[np.float32],
        pieces: Sequence[Rows],
        width: int,
        ids: npt.NDArray[np.int64],
        distances: npt.NDArray[np.float32],
        stats: SearchStats,
        threads: int,
    ) -> None:
        """Search for the queries of each piece, and write what is found into their rows."""
        k = ids.shape[1]
        head = k if self._codes is None else max(k, min(width, max(2 * k, k + 10)))

        def search(rows: Rows) -> None:
            marks = self._take_marks()
            queries = ready[rows]
            target = self._target(queries)
            near_starts = target._replace(**self._start_data)
            found = np.empty((len(queries), head), np.int32)
            far = np.empty((len(queries), head), np.float32)
            work = np.empty((2, len(queries)), np.int64)
            marks.stamp = _search_rows(
                target, self._neighbors, self._degrees, self._starts, near_starts, self._live, width,
                marks.seen, marks.stamp, found, far, work,
            )  # fmt: skip
            if self._codes is not None and self._vectors is not None:
                _rank_again(self._exact(self._vectors, queries), found, far)
            ids[rows], distances[rows] = found[:, :k], far[:, :k]
            stats.expanded[rows] += work[0]
            stats.distances[rows] += work[1]
            self._marks.append(marks)

        _each(search, pieces, threads)

    def _data_of(self, nodes: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
        """The fields of a target of ours for a few nodes alone, which lie together so that comparing them is cheap."""
        if self._codes is not None:
            space = self._codes.space
            return {
                "codes": space.codes.reshape(-1, self._codes.padded)[nodes].reshape(-1),
                "norms": space.norms[nodes],
            }
        if self._vectors is not None:
            return {"vectors": frozen(self._vectors[nodes])}
        return {"codes": frozen((self._pq or _NO_PQ)[1][nodes])}

    def _take_marks(self) -> "_Marks":
        with suppress(IndexError):  # another thread may take the last ones first
            return self._marks.pop()
        return _Marks(self._graph.count)

    def _target(self, queries: npt.NDArray[np.float32]) -> Target:
        if self._codes is not None:
            return self._codes.target(queries, self._metric)
        if self._vectors is not None:
            return self._exact(self._vectors, queries)
        codebook, coded = self._pq or _NO_PQ
        tables = distance_tables(queries, codebook, inner_product=self._metric is Metric.INNER_PRODUCT)
        return PqTarget(frozen(coded), tables)

    def _exact(self, vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> FloatTarget | DotTarget:
        kind = DotTarget if self._metric is Metric.INNER_PRODUCT else FloatTarget
        return kind(vectors, frozen(queries))


def _starts(graph: Graph) -> npt.NDArray[np.int32]:
    """int32[..]: the medoid, from which every node can be reached, and in larger graphs some nodes spread over it: a
    walk from the nearest of these, which costs little to find, is shorter.
    """
    count = _STARTS if graph.count >= _STARTS * _NODES_A_START else 0
    spread = np.arange(count, dtype=np.int64) * graph.count // max(1, count)
    return np.concatenate([[graph.medoid], spread]).astype(np.int32)


class _Marks:
    """Which nodes a search has met; kept for the next one, as a fresh array a query would cost more than the query."""

    def __init__(self, count: int) -> None:
        self.seen = np.zeros(count, np.uint8)
        self.stamp = np.uint8(0)


def _each(work: Callable[[Rows], None], pieces: Sequence[Rows], threads: int) -> None:
    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, pieces))


@njit(nogil=True, cache=True, fastmath=FAST)
def _search_rows(  # type: ignore[no-untyped-def]
    target, neighbors, degrees, starts, near_starts, live, width, seen, stamp, ids, distances, work
):
    """The first live nodes of each query's pool into ids int32[Q, head] and distances f32[Q, head]; -> last stamp.

    -1 and inf where there are fewer.
    """
    pool = np.empty(width, np.int64)
    path = np.empty(0, np.int64)
    fresh = np.empty(neighbors.shape[1], np.int32)
    keys = np.empty(neighbors.shape[1], np.int64)
    entries = starts[:2].copy()
    for row in range(ids.shape[0]):
        stamp = next_stamp(seen, stamp)
        if starts.size > 1:
            entries[1] = starts[_nearest(aim(near_starts, row), starts.size)]
        size, walked, computed = beam_search(
            aim(target, row), neighbors, degrees, entries, seen, stamp, pool, path, fresh, keys
        )
        work[0, row] = walked
        work[1, row] = computed + starts.size - 1
        place = 0
        for at in range(size):
            if place == ids.shape[1]:
                break
            node = key_node(pool[at])
            if live[node]:
                ids[row, place] = node
                distances[row, place] = key_distance(pool[at])
                place += 1
        ids[row, place:] = -1
        distances[row, place:] = np.inf
    return stamp


@njit(nogil=True, cache=True, fastmath=FAST)
def _nearest(point, count):  # type: ignore[no-untyped-def]
    """Which of the first `count` nodes is nearest to a point; of equals the first."""
    best, nearest = 0, np.float32(np.inf)
    for node in range(count):
        far = distance(point, node)
        if far < nearest:
            best, nearest = node, far
    return best


@njit(nogil=True, cache=True, fastmath=FAST)
def _rank_again(target, ids, distances):  # type: ignore[no-untyped-def]
    """Sort the ids of each row by their exact distances, ties by id."""
    for row in range(ids.shape[0]):
        point = aim(target, row)
        size = 0
        while size < ids.shape[1] and ids[row, size] >= 0:
            fetch(point, ids[row, size])
            size += 1
        for at in range(size):
            node = ids[row, at]
            far = distance(point, node)
            place = at
            while place > 0 and (
                distances[row, place - 1] > far or (distances[row, place - 1] == far and ids[row, place - 1] > node)
            ):
                distances[row, place] = distances[row, place - 1]
                ids[row, place] = ids[row, place - 1]
                place -= 1
            distances[row, place] = far
            ids[row, place] = node
