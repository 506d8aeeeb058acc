"""What a refresh of one snapshot will do and take, before it does anything."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.index_report import Estimate
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.runs.index_runs import estimate_refresh
from icepuffin.ops.runs.snapshot import definitions_of
from icepuffin.ops.table.snapshots import SnapshotName, resolve_snapshot, table_name
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.theta_estimate import estimate_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaEstimate


@dataclass(frozen=True, slots=True, repr=False)
class RefreshPlan(Presentation):
    """What `refresh` would do for one snapshot."""

    table: str
    snapshot_id: SnapshotId
    sketches: ThetaEstimate | None
    """Estimate of the theta sketches; None where they are left out"""
    indexes: Mapping[str, Estimate]
    """Estimate of each index, by name"""

    def headline(self) -> str:
        parts = {} if self.sketches is None else {"sketches": self.sketches.headline()}
        parts |= {f"index {name!r}": estimate.headline() for name, estimate in self.indexes.items()}
        due = "; ".join(f"{name}: {headline}" for name, headline in parts.items())
        return f"{self.table!r}, snapshot {self.snapshot_id}, {due or 'nothing to make'}"

    def grids(self) -> Iterator[Grid]:
        """The fields of each estimate, and the work on each shard."""
        parts: dict[str, ThetaEstimate | Estimate] = {} if self.sketches is None else {"theta_sketches": self.sketches}
        for name, estimate in (parts | dict(self.indexes)).items():
            _, *of_shards = estimate.grids()
            yield Grid.of_fields(f"{name}, snapshot {self.snapshot_id}", estimate.fields())
            yield from of_shards


def plan(
    table: Table,
    index: str | IndexDefinition | None = None,
    *,
    snapshot: SnapshotName = None,
    ref: str = "main",
    sketches: bool | None = None,
    storage: StorageConfig | None = None,
    threads: int | None = None,
) -> RefreshPlan:
    """Say what `refresh` with the same arguments will do and take. Writes nothing, and starts no Spark session.

    Reads metadata, where the rows of the last version lie, and a sample of vectors where files were rewritten. Which
    shard a new row goes to is known only when it is read: rows to insert are expected values.

    Parameters
    ----------
    table, index, snapshot, ref, sketches, storage : optional
        As for `refresh`.
    threads : int, optional
        Threads by which seconds are estimated. Default: one per core.

    Returns
    -------
    RefreshPlan
        `snapshot_id`, `sketches` (ThetaEstimate or None) and `indexes`, an Estimate by name: `action` and `reason`,
        rows, `bytes_read`, `bytes_written`, `seconds`, and the work on each shard.

    Raises
    ------
    UnknownSnapshotError, DefinitionError, ValueError
        As for `refresh`.

    Examples
    --------
    >>> icepuffin.plan(table).indexes["embedding"].action
    <Action.REUSED: 'reused'>
    """
    require_table(table, "plan")
    runner = LocalRunner(threads)
    reload_table(table)
    snapshot_id = resolve_snapshot(table, ref if snapshot is None else snapshot).snapshot_id
    return plan_snapshot(
        RunContext(table, storage or storage_of(table), runner, ref=ref),
        snapshot_id,
        definitions_of(table, index),
        sketches=index is None if sketches is None else sketches,
    )


def plan_snapshot(
    run: RunContext,
    snapshot_id: SnapshotId,
    definitions: Iterable[IndexDefinition],
    *,
    sketches: bool = False,
    requested: RequestedStatistics = KEPT_UP,
) -> RefreshPlan:
    """The plan of what `refresh_snapshot` does with the same arguments. Raises what the estimates raise."""
    estimate = estimate_theta_sketches(run, snapshot_id, requested=requested) if sketches else None
    indexes = {definition.name: estimate_refresh(run, definition, snapshot_id) for definition in definitions}
    return RefreshPlan(table_name(run.table), snapshot_id, estimate, indexes)
