"""Beam search over one graph: the kernel that build, insert and search share. Source: DiskANN (2019), algorithm 1.

Kernel distances: squared L2, - dot, or the sum of PQ table entries; smaller is nearer. Ties go to the smaller id, so
that results do not depend on the order in which neighbours are stored.
"""

import numpy as np
from numba import njit

from ann_kernels.quantize import table_distance

SQUARED_L2 = 0
NEGATED_DOT = 1
PQ_TABLE = 2

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Fast-math flags of all kernels here: never nnan or ninf, user data is checked but not trusted."""


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def squared_l2(vectors, node, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(query.size):
        gap = vectors[node, d] - query[d]
        total += gap * gap
    return total


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def negated_dot(vectors, node, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(query.size):
        total -= vectors[node, d] * query[d]
    return total


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def _distance(kind, vectors, query, codes, table, node):  # type: ignore[no-untyped-def]
    if kind == SQUARED_L2:
        return squared_l2(vectors, node, query)
    if kind == NEGATED_DOT:
        return negated_dot(vectors, node, query)
    return table_distance(table, codes, node)


@njit(nogil=True, cache=True, inline="always")
def _before(distance, node, other_distance, other):  # type: ignore[no-untyped-def]
    return distance < other_distance or (distance == other_distance and node < other)


@njit(nogil=True, cache=True)
def offer(pool_ids, pool_distances, expanded, size, node, distance):  # type: ignore[no-untyped-def]
    """Insert into the sorted pool; -> (place or -1 where it is too far, new size)."""
    limit = pool_ids.size
    if size == limit and not _before(distance, node, pool_distances[size - 1], pool_ids[size - 1]):
        return -1, size
    low, high = 0, size
    while low < high:
        middle = (low + high) >> 1
        if _before(pool_distances[middle], pool_ids[middle], distance, node):
            low = middle + 1
        else:
            high = middle
    if size < limit:
        size += 1
    for place in range(size - 1, low, -1):
        pool_ids[place] = pool_ids[place - 1]
        pool_distances[place] = pool_distances[place - 1]
        expanded[place] = expanded[place - 1]
    pool_ids[low] = node
    pool_distances[low] = distance
    expanded[low] = False
    return low, size


@njit(nogil=True, cache=True, fastmath=FAST)  # numba inlines before it lowers: the caller's flags are what counts
def beam_search(  # type: ignore[no-untyped-def]
    kind,
    vectors,
    query,
    codes,
    table,
    neighbors,
    degrees,
    entry,
    seen,
    stamp,
    pool_ids,
    pool_distances,
    expanded,
    path_ids,
    path_distances,
):
    """Walk from `entry` until the `pool_ids.size` nearest nodes found are all expanded.

    Fills the pool (ascending) and, as far as it has room, the path: the nodes that were expanded.
    -> (pool size, path length, distances computed).
    """
    pool_ids[0] = entry
    pool_distances[0] = _distance(kind, vectors, query, codes, table, entry)
    expanded[0] = False
    seen[entry] = stamp
    size, computed, walked, current = 1, 1, 0, 0
    while current < size:
        node = pool_ids[current]
        expanded[current] = True
        if walked < path_ids.size:
            path_ids[walked] = node
            path_distances[walked] = pool_distances[current]
            walked += 1
        nearest = size
        for slot in range(degrees[node]):
            other = neighbors[node, slot]
            if seen[other] == stamp:
                continue
            seen[other] = stamp
            distance = _distance(kind, vectors, query, codes, table, other)
            computed += 1
            place, size = offer(pool_ids, pool_distances, expanded, size, other, distance)
            if 0 <= place < nearest:
                nearest = place
        current = min(current + 1, nearest)
        while current < size and expanded[current]:
            current += 1
    return size, walked, computed
