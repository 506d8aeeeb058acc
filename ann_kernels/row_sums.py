"""Which rows there are and what they hold, as two numbers a file: equal for equal sets of rows, in whatever order."""

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.hashing import murmur3_words, wrapping

_BYTES = np.uint64(16)
_SEED = np.uint64(0)


@njit(nogil=True, cache=True)
def _add(slots, positions, hashes, counts, sums):  # type: ignore[no-untyped-def]
    for row in range(slots.shape[0]):
        slot = slots[row]
        counts[slot] += 1
        sums[slot] += murmur3_words(uint64(positions[row]), hashes[row], _BYTES, _SEED)


def add_rows(
    slots: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.int64],
    sums: npt.NDArray[np.uint64],
) -> None:
    """Count rows, each given by the slot of its file, its position there and a hash of what it holds, into
    `counts` int64[files] and `sums` u64[files]: the sums, modulo 2^64, of a hash of position and content.

    Raises DimensionError where arrays are not of one length, or a slot is not below the number of files.
    """
    if not len(slots) == len(positions) == len(hashes) or len(counts) != len(sums):
        raise DimensionError(f"{len(slots)} slots, {len(positions)} positions and {len(hashes)} hashes are no rows")
    if len(slots) and int(slots.max()) >= len(counts):
        raise DimensionError(f"a row lies in slot {int(slots.max())} of {len(counts)} files")
    with wrapping():
        _add(slots, positions, hashes, counts, sums)
