"""Stage 1a: read data files, find each vector's partition, write the vectors of each shard into a block of its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels import kmeans
from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks import markers
from icepuffin.ops.tasks.file_balls import Ball, BallSet, partition_balls
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.staged_blocks import BlockWriters
from icepuffin.ops.tasks.vectors import VectorFiles, among, prepared, require_half
from icepuffin.puffin.blobs import deletion_vector


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """Rows of one data file."""

    slot: int
    file: LiveFile
    positions: bytes | None = None
    """Those that are meant, as a deletion vector is written; None: all that are live"""


@dataclass(frozen=True, slots=True, eq=False)
class ScatterTask:
    """Some files to be spread over the shards."""

    number: int
    files: tuple[RowSelection, ...]
    schema: Schema
    field_id: int
    metric: Metric
    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    partition_to_shard: npt.NDArray[np.uint32]
    vectors: str
    """`none`, `f32` or `f16`: what shards keep"""
    staging: str
    storage: StorageConfig
    recorded: bool
    """Whether a retry is to find what the task has done; else it does it again"""
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ScatterResult:
    """Where the vectors went, and what the files look like from afar."""

    blocks: tuple[tuple[int, str, int], ...]
    """(shard, path, rows)"""
    live_rows: tuple[tuple[int, int], ...]
    """(slot, rows that were read)"""
    without_vector: int
    """Live rows of the files that have none"""
    balls: BallSet


def scatter(task: ScatterTask) -> ScatterResult:
    """Idempotent by its marker, where it is recorded.

    Memory: one batch of rows, and the write buffers of the shards that it meets.

    Raises VectorColumnError naming file and row for vectors that cannot be indexed.
    """
    storage = open_storage(task.staging, task.storage)
    if not task.recorded:
        return _scatter(task, storage)
    marker = markers.name_of(f"{task.staging}/scatter-{task.number}", _inputs(task))
    done = markers.find(storage, marker)
    if done is None:
        done = markers.record(storage, marker, _scatter(task, storage))
    elif not all(storage.exists(path) for _, path, _ in done["blocks"]):  # swept by age
        return _scatter(task, storage)
    return ScatterResult(
        blocks=tuple((shard, path, rows) for shard, path, rows in done["blocks"]),
        live_rows=tuple((slot, rows) for slot, rows in done["live_rows"]),
        without_vector=done["without_vector"],
        balls=BallSet(**done["balls"]),
    )


def _inputs(task: ScatterTask) -> Iterator[bytes | npt.NDArray[Any] | str | int | None]:
    """All that the result depends on."""
    yield from (repr(task.schema), task.field_id, int(task.metric), task.codebook, task.partition_to_shard)
    for item in task.files:
        yield from (item.slot, repr(item.file), item.positions)


def _scatter(task: ScatterTask, storage: Storage) -> ScatterResult:
    dims = task.codebook.shape[1]
    live_rows: list[tuple[int, int]] = []
    balls: list[tuple[int, Ball]] = []
    vectors_of = VectorFiles((item.file for item in task.files), task.schema, task.field_id, dims, task.storage)
    with contextlib.ExitStack() as stack:
        stem = f"{task.staging}/block-{task.number}"
        writers = BlockWriters(stem, dims, storage, stack, durable=task.recorded)
        for item in task.files:
            reach = np.full(len(task.codebook), -1.0, np.float32)
            wanted = None if item.positions is None else deletion_vector.decode(item.positions)
            count = 0
            for at, raw in vectors_of.read(item.file):
                keep = slice(None) if wanted is None else among(at, wanted)
                positions, vectors = at[keep], prepared(raw[keep], at[keep], item.file, task.metric)
                if task.vectors == "f16":
                    require_half(vectors, positions, item.file)
                labels, squared = kmeans.assign(vectors, task.codebook, threads=task.threads)
                np.maximum.at(reach, labels, np.sqrt(np.maximum(squared, 0)))
                slots = np.full(len(positions), item.slot, np.uint32)
                rows = VectorRows(slots, positions, content_hash(raw[keep]), vectors)
                writers.write(rows, task.partition_to_shard[labels])
                count += len(positions)
            live_rows.append((item.slot, count))
            pa.default_memory_pool().release_unused()  # decoded pages; the build that follows needs the room
            balls += [(item.slot, ball) for ball in partition_balls(reach, task.codebook)]
    return ScatterResult(writers.blocks(), tuple(live_rows), vectors_of.without_vector, BallSet.of(balls, dims))
