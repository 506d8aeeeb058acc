"""Equal numbers of two arrays, paired one to one: rows of an index with rows of new data files, by content hash."""

import numpy as np

from icepuffin.ann_kernels.arrays import I32, U64
from icepuffin.ann_kernels.compilation import kernel

_NONE = np.int32(-1)
_LARGEST = np.iinfo(np.int32).max


@kernel
def _pair(left: U64, right: U64, first: I32, following: I32, partner: I32) -> None:
    """Fill partner int32[n] by a hash table: first int32[2^b] heads the chains that following int32[n] links."""
    mask = np.uint64(first.shape[0] - 1)
    for i in range(left.shape[0] - 1, -1, -1):  # from behind: chains ascend
        slot = left[i] & mask
        following[i] = first[slot]
        first[slot] = i
    for j in range(right.shape[0]):
        slot = right[j] & mask
        before = _NONE
        i = first[slot]
        while i >= 0 and left[i] != right[j]:
            before = i
            i = following[i]
        if i < 0:
            continue
        partner[i] = j
        if before < 0:  # a paired value leaves its chain
            first[slot] = following[i]
        else:
            following[before] = following[i]


def pair_equal(left: U64, right: U64) -> I32:
    """For each of `left` u64[n] the index of its partner in `right` u64[m], int32[n]; -1 where it has none.

    Of equal values the n-th is paired with the n-th. The low bits should differ between values, as those of hashes or
    of consecutive numbers do. Memory: about 12 bytes per value of `left`. Raises ValueError for 2^31 values or more.
    """
    if max(len(left), len(right)) > _LARGEST:
        raise ValueError(f"at most {_LARGEST:,} values can be paired, got {len(left):,} and {len(right):,}")
    first = np.full(1 << max(0, len(left) - 1).bit_length(), _NONE)
    partner = np.full(len(left), _NONE)
    _pair(left, right, first, np.empty(len(left), np.int32), partner)
    return partner
