"""Runs that give one snapshot its theta sketches, or estimate that."""

from collections.abc import Callable

from pyiceberg.table import Table

from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.resources import Engine
from icepuffin.ops.table.snapshots import rows_in_files, table_name
from icepuffin.ops.tasks.task_runner import Progress
from icepuffin.ops.theta import ThetaEstimate, ThetaReport, estimate_theta_sketches, materialize_theta_sketches


def refresh_sketches(
    table: Table,
    snapshot_id: SnapshotId,
    *,
    engine: Engine,
    storage: StorageConfig,
    columns: tuple[str, ...] | None = None,
    log: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> ThetaReport:
    """Sketch the data files that have no sketch yet, unite, and register the statistics file. Idempotent.

    `columns`: None for those that `choose_columns` chooses. Raises what `materialize_theta_sketches` raises.
    """
    runner = engine.runner(rows_in_files(table, snapshot_id))
    log(f"{table_name(table)}, snapshot {snapshot_id}: sketching with {type(runner).__name__}")
    report = materialize_theta_sketches(
        table, snapshot_id, runner=runner, storage=storage, columns=columns, progress=progress
    )
    if report.note:
        log(report.note)
    return report


def estimate_sketches(
    table: Table,
    snapshot_id: SnapshotId,
    *,
    engine: Engine,
    storage: StorageConfig,
    columns: tuple[str, ...] | None = None,
) -> ThetaEstimate:
    """Estimate what `refresh_sketches` would do. Changes nothing and starts no Spark session."""
    runner = engine.runner(rows_in_files(table, snapshot_id))
    return estimate_theta_sketches(table, snapshot_id, runner=runner, storage=storage, columns=columns)
