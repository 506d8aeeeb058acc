"""Robust prune: which candidates become neighbours. Source: DiskANN (NeurIPS 2019), algorithm 2."""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I8, I32
from icepuffin.ann_kernels.compilation import fast_kernel, inner_kernel
from icepuffin.ann_kernels.distances.distance_computers import Space, distance, node_computer
from icepuffin.ann_kernels.graphs.tie_order import tie_order


class PruneCandidates(NamedTuple):
    """Nodes that may become neighbours of a node."""

    ids: I32
    """int32[..]"""
    distances: F32
    """Squared distances f32[..] to the node"""


@inner_kernel
def new_prune_candidates(size: int) -> PruneCandidates:
    """Room for `size` candidates."""
    return PruneCandidates(np.empty(size, np.int32), np.empty(size, np.float32))


@fast_kernel
def robust_prune(
    space: Space, node: Any, candidates: PruneCandidates, count: Any, alpha_squared: np.float32, out: I32, scratch: I8
) -> int:
    """Choose neighbours among the first `count` candidates into out int32[R], R at most. Returns their number.

    A candidate is dropped when a chosen one is nearer to it, by the factor alpha, than the node is. Repeats and the
    node itself are dropped. Ties go by the node's `tie_order`: the order of candidates does not matter. Reorders the
    candidates; scratch int8[P] is for the codes of one node.
    """
    ids, distances = candidates.ids, candidates.distances
    sort_candidates(candidates, count, node)
    chosen = 0
    while count:
        best = ids[0]
        kept = 0
        if best == node:
            for later in range(1, count):
                ids[later - 1], distances[later - 1] = ids[later], distances[later]
            count -= 1
            continue
        out[chosen] = best
        chosen += 1
        if chosen == out.size:
            break
        computer = node_computer(space, best, scratch)
        for later in range(1, count):  # branch-free, written first and counted after: a branch is unpredictable
            other, to_node = ids[later], distances[later]
            ids[kept], distances[kept] = other, to_node
            kept += int((other != best) & (alpha_squared * distance(computer, other) > to_node))
        count = kept
    return chosen


@inner_kernel
def sort_candidates(candidates: PruneCandidates, count: int, center: Any) -> None:
    """Sort the first `count` by distance, and ties by their order for node `center`, in place: Shell's sort, as lists
    are short and nothing is allocated.
    """
    ids, distances = candidates.ids, candidates.distances
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap:
        for start in range(gap, count):
            node, to_node = ids[start], distances[start]
            index = start
            while index >= gap:
                before = index - gap
                if distances[before] < to_node or (
                    distances[before] == to_node and tie_order(center, ids[before]) <= tie_order(center, node)
                ):
                    break
                ids[index], distances[index] = ids[before], distances[before]
                index = before
            ids[index], distances[index] = node, to_node
        gap //= 3
