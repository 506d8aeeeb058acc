"""Tallies of rows and of nodes: a count and a checksum per file.

Both tallies are equal if and only if each live row has one node, with its own address and the hash of its own vector.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.rows.row_sums import add_live_nodes, add_rows
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig, StoredShard
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.tasks.file_balls import Ball, rows_outside
from icepuffin.ops.tasks.rows import live_nodes
from icepuffin.ops.tasks.vectors import VectorColumn, VectorFiles, content_hashes, prepared
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.errors import BadBlobError


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """A count and a checksum per file slot."""

    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]
    """Sum of a hash of each row's position and content, modulo 2^64"""

    @classmethod
    def empty(cls, slots: int) -> "Tally":
        return cls(np.zeros(slots, np.int64), np.zeros(slots, np.uint64))

    @classmethod
    def joined(cls, parts: "Iterable[Tally]", slots: int) -> "Tally":
        out = cls.empty(slots)
        for part in parts:
            np.add(out.counts, part.counts, out=out.counts)
            np.add(out.sums, part.sums, out=out.sums)
        return out

    def add(
        self,
        slots: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        """Add rows; without `hashes` their addresses alone are summed."""
        contents = np.zeros(len(slots), np.uint64) if hashes is None else hashes
        add_rows(slots, positions, contents, self.counts, self.sums)


@dataclass(frozen=True, slots=True, eq=False)
class NodesTask:
    """Shards whose nodes are to be tallied by address."""

    shards: tuple[tuple[StoredShard, bytes], ...]
    """(shard, its tombstones as a deletion vector)"""
    slots: int
    """File slots of the version"""
    addresses: npt.NDArray[np.int64]
    """Addresses whose nodes are looked for, ascending, as `addresses_of` gives them"""
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class NodesResult:
    """Tally of the live nodes of a task's shards."""

    tally: Tally
    """Tally of addresses, without contents"""
    addresses: npt.NDArray[np.int64]
    """Addresses of the live nodes that were looked for"""
    hashes: npt.NDArray[np.uint64]
    """Content hashes of the nodes at `addresses`, in the same order"""
    shards: npt.NDArray[np.int64]
    """Shard of each node at `addresses`, as its number in the task's `shards`"""


@dataclass(frozen=True, slots=True, eq=False)
class RowsTask:
    """Data files of which every live row is to be read."""

    files: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file)"""
    column: VectorColumn
    slots: int
    balls: Mapping[FileSlot, list[Ball]]
    """Balls in which the rows of each file must lie; a file that is not here has no balls to compare with"""


@dataclass(frozen=True, slots=True, eq=False)
class RowsResult:
    """Tally of the live rows of a task's files that have a vector."""

    tally: Tally
    outside: npt.NDArray[np.int64]
    """int64[slots], rows in none of their file's balls"""

    @classmethod
    def joined(cls, parts: "Sequence[RowsResult]", slots: int) -> "RowsResult":
        """The sum of several tasks' results."""
        outside = sum((part.outside for part in parts), np.zeros(slots, np.int64))
        return cls(Tally.joined((part.tally for part in parts), slots), outside)


def tally_nodes(task: NodesTask) -> NodesResult:
    """Read location maps, and the hashes of shards with a node that is looked for. Raises StorageError, PuffinError."""
    with ThreadPoolExecutor(task.threads) as threads:
        results = list(threads.map(lambda number: _tally_shard(task, number), range(len(task.shards))))
    return NodesResult(
        tally=Tally.joined((result.tally for result in results), task.slots),
        addresses=np.concatenate([np.empty(0, np.int64), *(result.addresses for result in results)]),
        hashes=np.concatenate([np.empty(0, np.uint64), *(result.hashes for result in results)]),
        shards=np.concatenate([np.empty(0, np.int64), *(result.shards for result in results)]),
    )


def _tally_shard(task: NodesTask, number: int) -> NodesResult:
    shard, tombstones = task.shards[number]
    reader = open_shard(shard, task.storage)
    slots, positions = reader.read_locations()
    _require_files(slots, task.slots)
    is_live, tally = live_nodes(len(slots), deletion_vector_blob.decode(tombstones)), Tally.empty(task.slots)
    nodes = add_live_nodes(slots, positions, is_live, *_windows(task), tally.counts, tally.sums)
    addresses = addresses_of(slots[nodes], positions[nodes])
    is_looked_for = np.isin(addresses, task.addresses)
    nodes, addresses = nodes[is_looked_for], addresses[is_looked_for]
    hashes = reader.read_content_hashes()[nodes] if len(nodes) else np.empty(0, np.uint64)
    return NodesResult(tally, addresses, hashes, np.full(len(nodes), number, np.int64))


def _windows(task: NodesTask) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first, last) int64[slots]: positions between which the addresses lie that are looked for; none where none do."""
    firsts, lasts = np.full(task.slots, np.iinfo(np.int64).max), np.full(task.slots, -1, np.int64)
    slots, positions = rows_at(task.addresses)
    np.minimum.at(firsts, slots, positions)
    np.maximum.at(lasts, slots, positions)
    return firsts, lasts


def _require_files(slots: npt.NDArray[np.uint32], files: int) -> None:
    """Raises BadBlobError where a node lies in no file."""
    if len(slots) and int(slots.max()) >= files:
        raise BadBlobError(f"a node lies in slot {int(slots.max())}, the routing blob has {files} files")


def tally_of(
    slots: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    tombstones: npt.NDArray[np.int64],
    files: int,
) -> Tally:
    """Tally of the live nodes of a shard, contents included. Raises BadBlobError where a node lies in no file."""
    _require_files(slots, files)
    alive = np.flatnonzero(live_nodes(len(slots), tombstones))
    tally = Tally.empty(files)
    tally.add(slots[alive], positions[alive], hashes[alive])
    return tally


def tally_rows(task: RowsTask) -> RowsResult:
    """Read the vectors of all live rows, and compare them with the balls of their files. Memory: a batch of rows.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    out, outside = Tally.empty(task.slots), np.zeros(task.slots, np.int64)
    vectors_of = VectorFiles((file for _, file in task.files), task.column)
    for slot, file in task.files:
        balls = task.balls.get(slot)
        for positions, vectors in vectors_of.read(file):
            out.add(np.full(len(positions), slot, np.uint32), positions, content_hashes(vectors))
            if balls is not None:
                outside[slot] += rows_outside(prepared(vectors, positions, file, task.column.metric), balls)
    return RowsResult(out, outside)
