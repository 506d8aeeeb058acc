"""Rows of a shard: where each lies, its content hash and its vector; read from staged blocks, joined and matched."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ops.parquet import StorageFile
from ops.storage import Storage

_COMPARED_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N rows of data files, by the slot of the file and the row's position in it."""

    slots: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    vectors: npt.NDArray[np.float32]
    """f32[N, D], prepared for the metric"""

    @property
    def count(self) -> int:
        return len(self.slots)

    def take(self, rows: npt.NDArray[np.intp]) -> "Rows":
        return Rows(self.slots[rows], self.positions[rows], self.hashes[rows], self.vectors[rows])

    def join(self, other: "Rows") -> "Rows":
        """These rows, then the other's."""
        if not other.count:
            return self
        return Rows(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.hashes, other.hashes]),
            np.concatenate([self.vectors, other.vectors]),
        )

    def sorted(self) -> "Rows":
        """By slot and position."""
        return self.take(np.lexsort((self.positions, self.slots)))


def read_staged(storage: Storage, blocks: Sequence[tuple[str, int]], dims: int) -> Rows:
    """Rows of staged blocks, each (path, rows), by slot and position: node ids do not depend on who staged them."""
    total = sum(rows for _, rows in blocks)
    slots, positions = np.empty(total, np.uint32), np.empty(total, np.int64)
    hashes, vectors = np.empty(total, np.uint64), np.empty((total, dims), np.float32)
    at = 0
    for path, _ in blocks:
        staged = pa.PythonFile(StorageFile(storage, path, storage.size(path)), mode="r")
        for batch in pa.ipc.open_stream(staged):
            end = at + batch.num_rows
            slots[at:end] = batch["slot"].to_numpy()
            positions[at:end] = batch["position"].to_numpy()
            hashes[at:end] = batch["hash"].to_numpy()
            vectors[at:end] = batch["vector"].flatten().to_numpy().reshape(-1, dims)
            at = end
    order = np.lexsort((positions, slots))
    if (order[1:] < order[:-1]).any():  # several tasks staged for this shard
        slots, positions, hashes = slots[order], positions[order], hashes[order]
        permute(vectors, order)
    return Rows(slots, positions, hashes, vectors)


def permute(rows: npt.NDArray[np.float32], order: npt.NDArray[np.intp]) -> None:
    """`rows[:] = rows[order]` without a second array: a shard's vectors are most of a task's memory."""
    left = order.copy()
    for start in range(len(left)):
        if left[start] in (start, -1):
            continue
        held, at = rows[start].copy(), start
        while left[at] != start:
            source = int(left[at])
            rows[at], left[at] = rows[source], -1
            at = source
        rows[at], left[at] = held, -1


def match(
    left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of places of equal values in two sorted arrays, as multisets: n-th with n-th."""
    rank_left = np.arange(len(left)) - np.searchsorted(left, left)
    start = np.searchsorted(right, left, side="left")
    end = np.searchsorted(right, left, side="right")
    found = np.flatnonzero(start + rank_left < end)
    return found, (start + rank_left)[found]


def same_vectors(
    stored: npt.NDArray[np.float32] | npt.NDArray[np.float16],
    nodes: npt.NDArray[np.intp],
    vectors: npt.NDArray[np.float32],
    rows: npt.NDArray[np.intp],
) -> npt.NDArray[np.bool_]:
    """bool[n]: whether stored[nodes] are vectors[rows], as far as the stored format tells. Hashes may collide."""
    equal = np.empty(len(nodes), np.bool_)
    for start in range(0, len(nodes), _COMPARED_AT_ONCE):
        piece = slice(start, start + _COMPARED_AT_ONCE)
        equal[piece] = (stored[nodes[piece]] == vectors[rows[piece]].astype(stored.dtype)).all(axis=1)
    return equal
