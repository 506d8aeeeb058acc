"""The nearest candidates of each node so far: R slots per node, kept in the array that becomes the graph.

The final content of a reservoir does not depend on the order of the offers: the R smallest of all by weight, and by the
node's `tie_order` where weights are equal, each id once, by its smallest weight.
"""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import I16, I32, U16
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.graphs.tie_order import tie_order


class CandidatePairs(NamedTuple):
    """Nodes, each with some candidates."""

    nodes: I32
    """int32[n]"""
    neighbors: I32
    """Candidates int32[n, k] of each node; -1 after the last"""
    weights: U16
    """Weights u16[n, k]: smaller is nearer"""


class Reservoirs(NamedTuple):
    """The candidates that N nodes keep."""

    ids: I32
    """int32[N, R]; -1 where a slot is free"""
    weights: U16
    """u16[N, R]; the largest value where a slot is free"""
    counts: I32
    """Number of used slots, int32[N]"""
    worst: I16
    """Slot of the farthest candidate, int16[N]; set when all slots are used"""


@kernel
def offer_pairs(pairs: CandidatePairs, low: int, high: int, reservoirs: Reservoirs) -> None:
    """Offer both ends of all pairs to each other, for the nodes in [low, high)."""
    nodes, neighbors, weights = pairs.nodes, pairs.neighbors, pairs.weights
    ids, kept_weights, counts, worst = reservoirs.ids, reservoirs.weights, reservoirs.counts, reservoirs.worst
    for i in range(nodes.size):
        node = nodes[i]
        inside = low <= node < high
        for t in range(neighbors.shape[1]):
            other = neighbors[i, t]
            if other < 0:
                break
            weight = weights[i, t]
            if inside:
                _offer(node, other, weight, ids, kept_weights, counts, worst)
            if low <= other < high:
                _offer(other, node, weight, ids, kept_weights, counts, worst)


@inner_kernel
def _offer(node: Any, other: Any, weight: Any, ids: I32, weights: U16, counts: I32, worst: I16) -> None:
    """Offer a candidate to one node. The arrays are those of `Reservoirs`; a tuple of them costs a sixth more time."""
    # rows of two-dimensional arrays are no arrays of their own here: numba would count references to those
    node, limit = np.uint32(node), ids.shape[1]
    count = counts[node]
    if count == limit:
        last = np.uint32(worst[node])
        if weight > weights[node, last] or (
            weight == weights[node, last] and tie_order(node, other) >= tie_order(node, ids[node, last])
        ):
            return
    present = False
    for slot in range(limit):
        present |= ids[node, slot] == other
    if present:
        slot = 0
        while ids[node, slot] != other:
            slot += 1
        if weight >= weights[node, slot]:
            return
    elif count < limit:
        slot = count
        counts[node] = count = count + 1
    else:
        slot = worst[node]
    ids[node, slot] = other
    weights[node, slot] = weight
    if count == limit:
        worst[node] = _farthest(ids, weights, node)


@inner_kernel
def _farthest(ids: I32, weights: U16, node: Any) -> int:
    """The slot of a node with the largest weight; of equal weights the one that ties put last."""
    largest_weight = np.uint16(0)
    for slot in range(ids.shape[1]):
        largest_weight = max(largest_weight, weights[node, slot])
    farthest, latest = 0, -1
    for slot in range(ids.shape[1]):
        if weights[node, slot] == largest_weight and tie_order(node, ids[node, slot]) > latest:
            farthest, latest = slot, tie_order(node, ids[node, slot])
    return farthest
