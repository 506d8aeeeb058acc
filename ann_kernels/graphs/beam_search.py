"""Beam search over one graph: the kernel that build, insert and search share. Source: DiskANN (2019), algorithm 1."""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import I32, I64, U8
from icepuffin.ann_kernels.compilation import fast_inner_kernel, inline_kernel, inner_kernel
from icepuffin.ann_kernels.distances.candidate_list import new_candidates, next_unexpanded
from icepuffin.ann_kernels.distances.distance_computers import DistanceComputer, distance, keep_near
from icepuffin.ann_kernels.graphs.neighbor_lists import NeighborLists, prefetch_neighbors, take_unvisited
from icepuffin.ann_kernels.simd.sort_keys import NO_KEY, insert_key, key_distance, key_node, sort_key


class VisitedTable(NamedTuple):
    """The nodes that the current search has met. Kept from search to search: clearing costs more than a search."""

    marks: U8
    """Stamp of the last search that met each node, uint8[N]"""
    stamp: U8
    """Stamp of the current search, uint8[1]"""


class BeamScratch(NamedTuple):
    """Memory of one beam search at a time."""

    width: int
    """L: length of the candidate list"""
    visited: VisitedTable
    candidates: I64
    """Candidate list of `width` keys; after a search, its result"""
    path: I64
    """Keys int64[..] of the nodes that were expanded, in that order, as far as there is room"""
    fresh: I32
    """Neighbours int32[R] of one node that were not visited before"""
    keys: I64
    """Sort keys int64[R] of those that may enter the candidate list"""


@inner_kernel
def new_visited(count: int) -> VisitedTable:
    """Marks for a graph of `count` nodes, none of them visited."""
    return VisitedTable(np.zeros(count, np.uint8), np.zeros(1, np.uint8))


@inner_kernel
def new_beam_scratch(width: int, visited: VisitedTable, path: int, max_degree: int) -> BeamScratch:
    """Memory for searches of `width` that keep the first `path` nodes of their path."""
    fresh, keys = np.empty(max_degree, np.int32), np.empty(max_degree, np.int64)
    return BeamScratch(width, visited, new_candidates(width), np.empty(path, np.int64), fresh, keys)


@inline_kernel
def _advance_stamp(visited: VisitedTable) -> None:
    """Forget what was visited: choose a new stamp, and clear the marks when all 255 stamps are used up."""
    if visited.stamp[0] == np.uint8(255):
        visited.marks[:] = 0
        visited.stamp[0] = 0
    visited.stamp[0] += np.uint8(1)


@inline_kernel
def enter(computer: DistanceComputer, first: Any, second: Any, scratch: BeamScratch) -> int:
    """Forget the last walk, empty the candidate list, and put two entry nodes into it, or one that is named twice.

    A beam of width 1 takes the first alone. Returns the size of the list.
    """
    _advance_stamp(scratch.visited)
    candidates, marks, stamp = scratch.candidates, scratch.visited.marks, scratch.visited.stamp[0]
    candidates[:] = NO_KEY
    entry, size = first, 0
    while True:
        marks[entry] = stamp
        insert_key(candidates, size, sort_key(distance(computer, entry), entry))
        size += 1
        if entry == second or size == scratch.width:
            return size
        entry = second


@fast_inner_kernel
def beam_search(
    computer: DistanceComputer, adjacency: NeighborLists, first: Any, second: Any, scratch: BeamScratch
) -> tuple[int, int, int]:
    """Walk from two nodes until the nearest nodes met, as many as the beam is wide, are all expanded.

    Fills `scratch.candidates` and `scratch.path`. Returns (size of the list, nodes expanded, distances computed).
    """
    entered = enter(computer, first, second, scratch)
    size, expanded, computed = walk_on(computer, adjacency, scratch, entered, scratch.width)
    return size, expanded, entered + computed


@inline_kernel
def walk_on(
    computer: DistanceComputer, adjacency: NeighborLists, scratch: BeamScratch, size: int, first: int
) -> tuple[int, int, int]:
    """Walk on from a candidate list of some `size` until its `first` nodes, or all there are, are expanded.

    The path begins anew. Returns (size of the list, nodes expanded, distances computed).
    """
    width, candidates, path, fresh, keys = scratch.width, scratch.candidates, scratch.path, scratch.fresh, scratch.keys
    marks, stamp = scratch.visited.marks, scratch.visited.stamp[0]
    computed, expanded, current = 0, 0, next_unexpanded(candidates, size, 0)
    while current < min(size, first):
        if expanded < path.size:
            path[expanded] = candidates[current]
        expanded += 1
        node = key_node(candidates[current])
        candidates[current] |= 1
        following = next_unexpanded(candidates, size, current + 1)
        if following < size:
            prefetch_neighbors(adjacency, key_node(candidates[following]))  # likely to be the next to be read
        count = take_unvisited(adjacency, node, marks, stamp, fresh)
        worst = candidates[width - 1]
        farthest = key_distance(worst) if size == width else np.float32(np.inf)
        count = keep_near(computer, fresh, count, farthest)
        nearer = 0
        for slot in range(count):  # branch-free: written first and counted after
            keys[np.uint32(nearer)] = sort_key(distance(computer, fresh[slot]), fresh[slot])
            nearer += int(keys[np.uint32(nearer)] < worst)
        nearest = size
        for slot in range(nearer):
            if keys[slot] < candidates[width - 1]:
                index = insert_key(candidates, min(size, width - 1), keys[slot])
                if index <= following:
                    prefetch_neighbors(adjacency, key_node(keys[slot]))
                nearest = min(nearest, index)
                size = min(size + 1, width)
        computed += count
        current = next_unexpanded(candidates, size, min(current + 1, nearest))
    return size, expanded, computed
