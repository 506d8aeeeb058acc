"""Robust prune: which candidates become neighbours. Source: DiskANN (NeurIPS 2019), algorithm 2."""

import numpy as np
from numba import njit

from ann_kernels.beam import FAST, squared_l2


@njit(nogil=True, cache=True, fastmath=FAST)
def robust_prune(vectors, node, ids, distances, count, alpha_squared, limit, out):  # type: ignore[no-untyped-def]
    """Choose at most `limit` of `count` candidates (squared L2 `distances` to `node`) into `out`; -> how many.

    A candidate is dropped when one that was chosen is nearer to it, by the factor alpha, than the node is.
    Repeats and the node itself are dropped. Ties go to the smaller id: the order of candidates does not matter.
    """
    order = np.argsort(distances[:count], kind="mergesort")
    for start in range(count):  # equal distances: by id
        place = start
        while place > 0:
            a, b = order[place - 1], order[place]
            if distances[a] < distances[b] or ids[a] <= ids[b]:
                break
            order[place - 1], order[place] = b, a
            place -= 1
    dropped = np.zeros(count, np.bool_)
    chosen = 0
    for rank in range(count):
        candidate = order[rank]
        if dropped[candidate] or ids[candidate] == node:
            continue
        out[chosen] = ids[candidate]
        chosen += 1
        if chosen == limit:
            break
        anchor = vectors[ids[candidate]]
        for later in range(rank + 1, count):
            other = order[later]
            if dropped[other]:
                continue
            repeated = ids[other] == ids[candidate]
            if repeated or alpha_squared * squared_l2(vectors, ids[other], anchor) <= distances[other]:
                dropped[other] = True
    return chosen
