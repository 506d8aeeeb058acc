"""VectorRows: where each lies, its content hash and its vector; joined and sorted."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.locality import reorder


@dataclass(frozen=True, slots=True, eq=False)
class VectorRows:
    """N rows of data files, by the slot of the file and the row's position in it."""

    slots: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    vectors: npt.NDArray[np.float32]
    """f32[N, D], prepared for the metric; D is 0 where only addresses and hashes are handled"""

    @property
    def count(self) -> int:
        return len(self.slots)

    def take(self, rows: npt.NDArray[np.intp]) -> "VectorRows":
        return VectorRows(self.slots[rows], self.positions[rows], self.hashes[rows], self.vectors[rows])

    def join(self, other: "VectorRows") -> "VectorRows":
        """These rows, then the other's."""
        if not other.count:
            return self
        return VectorRows(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.hashes, other.hashes]),
            np.concatenate([self.vectors, other.vectors]),
        )

    def moved(self, order: npt.NDArray[np.intp]) -> "VectorRows":
        """All of them in that order. Vectors are moved in place: they are most of a task's memory."""
        reorder(self.vectors, order)
        return VectorRows(self.slots[order], self.positions[order], self.hashes[order], self.vectors)

    def sorted(self) -> "VectorRows":
        """By slot and position; vectors are moved in place."""
        return self.moved(np.lexsort((self.positions, self.slots)))


def by_slot(slots: npt.NDArray[np.uint32] | npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """(slot, places where it is, ascending) of each slot that there is; none is negative. One sort for all of them."""
    few = slots.max(initial=0) < 2**16
    order = np.argsort(slots.astype(np.uint16) if few else slots, kind="stable")  # 16 bits are sorted by radix
    found, starts = np.unique(slots[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=False)


def range_of(hashes: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """Which of 2^bits ranges each lies in: its first bits."""
    return hashes >> np.uint64(64 - bits) if bits else np.zeros(len(hashes), np.uint64)
