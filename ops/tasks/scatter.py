"""Scattering: read data files, find each vector's partition, and stage the vectors of each shard in
a block of its own.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.codes.code_sizes import ROTATED_BITS
from icepuffin.ann_kernels.codes.grouped_centroids import CentroidGroups
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks import markers
from icepuffin.ops.tasks.file_balls import Ball, BallSet, partition_balls
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.staged_blocks import BlockWriters, StagedRows
from icepuffin.ops.tasks.vectors import (
    VectorColumn,
    VectorFiles,
    content_hashes,
    is_selected,
    prepared,
    require_half,
    require_short,
)
from icepuffin.puffin.blobs import deletion_vector_blob


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """Rows of one data file."""

    slot: FileSlot
    file: LiveFile
    positions: bytes | None = None
    """Row positions, encoded as a deletion vector is; None for all live rows"""


@dataclass(frozen=True, slots=True, eq=False)
class ScatterTask:
    """Data files whose rows are to be scattered over the shards."""

    task_number: int
    files: tuple[RowSelection, ...]
    column: VectorColumn
    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    partition_to_shard: npt.NDArray[np.uint32]
    vectors: str
    """What shards hold of vectors, as `IndexDefinition.vectors` has it"""
    staging: str
    recorded: bool
    """Whether a marker is written, so that a retry finds the result; else a retry does the work again"""
    threads: int = 1


def scatter(task: ScatterTask) -> StagedRows:
    """Stage the vectors of the task's rows. Idempotent by its marker, where it is recorded.

    Memory: one batch of rows, and a write buffer per shard.

    Raises VectorColumnError naming file and row for vectors that cannot be indexed.
    """
    storage = open_storage(task.staging, task.column.storage)
    if not task.recorded:
        return _scatter(task, storage)
    marker = markers.name_of(f"{task.staging}/scatter-{task.task_number}", _inputs(task))
    done = markers.find(storage, marker)
    if done is None:
        done = markers.record(storage, marker, _scatter(task, storage))
    elif not all(storage.exists(path) for _, path, _ in done["blocks"]):  # swept by age
        return _scatter(task, storage)
    return StagedRows(
        blocks=tuple((shard, path, rows) for shard, path, rows in done["blocks"]),
        live_rows=tuple((slot, rows) for slot, rows in done["live_rows"]),
        without_vector=done["without_vector"],
        balls=BallSet(**done["balls"]),
        distances=tuple(done["distances"]),
    )


def _inputs(task: ScatterTask) -> Iterator[bytes | npt.NDArray[Any] | str | int | None]:
    """Everything that the result depends on."""
    column = task.column
    yield from (repr(column.schema), column.field_id, column.metric.code, task.codebook, task.partition_to_shard)
    for selection in task.files:
        yield from (selection.slot, repr(selection.file), selection.positions)


def _scatter(task: ScatterTask, storage: Storage) -> StagedRows:
    dims = task.column.dims
    partitions = CentroidGroups.from_centroids(task.codebook, threads=task.threads)
    live_rows: list[tuple[FileSlot, int]] = []
    balls: list[tuple[FileSlot, Ball]] = []
    distances: list[float] = []
    vectors_of = VectorFiles((selection.file for selection in task.files), task.column)
    with contextlib.ExitStack() as stack:
        stem = f"{task.staging}/block-{task.task_number}"
        writers = BlockWriters(stem, dims, storage, stack, durable=task.recorded)
        for selection in task.files:
            reach = np.full(len(task.codebook), -1.0, np.float32)
            selected = None if selection.positions is None else deletion_vector_blob.decode(selection.positions)
            count, total = 0, 0.0
            for all_positions, raw in vectors_of.read(selection.file):
                keep = slice(None) if selected is None else is_selected(all_positions, selected)
                positions = all_positions[keep]
                vectors = prepared(raw[keep], positions, selection.file, task.column.metric)
                if task.vectors == "f16":
                    require_half(vectors, positions, selection.file)
                elif task.vectors in ROTATED_BITS:
                    require_short(vectors, positions, selection.file)
                labels, squared = partitions.assign(vectors, threads=task.threads)
                apart = np.sqrt(np.maximum(squared, 0))
                np.maximum.at(reach, labels, apart)
                total += float(apart.sum(dtype=np.float64))
                slots = np.full(len(positions), selection.slot, np.uint32)
                rows = VectorRows(slots, positions, content_hashes(raw[keep]), vectors)
                writers.write(rows, task.partition_to_shard[labels])
                count += len(positions)
            live_rows.append((selection.slot, count))
            distances.append(total)
            pa.default_memory_pool().release_unused()  # decoded pages; the build that follows needs the room
            balls += [(selection.slot, ball) for ball in partition_balls(reach, task.codebook)]
    return StagedRows(
        writers.blocks(), tuple(live_rows), vectors_of.without_vector, BallSet.from_balls(balls, dims), tuple(distances)
    )
