"""The rows of each file as two numbers, equal for equal sets of rows in any order: a count and a sum of hashes."""

import numpy as np
from numba import uint64

from icepuffin.ann_kernels.arrays import I64, U32, U64
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.hashing import murmur3_words, wrapping

_BYTES = np.uint64(16)
_SEED = np.uint64(0)


@kernel
def _add(slots: U32, positions: I64, hashes: U64, counts: I64, sums: U64) -> None:
    for row in range(slots.shape[0]):
        slot = slots[row]
        counts[slot] += 1
        sums[slot] += murmur3_words(uint64(positions[row]), hashes[row], _BYTES, _SEED)


def add_rows(slots: U32, positions: I64, hashes: U64, counts: I64, sums: U64) -> None:
    """Add rows to the counts int64[files] and sums u64[files] of their files.

    A row is given by the slot of its file u32[n], its position there int64[n] and a hash of its content u64[n]. The
    sums are those of a hash of position and content, modulo 2^64.

    Raises DimensionError where arrays are not of one length, or a slot is not below the number of files.
    """
    if not len(slots) == len(positions) == len(hashes) or len(counts) != len(sums):
        raise DimensionError(f"{len(slots)} slots, {len(positions)} positions and {len(hashes)} hashes are no rows")
    if len(slots) and int(slots.max()) >= len(counts):
        raise DimensionError(f"a row lies in slot {int(slots.max())} of {len(counts)} files")
    with wrapping():
        _add(slots, positions, hashes, counts, sums)
