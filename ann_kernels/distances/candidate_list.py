"""The candidate list of a beam search: the nearest nodes that it met, as an ascending array of sort keys.

A key is a node's distance, its id, and in the lowest bit whether its neighbours were looked at (`simd.sort_keys`).
Ties go to the smaller id, so results do not depend on the order in which neighbours are stored.
"""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I32, I64
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.simd.sort_keys import KEY_LANES, NO_KEY, key_distance, key_node


@kernel
def new_candidates(width: int) -> I64:
    """An empty candidate list int64[..] for `width` keys, padded to whole registers.

    The slots beyond `width` are room for keys that `insert_key` pushes out.
    """
    return np.full(width + -width % KEY_LANES, NO_KEY)


@kernel
def next_unexpanded(candidates: I64, size: int, start: int) -> int:
    """The first index from `start` on whose node was not expanded; `size` where there is none."""
    while start < size and candidates[start] & 1:
        start += 1
    return start


@inner_kernel
def split_keys(keys: I64, count: int, ids: I32, distances: F32) -> None:
    """Write the nodes and the distances of keys[:count]."""
    for index in range(count):
        ids[index] = key_node(keys[index])
        distances[index] = key_distance(keys[index])
