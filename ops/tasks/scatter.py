"""Stage 1a: read data files, find each vector's partition, write the vectors of each shard into a block of its own."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from ann_kernels import kmeans
from ann_kernels.distance import prepare
from ann_kernels.errors import NonFiniteVectorError, ZeroVectorError
from ann_kernels.hashing import content_hash
from ann_kernels.metric import Metric
from ops.datafile import VectorColumnError, read_live, vectors_from_arrow
from ops.model import LiveFile, StorageConfig
from ops.storage import Storage, open_storage
from ops.tasks import markers

MAX_BALLS = 8
"""Balls a file in the centroid index; a file that touches more partitions gets one ball around all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class ScatterTask:
    """Some files to be spread over the shards."""

    number: int
    files: tuple[tuple[int, LiveFile], ...]
    """(slot, file)"""
    schema: Schema
    field_id: int
    metric: int
    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    partition_to_shard: npt.NDArray[np.uint32]
    staging: str
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ScatterResult:
    """Where the vectors went, and what the files look like from afar."""

    blocks: tuple[tuple[int, str, int], ...]
    """(shard, path, rows)"""
    live_rows: tuple[tuple[int, int], ...]
    """(slot, live rows)"""
    ball_slots: npt.NDArray[np.uint32]
    ball_centroids: npt.NDArray[np.float32]
    """f32[balls, D]"""
    ball_radii: npt.NDArray[np.float32]
    """f32[balls], Euclidean distance of prepared vectors"""


def scatter(task: ScatterTask) -> ScatterResult:
    """Idempotent by its marker. Memory: one batch of rows, and the write buffers of the shards that it meets.

    Raises VectorColumnError naming file and row for vectors that cannot be indexed.
    """
    storage = open_storage(task.staging, task.storage)
    marker = f"{task.staging}/scatter-{task.number}.json"
    done = markers.find(storage, marker)
    if done is None:
        done = markers.record(storage, marker, _scatter(task, storage))
    elif not all(storage.exists(path) for _, path, _ in done["blocks"]):  # swept by age
        return _scatter(task, storage)
    return ScatterResult(
        blocks=tuple((shard, path, rows) for shard, path, rows in done["blocks"]),
        live_rows=tuple((slot, rows) for slot, rows in done["live_rows"]),
        ball_slots=done["ball_slots"],
        ball_centroids=done["ball_centroids"],
        ball_radii=done["ball_radii"],
    )


def _scatter(task: ScatterTask, storage: Storage) -> ScatterResult:
    live_rows, balls = [], []
    with contextlib.ExitStack() as stack:
        writers = _BlockWriters(task, storage, stack)
        for slot, file in task.files:
            reach = np.full(len(task.codebook), -1.0, np.float32)
            rows = 0
            for positions, raw in _vectors(task, storage, file):
                vectors = _prepared(raw, positions, file, Metric(task.metric))
                labels, squared = kmeans.assign(vectors, task.codebook, threads=task.threads)
                np.maximum.at(reach, labels, np.sqrt(np.maximum(squared, 0)))
                writers.write(slot, positions, vectors, content_hash(raw), task.partition_to_shard[labels])
                rows += len(positions)
            live_rows.append((slot, rows))
            pa.default_memory_pool().release_unused()  # decoded pages; the build that follows needs the room
            balls += [(slot, *ball) for ball in _cover(reach, task.codebook)]
    return ScatterResult(
        blocks=writers.blocks(),
        live_rows=tuple(live_rows),
        ball_slots=np.array([slot for slot, _, _ in balls], np.uint32),
        ball_centroids=np.array([center for _, center, _ in balls], np.float32).reshape(-1, task.codebook.shape[1]),
        ball_radii=np.array([radius for _, _, radius in balls], np.float32),
    )


def _vectors(
    task: ScatterTask, storage: Storage, file: LiveFile
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    data = open_storage(file.path, task.storage)
    for batch in read_live(data, file, task.schema, [task.field_id]):
        try:
            yield batch.positions, vectors_from_arrow(batch.columns.column(0), task.codebook.shape[1])
        except VectorColumnError as error:
            raise VectorColumnError(
                f"{file.path}, rows {batch.positions[0]} to {batch.positions[-1]}: {error}"
            ) from error


def _prepared(
    raw: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], file: LiveFile, metric: Metric
) -> npt.NDArray[np.float32]:
    try:
        return prepare(raw, metric)
    except (NonFiniteVectorError, ZeroVectorError) as error:
        why = "holds NaN or infinity" if isinstance(error, NonFiniteVectorError) else "is zero, under cosine"
        raise VectorColumnError(
            f"{file.path}: the vector of row {positions[error.row]} {why}. Mend or delete it; nothing was published"
        ) from error


def _cover(
    reach: npt.NDArray[np.float32], codebook: npt.NDArray[np.float32]
) -> list[tuple[npt.NDArray[np.float32], float]]:
    """Balls that hold a file's vectors: one a partition that it touches, or one around those balls."""
    touched = np.flatnonzero(reach >= 0)
    # codebook distances are f32: widen a little, a ball must never be too small
    radii = reach[touched] * np.float32(1 + 1e-5) + np.float32(1e-6)
    if len(touched) <= MAX_BALLS:
        return [(codebook[part], float(radius)) for part, radius in zip(touched, radii, strict=True)]
    center = codebook[touched].mean(axis=0)
    far = np.linalg.norm(codebook[touched] - center, axis=1) + radii  # triangle inequality
    return [(center, float(far.max() * (1 + 1e-5)))]


class _BlockWriters:
    """One Arrow stream a shard, opened when its first vector comes, published together when the task ends."""

    def __init__(self, task: ScatterTask, storage: Storage, stack: contextlib.ExitStack) -> None:
        self._task = task
        self._storage = storage
        self._stack = stack
        self._open: dict[int, tuple[str, Any]] = {}
        self._rows: dict[int, int] = {}
        self._schema = block_schema(task.codebook.shape[1])

    def write(
        self,
        slot: int,
        positions: npt.NDArray[np.int64],
        vectors: npt.NDArray[np.float32],
        hashes: npt.NDArray[np.uint64],
        shards: npt.NDArray[np.uint32],
    ) -> None:
        for shard in np.unique(shards):
            mine = np.flatnonzero(shards == shard)
            flat = pa.array(vectors[mine].reshape(-1))
            columns = [
                pa.array(np.full(len(mine), slot, np.uint32)),
                pa.array(positions[mine]),
                pa.array(hashes[mine]),
                pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
            ]
            self._writer(int(shard)).write_batch(pa.record_batch(columns, schema=self._schema))
            self._rows[int(shard)] += len(mine)

    def _writer(self, shard: int) -> Any:
        if shard not in self._open:
            path = f"{self._task.staging}/block-{self._task.number}-{shard}-{uuid.uuid4().hex}.arrows"
            sink = self._stack.enter_context(self._storage.open_output(path))
            writer = self._stack.enter_context(pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), self._schema))
            self._open[shard] = path, writer
            self._rows[shard] = 0
        return self._open[shard][1]

    def blocks(self) -> tuple[tuple[int, str, int], ...]:
        return tuple((shard, self._open[shard][0], self._rows[shard]) for shard in sorted(self._open))


def block_schema(dims: int) -> pa.Schema:
    """A staged block: an Arrow IPC stream of these columns."""
    return pa.schema(
        [
            pa.field("slot", pa.uint32()),
            pa.field("position", pa.int64()),
            pa.field("hash", pa.uint64()),
            pa.field("vector", pa.list_(pa.float32(), dims)),
        ]
    )
