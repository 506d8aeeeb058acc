"""Searching one graph. Tombstones are walked through, never returned.

Where there are vectors, the beam walks by their codes, an eighth or a quarter of the bytes, and the nearest nodes that
it met are ranked by exact distances. It walks by the vectors themselves where codes do not preserve the nearest
neighbours, and where there are few vectors. Without vectors, rotated codes or PQ codes tell the distances.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, U64, Bool, Floats, read_only
from icepuffin.ann_kernels.beam_search import VisitedTable, enter, new_beam_scratch, walk_on
from icepuffin.ann_kernels.bitmap import Bitmap, has_row
from icepuffin.ann_kernels.coded_comparison import CodedVectors, CodeErrors
from icepuffin.ann_kernels.compilation import fast_kernel, kernel, strict_kernel
from icepuffin.ann_kernels.distance import reported
from icepuffin.ann_kernels.distance_computers import (
    DistanceComputer,
    DotQueries,
    L2Queries,
    PqQueries,
    Queries,
    distance,
    query_computer,
)
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.exact_distances import as_float64, exact_distance
from icepuffin.ann_kernels.four_bit_quantization import FEWEST_DIMS, FourBitCodes
from icepuffin.ann_kernels.graph import Graph, PackedGraph
from icepuffin.ann_kernels.lower_bounds import FEW_QUERIES
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.neighbor_lists import NeighborLists, adjacency_of, most_neighbors
from icepuffin.ann_kernels.product_quantization import PqCodebook
from icepuffin.ann_kernels.rotated_quantization import ERROR, RotatedCodes, interval
from icepuffin.ann_kernels.scalar_quantization import ScalarCodes, ranked_exactly
from icepuffin.ann_kernels.simd.prefetching import prefetch_row
from icepuffin.ann_kernels.simd.sort_keys import key_distance, key_node
from icepuffin.ann_kernels.top_k import ExactTopK, Neighbors, RowIds
from icepuffin.ann_kernels.walk_codes import WalkCodes, walk_codes

_COMPARED_PER_NODE = 20
"""Live vectors that are compared in the time that a beam takes per node of its width: 8 where they lie at random, 40
where they lie together and mostly far from the query (measured with 128 and 384 dimensions)"""
_ESTIMATED_PER_NODE = 6
"""Live nodes whose distances are estimated by rotated codes in that time"""
_CODES_PER_NODE = 120
"""Live vectors that are compared in that time where codes of one byte rule most of them out"""
FEWEST_CODED = 1_024
"""Number of vectors below which they fit the caches as they are"""
_COARSE_BEAM = 1.4
"""Width of a beam by codes of four bits in few dimensions, relative to one by codes of one byte, with which it finds as
many of the nearest (measured with 72 to 128 dimensions, k = 10 and 100, widths of k to 300)"""
_QUERIES_PER_TASK = 64
_DEVIATIONS = 6
"""Standard deviations of coarse distances within which a node may be among the nearest: many, as they are taken of the
nodes that are ranked first, whose errors are alike"""
_L2, _COSINE = Metric.L2.code, Metric.COSINE.code
_ENTRY_POINTS = 128
_NODES_PER_ENTRY_POINT = 64
"""Number of nodes per entry point below which the way from the medoid is short enough"""
_NO_VECTORS = read_only(np.empty((0, 0), np.float32))
_NO_PQ = (np.empty((0, 256, 0), np.float32), np.empty((0, 0), np.uint8))


def comparing_is_faster(live_count: int, width: int, *, coded: bool) -> bool:
    """Whether comparing `live_count` vectors is faster than a beam of that width (of several beams: their sum).

    `coded`: whether they have codes of one byte.
    """
    return live_count <= (_CODES_PER_NODE if coded else _COMPARED_PER_NODE) * width


@dataclass(frozen=True, slots=True, eq=False)
class SearchStats:
    """The work of a search, per query."""

    expanded: I64
    """Nodes whose neighbours were looked at, int64[Q]"""
    distances: I64
    """Distances computed in the walk, int64[Q]; those of nodes that signs rule out are not"""


class _LiveGraph(NamedTuple):
    """A graph and the nodes that a search may return."""

    adjacency: NeighborLists
    live: U64
    """The words of their `Bitmap`, u64[ceil(N / 64)]"""


class _EntryPoints(NamedTuple):
    """The nodes from which a search of each query may begin."""

    nodes: I32
    """int32[e]: the medoid, then nodes spread over the graph, if it is large"""
    queries: Queries
    """The queries over the entry points alone, which lie together, so that comparing them is cheap"""


class _Beam(NamedTuple):
    """How wide a beam is."""

    first: int
    """Width at first"""
    widest: int
    meeting: int
    """Number of live nodes for which it is widened, beyond half of its width at first"""


class _Ranking(NamedTuple):
    """Exact distances, by which the nearest nodes of a candidate list are ranked."""

    vectors: F32
    """f32[N, D]; empty where the beam's own distances are the best there are"""
    queries: F64
    """f64[Q, D]"""
    metric: int
    """Code of the `Metric`"""
    ranked: int
    """Live nodes to rank for each query, at least"""
    unit: float
    """Square of the unit of the beam's distances, where these are coarse and more nodes are ranked as needed; or 0"""


class _Results(NamedTuple):
    """What a search gives for each of Q queries."""

    ids: I64
    """int64[Q, k]; -1 where there are fewer"""
    distances: F64
    """f64[Q, k], reported; inf where there are fewer"""
    work: I64
    """Nodes expanded, distances computed, and live nodes that the beam met, int64[Q, 3]"""

    @classmethod
    def unfilled(cls, queries: int, k: int) -> "_Results":
        shape = queries, k
        return cls(np.empty(shape, np.int64), np.empty(shape), np.empty((queries, 3), np.int64))

    @classmethod
    def nothing(cls, queries: int, k: int) -> "_Results":
        ids, distances = np.full((queries, k), -1, np.int64), np.full((queries, k), np.inf)
        return cls(ids, distances, np.zeros((queries, 3), np.int64))

    def part(self, rows: slice) -> "_ResultFields":
        """The fields for some of the queries."""
        return self.ids[rows], self.distances[rows], self.work[rows]

    def replace(self, rows: npt.NDArray[np.intp], others: "_Results") -> None:
        self.ids[rows], self.distances[rows] = others.ids, others.distances
        self.work[rows, :2] += others.work[:, :2]
        self.work[rows, 2] = others.work[:, 2]


_RankingFields: TypeAlias = tuple[F32, F64, int, int, float]
"""The fields of `_Ranking`"""
_VisitedFields: TypeAlias = tuple[U8, U8]
"""The fields of `VisitedTable`"""
_ResultFields: TypeAlias = tuple[I64, F64, I64]
"""The fields of `_Results`"""


class Searcher:
    """Searches one graph. Immutable and thread-safe.

    Parameters
    ----------
    graph : Graph or PackedGraph
    vectors : f32[N, D], optional
        Prepared for the metric. With them, distances are exact, in float64; codes take up to 2 N * D bytes more.
    metric : Metric
    is_live : bool[N], optional
        The nodes that may be returned; default all.
    pq : (f32[m, 2^bits, D / m], u8[N, B]), optional
        Codebook and codes, by which a graph without vectors is searched: distances are approximate, and the caller
        ranks the candidates again.
    rotated : RotatedCodes, optional
        Codes by which a graph without vectors is searched: distances are estimates, in order.
    threads : int
        Threads for making codes.
    codes : WalkCodes, optional
        The codes of an earlier searcher of the same vectors: making them reads all vectors.
    errors : CodeErrors, optional
        The errors of the codes, of that earlier searcher.
    halves : u8[N * ..], optional
        The halves of the codes (`coarse_codes`), of that earlier searcher.
    coded_from : int
        Number of vectors below which no codes are made.
    compact : bool
        Whether codes are to be small rather than fast.
    allocate : Allocate
        Gives the arrays of the codes, of their errors and halves, where these are made. Default: in memory.

    Raises
    ------
    KernelError
        There are neither vectors nor codes.
    DimensionError
        An array has not one row per node.
    """

    def __init__(
        self,
        graph: Graph | PackedGraph,
        vectors: F32 | None,
        metric: Metric,
        *,
        is_live: Bool | None = None,
        pq: tuple[F32, U8] | None = None,
        rotated: RotatedCodes | None = None,
        threads: int = 1,
        codes: WalkCodes | None = None,
        errors: CodeErrors | None = None,
        halves: U8 | None = None,
        coded_from: int = FEWEST_CODED,
        compact: bool = False,
        allocate: Allocate = in_memory,
    ) -> None:
        if vectors is None and pq is None and rotated is None:
            raise KernelError("a search needs vectors or codes")
        arrays: tuple[tuple[str, npt.NDArray[Any] | None], ...] = (
            ("vectors", vectors),
            ("is_live", is_live),
            ("PQ codes", None if pq is None else pq[1]),
            ("rotated codes", None if rotated is None else rotated.terms),
        )
        for name, array in arrays:
            if array is not None and len(array) != graph.count:
                raise DimensionError(f"the graph has {graph.count} nodes, but there are {len(array)} {name}")
        self._count = graph.count
        self._adjacency = tuple(_as_kernels_take(field) for field in graph.adjacency)
        self._metric = metric
        self._vectors = None if vectors is None else read_only(vectors)
        self._pq = pq or _NO_PQ
        self._codebook = PqCodebook(self._pq[0])
        self._rotated = rotated if vectors is None else None
        self._codes = codes
        if codes is None and vectors is not None and len(vectors) >= coded_from:
            self._codes = walk_codes(vectors, metric, compact=compact, threads=threads, allocate=allocate)
        self._coded = None
        is_coarse = isinstance(self._codes, FourBitCodes) and self.dims < FEWEST_DIMS
        self._widening = _COARSE_BEAM if is_coarse else 1.0
        if isinstance(self._codes, ScalarCodes) and self._vectors is not None:
            self._coded = CodedVectors(self._vectors, self._codes, errors, halves, threads, allocate=allocate)
        self._entry_points = _entry_points(graph)
        self._entry_data = self._data_of(self._entry_points)
        self._visited: list[_VisitedFields] = []
        """Marks that no thread uses: new ones per query would cost more than the query"""
        self._live = Bitmap.of(np.ones(graph.count, np.bool_) if is_live is None else is_live)
        self._live_count = self._live.count()

    def masked(self, live: Bitmap) -> "Searcher":
        """The same searcher, codes and all, that returns only the nodes in `live`."""
        if live.size != self._count:
            raise DimensionError(f"the graph has {self._count} nodes, but there are {live.size} live")
        other = object.__new__(type(self))  # copy.copy would take five times as long
        other.__dict__.update(self.__dict__, _live=live, _live_count=live.count())
        return other

    @property
    def metric(self) -> Metric:
        return self._metric

    @property
    def codes(self) -> WalkCodes | None:
        """The codes by which the beam walks; None where it walks by the vectors themselves, or by PQ codes."""
        return self._codes

    @property
    def compares_codes(self) -> bool:
        """Whether comparing goes by codes first: by those of one byte."""
        return self._coded is not None

    @property
    def coded(self) -> CodedVectors | None:
        """The vectors with their codes of one byte, by which they are compared; None where there are none."""
        return self._coded

    @property
    def live_count(self) -> int:
        return self._live_count

    @property
    def dims(self) -> int:
        if self._vectors is not None:
            return int(self._vectors.shape[1])
        if self._rotated is not None:
            return len(self._rotated.center)
        codebook = self._pq[0]
        return int(codebook.shape[0] * codebook.shape[2])

    def search(
        self, queries: Floats, k: int, *, search_list: int, widest: int = 0, meeting: int = 0, threads: int = 1
    ) -> tuple[I64, F64, SearchStats]:
        """The k live nodes nearest to each query.

        The beam is widened where tombstones crowd the live nodes out, up to the width from which comparing all live
        vectors is faster. One as wide as the graph is answered by comparing the vectors, where the walk goes by codes.
        Where few nodes are live, `meeting` says how many of them are to be met: then the beam is as wide as that takes,
        but for half of its width at first, which finds the way.

        Parameters
        ----------
        queries : f32 or f64 [Q, D]
            Prepared for the metric.
        k : int
        search_list : int
            L: width of the beam.
        widest : int
            Width up to which the beam is widened to meet so many live nodes. Where it meets less than half of them,
            they lie elsewhere: it is widened further, or all live vectors are compared.
        meeting : int
            Live nodes that are to be met; 0 for any number.
        threads : int

        Returns
        -------
        tuple
            (ids int64[Q, k], -1 where there are fewer; reported distances f64[Q, k], inf there; stats).

        Raises
        ------
        KernelError
            `k` is below 1.
        DimensionError
            The queries have not the dimensions of the index.
        """
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        if queries.shape[1:] != (self.dims,):
            raise DimensionError(f"queries have shape {queries.shape}, not (rows, {self.dims} dimensions)")
        first = min(math.ceil(self._widening * max(search_list, k)), self._count)
        width = max(first, min(widest, self._count))
        last = min(k, self._live_count) - 1
        has_codes = self._codes is not None or self._rotated is not None
        compared = has_codes and width == self._count  # a walk would lose what codes misplace
        compared |= meeting > 0 and self._compares_from(width)
        empty = last < 0 or compared
        if empty:
            results = _Results.nothing(len(queries), k)
        else:
            results = self._walk(queries, k, _Beam(first, width, meeting), threads)
        short = self._short(results, last, meeting) if last >= 0 else np.empty(0, np.intp)
        while len(short) and width < self._count:
            # of a beam that met few, the share that it met tells how wide it had to be
            factor = max(2, meeting // max(1, int(results.work[short, 2].max())))
            if self._compares_from(factor * width):
                break
            width = min(factor * width, self._count)
            results.replace(short, self._walk(queries[short], k, _Beam(width, width, meeting), threads))
            short = self._short(results, last, meeting)
        if len(short) and self._compares:
            compare = self.compare if self._vectors is not None else self._estimate_live
            results.ids[short], results.distances[short] = compare(queries[short], k)
            results.work[short, 1] += self._live_count
        return results.ids, results.distances, SearchStats(results.work[:, 0], results.work[:, 1])

    def _short(self, results: _Results, last: int, meeting: int) -> npt.NDArray[np.intp]:
        """Queries whose beam met too few live nodes."""
        short = results.ids[:, last] < 0
        if meeting and self._compares:  # else nothing is left but to widen the beam, up to all nodes
            short |= 2 * results.work[:, 2] < min(meeting, self._live_count)
        return np.flatnonzero(short)

    @property
    def _compares(self) -> bool:
        return self._vectors is not None or self._rotated is not None

    def _compares_from(self, width: int) -> bool:
        if self._rotated is not None:
            return self._live_count <= _ESTIMATED_PER_NODE * width
        return self._vectors is not None and comparing_is_faster(self._live_count, width, coded=self.compares_codes)

    @property
    def rotated_codes(self) -> RotatedCodes | None:
        """The codes in place of vectors, by which distances are estimated; None where there are vectors or PQ codes."""
        return self._rotated

    def interval(self, queries: Floats, nodes: I64, distances: F64) -> tuple[F64, F64] | None:
        """(lowest, highest) that the true distances of nodes int64[Q, k] most likely have, where `distances` f64[Q, k]
        of a search are estimates of rotated codes: inf for node -1. None where they are not.
        """
        if self._rotated is None:
            return None
        deviations = np.asarray(self._rotated.terms[nodes, ERROR], np.float64)
        deviations[nodes < 0] = 0
        return interval(distances, deviations, self._metric, np.linalg.norm(queries, axis=1))

    def _estimate_live(self, queries: Floats, k: int) -> Neighbors:
        """The k live nodes that are nearest to each query by rotated codes; results as of `search`."""
        rotated: Any = self._rotated
        live = self._live.places().astype(np.int64)
        nearest, distances = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
        for row in range(len(queries)):  # all at once would take a list of the nodes for each of them
            one = slice(row, row + 1)
            own = rotated.queries(as_float64(queries[one]), self._metric)
            rotated.nearest(own, live[None], nearest[one], distances[one])
        return nearest, reported(distances, self._metric)

    def compare(self, queries: Floats, k: int, *, ids: RowIds | None = None) -> Neighbors:
        """The k live nodes nearest to each query f32 or f64 [Q, D], by comparing every one; results as of `search`.

        `ids` names the nodes, and ties go by it; default their numbers. Raises KernelError where there are no vectors.
        """
        if self._vectors is None:
            raise KernelError("there are no vectors to compare")
        if self._coded is not None and len(queries) < FEW_QUERIES:
            return self._compare_codes(self._coded, queries, k, ids)
        top = ExactTopK(queries, k, self._metric)
        rows = None if self._live_count == self._count else self._live.places()
        top.update(self._vectors, (lambda places: places) if ids is None else ids, rows=rows)
        return top.result()

    def _compare_codes(self, coded: CodedVectors, queries: Floats, k: int, ids: RowIds | None) -> Neighbors:
        """`compare`, one query after another: codes rule out what is farther."""
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        lists = []
        for query in as_float64(queries):
            nodes, own = coded.nearest(query, k, self._metric, self._live)
            names = nodes if ids is None else ids(nodes) if callable(ids) else ids[nodes]
            order = np.lexsort((names, own))[:k]
            lists.append((names[order], own[order]))
        if len(lists) == 1 and len(lists[0][0]) == k:
            return lists[0][0][None], lists[0][1][None]
        nearest, distances = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), np.inf)
        for row, (names, own) in enumerate(lists):
            nearest[row, : len(names)], distances[row, : len(names)] = names, own
        return nearest, distances

    def _walk(self, queries: Floats, k: int, beam: "_Beam", threads: int) -> _Results:
        """The results of a beam, some queries in a thread at a time."""
        rotated = self._rotated
        ranked = max(k, min(beam.widest, ranked_exactly(k)))
        results = _Results.unfilled(len(queries), k)
        graph = self._adjacency, self._live.words, self._entry_points
        widths = beam.first, beam.widest, beam.meeting
        vectors = _NO_VECTORS if self._vectors is None else self._vectors
        unit = self._codes.scale**2 if isinstance(self._codes, FourBitCodes) else 0.0

        def walk_block(start: int) -> None:
            rows = slice(start, start + _QUERIES_PER_TASK)
            own = as_float64(queries[rows])
            turned = None if rotated is None else rotated.queries(own, self._metric)
            block = turned.walked if turned else self._queries(read_only(np.ascontiguousarray(own, np.float32)))
            part = results.part(rows)
            if turned:
                part = np.empty((len(own), ranked), np.int64), np.empty((len(own), ranked)), part[2]
            entry_queries = block._replace(**self._entry_data)
            ranking = (vectors, read_only(own), self._metric.code, ranked, unit)
            visited = self._take_visited()
            _search_block(block, entry_queries, graph, widths, ranking, visited, part)
            self._visited.append(visited)
            if rotated and turned:  # by all bits, from the queries as they are
                rotated.nearest(turned, part[0], results.ids[rows], results.distances[rows])

        starts = range(0, len(queries), _QUERIES_PER_TASK)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                walk_block(start)
        else:
            with ThreadPoolExecutor(threads) as executor:
                list(executor.map(walk_block, starts))
        if self._vectors is None:  # the beam's own distances, or those by all bits
            results.distances[:] = reported(results.distances, self._metric)
        return results

    def _data_of(self, nodes: I32) -> dict[str, Any]:
        """The fields of this searcher's `Queries` for a few nodes alone."""
        if self._codes is not None:
            space = self._codes.space
            codes = space.codes.reshape(-1, self._codes.row_bytes)[nodes].reshape(-1)
            return {"codes": codes, "norms": space.norms[nodes]}
        if self._vectors is not None:
            return {"vectors": read_only(self._vectors[nodes])}
        if self._rotated is not None:
            codes = self._rotated.high.reshape(-1, self._rotated.row_bytes)[nodes].reshape(-1)
            return {"codes": read_only(codes), "terms": read_only(self._rotated.terms[nodes])}
        return {"codes": read_only(self._pq[1][nodes])}

    def _take_visited(self) -> _VisitedFields:
        with suppress(IndexError):  # another thread may take the last ones first
            return self._visited.pop()
        return np.zeros(self._count, np.uint8), np.zeros(1, np.uint8)

    def _queries(self, queries: F32) -> Queries:
        """Queries as the beam measures from them, but for rotated codes."""
        if self._codes is not None:
            return self._codes.queries(queries, self._metric)
        inner_product = self._metric is Metric.INNER_PRODUCT
        if self._vectors is not None:
            return (DotQueries if inner_product else L2Queries)(self._vectors, queries)
        return PqQueries(read_only(self._pq[1]), self._codebook.tables(queries, inner_product=inner_product))


def _as_kernels_take(field: Any) -> Any:
    """A field of an adjacency: arrays in the one form for which kernels are compiled."""
    return np.require(field, field.dtype, ["C", "W"]) if isinstance(field, np.ndarray) else field


def _entry_points(graph: Graph | PackedGraph) -> I32:
    """int32[e]: the medoid, from which every node can be reached, and in larger graphs some nodes spread over it.

    A walk from the nearest of these, which costs little to find, is shorter.
    """
    if not graph.count:
        return np.empty(0, np.int32)
    count = _ENTRY_POINTS if graph.count >= _ENTRY_POINTS * _NODES_PER_ENTRY_POINT else 0
    spread = np.arange(count, dtype=np.int64) * graph.count // max(1, count)
    return np.concatenate([[graph.medoid], spread]).astype(np.int32)


@fast_kernel
def _search_block(
    queries: Queries,
    entry_queries: Queries,
    graph: tuple[tuple[Any, ...], U64, I32],
    beam: tuple[int, int, int],
    ranking: _RankingFields,
    visited: _VisitedFields,
    results: _ResultFields,
) -> None:
    """`_search_rows` as Python calls it: its NamedTuples are made here, as each would cost a call half a microsecond.

    `graph` is (fields of the adjacency, words of the live nodes, entry points).
    """
    adjacency, live, nodes = graph
    _search_rows(
        queries,
        _LiveGraph(adjacency_of(adjacency), live),
        _EntryPoints(nodes, entry_queries),
        _Beam(*beam),
        _Ranking(*ranking),
        VisitedTable(*visited),
        _Results(*results),
    )


@fast_kernel
def _search_rows(
    queries: Queries,
    graph: _LiveGraph,
    entry_points: _EntryPoints,
    beam: _Beam,
    ranking: _Ranking,
    visited: VisitedTable,
    results: _Results,
) -> None:
    """Fill the results with the nearest live nodes of each query, in order.

    The first live nodes of the candidate list are put in order by exact distance, where there are vectors; otherwise
    distances are those of the beam. Where these are coarse, so are all nodes after them that may be among the nearest:
    in a cluster that is tighter than the codes tell apart, those are all of its nodes.
    """
    scratch = new_beam_scratch(beam.widest, visited, 0, most_neighbors(graph.adjacency))
    candidates, live, nodes = scratch.candidates, graph.live, entry_points.nodes
    ids, distances, work = results.ids, results.distances, results.work
    best = np.empty(max(ranking.ranked, beam.widest), np.int32)
    best_distances = np.empty(best.size)
    entries = nodes[:2].copy()
    for row in range(ids.shape[0]):
        if nodes.size > 1:
            entries[1] = nodes[_nearest(query_computer(entry_points.queries, row), nodes.size)]
        computer = query_computer(queries, row)
        size = enter(computer, entries, scratch)
        work[row, 0], work[row, 1] = 0, size + nodes.size - 1
        width = beam.first
        while True:
            size, expanded, computed = walk_on(computer, graph.adjacency, scratch, size, width)
            work[row, 0] += expanded
            work[row, 1] += computed
            counted = min(size, width - beam.first // 2)
            work[row, 2] = _live_among(live, candidates[:counted])
            if work[row, 2] >= beam.meeting or width >= beam.widest:
                break
            needed = beam.first // 2 + counted * beam.meeting // max(1, work[row, 2])  # were the share to stay
            width = min(beam.widest, max(min(needed, 2 * width), width + width // 8 + 1))
        last, count = _collect(live, candidates[:size], 0, ranking.ranked, False, np.float32(0), best, best_distances)
        if ranking.vectors.size:
            reach = _rank_exactly(ranking, row, best[:count], best_distances, 0, ids.shape[1])
            if ranking.unit and count >= ids.shape[1]:
                ranked = count
                _, more = _collect(
                    live, candidates[:size], last, best.size, True, reach, best[count:], best_distances[count:]
                )
                count += more
                _rank_exactly(ranking, row, best[:count], best_distances, ranked, ids.shape[1])
        for place in range(ids.shape[1]):
            ids[row, place] = best[place] if place < count else -1
            distances[row, place] = best_distances[place] if place < count else np.inf


@fast_kernel
def _collect(
    live: U64, keys: I64, first: int, most: int, bounded: bool, reach: np.float32, ids: I32, distances: F64
) -> tuple[int, int]:
    """Live nodes of some keys, from `first` on, and their distances: until there are `most`, or one is out of reach,
    where that is `bounded`.

    Returns the place of the key after the last one, and the number of nodes.
    """
    count, place = 0, first
    while place < keys.size and count < min(most, ids.size):
        if bounded and key_distance(keys[place]) > reach:
            break
        node = key_node(keys[place])
        if has_row(live, node):
            ids[count] = node
            distances[count] = np.float64(key_distance(keys[place]))
            count += 1
        place += 1
    return place, count


@kernel
def _live_among(live: U64, keys: I64) -> int:
    """How many nodes of some keys are live."""
    count = 0
    for key in keys:
        count += int(has_row(live, key_node(key)))
    return count


@fast_kernel
def _nearest(computer: DistanceComputer, count: int) -> int:
    """The nearest of the first `count` nodes; of equals the first."""
    nearest, smallest = 0, np.float32(np.inf)
    for node in range(count):
        to_node = distance(computer, node)
        if to_node < smallest:
            nearest, smallest = node, to_node
    return nearest


@strict_kernel
def _rank_exactly(ranking: _Ranking, row: int, ids: I32, distances: F64, first: int, k: int) -> np.float32:
    """Sort ids int32[n] by their exact distances from a query, and write these; ties by id. Those before `first` are
    sorted already.

    Returns the distance in the beam within which other nodes may be among the k nearest, by how far the beam's
    distances of these nodes were from the exact ones.
    """
    for node in ids[first:]:
        prefetch_row(ranking.vectors, node)
    total, squares = 0.0, 0.0
    for i in range(first, ids.size):
        node = ids[i]
        exact = exact_distance(ranking.vectors, node, ranking.queries[row], ranking.metric, False)
        if ranking.unit:
            gap = _squared(exact, ranking.metric) / ranking.unit - distances[i]
            total += gap
            squares += gap * gap
        place = i
        while place > 0 and (distances[place - 1] > exact or (distances[place - 1] == exact and ids[place - 1] > node)):
            distances[place] = distances[place - 1]
            ids[place] = ids[place - 1]
            place -= 1
        distances[place] = exact
        ids[place] = node
    ranked = ids.size - first
    if not ranking.unit or ranked < k:
        return np.float32(np.inf)
    mean = total / ranked
    deviation = np.sqrt(max(0.0, squares / ranked - mean * mean))
    return np.float32(_squared(distances[k - 1], ranking.metric) / ranking.unit - mean + _DEVIATIONS * deviation)


@fast_kernel
def _squared(exact: float, metric: int) -> float:
    """Squared L2 distance of a reported distance: no inner product."""
    if metric == _L2:
        return exact * exact
    return 2 * exact if metric == _COSINE else exact
