"""Bring the sketches and index versions of one snapshot up to date, in this process or on Spark."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import list_definitions, load_definition, refused_definitions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.runs.index_runs import ensure_defined
from icepuffin.ops.table.snapshots import SnapshotName, resolve_snapshot, table_name
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.theta_materialization import CountedSketches, count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
RefreshProgress = Callable[[str, str, int, int], None]
"""Callback of (`sketches` or an index's name, stage, tasks done, tasks in all)."""


@dataclass(frozen=True, slots=True, repr=False)
class RefreshReport(Presentation):
    """What `refresh` did for one snapshot."""

    table: str
    snapshot_id: SnapshotId
    sketches: ThetaReport | None
    """Report on the theta sketches; None where they were left out"""
    indexes: Mapping[str, IndexReport]
    """Report on each index, by name"""

    def headline(self) -> str:
        sketches = [] if self.sketches is None else [f"sketches {self.sketches.outcome}"]
        done = ", ".join([*sketches, *(f"index {name!r} {report.action}" for name, report in self.indexes.items())])
        return f"{self.table!r}, snapshot {self.snapshot_id}, {done or 'nothing to make'}"

    def grids(self) -> Iterator[Grid]:
        parts = {} if self.sketches is None else {"theta_sketches": self.sketches.fields()}
        parts |= {name: report.fields() for name, report in self.indexes.items()}
        for name, fields in parts.items():
            yield Grid.of_fields(f"{name}, snapshot {self.snapshot_id}", fields)


def refresh(
    table: Table,
    index: str | IndexDefinition | None = None,
    *,
    snapshot: SnapshotName = None,
    ref: str = "main",
    sketches: bool | None = None,
    verify: bool = False,
    storage: StorageConfig | None = None,
    spark: "SparkSession | None" = None,
    threads: int | None = None,
    progress: RefreshProgress | None = None,
) -> RefreshReport:
    """Make the index versions and the theta sketches of one snapshot, as far as they are not there.

    What is there is reused. A version for a new snapshot is derived from the nearest one, at the cost of the change.
    Each version is measured before it is published: one whose recall is under the index's `target_recall` is not.
    Two runs at once do no harm.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    index : str or IndexDefinition, optional
        Only this index. A definition that the table does not have yet is created. A build that missed the target before
        is made again, which no refresh of all indexes does. Default: all indexes of the table.
    snapshot : int, str or datetime, optional
        Snapshot id, branch, tag or time. Default: the newest snapshot of `ref`.
    ref : str
        Branch that the index's tag follows.
    sketches : bool, optional
        Whether to make theta sketches. Default: only where no index is named.
    verify : bool
        Read an older version through before it is reused or started from, and sketches before they are reused.
    storage : StorageConfig, optional
        How files are reached. Default: what the catalog says and vends.
    spark : pyspark.sql.SparkSession, optional
        Session that runs the heavy work, classic or Connect. Default: this process does.
    threads : int, optional
        Threads of this process, or of each Spark task (there 1 by default). Default: one per core.
    progress : callable, optional
        Called with (`sketches` or the index's name, stage, tasks done, tasks in all).

    Returns
    -------
    RefreshReport
        `snapshot_id`, `sketches` (ThetaReport or None) and `indexes`, an IndexReport by name: what was done and why,
        rows, recall, bytes, seconds.

    Raises
    ------
    UnknownSnapshotError
        The snapshot is not in the table's metadata.
    DefinitionError
        There is no such index, or the definition does not fit the table, or this release does not understand it. It
        keeps no other index back.
    LaterReleaseError
        A later release made the version that would be replaced.
    GateFailedError
        The recall that was measured is too low; nothing is published.
    LostRaceError, UnknownOutcomeError
        The catalog gave the commit to somebody else, or did not say whether it happened; run it again.
    ValueError
        `threads` is under 1.

    Examples
    --------
    >>> report = icepuffin.refresh(table)
    >>> report.indexes["embedding"].recall > 0.9
    True
    """
    require_table(table, "refresh")
    runner = _runner(spark, threads)
    reload_table(table)
    snapshot_id = resolve_snapshot(table, ref if snapshot is None else snapshot).snapshot_id
    return refresh_snapshot(
        RunContext(table, storage or storage_of(table), runner, ref=ref),
        snapshot_id,
        definitions_of(table, index),
        sketches=index is None if sketches is None else sketches,
        verify=verify,
        again=index is not None,
        progress=progress,
        refused=refused_definitions(table).values() if index is None else (),
    )


def refresh_snapshot(
    run: RunContext,
    snapshot_id: SnapshotId,
    definitions: Iterable[IndexDefinition],
    *,
    sketches: bool = False,
    requested: RequestedStatistics = KEPT_UP,
    verify: bool = False,
    again: bool = False,
    progress: RefreshProgress | None = None,
    refused: Iterable[IcepuffinError] = (),
) -> RefreshReport:
    """Make a snapshot's statistics, where `sketches`, then its version of each index. The commit of the first
    version that is published takes the sketches along.

    Defines the indexes that the table does not have. `requested`: the statistics to make; by default those that it has.
    `again`: whether a build that an earlier run made in vain is made again. `refused`: errors of indexes that are
    left out, for want of a definition that this release understands.
    Raises what `count_theta_sketches`, `create_index` and `materialize_index` raise; what was made stays. An error that
    another try would end with, too, keeps no other index back: it is raised in the end, the first one of several.
    """

    def part(name: str) -> RunContext:
        return run if progress is None else replace(run, progress=partial(progress, name))

    table, counted = run.table, None
    if sketches:
        counted = count_theta_sketches(part("sketches"), snapshot_id, requested=requested, verify=verify)
    reports: dict[str, IndexReport] = {}
    failures = [*refused]
    try:
        for definition in definitions:
            name = definition.name
            try:
                defined = ensure_defined(table, definition)
                reports[name] = materialize_index(
                    part(name), defined, snapshot_id, verify=verify, again=again, sketches=counted
                )
            except IcepuffinError as error:
                if error.retryable:
                    raise
                failures.append(error)  # of its rows or its definition: the other indexes do not depend on it
        for failure in failures[1:]:
            _log.error("%s", failure)
        if failures:
            raise failures[0]  # noqa: TRY301  the first error that keeps no other index back
    except Exception:
        if counted is not None:
            _publish_alone(table, counted)
        raise
    return RefreshReport(table_name(table), snapshot_id, counted.publish() if counted else None, reports)


def _publish_alone(table: Table, sketches: CountedSketches) -> None:
    """Publish what no version took along. What fails is logged, as the error of the index is the one to raise."""
    try:
        sketches.publish()
    except Exception as error:
        _log.warning("%s: the sketches were not published either: %s", table_name(table), error)


def definitions_of(table: Table, index: str | IndexDefinition | None) -> tuple[IndexDefinition, ...]:
    """The index of that name, or the definition itself; all indexes of the table where none is named."""
    if index is None:
        return list_definitions(table)
    return (index if isinstance(index, IndexDefinition) else load_definition(table, index),)


def _runner(spark: "SparkSession | None", threads: int | None) -> TaskRunner:
    if spark is None:
        return LocalRunner(threads)
    from icepuffin.ops.spark.spark_runner import SparkRunner  # noqa: PLC0415  pyspark only where it is used

    return SparkRunner(spark, task_threads=1 if threads is None else threads)
