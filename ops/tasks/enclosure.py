"""Enclosing the vectors of data files in balls: what an index without graphs is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.tasks.file_balls import Ball, BallSet, partition_balls
from icepuffin.ops.tasks.staged_blocks import StagedRows
from icepuffin.ops.tasks.vectors import VectorColumn, VectorFiles, prepared

_ROWS_PER_BALL = 16
"""Rows of a file per ball, at least: fewer gain nothing"""
_SAMPLE_ROWS = 2_048
"""Rows that the centres of a file's balls are made from: of its first batch, evenly spread. Any centres will do"""


@dataclass(frozen=True, slots=True, eq=False)
class EnclosureTask:
    """Data files whose vectors are to be enclosed."""

    files: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file)"""
    column: VectorColumn
    most_balls: int
    """Most balls per file"""
    seed: int
    threads: int = 1


def enclose(task: EnclosureTask) -> StagedRows:
    """Read each file once, and enclose its live rows. No row is staged. Memory: a batch of rows.

    Raises VectorColumnError naming file and row for vectors that have no distance from others.
    """
    vectors_of, dims = VectorFiles((file for _, file in task.files), task.column), task.column.dims
    live_rows: list[tuple[FileSlot, int]] = []
    balls: list[tuple[FileSlot, Ball]] = []
    for slot, file in task.files:
        count, centers, reach = 0, np.empty((0, dims), np.float32), np.empty(0, np.float32)
        for positions, raw in vectors_of.read(file):
            vectors = prepared(raw, positions, file, task.column.metric)
            if not count:
                centers = _centers(vectors, task)
                reach = np.full(len(centers), -1.0, np.float32)
            labels, squared = kmeans.assign(vectors, centers, threads=task.threads)
            np.maximum.at(reach, labels, np.sqrt(np.maximum(squared, 0)))
            count += len(positions)
        live_rows.append((slot, count))
        balls += [(slot, ball) for ball in partition_balls(reach, centers)]
        pa.default_memory_pool().release_unused()
    return StagedRows((), tuple(live_rows), vectors_of.without_vector, BallSet.from_balls(balls, dims))


def _centers(vectors: npt.NDArray[np.float32], task: EnclosureTask) -> npt.NDArray[np.float32]:
    """f32[k, D], the centres of a file's balls, by its first batch of prepared vectors f32[n, D]."""
    sample = vectors[:: -(-len(vectors) // _SAMPLE_ROWS)]
    return kmeans.train(
        np.ascontiguousarray(sample),
        max(1, min(task.most_balls, len(sample) // _ROWS_PER_BALL)),
        seed=task.seed,
        threads=task.threads,
    )
