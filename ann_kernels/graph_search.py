"""Searching one graph. Tombstones are walked through, never returned.

Where vectors are at hand the beam walks by their SQ8 codes, a quarter of the bytes, and the nearest it found are ranked
by exact distances; where codes would not rank as the vectors do, and for few vectors, it walks by the vectors.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.beam_search import beam_search, next_stamp
from icepuffin.ann_kernels.candidate_list import key_distance, key_node, new_pool
from icepuffin.ann_kernels.distance import reported
from icepuffin.ann_kernels.distance_computers import (
    FAST,
    CodeTarget,
    DotTarget,
    FloatTarget,
    PqTarget,
    aim,
    distance,
    frozen,
)
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.exact_distances import as_float64, exact_distance
from icepuffin.ann_kernels.graph import Graph
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.product_quantization import Codewords
from icepuffin.ann_kernels.scalar_quantization import Codes, encode, faithful, ranked_exactly
from icepuffin.ann_kernels.simd import prefetch_row
from icepuffin.ann_kernels.top_k import Names, exact_top_k

_COMPARED_A_NODE = 20
"""To each node of a beam's width: so many live vectors are compared in the time that the beam takes. 8 where they lie
at random, 40 where they lie together and mostly far from the query (measured, 128 and 384 dimensions)"""
FEWEST_CODED = 1_024
"""Fewer vectors fit the caches as they are"""
_QUERIES_A_PIECE = 64
_STARTS = 128
_NODES_A_START = 64
"""Fewer nodes than this for each start: the way from the medoid is short"""
_NOTHING = frozen(np.empty((0, 0), np.float32))
_NO_PQ = (np.empty((0, 256, 0), np.float32), np.empty((0, 0), np.uint8))
Target = FloatTarget | DotTarget | CodeTarget | PqTarget


def comparing_is_faster(live: int, width: int) -> bool:
    """Than a beam of that width (of several, the sum of their widths): where so many nodes may be returned."""
    return live <= _COMPARED_A_NODE * width


@dataclass(frozen=True, slots=True, eq=False)
class SearchStats:
    """What a search did, per query."""

    expanded: npt.NDArray[np.int64]
    """int64[Q]: nodes whose neighbours were looked at"""
    distances: npt.NDArray[np.int64]
    """int64[Q]: distances computed in the walk"""


class Searcher:
    """Searches one graph. Immutable and thread-safe.

    With `vectors` f32[N, D] (prepared for `metric`) distances are exact, in float64; N x D bytes are taken for codes.
    Without, `pq` = (codebook f32[m, 256, D / m], codes u8[N, m]) gives approximate ones, and the caller ranks the
    candidates again.
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
        self._words = Codewords((pq or _NO_PQ)[0])
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
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], SearchStats]:
        """The k nearest live nodes of queries f32 or f64 [Q, D], prepared for the metric.

        -> (ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there; stats).
        `search_list` is widened where tombstones crowd the live ones out, up to where comparing all of these is faster.
        One that takes in every coded node is answered by comparing the vectors.
        """
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        if queries.shape[1:] != (self.dims,):
            raise DimensionError(f"queries have shape {queries.shape}, not (rows, {self.dims} dimensions)")
        width = min(max(search_list, k), self._graph.count)
        last = min(k, self._live_count) - 1
        compared = self._codes is not None and width == self._graph.count  # a walk would lose what codes misplace
        nothing = last < 0 or compared
        found = _Found.nothing(len(queries), k) if nothing else self._walk(queries, k, width, threads)
        short = np.flatnonzero(found.ids[:, last] < 0) if last >= 0 else np.empty(0, np.int64)
        while len(short) and width < self._graph.count and not self._compares(2 * width):
            width = min(2 * width, self._graph.count)
            found.replace(short, self._walk(queries[short], k, width, threads))
            short = short[found.ids[short, last] < 0]
        if len(short) and self._vectors is not None:
            found.ids[short], found.distances[short] = self.compare(queries[short], k)
            found.work[short, 1] += self._live_count
        return found.ids, found.distances, SearchStats(found.work[:, 0], found.work[:, 1])

    def _compares(self, width: int) -> bool:
        return self._vectors is not None and comparing_is_faster(self._live_count, width)

    def compare(
        self, queries: npt.NDArray[Any], k: int, *, ids: Names | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k nearest live nodes of queries f32 or f64 [Q, D], by comparing every one; as of `search`.

        `ids`: what nodes are called, and ties go by; default their numbers.
        """
        if self._vectors is None:
            raise KernelError("there are no vectors to compare")
        return exact_top_k(queries, self._vectors, k, self._metric, live=self._live, ids=ids)

    def _walk(self, queries: npt.NDArray[Any], k: int, width: int, threads: int) -> "_Found":
        """What a beam of one width finds, some queries in a thread at a time."""
        found = _Found.room(len(queries), k)
        ranked = max(k, min(width, ranked_exactly(k)))

        def piece(start: int) -> None:
            rows = slice(start, start + _QUERIES_A_PIECE)
            asked = frozen(as_float64(queries[rows]))
            target = self._target(frozen(np.ascontiguousarray(queries[rows], np.float32)))
            marks = self._take_marks()
            marks.stamp = _search_rows(
                target, self._exact(asked), self._neighbors, self._degrees, self._starts,
                target._replace(**self._start_data), self._live, width, ranked, marks.seen, np.uint8(marks.stamp),
                found.ids[rows], found.distances[rows], found.work[rows],
            )  # fmt: skip
            self._marks.append(marks)

        starts = range(0, len(queries), _QUERIES_A_PIECE)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                piece(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(piece, starts))
        if self._vectors is None:  # the beam's own
            found.distances[:] = reported(found.distances, self._metric)
        return found

    def _data_of(self, nodes: npt.NDArray[np.int32]) -> dict[str, Any]:
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
        """What the beam walks by."""
        if self._codes is not None:
            return self._codes.target(queries, self._metric)
        if self._vectors is not None:
            return self._floats(self._vectors, queries)
        tables = self._words.tables(queries, inner_product=self._metric is Metric.INNER_PRODUCT)
        return PqTarget(frozen((self._pq or _NO_PQ)[1]), tables)

    def _exact(self, queries: npt.NDArray[np.float64]) -> "_Exact":
        """What the nearest are ranked by."""
        vectors = _NOTHING if self._vectors is None else self._vectors
        return _Exact(vectors, queries, int(self._metric))

    def _floats(self, vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> FloatTarget | DotTarget:
        kind = DotTarget if self._metric is Metric.INNER_PRODUCT else FloatTarget
        return kind(vectors, queries)


def _starts(graph: Graph) -> npt.NDArray[np.int32]:
    """int32[..]: the medoid, from which every node can be reached, and in larger graphs some nodes spread over it: a
    walk from the nearest of these, which costs little to find, is shorter.
    """
    if not graph.count:
        return np.empty(0, np.int32)
    count = _STARTS if graph.count >= _STARTS * _NODES_A_START else 0
    spread = np.arange(count, dtype=np.int64) * graph.count // max(1, count)
    return np.concatenate([[graph.medoid], spread]).astype(np.int32)


class _Exact(NamedTuple):
    """What the nearest that a beam has met are ranked by."""

    vectors: npt.NDArray[np.float32]
    """f32[N, D]; none where the beam's own distances are as good as there are"""
    queries: npt.NDArray[np.float64]
    metric: int


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What was found for each of Q queries."""

    ids: npt.NDArray[np.int64]
    """int64[Q, k]; -1 where there are fewer"""
    distances: npt.NDArray[np.float64]
    """f64[Q, k], reported; inf where there are fewer"""
    work: npt.NDArray[np.int64]
    """int64[Q, 2]: nodes expanded, distances computed"""

    @classmethod
    def room(cls, queries: int, k: int) -> "_Found":
        shape = queries, k
        return cls(np.empty(shape, np.int64), np.empty(shape), np.empty((queries, 2), np.int64))

    @classmethod
    def nothing(cls, queries: int, k: int) -> "_Found":
        ids, distances = np.full((queries, k), -1, np.int64), np.full((queries, k), np.inf)
        return cls(ids, distances, np.zeros((queries, 2), np.int64))

    def replace(self, rows: npt.NDArray[np.intp], others: "_Found") -> None:
        self.ids[rows], self.distances[rows] = others.ids, others.distances
        self.work[rows] += others.work


class _Marks:
    """Which nodes a search has met; kept for the next one, as a fresh array a query would cost more than the query."""

    def __init__(self, count: int) -> None:
        self.seen = np.zeros(count, np.uint8)
        self.stamp = 0  # what numba gives back is an int, which would compile the kernel once more


@njit(nogil=True, cache=True, fastmath=FAST)
def _search_rows(  # type: ignore[no-untyped-def]
    target, exact, neighbors, degrees, starts, near_starts, live, width, ranked, seen, stamp, ids, distances, work
):
    """The nearest live nodes of each query into ids int64[Q, k] and distances f64[Q, k], in order; -> last stamp.

    -1 and inf where there are fewer. The first `ranked` live nodes of a pool are put in order by `exact`, where it has
    vectors; otherwise distances are those of the beam. work int64[Q, 2]: nodes expanded, distances computed.
    """
    pool = new_pool(width)
    path = np.empty(0, np.int64)
    fresh = np.empty(neighbors.shape[1], np.int32)
    keys = np.empty(neighbors.shape[1], np.int64)
    best = np.empty(ranked, np.int32)
    far = np.empty(ranked)
    entries = starts[:2].copy()
    for row in range(ids.shape[0]):
        stamp = next_stamp(seen, stamp)
        if starts.size > 1:
            entries[1] = starts[_nearest(aim(near_starts, row), starts.size)]
        size, walked, computed = beam_search(
            aim(target, row), neighbors, degrees, entries, seen, stamp, pool, width, path, fresh, keys
        )
        work[row, 0] = walked
        work[row, 1] = computed + starts.size - 1
        found = 0
        for at in range(size):
            if found == ranked:
                break
            node = key_node(pool[at])
            if live[node]:
                best[found] = node
                far[found] = np.float64(key_distance(pool[at]))
                found += 1
        if exact.vectors.size:
            _rank_again(exact, row, best[:found], far)
        for place in range(ids.shape[1]):
            ids[row, place] = best[place] if place < found else -1
            distances[row, place] = far[place] if place < found else np.inf
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


@njit(nogil=True, cache=True, fastmath=False)
def _rank_again(exact, row, ids, distances):  # type: ignore[no-untyped-def]
    """Sort ids int32[n] by their distances from a query, which are written beside them; ties by id."""
    for node in ids:
        prefetch_row(exact.vectors, node)
    for at in range(ids.size):
        node = ids[at]
        far = exact_distance(exact.vectors, node, exact.queries[row], exact.metric, False)
        place = at
        while place > 0 and (distances[place - 1] > far or (distances[place - 1] == far and ids[place - 1] > node)):
            distances[place] = distances[place - 1]
            ids[place] = ids[place - 1]
            place -= 1
        distances[place] = far
        ids[place] = node
