"""Rows of files that an index has not seen, of which it has the vectors: found by content hash.

After a compaction, an update of other columns, or a job that writes a table anew, most rows of new files are old ones.
They get the nodes that their vectors have; no graph and no stored vector is read. First the new files are read for
their hashes, then the hashes are matched with those of the nodes that have lost their rows: one to one, in order,
in as many ranges of hashes as keep a task's memory small. Of n new vectors and m such nodes, two that differ and have
one hash are expected n m / 2^64 times.
"""

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ann_kernels.matching import pair_equal
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import PartSource, Storage, StorageError, open_storage
from icepuffin.ops.tasks.file_balls import Ball, BallSet, ball_around, merge_balls
from icepuffin.ops.tasks.rows import VectorRows, by_slot, range_of
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import Block, BlockWriters, read_blocks
from icepuffin.ops.tasks.vectors import VectorFiles, among, prepared
from icepuffin.puffin.blobs import deletion_vector
from icepuffin.puffin.blobs.shard import ShardReader

_MOVE_BYTES = 8 + 4 + 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class HashTask:
    """Some new files to be read for their content hashes."""

    number: int
    files: tuple[RowSelection, ...]
    schema: Schema
    field_id: int
    metric: Metric
    dims: int
    range_bits: int
    """The first bits of a hash, which tell its range"""
    staging: str
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class HashResult:
    """Where the hashes are, and what the files look like from afar."""

    blocks: tuple[tuple[int, str, int], ...]
    """(range of hashes, path, rows)"""
    live_rows: tuple[tuple[int, int], ...]
    """(slot, rows that were read)"""
    without_vector: int
    """Live rows of the files that have none"""
    balls: BallSet


@dataclass(frozen=True, slots=True, eq=False)
class MatchTask:
    """One range of hashes."""

    number: int
    range_bits: int
    blocks: tuple[Block, ...]
    shards: tuple[tuple[int, ObjectRange, bytes], ...]
    """(number, blob, dead nodes as a deletion vector) of each shard that has some"""
    staging: str
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class StagedMoves:
    """Nodes of one shard that get other rows: staged as nodes i64[n], slots u32[n], positions i64[n]."""

    shard: int
    nodes: bytes
    """As a deletion vector"""
    staged: ObjectRange


@dataclass(frozen=True, slots=True, eq=False)
class MatchResult:
    """What was recognised."""

    moves: tuple[StagedMoves, ...]
    left: tuple[tuple[int, bytes], ...]
    """(slot, positions as a deletion vector) of rows that no node has"""


def hash_files(task: HashTask) -> HashResult:
    """Files are read side by side, each a batch ahead of its hashing: decoding them is most of the work. Memory: two
    batches of rows a thread.

    Raises VectorColumnError naming file and row for vectors that cannot be indexed.
    """
    storage = open_storage(task.staging, task.storage)
    vectors_of = VectorFiles((item.file for item in task.files), task.schema, task.field_id, task.dims, task.storage)
    writing = Lock()
    with contextlib.ExitStack() as stack:
        writers = BlockWriters(f"{task.staging}/hashes-{task.number}", 0, storage, stack)

        def read(item: RowSelection) -> tuple[int, list[Ball]]:
            wanted = None if item.positions is None else deletion_vector.decode(item.positions)
            around, count = [], 0
            for at, found in _ahead(vectors_of.read(item.file), readers):
                keep = slice(None) if wanted is None else among(at, wanted)
                positions, raw = at[keep], found[keep]
                if not len(raw):
                    continue
                around.append(ball_around(prepared(raw, positions, item.file, task.metric)))
                hashes = content_hash(raw)
                nothing = np.empty((len(raw), 0), np.float32)
                rows = VectorRows(np.full(len(raw), item.slot, np.uint32), positions, hashes, nothing)
                with writing:
                    writers.write(rows, range_of(hashes, task.range_bits))
                count += len(raw)
            pa.default_memory_pool().release_unused()
            return count, merge_balls(around)

        with ThreadPoolExecutor(task.threads) as threads, ThreadPoolExecutor(task.threads) as readers:
            read_files = list(threads.map(read, task.files))
    slots = [item.slot for item in task.files]
    live_rows = tuple((slot, count) for slot, (count, _) in zip(slots, read_files, strict=True))
    balls = [(slot, ball) for slot, (_, around) in zip(slots, read_files, strict=True) for ball in around]
    return HashResult(writers.blocks(), live_rows, vectors_of.without_vector, BallSet.of(balls, task.dims))


def _ahead(items: Iterator[T], threads: ThreadPoolExecutor) -> Iterator[T]:
    """The same items, each of which is made while the one before is worked on."""
    coming = threads.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = threads.submit(next, items, None)
        yield item


def match_rows(task: MatchTask) -> MatchResult:
    """Give the new rows the dead nodes of equal hashes. Duplicates are matched as multisets: n-th with n-th."""
    storage = open_storage(task.staging, task.storage)
    new = read_blocks(storage, task.blocks, 0)
    owners, nodes, hashes = _dead_hashes(task)
    return stage_matches(task, storage, new, owners, nodes, pair_equal(hashes, new.hashes))


def stage_matches(
    task: MatchTask,
    storage: Storage,
    new: VectorRows,
    owners: npt.NDArray[np.int64],
    nodes: npt.NDArray[np.int64],
    partner: npt.NDArray[np.int32],
) -> MatchResult:
    """Stage what was found: nodes of shards `owners`, by shard and node, and the new row of each or -1."""
    found = np.flatnonzero(partner >= 0)
    taken = partner[found].astype(np.intp)
    unknown = np.ones(new.count, np.bool_)
    unknown[taken] = False
    rest = new.take(np.flatnonzero(unknown))
    left = tuple((slot, deletion_vector.encode(rest.positions[at])) for slot, at in by_slot(rest.slots))
    return MatchResult(_stage_moves(task, storage, owners[found], nodes[found], new.take(taken)), left)


def read_moves(
    storage: Storage, moves: ObjectRange
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """(nodes, their new slots, their new positions). Raises StorageError where some of them are lost."""
    raw = storage.read_range(moves.path, moves.offset, moves.length)
    if len(raw) != moves.length:
        raise StorageError(f"{moves.path} holds {len(raw):,} of {moves.length:,} bytes staged; run it again")
    count = len(raw) // _MOVE_BYTES
    slots_at, positions_at = 8 * count, 12 * count
    return (
        np.frombuffer(raw[:slots_at], "<i8"),
        np.frombuffer(raw[slots_at:positions_at], "<u4"),
        np.frombuffer(raw[positions_at:], "<i8"),
    )


def _dead_hashes(
    task: MatchTask,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """(shard, node, content hash) of the dead nodes in the task's range, by shard and node."""
    owners, nodes, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for number, blob, dead in task.shards:
        source = PartSource(open_storage(blob.path, task.storage), blob)
        mine = deletion_vector.decode(dead)
        known = ShardReader(source).read_content_hashes()[mine]
        inside = range_of(known, task.range_bits) == task.number
        owners.append(np.full(int(inside.sum()), number))
        nodes.append(mine[inside])
        hashes.append(known[inside])
    return np.concatenate(owners), np.concatenate(nodes), np.concatenate(hashes)


def _stage_moves(
    task: MatchTask, storage: Storage, owners: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64], rows: VectorRows
) -> tuple[StagedMoves, ...]:
    """All moves of the task in one object, by shard and node as they are given."""
    path = f"{task.staging}/moves-{task.number}-{uuid.uuid4().hex}.bin"
    shards, starts = np.unique(owners, return_index=True)
    out, at = [], 0
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(storage.open_output(path, durable=False)) if len(nodes) else None
        for shard, (start, end) in zip(shards, pairwise([*starts, len(owners)]), strict=True):
            mine = slice(start, end)
            columns = (nodes[mine].astype("<i8"), rows.slots[mine].astype("<u4"), rows.positions[mine].astype("<i8"))
            data = b"".join(column.tobytes() for column in columns)
            if sink is not None:
                sink.write(data)
            out.append(StagedMoves(int(shard), deletion_vector.encode(nodes[mine]), ObjectRange(path, at, len(data))))
            at += len(data)
    return tuple(out)
