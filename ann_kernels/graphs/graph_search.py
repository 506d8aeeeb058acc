"""Searching one graph. Tombstones are walked through, never returned.

Where there are vectors, the beam walks by their codes, an eighth or a quarter of the bytes, and the nearest nodes that
it met are ranked by exact distances. It walks by the vectors themselves where codes do not preserve the nearest
neighbours, and where there are few vectors. Without vectors, rotated codes or PQ codes tell the distances.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, Bool, Floats, read_only
from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS, FourBitCodes
from icepuffin.ann_kernels.codes.product_quantization import PqCodebook
from icepuffin.ann_kernels.codes.rotated_quantization import ERROR, RotatedCodes, interval
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes, ranked_exactly
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors, CodeErrors
from icepuffin.ann_kernels.distances.distance import reported
from icepuffin.ann_kernels.distances.distance_computers import DotQueries, L2Queries, NodeData, PqQueries, Queries
from icepuffin.ann_kernels.distances.exact_distances import as_float64
from icepuffin.ann_kernels.distances.lower_bounds import FEW_QUERIES
from icepuffin.ann_kernels.distances.top_k import ExactTopK, Neighbors, RowIds
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.graphs.block_search import (
    NO_GROUPS,
    Beam,
    Results,
    ScratchFields,
    new_candidate_lists,
    new_scratch,
    rank_block,
    walk_block,
)
from icepuffin.ann_kernels.graphs.duplicates import Copies, CopyGroups, copies_of
from icepuffin.ann_kernels.graphs.graph import Graph, PackedGraph, spread_indices
from icepuffin.ann_kernels.graphs.neighbor_lists import adjacency_of, most_neighbors
from icepuffin.ann_kernels.graphs.walk_codes import WalkCodes, walk_codes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.rows.bitmap import Bitmap

_COMPARED_PER_NODE = 20
"""Live vectors that are compared in the time that a beam takes per node of its width: 8 where they lie at random, 40
where they lie together and mostly far from the query (measured with 128 and 384 dimensions)"""
_ESTIMATED_PER_NODE = 6
"""Live nodes whose distances are estimated by rotated codes in that time"""
_CODES_PER_NODE = 120
"""Live vectors that are compared in that time where codes of one byte rule most of them out"""
MIN_CODED = 1_024
"""Number of vectors below which they fit the caches as they are"""
_COARSE_BEAM = 1.4
"""Width of a beam by codes of four bits in few dimensions, relative to one by codes of one byte, with which it finds as
many of the nearest (measured with 72 to 128 dimensions, k = 10 and 100, widths of k to 300)"""
_MORE_SLOTS = 1.5
"""Slots of a beam's list per node that is expected in it for k live ones, where there are tombstones: it is widened up
to there, and goes on from where it is
"""
_WIDENED = 3
"""Times as wide as it was at first a beam gets at most where nodes count by their groups"""
_COMPARED_WHERE_LOST = 480
"""Live vectors that are compared per node of a beam's width, at most, where equal distances hide the nearest rows.
Whatever the codes: what the recall gate measured holds for readers whose codes are others"""
_WALKED_WHERE_LOST = 30
"""Live vectors per node of a beam's width, at least, for which a beam twice as wide is tried first, and again. At the
widest it computes half as many distances as comparing all. A wide beam is full of equals more seldom: without this a
narrow one would cost more"""
_QUERIES_PER_TASK = 64
_KEYS_PER_TASK = 1 << 20
"""Slots in the candidate lists of a task, at most: 8 MiB; or those of one query"""
_NONE, _FIRST = np.empty(0, np.intp), np.zeros(1, np.intp)
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

    def totals(self) -> tuple[int, int]:
        """(nodes expanded, distances computed) for all queries."""
        if len(self.expanded) == 1:  # sums of arrays would take longer
            return int(self.expanded[0]), int(self.distances[0])
        return int(self.expanded.sum()), int(self.distances.sum())


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
        coded_from: int = MIN_CODED,
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
        self._most_neighbors = most_neighbors(graph.adjacency)
        self._metric = metric
        self._vectors = None if vectors is None else read_only(vectors)
        self._pq = pq or _NO_PQ
        self._codebook = PqCodebook(self._pq[0])
        self._rotated = rotated if vectors is None else None
        self._codes = codes
        if codes is None and vectors is not None and len(vectors) >= coded_from:
            self._codes = walk_codes(vectors, metric, compact=compact, threads=threads, allocate=allocate)
        self._coded = None
        is_coarse = isinstance(self._codes, FourBitCodes) and self.dims < MIN_DIMS
        self._widening = _COARSE_BEAM if is_coarse else 1.0
        if isinstance(self._codes, ScalarCodes) and self._vectors is not None:
            self._coded = CodedVectors(self._vectors, self._codes, errors, halves, threads, allocate=allocate)
        copies = copies_of(adjacency_of(self._adjacency), graph.medoid)
        self._copies = CopyGroups.from_copies(copies) if len(copies.nodes) else None
        self._entry_points = _entry_points(graph, copies)
        self._entry_data = self._data_of(self._entry_points)
        self._groups, self._counted = NO_GROUPS, 0
        self._scratch: list[ScratchFields] = []
        """Memory that no thread uses: new marks per query would cost more than the query"""
        self._walkable_count = graph.count - len(copies.nodes)
        self._make_live(Bitmap.from_mask(np.ones(graph.count, np.bool_) if is_live is None else is_live), 0)

    def _make_live(self, live: Bitmap, unreachable: int) -> None:
        self._live, self._live_count = live, live.count()
        self._sought, self._live_copies = live, self._copies
        if self._copies:
            self._sought, self._live_copies = self._copies.of_live(live)
        self._sought_count = self._sought.count()
        self._reachable_count = self._walkable_count - unreachable

    def masked(self, live: Bitmap, *, unreachable: int = 0) -> "Searcher":
        """The same searcher, codes and all, that returns only the nodes in `live`.

        unreachable: how many of the others no edge leads to: for these no beam is widened.
        """
        if live.size != self._count:
            raise DimensionError(f"the graph has {self._count} nodes, but there are {live.size} live")
        other = object.__new__(type(self))  # copy.copy would take five times as long
        other.__dict__.update(self.__dict__)
        other._make_live(live, unreachable)
        return other

    def grouped(self, groups: I32, limit: int) -> "Searcher":
        """The same searcher, but nodes count where few of the same group, int32[N], are as near: up to a limit.

        Its beams go on past the others, up to `_WIDENED` times their width, and it returns those that count by the
        beam's distances. A node with copies counts always, as these may be of other groups.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if self._copies:
            groups = groups.copy()
            groups[self._copies.originals] = -1
        sizes = np.bincount(groups[self._sought.indices()] + 1, minlength=1)
        other._groups, other._counted = (groups, limit), int(sizes[0] + np.minimum(sizes[1:], limit).sum())
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
    def landmarks(self) -> I64:
        """Nodes that walks need, int64[n]: entry points, and those that stand for copies."""
        originals = self._copies.originals if self._copies else np.empty(0, np.int64)
        return np.union1d(self._entry_points, originals)

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

        Where tombstones crowd the live nodes out, the beam is widened, and goes on from where it is; then it begins
        anew, twice as wide, up to the width from which comparing all live vectors is faster. They are compared, too,
        where a beam is full of nodes that are equally far, if they are at most `_COMPARED_WHERE_LOST` times its width,
        and beams up to a width of one node for `_WALKED_WHERE_LOST` of them are no less full.
        A beam as wide as the graph is answered by comparing the vectors, where the walk goes by codes. Where few nodes
        are live, `meeting` says how many of them are to be met: then the beam is as wide as that takes, but for half of
        its width at first, which finds the way.

        A node and its copies are one node of a beam, live where one of them is; a result has the live ones of them.

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
        count, meeting = self._walkable_count, min(meeting, self._sought_count)
        first = min(math.ceil(self._widening * max(search_list, k)), count)
        width = max(first, min(widest, count))
        last = min(k, self._sought_count) - 1
        has_codes = self._codes is not None or self._rotated is not None
        compared = has_codes and width == count  # a walk would lose what codes misplace
        compared |= meeting > 0 and self._compares_from(width)
        empty = last < 0 or compared
        if empty:
            results = Results.nothing(len(queries), k)
        else:
            results = self._walk(queries, k, self._beam(k, first, width, meeting), threads)
        is_judged = last >= 0 and (empty or self._groups is NO_GROUPS)
        short = self._short(results, last, meeting) if is_judged else _NONE
        while len(short) and width < count:
            # of a beam that met few, the share that it met tells how wide it had to be
            factor = max(2, meeting // max(1, int(results.work[short, 2].max())))
            if self._compares_from(factor * width):
                break
            width = min(factor * width, count)
            results.replace(short, self._walk(queries[short], k, self._beam(k, width, width, meeting), threads))
            short = self._short(results, last, meeting)
        if last >= 0 and not meeting and self._may_be_lost(results, width):
            lost = self._lost(results, k)
            while len(lost) and self._sought_count >= _WALKED_WHERE_LOST * 2 * width:
                width *= 2
                results.replace(lost, self._walk(queries[lost], k, self._beam(k, width, width, 0), threads))
                lost = np.intersect1d(lost, self._lost(results, k))
            short = np.union1d(short, lost)
        if len(short) and self._compares:
            results.ids[short], results.distances[short] = self._compare_sought(queries[short], k)
            results.work[short, 1] += self._sought_count
        ids, distances = self._with_copies(results.ids, results.distances)
        return ids, distances, SearchStats(results.work[:, 0], results.work[:, 1])

    def _with_copies(self, ids: I64, distances: F64) -> Neighbors:
        return (ids, distances) if self._live_copies is None else self._live_copies.filled(ids, distances)

    def _beam(self, k: int, first: int, widest: int, meeting: int) -> Beam:
        """A beam that meets so many live nodes; where `meeting` is 0, as many as results."""
        if self._groups is not NO_GROUPS:
            widest, meeting = min(_WIDENED * first, self._walkable_count), min(k, self._counted)
        if meeting:
            return Beam(first, widest, meeting, first // 2)
        slots = 0
        if self._sought_count < self._reachable_count:
            slots = math.ceil(_MORE_SLOTS * k * self._reachable_count / self._sought_count)
            # beyond that comparing takes less than what is added
            more = self._sought_count // max(1, self._compared_per_node) if self._compares else widest
            slots = min(slots, widest + more)
        return Beam(first, min(max(widest, slots), self._walkable_count), min(k, self._sought_count), 0)

    def _may_be_lost(self, results: Results, width: int) -> bool:
        """Whether equal distances may have led a walk nowhere, and there are few enough vectors to compare them all.

        Among nodes that are all as far from a query no edge leads nearer to it.
        """
        return bool(results.work[:, 3].any()) and self._sought_count <= _COMPARED_WHERE_LOST * width

    def _lost(self, results: Results, k: int) -> npt.NDArray[np.intp]:
        """Queries whose beam is full of nodes that are as far as the k-th result, and something may be nearer."""
        is_lost = results.work[:, 3] > 0
        if self._metric is not Metric.INNER_PRODUCT:
            is_lost &= self._with_copies(results.ids, results.distances)[1][:, min(k, self._live_count) - 1] > 0
        return np.flatnonzero(is_lost)

    def _short(self, results: Results, last: int, meeting: int) -> npt.NDArray[np.intp]:
        """Queries whose beam met too few live nodes."""
        # where nothing is compared, nothing is left but to widen the beam, up to all nodes
        fewest = meeting if self._compares else 0
        if len(results.ids) == 1:  # arrays would take longer
            return _FIRST if results.ids[0, last] < 0 or 2 * results.work[0, 2] < fewest else _NONE
        short = results.ids[:, last] < 0
        if fewest:
            short |= 2 * results.work[:, 2] < fewest
        return np.flatnonzero(short)

    @property
    def _compares(self) -> bool:
        return self._vectors is not None or self._rotated is not None

    @property
    def _compared_per_node(self) -> int:
        """Live nodes that are compared in the time that a beam takes per node of its width."""
        if self._rotated is not None:
            return _ESTIMATED_PER_NODE
        return _CODES_PER_NODE if self.compares_codes else _COMPARED_PER_NODE

    def _compares_from(self, width: int) -> bool:
        return self._compares and self._sought_count <= self._compared_per_node * width

    def interval(self, queries: Floats, nodes: I64, distances: F64) -> tuple[F64, F64] | None:
        """(lowest, highest) that the true distances of nodes int64[Q, k] most likely have, where `distances` f64[Q, k]
        of a search are estimates of rotated codes: inf for node -1. None where they are not.
        """
        if self._rotated is None:
            return None
        deviations = np.asarray(self._rotated.terms[nodes, ERROR], np.float64)
        deviations[nodes < 0] = 0
        return interval(distances, deviations, self._metric, np.linalg.norm(queries, axis=1))

    def _estimate_sought(self, queries: Floats, k: int) -> Neighbors:
        """The k sought nodes that are nearest to each query by rotated codes; results as of `search`."""
        rotated: Any = self._rotated
        live = self._sought.indices()
        nearest, distances = np.empty((len(queries), k), np.int64), np.empty((len(queries), k))
        for row in range(len(queries)):  # all at once would take a list of the nodes for each of them
            one = slice(row, row + 1)
            turned = rotated.queries(as_float64(queries[one]), self._metric)
            rotated.nearest(turned, live[None], nearest[one], distances[one])
        return nearest, reported(distances, self._metric)

    def compare(self, queries: Floats, k: int, *, ids: RowIds | None = None) -> Neighbors:
        """The k live nodes nearest to each query f32 or f64 [Q, D], by comparing every one; results as of `search`.

        `ids` names the nodes, and ties go by it; default their numbers. Raises KernelError where there are no vectors.
        """
        if self._vectors is None:
            raise KernelError("there are no vectors to compare")
        return self._compare(self._vectors, self._live, queries, k, ids)

    def _compare_sought(self, queries: Floats, k: int) -> Neighbors:
        """The k nearest of the nodes that a walk would return, by comparing or estimating every one."""
        if self._vectors is None:
            return self._estimate_sought(queries, k)
        return self._compare(self._vectors, self._sought, queries, k, None)

    def _compare(self, vectors: F32, nodes: Bitmap, queries: Floats, k: int, ids: RowIds | None) -> Neighbors:
        if self._coded is not None and len(queries) < FEW_QUERIES:
            return self._compare_codes(self._coded, nodes, queries, k, ids)
        top = ExactTopK(queries, k, self._metric)
        rows = None if nodes.count() == self._count else nodes.indices()
        top.update(vectors, (lambda indices: indices) if ids is None else ids, rows=rows)
        return top.result()

    def _compare_codes(
        self, coded: CodedVectors, compared: Bitmap, queries: Floats, k: int, ids: RowIds | None
    ) -> Neighbors:
        """`_compare`, one query after another: codes rule out what is farther."""
        if k < 1:
            raise KernelError(f"k is {k}; it must be at least 1")
        lists = []
        for query in as_float64(queries):
            nodes, of_names = coded.nearest(query, k, self._metric, compared)
            names = nodes if ids is None else ids(nodes) if callable(ids) else ids[nodes]
            order = np.lexsort((names, of_names))[:k]
            lists.append((names[order], of_names[order]))
        if len(lists) == 1 and len(lists[0][0]) == k:
            return lists[0][0][None], lists[0][1][None]
        nearest, distances = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), np.inf)
        for row, (names, of_names) in enumerate(lists):
            nearest[row, : len(names)], distances[row, : len(names)] = names, of_names
        return nearest, distances

    def _walk(self, queries: Floats, k: int, beam: Beam, threads: int) -> Results:
        """The results of a beam, some queries in a thread at a time."""
        rotated = self._rotated
        ranked = max(k, min(beam.widest, ranked_exactly(k)))
        results = Results.unfilled(len(queries), k)
        vectors = _NO_VECTORS if self._vectors is None else self._vectors
        unit = self._codes.scale**2 if isinstance(self._codes, FourBitCodes) else 0.0
        at_once = max(1, min(_QUERIES_PER_TASK, _KEYS_PER_TASK // max(1, beam.widest)))

        def search_rows(start: int) -> None:
            rows = slice(start, start + at_once)
            exact = as_float64(queries[rows])
            turned = None if rotated is None else rotated.queries(exact, self._metric)
            block = turned.walked if turned else self._queries(read_only(np.ascontiguousarray(exact, np.float32)))
            ids, distances, work = results.ids[rows], results.distances[rows], results.work[rows]
            if turned:
                ids, distances = np.empty((len(exact), ranked), np.int64), np.empty((len(exact), ranked))
            lists = new_candidate_lists(len(exact), beam.widest)
            scratch = self._take_scratch()
            live, widths = self._sought.words, (beam.first, beam.widest, beam.meeting, beam.way)
            entries, entry_data = self._entry_points, self._entry_data
            walk_block(block, entry_data, self._adjacency, live, entries, widths, scratch, lists, work, self._groups)
            self._scratch.append(scratch)
            ranking = vectors, read_only(exact), self._metric.code, ranked, unit
            rank_block(ranking, live, lists, (beam.first, beam.widest), ids, distances, work, self._groups)
            if rotated and turned:  # by all bits, from the queries as they are
                rotated.nearest(turned, ids, results.ids[rows], results.distances[rows])

        starts = range(0, len(queries), at_once)
        for_each(search_rows, starts, threads=min(threads, len(starts)))
        if self._vectors is None:  # the beam's own distances, or those by all bits
            results.distances[:] = reported(results.distances, self._metric)
        return results

    def _data_of(self, nodes: I32) -> NodeData:
        """The arrays of this searcher's `Queries` for a few nodes alone."""
        if self._codes is not None:
            space = self._codes.space
            codes = space.codes.reshape(-1, self._codes.row_bytes)[nodes].reshape(-1)
            return codes, space.norms[nodes]
        if self._vectors is not None:
            return (read_only(self._vectors[nodes]),)
        if self._rotated is not None:
            codes = self._rotated.high.reshape(-1, self._rotated.row_bytes)[nodes].reshape(-1)
            return read_only(codes), read_only(self._rotated.terms[nodes])
        return (read_only(self._pq[1][nodes]),)

    def _take_scratch(self) -> ScratchFields:
        try:
            return self._scratch.pop()
        except IndexError:  # other threads have them all
            return new_scratch(self._count, self._most_neighbors)

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


def _entry_points(graph: Graph | PackedGraph, copies: Copies) -> I32:
    """int32[e]: the medoid, from which all that are no copies can be reached, and such nodes spread over the graph."""
    if not graph.count:
        return np.empty(0, np.int32)
    others = copies.others(graph.count) if len(copies.nodes) else np.arange(graph.count)
    return np.concatenate([[graph.medoid], others[spread_indices(len(others))]]).astype(np.int32)
