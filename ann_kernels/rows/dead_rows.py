"""Rows that are gone: all of some files, and deleted ones of other files."""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from icepuffin.ann_kernels.arrays import I64, U8, U32, Bool, read_only
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.errors import DimensionError


@kernel
def _set_bits(first: int, indices: I64, bits: U8) -> None:
    for index in indices:
        bit = first + index
        bits[bit >> 3] |= np.uint8(1 << (bit & 7))


@kernel
def _mark(
    slots: U32, positions: I64, emptied: Bool, starts: I64, bits: U8, is_live: Bool, counts: I64, removed: I64
) -> None:
    for node in range(slots.shape[0]):
        slot = slots[node]
        counts[slot] += 1
        if not emptied[slot]:
            bit = starts[slot] + positions[node]
            if bit >= starts[slot + 1] or not (bits[bit >> 3] >> (bit & 7)) & 1:
                continue
        if is_live[node]:
            is_live[node] = False
            removed[slot] += 1


class DeadRows:
    """Rows of some files that are gone. It takes a bit per row up to the last deleted one of each file."""

    def __init__(self, emptied: U32, deleted: Mapping[int, I64]) -> None:
        """From the slots u32[n] of files without a live row, and deleted positions int64[n], ascending, by slot."""
        self._files = 1 + max([*emptied.tolist(), *deleted], default=-1)
        self._emptied = np.zeros(self._files, np.bool_)
        self._emptied[emptied] = True
        sizes = (int(deleted[slot][-1]) + 1 if len(deleted.get(slot, ())) else 0 for slot in range(self._files))
        self._starts = np.array([0, *accumulate(sizes)], np.int64)
        self._bits = np.zeros((int(self._starts[-1]) + 7) // 8, np.uint8)
        for slot, positions in deleted.items():
            _set_bits(int(self._starts[slot]), read_only(positions), self._bits)

    def remove(self, slots: U32, positions: I64, is_live: Bool) -> tuple[I64, I64]:
        """Set `is_live` bool[N] to False for nodes whose rows are gone: those of files u32[N] at positions int64[N].

        Returns (nodes int64[files], nodes that were live and are no more int64[files]), by file slot.

        Raises DimensionError where arrays are not of one length, or a position is negative.
        """
        if not len(slots) == len(positions) == len(is_live) or positions.min(initial=0) < 0:
            raise DimensionError(f"{len(slots)} slots and {len(positions)} positions are not of {len(is_live)} nodes")
        files = max(self._files, int(slots.max(initial=0)) + 1)
        counts, removed = np.zeros(files, np.int64), np.zeros(files, np.int64)
        emptied = np.zeros(files, np.bool_)
        emptied[: self._files] = self._emptied
        starts = np.full(files + 1, self._starts[-1])  # other files have no bits
        starts[: self._files + 1] = self._starts
        inputs = read_only(slots), read_only(positions), read_only(emptied), read_only(starts), read_only(self._bits)
        _mark(*inputs, is_live, counts, removed)
        return counts, removed
