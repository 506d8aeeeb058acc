"""Beam search over one graph: the kernel that build, insert and search share. Source: DiskANN (2019), algorithm 1.

A pool is an ascending array of sort keys: a node's distance, its id, and in the lowest bit whether its neighbours have
been looked at. Ties go to the smaller id, so that results do not depend on the order in which neighbours are stored.
"""

import numpy as np
from numba import njit

from ann_kernels.simd import key_distance, make_room, prefetch, sort_key
from ann_kernels.spaces import FAST, distance, fetch

_EDGES_A_LINE = 16
"""Node ids in a cache line"""


@njit(nogil=True, cache=True)
def next_stamp(seen, stamp):  # type: ignore[no-untyped-def]
    """The mark of the next search in seen uint8[N], which is cleared when all 255 are used up."""
    if stamp == np.uint8(255):
        seen[:] = 0
        stamp = np.uint8(0)
    return np.uint8(stamp + np.uint8(1))


@njit(nogil=True, cache=True, inline="always")
def key_node(key):  # type: ignore[no-untyped-def]
    """The node of a sort key, expanded or not."""
    return np.int32((key >> 1) & 0x7FFFFFFF)


@njit(nogil=True, cache=True)
def _insert(pool, size, key):  # type: ignore[no-untyped-def]
    """Put a key that is smaller than the last into its place; -> place."""
    low, high = 0, size
    while low < high:
        middle = (low + high) >> 1
        if pool[middle] < key:
            low = middle + 1
        else:
            high = middle
    make_room(pool, low, min(size, pool.size - 1))
    pool[low] = key
    return low


@njit(nogil=True, cache=True)
def _unexpanded(pool, size, start):  # type: ignore[no-untyped-def]
    """The first place from `start` on whose node has not been expanded; `size` where there is none."""
    while start < size and pool[start] & 1:
        start += 1
    return start


@njit(nogil=True, cache=True)
def _fetch_edges(neighbors, key):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of a node's list, which is likely to be the next to be read."""
    limit = neighbors.shape[1]
    first = np.intp(key_node(key)) * limit
    for slot in range(0, limit, _EDGES_A_LINE):
        prefetch(neighbors, first + slot)
    prefetch(neighbors, first + limit - 1)


@njit(nogil=True, cache=True, fastmath=FAST)
def _begin(point, entries, seen, stamp, pool):  # type: ignore[no-untyped-def]
    """Put the entries into an empty pool, each once; -> pool size."""
    size = 0
    for place in range(min(entries.size, pool.size)):
        entry = entries[place]
        if seen[entry] != stamp:
            seen[entry] = stamp
            far = distance(point, entry)
            _insert(pool, size, sort_key(far, entry))
            size += 1
    return size


@njit(nogil=True, cache=True, fastmath=FAST)  # numba inlines before it lowers: the caller's flags are what counts
def beam_search(point, neighbors, degrees, entries, seen, stamp, pool, path, fresh, keys):  # type: ignore[no-untyped-def]
    """Walk from `entries` int32[..] until the `pool.size` nearest nodes found are all expanded.

    Fills pool int64[L] and, as far as it has room, path int64[..]: the nodes that were expanded, in that order. seen
    uint8[N] marks nodes by `stamp` (`next_stamp`); fresh int32[R] and keys int64[R] are scratch.
    -> (pool size, nodes expanded, distances computed).
    """
    size = _begin(point, entries, seen, stamp, pool)
    computed, walked, current = size, 0, 0
    while current < size:
        if walked < path.size:
            path[walked] = pool[current]
        walked += 1
        node = key_node(pool[current])
        pool[current] |= 1
        following = _unexpanded(pool, size, current + 1)
        if following < size:
            _fetch_edges(neighbors, pool[following])
        count = 0
        for slot in range(degrees[node]):  # written first, counted after: no branch, which nobody could foresee
            other = np.uint32(neighbors[node, slot])  # unsigned: numba looks for negative indices otherwise
            fresh[np.uint32(count)] = other
            count += int(seen[other] != stamp)
            seen[other] = stamp
        for slot in range(count):
            fetch(point, fresh[slot])
        for slot in range(count):
            keys[slot] = sort_key(distance(point, fresh[slot]), fresh[slot])
        nearest = size
        for slot in range(count):
            if size < pool.size or keys[slot] < pool[size - 1]:
                place = _insert(pool, size, keys[slot])
                if place <= following:
                    _fetch_edges(neighbors, keys[slot])
                nearest = min(nearest, place)
                size = min(size + 1, pool.size)
        computed += count
        current = _unexpanded(pool, size, min(current + 1, nearest))
    return size, walked, computed


@njit(nogil=True, cache=True)
def split_keys(keys, count, ids, distances):  # type: ignore[no-untyped-def]
    """The ids and distances of keys[:count]."""
    for place in range(count):
        ids[place] = key_node(keys[place])
        distances[place] = key_distance(keys[place])
