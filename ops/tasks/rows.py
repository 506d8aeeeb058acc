"""Rows with a vector: where each lies, its content hash and its vector; joined and sorted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graphs.locality import reorder
from icepuffin.ops.process.large_arrays import concatenated, rows_at

_ROUNDED_AT_ONCE = 1 << 20
"""Values of vectors that are rounded at a time"""


@dataclass(frozen=True, slots=True, eq=False)
class VectorRows:
    """N rows of data files."""

    slots: npt.NDArray[np.uint32]
    """File slots"""
    positions: npt.NDArray[np.int64]
    """Row positions in their files"""
    hashes: npt.NDArray[np.uint64]
    """Content hashes of the vectors"""
    vectors: npt.NDArray[np.float32]
    """f32[N, D], prepared for the metric; D is 0 where only addresses and hashes are needed"""

    @property
    def count(self) -> int:
        return len(self.slots)

    def take(self, rows: npt.NDArray[np.intp]) -> "VectorRows":
        return VectorRows(self.slots[rows], self.positions[rows], self.hashes[rows], rows_at(self.vectors, rows))

    def join(self, other: "VectorRows") -> "VectorRows":
        """These rows, followed by the other's."""
        return VectorRows.joined([self, other])

    @classmethod
    def joined(cls, parts: "Sequence[VectorRows]") -> "VectorRows":
        """The rows of all parts, one after the other."""
        filled = [part for part in parts if part.count] or parts[:1]
        if len(filled) == 1:
            return filled[0]
        return cls(
            np.concatenate([part.slots for part in filled]),
            np.concatenate([part.positions for part in filled]),
            np.concatenate([part.hashes for part in filled]),
            concatenated([part.vectors for part in filled]),
        )

    def reordered(self, order: npt.NDArray[np.intp]) -> "VectorRows":
        """All rows in that order. Vectors are moved in place: they are most of a task's memory."""
        reorder(self.vectors, order)
        return VectorRows(self.slots[order], self.positions[order], self.hashes[order], self.vectors)

    def sorted(self) -> "VectorRows":
        """All rows by file slot and position. Vectors are moved in place."""
        return self.reordered(np.lexsort((self.positions, self.slots)))


def undo_rounding(rows: VectorRows) -> None:
    """Give rows whose vectors are known as halves those of rows with the same content hash that are known as they are.

    In place. Rows that are equal in the table are equal then: of a shard of halves only rounded vectors are known.
    """
    if not len(rows.hashes):
        return
    order = np.argsort(rows.hashes, kind="stable")
    is_repeated = rows.hashes[order[1:]] == rows.hashes[order[:-1]]
    repeated = order[np.append(is_repeated, False) | np.append(False, is_repeated)]
    step = max(1, _ROUNDED_AT_ONCE // max(1, rows.vectors.shape[1]))
    is_exact = np.empty(len(repeated), np.bool_)
    for start in range(0, len(repeated), step):
        part = slice(start, start + step)
        repeated_vectors = rows.vectors[repeated[part]]
        is_exact[part] = (_rounded(repeated_vectors) != repeated_vectors).any(axis=1)
    sources, targets = repeated[is_exact], repeated[~is_exact]
    if not len(sources):
        return
    hashes, firsts = np.unique(rows.hashes[sources], return_index=True)
    at = np.minimum(np.searchsorted(hashes, rows.hashes[targets]), len(hashes) - 1)
    is_known = hashes[at] == rows.hashes[targets]
    sources, targets = sources[firsts[at[is_known]]], targets[is_known]
    for start in range(0, len(targets), step):
        part = slice(start, start + step)
        exact = rows.vectors[sources[part]]
        is_same = (_rounded(exact) == rows.vectors[targets[part]]).all(axis=1)  # unless hashes collide
        rows.vectors[targets[part][is_same]] = exact[is_same]


def _rounded(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vectors.astype(np.float16).astype(np.float32)


def by_file(files: npt.NDArray[np.uint32] | npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """(file, indices where it stands, ascending) for each distinct file slot or number, none negative; by one sort."""
    is_short = files.max(initial=0) < 2**16
    order = np.argsort(files.astype(np.uint16) if is_short else files, kind="stable")  # 16 bits are sorted by radix
    distinct, starts = np.unique(files[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, starts[1:]), strict=False)


def live_nodes(count: int, tombstones: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool[N], whether each of `count` nodes has a live row."""
    is_live = np.ones(count, np.bool_)
    is_live[tombstones] = False
    return is_live


def range_of(hashes: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """u64[n], the range of each hash among 2^bits: its leading bits."""
    return hashes >> np.uint64(64 - bits) if bits else np.zeros(len(hashes), np.uint64)
