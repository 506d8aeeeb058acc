"""The nearest candidates of each node so far: a reservoir of R slots a node, kept in the array that becomes the graph.

What a reservoir holds in the end does not depend on the order in which candidates were offered: the R smallest by
(weight, id) of all, each id once, by its smallest weight.
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def offer_pairs(nodes, near, weights, low, high, slots, slot_weights, counts, worst):  # type: ignore[no-untyped-def]
    """Offer both ends of all pairs (nodes[i], near[i, t]) to each other, for nodes in [low, high)."""
    for i in range(nodes.size):
        node = nodes[i]
        mine = low <= node < high
        for t in range(near.shape[1]):
            other = near[i, t]
            if other < 0:
                break
            weight = weights[i, t]
            if mine:
                _offer(node, other, weight, slots, slot_weights, counts, worst)
            if low <= other < high:
                _offer(other, node, weight, slots, slot_weights, counts, worst)


@njit(nogil=True, cache=True)
def _offer(node, other, weight, slots, slot_weights, counts, worst):  # type: ignore[no-untyped-def]
    count = counts[node]
    ids, kept = slots[node], slot_weights[node]
    limit = ids.size
    if count == limit:
        last = worst[node]
        if weight > kept[last] or (weight == kept[last] and other >= ids[last]):
            return
    known = False
    for slot in range(limit):
        known |= ids[slot] == other
    if known:
        slot = 0
        while ids[slot] != other:
            slot += 1
        if weight >= kept[slot]:
            return
    elif count < limit:
        slot = count
        counts[node] = count = count + 1
    else:
        slot = worst[node]
    ids[slot] = other
    kept[slot] = weight
    if count == limit:
        worst[node] = _worst(ids, kept)


@njit(nogil=True, cache=True)
def _worst(ids, kept):  # type: ignore[no-untyped-def]
    most = np.uint16(0)
    for slot in range(kept.size):
        most = max(most, kept[slot])
    found, largest = 0, np.int32(-1)
    for slot in range(kept.size):
        if kept[slot] == most and ids[slot] > largest:
            found, largest = slot, ids[slot]
    return found
