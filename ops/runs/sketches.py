"""Runs that give one snapshot its theta sketches."""

from collections.abc import Callable

from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import ThetaReport, count_theta_sketches


def refresh_sketches(
    run: RunContext,
    snapshot_id: SnapshotId,
    *,
    columns: tuple[str, ...] | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> ThetaReport:
    """Sketch the data files that have no sketch yet, unite, and register the statistics file. Idempotent.

    `columns`: None for those that `choose_columns` chooses. Raises what `count_theta_sketches` raises.
    """
    log(f"{table_name(run.table)}, snapshot {snapshot_id}: sketching with {type(run.runner).__name__}")
    report = count_theta_sketches(run, snapshot_id, columns=columns).publish()
    if report.note:
        log(report.note)
    return report
