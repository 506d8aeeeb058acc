"""What a run for one snapshot needs, from the table's metadata alone: no file is read and nothing is planned."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.measurements import measured_versions
from icepuffin.ops.catalog.snapshots import snapshot_rows
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.sizes import SHARD_BYTES
from icepuffin.ops.model import MIB, SnapshotId
from icepuffin.ops.resources import Engine

_PROCESS_MB = 512
"""Memory of a run's process without rows: Dagster, PyIceberg, Arrow and the kernels"""
_WORKER_MB = 256
"""Memory of a Spark task's Python process without rows"""
_SHARD_FACTOR = 2
"""Peak memory of a build, in bytes of vectors and neighbours; 1.9 was measured with the reading of the files"""
_FILE_FACTOR = 2
"""Bytes of vectors per byte of a data file, at most, where the dimensions are not known yet"""


@dataclass(frozen=True, slots=True)
class RunRequirements:
    """What the refresh of one snapshot takes, at most: a refresh that keeps shards takes less than a build."""

    rows: int
    """Live rows of the snapshot."""
    bytes: int
    """Bytes of its data files."""
    shards: int
    """Shards of all indexes together."""
    memory_mb: int
    """Memory in MiB of the run's process, its JVM and the Spark tasks on the same machine."""


def run_requirements(
    table: Table, definitions: Sequence[IndexDefinition], snapshot_id: SnapshotId, *, engine: Engine
) -> RunRequirements:
    """The requirements of a run for a snapshot, from its summary; where that lacks the numbers, shards count as full.

    The dimensions are those of the newest version. Before there is one, the vectors are taken to be twice as large as
    all data files, which compress them.
    """
    rows = snapshot_rows(table, snapshot_id)
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
    file_bytes = int(summary.get("total-files-size", 0))
    shards, largest = 0, 0
    for definition in (definition for definition in definitions if definition.has_graphs):
        dims = _dimensions(table, definition.name)
        vectors = 4 * dims * rows if dims else _FILE_FACTOR * file_bytes
        has_totals = "total-records" in summary and (dims or file_bytes or not rows)
        size = vectors + 4 * definition.max_degree * rows if has_totals else SHARD_BYTES
        count = min(definition.shards or -(-size // SHARD_BYTES), max(1, rows))
        shards += count
        largest = max(largest, -(-size // max(1, count)))
    task_mb = -(-_SHARD_FACTOR * largest // MIB)
    if not engine.uses_spark(rows):
        return RunRequirements(rows, file_bytes, shards, _PROCESS_MB + task_mb)
    workers = min(engine.local_tasks, max(1, shards)) * (_WORKER_MB + task_mb)
    return RunRequirements(rows, file_bytes, shards, _PROCESS_MB + engine.jvm_mb + workers)


def _dimensions(table: Table, index: str) -> int:
    """Dimensions of the newest version that has a measurement; 0 where there is none."""
    measurements = [measurement for _, measurement in measured_versions(index_versions(table, index))]
    return measurements[-1].amounts.get("dims", 0) if measurements else 0
