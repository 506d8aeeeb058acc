"""Robust prune: which candidates become neighbours. Source: DiskANN (NeurIPS 2019), algorithm 2."""

from numba import njit

from icepuffin.ann_kernels.distance_computers import FAST, distance, focus


@njit(nogil=True, cache=True, fastmath=FAST)  # numba inlines before it lowers: the caller's flags count
def robust_prune(space, node, ids, distances, count, alpha_squared, limit, out, scratch):  # type: ignore[no-untyped-def]
    """Choose at most `limit` of `count` candidates (squared `distances` to `node`) into `out`; -> how many.

    A candidate is dropped when one that was chosen is nearer to it, by the factor alpha, than the node is.
    Repeats and the node itself are dropped. Ties go to the smaller id: the order of candidates does not matter.
    Reorders `ids` and `distances`; scratch int8[P] is for the codes of one node.
    """
    sort_candidates(ids, distances, count)
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
        if chosen == limit:
            break
        anchor = focus(space, best, scratch)
        for later in range(1, count):  # written first, counted after: compiles to no branch, which nobody could foresee
            other, far = ids[later], distances[later]
            ids[kept], distances[kept] = other, far
            if other != best and alpha_squared * distance(anchor, other) > far:
                kept += 1
        count = kept
    return chosen


@njit(nogil=True, cache=True)
def sort_candidates(ids, distances, count):  # type: ignore[no-untyped-def]
    """Sort by (distance, id), in place: Shell's sort, as lists are short and nothing may be allocated."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap:
        for start in range(gap, count):
            node, far = ids[start], distances[start]
            place = start
            while place >= gap:
                before = place - gap
                if distances[before] < far or (distances[before] == far and ids[before] <= node):
                    break
                ids[place], distances[place] = ids[before], distances[before]
                place = before
            ids[place], distances[place] = node, far
        gap //= 3
