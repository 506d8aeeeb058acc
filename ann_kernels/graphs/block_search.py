"""Kernels that search a graph for a block of queries: a beam each, then an exact ranking of its nearest live nodes."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, U64
from icepuffin.ann_kernels.compilation import fast_inner_kernel, fast_kernel, inline_kernel, strict_inner_kernel
from icepuffin.ann_kernels.distances.distance_computers import (
    DistanceComputer,
    NodeData,
    Queries,
    distance,
    queries_over,
    query_computer,
)
from icepuffin.ann_kernels.distances.exact_distances import exact_distance
from icepuffin.ann_kernels.graphs.beam_search import BeamScratch, VisitedTable, enter, walk_on
from icepuffin.ann_kernels.graphs.neighbor_lists import adjacency_of
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import has_row
from icepuffin.ann_kernels.simd.prefetching import prefetch_row
from icepuffin.ann_kernels.simd.sort_keys import KEY_LANES, NO_KEY, key_distance, key_node

_DEVIATIONS = 6
"""Standard deviations of coarse distances within which a node may be among the nearest: many, as they are taken of the
nodes that are ranked first, whose errors are alike"""
_SAMPLED = 8
"""Nodes of a beam's farther half that are compared with the k-th result, about so many"""
_RANKED_OF_GROUP = 2
"""Nodes of a group that are ranked exactly, per node that counts"""
_L2, _COSINE = Metric.L2.code, Metric.COSINE.code


class Beam(NamedTuple):
    """How wide a beam is."""

    first: int
    """Width at first"""
    widest: int
    meeting: int
    """Number of live nodes for which it is widened"""
    way: int
    """Nodes at its front that do not count for that: those that find the way"""


class Ranking(NamedTuple):
    """Exact distances, by which the nearest nodes of candidate lists are ranked."""

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
    """Nodes expanded, distances computed, live nodes that the beam met, and 1 where it is full of nodes that are as far
    as the k-th result, int64[Q, 4]
    """

    @classmethod
    def unfilled(cls, queries: int, k: int) -> "Results":
        shape = queries, k
        return cls(np.empty(shape, np.int64), np.empty(shape), np.empty((queries, 4), np.int64))

    @classmethod
    def nothing(cls, queries: int, k: int) -> "Results":
        ids, distances = np.full((queries, k), -1, np.int64), np.full((queries, k), np.inf)
        return cls(ids, distances, np.zeros((queries, 4), np.int64))

    def replace(self, rows: npt.NDArray[np.intp], others: "Results") -> None:
        self.ids[rows], self.distances[rows] = others.ids, others.distances
        self.work[rows, :2] += others.work[:, :2]
        self.work[rows, 2:] = others.work[:, 2:]


RankingFields: TypeAlias = tuple[F32, F64, int, int, float]
"""The fields of `Ranking`"""
ScratchFields: TypeAlias = tuple[U8, U8, I32, I64]
"""Memory of one walk at a time: the fields of a `VisitedTable`, and room for neighbours int32[R] and their keys
int64[R]"""


GroupFields: TypeAlias = tuple[I32, int]
"""The group of each node int32[N], -1 for one of its own, and how many nodes of a group count; empty: all of them do"""

NO_GROUPS: GroupFields = np.empty(0, np.int32), 0


def new_scratch(nodes: int, most_neighbors: int) -> ScratchFields:
    """Memory for walks over a graph of so many nodes, none of which has more neighbours."""
    fresh, keys = np.empty(most_neighbors, np.int32), np.empty(most_neighbors, np.int64)
    return np.zeros(nodes, np.uint8), np.zeros(1, np.uint8), fresh, keys


def new_candidate_lists(queries: int, width: int) -> I64:
    """Candidate lists int64[Q, ..] for beams up to a width, not filled. Rows are padded to whole registers."""
    return np.empty((queries, width + -width % KEY_LANES), np.int64)


@fast_kernel
def walk_block(
    queries: Queries,
    entry_data: NodeData,
    adjacency_fields: tuple[Any, ...],
    live: U64,
    nodes: I32,
    beam: tuple[int, int, int, int],
    scratch_fields: ScratchFields,
    lists: I64,
    work: I64,
    grouping: GroupFields,
) -> None:
    """Walk the graph for each query: fill the candidate lists, as of `new_candidate_lists`, and work int64[Q, 4].

    `nodes` int32[e] are the entry points: the medoid, then nodes spread over the graph, if it is large. `entry_data`
    are their arrays, which lie together, so that comparing them is cheap. `live` is the words of the `Bitmap` of nodes
    that may be returned. The arguments are fields of NamedTuples, as each of those would cost a call half a
    microsecond. What does not depend on how distances are measured is elsewhere: this is compiled for each way.
    """
    adjacency = adjacency_of(adjacency_fields)
    marks, stamp, fresh, keys = scratch_fields
    first, widest, _, _ = beam
    entry_queries = queries_over(entry_data, queries)
    met, distances = np.empty(beam[2], np.int32), np.empty(beam[2])
    for row in range(lists.shape[0]):
        computer = query_computer(queries, row)
        scratch = BeamScratch(widest, VisitedTable(marks, stamp), lists[row], keys[:0], fresh, keys)
        entry = nodes[0]
        if nodes.size > 1:
            entry = nodes[_nearest(query_computer(entry_queries, row), nodes.size)]
        size = enter(computer, nodes[0], entry, scratch)
        work[row, 0], work[row, 1] = 0, size + nodes.size - 1
        width = first
        while width:
            size, expanded, computed = walk_on(computer, adjacency, scratch, size, width)
            work[row, 0] += expanded
            work[row, 1] += computed
            width = _widened(live, grouping, lists[row], size, width, beam, met, distances, work[row])


@inline_kernel
def _widened(
    live: U64,
    grouping: GroupFields,
    keys: I64,
    size: int,
    width: int,
    beam: tuple[int, int, int, int],
    met: I32,
    distances: F64,
    work: I64,
) -> int:
    """The next width of a beam that met too few live nodes; 0 where it met enough, or is as wide as it may be.

    Writes those that it met to `met` and `distances`, and how many to work int64[4].
    """
    _, widest, meeting, way = beam
    counted = min(size, width - way)
    _, live_count = _collect(live, grouping, keys[:counted], np.int64(0), meeting, np.float32(np.inf), met, distances)
    work[2] = live_count
    if live_count >= meeting or width >= widest:
        return 0
    needed = way + counted * meeting // max(1, live_count)  # were the share to stay
    return min(widest, max(min(needed, 2 * width), width + width // 8 + 1))


@fast_kernel
def rank_block(
    ranking: RankingFields,
    live: U64,
    lists: I64,
    widths: tuple[int, int],
    ids: I64,
    distances: F64,
    work: I64,
    grouping: GroupFields,
) -> None:
    """Fill ids int64[Q, k] and distances f64[Q, k] with the nearest live nodes of candidate lists, in order.

    The first live nodes of a list are put in order by exact distance, where there are vectors; otherwise distances are
    those of the beam. Where these are coarse, so are all nodes after them that may be among the nearest: in a cluster
    that is tighter than the codes tell apart, those are all of its nodes. `widths`: how wide the beam was at first, and
    how wide the lists are, which are longer. Completes work int64[Q, 4].
    """
    first, width = widths
    groups, limit = grouping
    of_group = groups, _RANKED_OF_GROUP * limit
    vectors, queries, metric, most, unit = ranking
    by_vectors = Ranking(vectors, queries, metric, most, unit)
    best = np.empty(max(most, width), np.int32)
    best_distances = np.empty(best.size)
    none = np.int64(0)  # numba compiles a kernel anew for a constant
    for row in range(ids.shape[0]):
        size = width
        while size and lists[row, size - 1] == NO_KEY:
            size -= 1
        keys = lists[row, :size]
        last, count = _collect(live, of_group, keys, none, most, np.float32(np.inf), best, best_distances)
        if vectors.size:
            reach = _rank_exactly(by_vectors, row, best[:count], best_distances, none, ids.shape[1])
            if unit and count >= ids.shape[1]:
                ranked = count
                _, more = _collect(live, of_group, keys, last, best.size, reach, best[count:], best_distances[count:])
                count += more
                _rank_exactly(by_vectors, row, best[:count], best_distances, ranked, ids.shape[1])
        work[row, 3] = 0
        if vectors.size and size >= first and count >= ids.shape[1]:
            work[row, 3] = _are_as_far(by_vectors, row, keys[first // 2 : first], best_distances[ids.shape[1] - 1])
        if groups.size:
            ranked, count = count, 0
            for index in range(ranked):
                if _has_room(grouping, best[:count], best[index]):
                    best[count], best_distances[count] = best[index], best_distances[index]
                    count += 1
        for index in range(ids.shape[1]):
            ids[row, index] = best[index] if index < count else -1
            distances[row, index] = best_distances[index] if index < count else np.inf


@fast_inner_kernel
def _collect(
    live: U64, grouping: GroupFields, keys: I64, first: Any, most: int, reach: np.float32, ids: I32, distances: F64
) -> tuple[int, int]:
    """Live nodes of some keys, from `first` on, and their distances: until there are `most`, or one is out of reach.

    Returns the index of the key after the last one, and the number of nodes.
    """
    count, index = 0, first
    while index < keys.size and count < min(most, ids.size):
        if key_distance(keys[index]) > reach:
            break
        node = key_node(keys[index])
        if has_row(live, node) and _has_room(grouping, ids[:count], node):
            ids[count] = node
            distances[count] = np.float64(key_distance(keys[index]))
            count += 1
        index += 1
    return index, count


@inline_kernel
def _has_room(grouping: GroupFields, ids: I32, node: np.int32) -> bool:
    """Whether fewer nodes of a node's group than count are among some."""
    groups, limit = grouping
    if not groups.size or groups[node] < 0:
        return True
    count = 0
    for other in ids:
        count += int(groups[other] == groups[node])
    return count < limit


@inline_kernel
def _nearest(computer: DistanceComputer, count: int) -> int:
    """The nearest of the first `count` nodes; of equals the first."""
    nearest, smallest = 0, np.float32(np.inf)
    for node in range(count):
        to_node = distance(computer, np.int32(node))
        if to_node < smallest:
            nearest, smallest = node, to_node
    return nearest


@strict_inner_kernel
def _are_as_far(ranking: Ranking, row: int, keys: I64, exact: float) -> bool:
    """Whether a sample of the nodes of some keys are exactly as far from a query."""
    step = max(1, keys.size // _SAMPLED)
    for index in range(keys.size - 1, -1, -step):
        node = np.int64(key_node(keys[index]))
        if exact_distance(ranking.vectors, node, ranking.queries[row], ranking.metric) != exact:
            return False
    return True


@strict_inner_kernel
def _rank_exactly(ranking: Ranking, row: int, ids: I32, distances: F64, first: Any, k: int) -> np.float32:
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
        exact = exact_distance(ranking.vectors, np.int64(node), ranking.queries[row], ranking.metric)
        if ranking.unit:
            gap = _squared(exact, ranking.metric) / ranking.unit - distances[i]
            total += gap
            squares += gap * gap
        index = i
        while index > 0 and (distances[index - 1] > exact or (distances[index - 1] == exact and ids[index - 1] > node)):
            distances[index] = distances[index - 1]
            ids[index] = ids[index - 1]
            index -= 1
        distances[index] = exact
        ids[index] = node
    ranked = ids.size - first
    if not ranking.unit or ranked < k:
        return np.float32(np.inf)
    mean = total / ranked
    deviation = np.sqrt(max(0.0, squares / ranked - mean * mean))
    return np.float32(_squared(distances[k - 1], ranking.metric) / ranking.unit - mean + _DEVIATIONS * deviation)


@inline_kernel
def _squared(exact: float, metric: int) -> float:
    """Squared L2 distance of a reported distance: no inner product."""
    if metric == _L2:
        return exact * exact
    return 2 * exact if metric == _COSINE else exact
