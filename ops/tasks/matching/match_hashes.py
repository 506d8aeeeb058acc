"""Matching rows of new files by content hash with nodes that have lost their rows.

After a compaction, an update of other columns, or a job that rewrites a table, most rows of new files are old ones.
They get the nodes that their vectors have; no graph and no stored vector is read. First the new files are read for
their hashes. Then the hashes are matched with those of the nodes that have lost their rows: one to one, in order, and
in ranges of hashes that fit into a task's memory. Where there are several, the nodes' hashes are staged by range first,
so that each shard is read once. For n new vectors and m such nodes, n m / 2^64 pairs of different
vectors with one hash are expected.
"""

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.rows.matching import pair_equal
from icepuffin.ops.model import FileSlot, ObjectRange, ShardId, StorageConfig, StoredShard
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import Storage, StorageError, open_storage
from icepuffin.ops.tasks.file_balls import Ball, BallSet, ball_around, merge_balls
from icepuffin.ops.tasks.rows import VectorRows, by_file, range_of
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import Block, BlockWriters, StagedBlock, StagedRows, read_blocks
from icepuffin.ops.tasks.vectors import VectorColumn, VectorFiles, content_hashes, is_selected, prepared
from icepuffin.puffin.blobs import addresses_blob, deletion_vector_blob
from icepuffin.puffin.blobs.addresses_blob import Addresses

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class HashTask:
    """New data files whose content hashes are to be read."""

    task_number: int
    files: tuple[RowSelection, ...]
    column: VectorColumn
    range_bits: int
    """Leading bits of a hash that name its range"""
    staging: str
    threads: int = 1


DeadShard = tuple[ShardId, StoredShard, bytes]
"""(shard id, shard, dead nodes as a deletion vector)"""


@dataclass(frozen=True, slots=True, eq=False)
class DeadHashTask:
    """Shards whose dead nodes' hashes are to be staged by range."""

    task_number: int
    shards: tuple[DeadShard, ...]
    range_bits: int
    staging: str
    storage: StorageConfig


@dataclass(frozen=True, slots=True, eq=False)
class MatchTask:
    """One range of hashes that is to be matched."""

    hash_range: int
    range_bits: int
    blocks: tuple[Block, ...]
    """Staged hashes of the range's rows"""
    shards: tuple[DeadShard, ...]
    """Each shard with dead nodes; none where those of the range are staged"""
    dead_blocks: tuple[Block, ...]
    """Staged hashes of the range's dead nodes, each by shard and node in place of file slot and position"""
    staging: str
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class StagedMoves:
    """Nodes of one shard that get new addresses."""

    shard_id: ShardId
    nodes: bytes
    """Nodes, as a deletion vector"""
    staged: ObjectRange
    """Staged addresses of `nodes`, as an addresses blob has them"""


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """Result of one range."""

    moves: tuple[StagedMoves, ...]
    unmatched: tuple[tuple[FileSlot, bytes], ...]
    """(file slot, row positions as a deletion vector) of rows without a node"""


def hash_files(task: HashTask) -> StagedRows:
    """Read files for their hashes, side by side and each a batch ahead: decoding is most of the work.

    Memory: two batches of rows per thread.

    Raises VectorColumnError naming file and row for vectors that cannot be indexed.
    """
    storage = open_storage(task.staging, task.column.storage)
    vectors_of = VectorFiles((selection.file for selection in task.files), task.column)
    writing = Lock()
    with contextlib.ExitStack() as stack:
        writers = BlockWriters(f"{task.staging}/hashes-{task.task_number}", 0, storage, stack)

        def read(selection: RowSelection) -> tuple[int, list[Ball]]:
            selected = None if selection.positions is None else deletion_vector_blob.decode(selection.positions)
            file_balls, count = [], 0
            for all_positions, vectors in _ahead(vectors_of.read(selection.file), readers):
                keep = slice(None) if selected is None else is_selected(all_positions, selected)
                positions, raw = all_positions[keep], vectors[keep]
                if not len(raw):
                    continue
                file_balls.append(ball_around(prepared(raw, positions, selection.file, task.column.metric)))
                hashes = content_hashes(raw)
                nothing = np.empty((len(raw), 0), np.float32)
                rows = VectorRows(np.full(len(raw), selection.slot, np.uint32), positions, hashes, nothing)
                with writing:
                    writers.write(rows, range_of(hashes, task.range_bits))
                count += len(raw)
            pa.default_memory_pool().release_unused()
            return count, merge_balls(file_balls)

        with ThreadPoolExecutor(task.threads) as threads, ThreadPoolExecutor(task.threads) as readers:
            read_files = list(threads.map(read, task.files))
    slots = [selection.slot for selection in task.files]
    live_rows = tuple((slot, count) for slot, (count, _) in zip(slots, read_files, strict=True))
    balls = [(slot, ball) for slot, (_, file_balls) in zip(slots, read_files, strict=True) for ball in file_balls]
    return StagedRows(
        writers.blocks(), live_rows, vectors_of.without_vector, BallSet.from_balls(balls, task.column.dims)
    )


def _ahead(items: Iterator[T], threads: ThreadPoolExecutor) -> Iterator[T]:
    """The same items, each made while the one before is worked on."""
    pending = threads.submit(next, items, None)
    while (item := pending.result()) is not None:
        pending = threads.submit(next, items, None)
        yield item


def match_rows(task: MatchTask) -> MatchResult:
    """Give dead nodes to the new rows of equal hashes. Duplicates are matched as multisets: n-th with n-th."""
    storage = open_storage(task.staging, task.storage)
    new = read_blocks(task.storage, task.blocks, 0)
    staged = read_blocks(task.storage, task.dead_blocks, 0)
    dead = VectorRows.joined([staged, *(_dead_nodes(shard, task.storage) for shard in task.shards)])
    return stage_matches(task, storage, new, dead.slots, dead.positions, pair_equal(dead.hashes, new.hashes))


def stage_dead_hashes(task: DeadHashTask) -> tuple[StagedBlock, ...]:
    """Stage the hashes of dead nodes by range. Returns the blocks. Memory: what a shard's dead nodes take."""
    with contextlib.ExitStack() as stack:
        storage = open_storage(task.staging, task.storage)
        writers = BlockWriters(f"{task.staging}/dead-{task.task_number}", 0, storage, stack)
        for shard in task.shards:
            dead = _dead_nodes(shard, task.storage)
            writers.write(dead, range_of(dead.hashes, task.range_bits))
    return writers.blocks()


def _dead_nodes(shard: DeadShard, storage: StorageConfig) -> VectorRows:
    """The dead nodes of a shard: its id and the nodes' in place of file slots and positions."""
    shard_id, stored, dead = shard
    nodes = deletion_vector_blob.decode(dead)
    hashes = open_shard(stored, storage).read_content_hashes()[nodes]
    return VectorRows(np.full(len(nodes), shard_id, np.uint32), nodes, hashes, np.empty((len(nodes), 0), np.float32))


def stage_matches(
    task: MatchTask,
    storage: Storage,
    new: VectorRows,
    shard_ids: npt.NDArray[np.integer],
    nodes: npt.NDArray[np.int64],
    partner: npt.NDArray[np.int32],
) -> MatchResult:
    """Stage the moves of matched nodes.

    shard_ids, nodes: [n], shard id and node, ordered by both. partner: int32[n], the new row of each node, or -1.
    """
    is_unmatched = np.ones(new.count, np.bool_)
    is_unmatched[partner[partner >= 0]] = False
    rest = new.take(np.flatnonzero(is_unmatched))
    unmatched = tuple(
        (FileSlot(slot), deletion_vector_blob.encode(rest.positions[rows])) for slot, rows in by_file(rest.slots)
    )
    return MatchResult(_stage_moves(task, storage, new, shard_ids, nodes, partner), unmatched)


def read_moves(storage: Storage, moves: StagedMoves) -> tuple[npt.NDArray[np.int64], Addresses]:
    """(nodes int64[n], their new addresses). Raises StorageError where bytes are missing, ChecksumError."""
    where, nodes = moves.staged, deletion_vector_blob.decode(moves.nodes)
    raw = storage.read_range(where.path, where.offset, where.length)
    if len(raw) != where.length:
        raise StorageError(f"{where.path} holds {len(raw):,} of {where.length:,} bytes staged; run it again")
    return nodes, addresses_blob.decode(raw, len(nodes))


def _stage_moves(
    task: MatchTask,
    storage: Storage,
    new: VectorRows,
    shard_ids: npt.NDArray[np.integer],
    nodes: npt.NDArray[np.int64],
    partner: npt.NDArray[np.int32],
) -> tuple[StagedMoves, ...]:
    """Stage all moves in one object, shard by shard: copies of all would be most of a task's memory."""
    matched = np.flatnonzero(partner >= 0)
    if not len(matched):
        return ()
    owners = shard_ids[matched]
    path = f"{task.staging}/moves-{task.hash_range}-{uuid.uuid4().hex}.bin"
    staged, offset = [], 0
    with storage.open_output(path, durable=False) as sink:
        for of_shard in np.split(matched, np.flatnonzero(owners[1:] != owners[:-1]) + 1):
            rows = partner[of_shard]
            data = addresses_blob.encode(new.slots[rows], new.positions[rows])
            sink.write(data)
            moved = deletion_vector_blob.encode(nodes[of_shard])
            location = ObjectRange(path, offset, len(data))
            staged.append(StagedMoves(ShardId(int(shard_ids[of_shard[0]])), moved, location))
            offset += len(data)
    return tuple(staged)
