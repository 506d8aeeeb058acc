"""Beam search over one graph: the kernel that build, insert and search share. Source: DiskANN (2019), algorithm 1."""

import numpy as np
from numba import njit

from icepuffin.ann_kernels.candidate_list import NO_KEY, insert, key_distance, key_node, sort_key, unexpanded
from icepuffin.ann_kernels.distance_computers import FAST, distance, fetch
from icepuffin.ann_kernels.simd import prefetch_row


@njit(nogil=True, cache=True)
def next_stamp(seen, stamp):  # type: ignore[no-untyped-def]
    """The mark of the next search in seen uint8[N], which is cleared when all 255 are used up."""
    if stamp == np.uint8(255):
        seen[:] = 0
        stamp = np.uint8(0)
    return np.uint8(stamp + np.uint8(1))


@njit(nogil=True, cache=True, fastmath=FAST)
def _begin(point, entries, seen, stamp, pool, width):  # type: ignore[no-untyped-def]
    """Empty the pool and put the entries into it, each once; -> pool size."""
    pool[:] = NO_KEY
    size = 0
    for place in range(min(entries.size, width)):
        entry = entries[place]
        if seen[entry] != stamp:
            seen[entry] = stamp
            far = distance(point, entry)
            insert(pool, size, sort_key(far, entry))
            size += 1
    return size


@njit(nogil=True, cache=True, fastmath=FAST)  # numba inlines before it lowers: the caller's flags are what counts
def beam_search(  # type: ignore[no-untyped-def]
    point, neighbors, degrees, entries, seen, stamp, pool, width, path, fresh, keys
):
    """Walk from `entries` int32[..] until the `width` nearest nodes found are all expanded.

    Fills a pool of `new_pool(width)` and, as far as it has room, path int64[..]: the nodes that were expanded, in that
    order. seen uint8[N] marks nodes by `stamp` (`next_stamp`); fresh int32[R] and keys int64[R] are scratch.
    -> (pool size, nodes expanded, distances computed).
    """
    size = _begin(point, entries, seen, stamp, pool, width)
    computed, walked, current = size, 0, 0
    while current < size:
        if walked < path.size:
            path[walked] = pool[current]
        walked += 1
        node = key_node(pool[current])
        pool[current] |= 1
        following = unexpanded(pool, size, current + 1)
        if following < size:
            prefetch_row(neighbors, key_node(pool[following]))  # likely to be the next to be read
        count = 0
        for slot in range(degrees[node]):  # written first, counted after: no branch, which nobody could foresee
            other = np.uint32(neighbors[node, slot])  # unsigned: numba looks for negative indices otherwise
            fresh[np.uint32(count)] = other
            count += int(seen[other] != stamp)
            seen[other] = stamp
        for slot in range(count):
            fetch(point, fresh[slot])
        worst = pool[width - 1]
        nearer = 0
        for slot in range(count):  # in the same way
            keys[np.uint32(nearer)] = sort_key(distance(point, fresh[slot]), fresh[slot])
            nearer += int(keys[np.uint32(nearer)] < worst)
        nearest = size
        for slot in range(nearer):
            if keys[slot] < pool[width - 1]:
                place = insert(pool, min(size, width - 1), keys[slot])
                if place <= following:
                    prefetch_row(neighbors, key_node(keys[slot]))
                nearest = min(nearest, place)
                size = min(size + 1, width)
        computed += count
        current = unexpanded(pool, size, min(current + 1, nearest))
    return size, walked, computed


@njit(nogil=True, cache=True)
def split_keys(keys, count, ids, distances):  # type: ignore[no-untyped-def]
    """The ids and distances of keys[:count]."""
    for place in range(count):
        ids[place] = key_node(keys[place])
        distances[place] = key_distance(keys[place])
