"""Kernels that search a graph for a block of queries: a beam each, whose nearest live nodes are ranked exactly."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, U64
from icepuffin.ann_kernels.beam_search import VisitedTable, enter, new_beam_scratch, walk_on
from icepuffin.ann_kernels.bitmap import has_row
from icepuffin.ann_kernels.compilation import fast_kernel, kernel, strict_kernel
from icepuffin.ann_kernels.distance_computers import DistanceComputer, Queries, distance, query_computer
from icepuffin.ann_kernels.exact_distances import exact_distance
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.neighbor_lists import NeighborLists, adjacency_of, most_neighbors
from icepuffin.ann_kernels.simd.prefetching import prefetch_row
from icepuffin.ann_kernels.simd.sort_keys import key_distance, key_node

_DEVIATIONS = 6
"""Standard deviations of coarse distances within which a node may be among the nearest: many, as they are taken of the
nodes that are ranked first, whose errors are alike"""
_L2, _COSINE = Metric.L2.code, Metric.COSINE.code


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


class Beam(NamedTuple):
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


class Results(NamedTuple):
    """What a search gives for each of Q queries."""

    ids: I64
    """int64[Q, k]; -1 where there are fewer"""
    distances: F64
    """f64[Q, k], reported; inf where there are fewer"""
    work: I64
    """Nodes expanded, distances computed, and live nodes that the beam met, int64[Q, 3]"""

    @classmethod
    def unfilled(cls, queries: int, k: int) -> "Results":
        shape = queries, k
        return cls(np.empty(shape, np.int64), np.empty(shape), np.empty((queries, 3), np.int64))

    @classmethod
    def nothing(cls, queries: int, k: int) -> "Results":
        ids, distances = np.full((queries, k), -1, np.int64), np.full((queries, k), np.inf)
        return cls(ids, distances, np.zeros((queries, 3), np.int64))

    def part(self, rows: slice) -> "ResultFields":
        """The fields for some of the queries."""
        return self.ids[rows], self.distances[rows], self.work[rows]

    def replace(self, rows: npt.NDArray[np.intp], others: "Results") -> None:
        self.ids[rows], self.distances[rows] = others.ids, others.distances
        self.work[rows, :2] += others.work[:, :2]
        self.work[rows, 2] = others.work[:, 2]


_RankingFields: TypeAlias = tuple[F32, F64, int, int, float]
"""The fields of `_Ranking`"""
VisitedFields: TypeAlias = tuple[U8, U8]
"""The fields of `VisitedTable`"""
ResultFields: TypeAlias = tuple[I64, F64, I64]
"""The fields of `Results`"""


@fast_kernel
def search_block(
    queries: Queries,
    entry_queries: Queries,
    graph: tuple[tuple[Any, ...], U64, I32],
    beam: tuple[int, int, int],
    ranking: _RankingFields,
    visited: VisitedFields,
    results: ResultFields,
) -> None:
    """`_search_rows` as Python calls it: its NamedTuples are made here, as each would cost a call half a microsecond.

    `graph` is (fields of the adjacency, words of the live nodes, entry points).
    """
    adjacency, live, nodes = graph
    _search_rows(
        queries,
        _LiveGraph(adjacency_of(adjacency), live),
        _EntryPoints(nodes, entry_queries),
        Beam(*beam),
        _Ranking(*ranking),
        VisitedTable(*visited),
        Results(*results),
    )


@fast_kernel
def _search_rows(
    queries: Queries,
    graph: _LiveGraph,
    entry_points: _EntryPoints,
    beam: Beam,
    ranking: _Ranking,
    visited: VisitedTable,
    results: Results,
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
