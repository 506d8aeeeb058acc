"""The rows of each file as two numbers, equal for equal sets of rows in any order: a count and a sum of hashes."""

import numpy as np
from numba import uint64

from icepuffin.ann_kernels.arrays import I64, U32, U64, Bool, read_only
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.sketches.hashing import murmur3_words, wrapping

_BYTES = np.uint64(16)
_SEED = np.uint64(0)
_NOTHING = np.uint64(0)
"""Hash of the content of rows that are counted by their addresses alone"""


@kernel
def _add(slots: U32, positions: I64, hashes: U64, counts: I64, sums: U64) -> None:
    for row in range(slots.shape[0]):
        slot = slots[row]
        counts[slot] += 1
        sums[slot] += murmur3_words(uint64(positions[row]), hashes[row], _BYTES, _SEED)


@kernel
def _add_live(
    slots: U32, positions: I64, is_live: Bool, firsts: I64, lasts: I64, counts: I64, sums: U64, nodes: I64
) -> int:
    """Return the number of nodes that were put into `nodes` int64[N]."""
    chosen = 0
    for node in range(slots.shape[0]):
        if not is_live[node]:
            continue
        slot, position = slots[node], positions[node]
        counts[slot] += 1
        sums[slot] += murmur3_words(uint64(position), _NOTHING, _BYTES, _SEED)
        if firsts[slot] <= position <= lasts[slot]:
            nodes[chosen] = node
            chosen += 1
    return chosen


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


def add_live_nodes(slots: U32, positions: I64, is_live: Bool, firsts: I64, lasts: I64, counts: I64, sums: U64) -> I64:
    """Add the rows of live nodes, as `add_rows` adds rows whose hash is 0; in one pass, and no copy of what is live.

    The nodes lie in the files of slots u32[N] at positions int64[N]; is_live: bool[N]. Returns int64[n], the live nodes
    whose positions lie within `firsts` and `lasts` int64[files] of their files.

    Raises DimensionError where arrays are not of one length, or a slot is not below the number of files.
    """
    if not len(slots) == len(positions) == len(is_live) or not len(firsts) == len(lasts) == len(counts) == len(sums):
        raise DimensionError(f"{len(slots)} slots and {len(positions)} positions are not of {len(is_live)} nodes")
    if len(slots) and int(slots.max()) >= len(counts):
        raise DimensionError(f"a row lies in slot {int(slots.max())} of {len(counts)} files")
    nodes = np.empty(len(slots), np.int64)
    inputs = (read_only(slots), read_only(positions), read_only(is_live), read_only(firsts), read_only(lasts))
    with wrapping():
        return nodes[: _add_live(*inputs, counts, sums, nodes)].copy()
