"""Equal vectors: one of each group has edges, the others are its copies, which no edge leads to.

Otherwise a group of some size fills a beam: the walk ends among rows that are all as far, and meets no other group.
A copy has one edge, to its original. By that a reader of the graph knows it: to each other node an edge leads, but to
the medoid.
"""

from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, U64, AnyArray
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph
from icepuffin.ann_kernels.graphs.neighbor_lists import NeighborLists, most_neighbors, take_unvisited
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.sketches.hashing import content_hash

_ROWS_PER_BLOCK = 4_096
_COMPARED_FIRST = 4
"""Dimensions by which nodes that may equal new ones are found, before their vectors are read"""
_LONGEST_SINGLE = 6
"""Bytes of a list of one node, at most"""


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Nodes whose vectors are those of other nodes."""

    nodes: I32
    """int32[c], ascending"""
    originals: I32
    """The node that stands for each, int32[c]: never a copy itself"""

    def others(self, count: int) -> I32:
        """The nodes, of `count`, that are no copies: int32[n], ascending."""
        is_other = np.ones(count, np.bool_)
        is_other[self.nodes] = False
        return np.flatnonzero(is_other).astype(np.int32)

    def joined(self, more: "Copies") -> "Copies":
        """These copies, and `more`, whose nodes are larger."""
        return Copies(np.concatenate([self.nodes, more.nodes]), np.concatenate([self.originals, more.originals]))


NO_COPIES = Copies(np.empty(0, np.int32), np.empty(0, np.int32))


def find_duplicates(vectors: F32, *, first: int) -> Copies:
    """Rows f32[N, D] that equal others; row `first` is the original of its group, otherwise the smallest row is."""
    hashes = content_hash(vectors)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    ranked = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    groups = np.repeat(np.arange(len(starts)), np.diff(np.concatenate([starts, [len(order)]])))
    leaders = order[starts]
    leaders[groups[order == first]] = first
    originals = leaders[groups]
    indices = np.flatnonzero(order != originals)
    nodes, originals = order[indices], originals[indices]
    by_node = np.argsort(nodes)
    nodes, originals = nodes[by_node], originals[by_node]
    is_equal = np.empty(len(nodes), np.bool_)  # all of them, unless hashes collide
    for start in range(0, len(nodes), _ROWS_PER_BLOCK):
        part = slice(start, start + _ROWS_PER_BLOCK)
        is_equal[part] = (vectors[nodes[part]] == vectors[originals[part]]).all(axis=1)
    return Copies(nodes[is_equal], originals[is_equal])


def find_new_duplicates(vectors: F32, before: int, copies: Copies) -> Copies:
    """Those of the rows f32[N, D] from `before` on that equal earlier rows. `copies` are those before it."""
    if before == len(vectors):
        return NO_COPIES
    old = copies.others(before)
    columns = np.linspace(0, vectors.shape[1] - 1, _COMPARED_FIRST).astype(np.intp)
    new_keys = np.unique(_keys(vectors[before:][:, columns]))
    old_keys = _keys(vectors[:before][:, columns])[old]
    indices = np.minimum(np.searchsorted(new_keys, old_keys), len(new_keys) - 1)
    rows = np.concatenate([old[new_keys[indices] == old_keys], np.arange(before, len(vectors), dtype=np.int32)])
    found = find_duplicates(vectors[rows], first=-1)
    nodes, originals = rows[found.nodes], rows[found.originals]
    is_new = nodes >= before
    return Copies(nodes[is_new], originals[is_new])


def _keys(values: F32) -> U64:
    """u64[n]: equal for rows f32[n, 4] whose bits are equal, and seldom for others."""
    words = np.ascontiguousarray(values).view(np.uint64)
    return words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ words[:, 1]


def mark_copies(graph: Graph, copies: Copies) -> None:
    """Give each copy its one edge."""
    graph.neighbors[copies.nodes] = -1
    graph.neighbors[copies.nodes, 0] = copies.originals
    graph.degrees[copies.nodes] = 1


def copies_of(adjacency: NeighborLists, medoid: int) -> Copies:
    """The copies of a graph: nodes but the medoid that no edge leads to, and that have one."""
    if isinstance(adjacency, Adjacency):
        count, singles = len(adjacency.degrees), np.flatnonzero(adjacency.degrees == 1)
    else:
        sizes = np.diff(adjacency.starts)
        count, singles = len(sizes), np.flatnonzero(sizes <= _LONGEST_SINGLE)
        singles = singles[adjacency.lists[adjacency.starts[singles]] == 1]
    if not len(singles):
        return NO_COPIES
    nodes, originals = np.empty(len(singles), np.int32), np.empty(len(singles), np.int32)
    fresh, marks = np.empty(max(1, most_neighbors(adjacency)), np.int32), np.zeros(count, np.uint8)
    found = _find_copies(adjacency, medoid, singles.astype(np.int32), marks, fresh, nodes, originals)
    return Copies(nodes[:found].copy(), originals[:found].copy())


@kernel
def _find_copies(
    adjacency: NeighborLists, medoid: int, singles: I32, marks: U8, fresh: I32, nodes: I32, originals: I32
) -> int:
    """`copies_of`, among the nodes with one edge: fills nodes and originals int32[n]. Returns the number of copies.

    marks u8[N] are 0; fresh int32[R].
    """
    for node in range(marks.size):
        take_unvisited(adjacency, node, marks, np.uint8(1), fresh)
    count = 0
    for node in singles:
        if marks[node] == 0 and node != medoid:
            take_unvisited(adjacency, node, marks, np.uint8(2), fresh)
            nodes[count], originals[count] = node, fresh[0]
            count += 1
    return count


@dataclass(frozen=True, slots=True, eq=False)
class CopyGroups:
    """The nodes of each original that has copies, itself among them; or the live ones of them."""

    originals: I64
    """int64[g], ascending"""
    members: I64
    """int64[m], one group after the other, each ascending"""
    starts: I64
    """Start of each group in `members`, int64[g + 1]"""

    @classmethod
    def from_copies(cls, copies: Copies) -> "CopyGroups":
        originals = np.unique(copies.originals).astype(np.int64)
        members = np.concatenate([originals, copies.nodes])
        groups = np.searchsorted(originals, np.concatenate([originals, copies.originals]))
        sizes = np.bincount(groups, minlength=len(originals))
        return cls(originals, members[np.lexsort((members, groups))], np.concatenate([[0], np.cumsum(sizes)]))

    def of_live(self, live: Bitmap) -> tuple[Bitmap, "CopyGroups"]:
        """(nodes that a walk is to return for the live ones: originals for their groups; the live nodes of groups)."""
        marked = live.marked()
        is_live = marked[self.members]
        ends = np.concatenate([[0], np.cumsum(is_live)])[self.starts]
        marked[self.members] = False
        marked[self.originals] = ends[1:] > ends[:-1]
        return Bitmap.from_mask(marked), CopyGroups(self.originals, self.members[is_live], ends)

    def filled(self, ids: I64, distances: F64) -> tuple[I64, F64]:
        """Results (ids int64[Q, k], -1 where there are fewer; distances f64[Q, k]) with all nodes for originals."""
        k = ids.shape[1]
        groups = np.minimum(np.searchsorted(self.originals, ids), len(self.originals) - 1)
        has_copies = self.originals[groups] == ids
        if not has_copies.any():
            return ids, distances
        firsts = np.where(has_copies, self.starts[groups], 0)
        counts = np.where(has_copies, np.minimum(self.starts[groups + 1] - firsts, k), ids >= 0)
        ranks = np.cumsum(counts, axis=1) - counts
        counts = np.clip(k - ranks, 0, counts)  # else there may be k times k
        results = np.repeat(np.arange(counts.size), counts.ravel())
        within = _places_within(counts.ravel())
        rank = ranks.ravel()[results] + within
        out_ids, out_distances = np.full_like(ids, -1), np.full_like(distances, np.inf)
        nodes = ids.ravel()[results]
        is_group = has_copies.ravel()[results]
        nodes[is_group] = self.members[(firsts.ravel()[results] + within)[is_group]]
        out_ids[results // k, rank] = nodes
        out_distances[results // k, rank] = distances.ravel()[results]
        order = np.lexsort((out_ids, out_distances))  # other vectors may be as far
        return np.take_along_axis(out_ids, order, axis=1), np.take_along_axis(out_distances, order, axis=1)


def _places_within(counts: AnyArray) -> I64:
    """0 to n - 1 for each of some counts n, one after the other."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(ends[-1]) - np.repeat(ends - counts, counts), np.int64)
