"""Checks of an index that belong to no partition: how far behind it is, whether its file is intact, and the recall of
live queries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, TypeAlias

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.freshness import FreshnessLag, index_lag, missing_ref
from icepuffin.ops.messages import listed, plural
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.recall.recall_reports import RecallReportError, RecallReports, ReportedRecall
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.table.snapshots import find_snapshot, newest_data_snapshots, resolve_snapshot
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import nearest_statistics
from icepuffin.ops.theta.statistics_slot import damage_of

_Results: TypeAlias = dg.AssetCheckResult | Iterator[dg.AssetCheckResult]
_SWITCH_ON = "switch on the sensor {} on the Automation page: it is off, so new snapshots get no runs"
_RAISE_RECALL = (
    "search wider: give queries a target_recall or a larger search_list, or raise search_list of the index. What "
    "queries like yours need: icepuffin tune {} {} --queries FILE"
)
_LOCATION_TAG = ".dagster/repository"
"""Tag of a run that names its code location, `repository@location`."""
_MAX_SNAPSHOTS = 50
"""The most snapshots for which Dagster's records are read, newest first."""


def is_late(spec: TableSpec, lag: FreshnessLag) -> bool:
    """Counts data snapshots first: a quiet table is not stale, however old its newest snapshot is."""
    return lag.snapshots > spec.settings.max_freshness_lag and lag.minutes >= spec.settings.max_freshness_minutes


def current_lag(instance: dg.DagsterInstance, spec: TableSpec, index: IndexDefinition, table: Table) -> FreshnessLag:
    """How far the index is behind. Snapshots for which a run found nothing to index do not count; Dagster has a record
    of these runs.
    """
    ref = spec.first_ref
    lag = index_lag(table, index, ref)
    if not is_late(spec, lag):
        return lag
    newest = newest_data_snapshots(table, ref, min(spec.settings.max_freshness_lag + 1, _MAX_SNAPSHOTS))
    empty = _without_rows(instance, spec.index_key(index.name), [str(item.snapshot_id) for item in newest])
    return index_lag(table, index, ref, empty=empty) if empty else lag


def _without_rows(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]) -> set[SnapshotId]:
    """The snapshots whose last run found nothing to index."""
    empty: set[SnapshotId] = set()
    for partition in partitions:
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=1
        ).records
        event = records[0].asset_materialization if records else None
        action = event.metadata.get("action") if event else None
        if action is not None and action.value == Action.EMPTY.value:
            empty.add(SnapshotId(int(partition)))
    return empty


def lag_metadata(lag: FreshnessLag) -> dict[str, int | float | str]:
    return {
        "lag (snapshots)": lag.snapshots,
        "lag (minutes)": round(lag.minutes, 1),
        "snapshots with a version (share)": lag.coverage,
        "newest snapshot": lag.newest,
        **({"why": lag.why} if lag.why else {}),
    }


def freshness_evaluation(
    spec: TableSpec, index: str, *, passed: bool, metadata: Mapping[str, Any], description: str = ""
) -> dg.AssetCheckEvaluation:
    """A result of the freshness check as an event: the sensor reports it outside of a run."""
    return dg.AssetCheckEvaluation(
        asset_key=spec.index_key(index),
        check_name="freshness",
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata,
        description=description or None,
    )


def freshness_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """The sensor reports to the same check whenever the lag changes; running the check reads the lag now."""
    minutes = spec.settings.max_freshness_minutes
    since = f", the oldest for {minutes:g} minutes" if minutes else ""

    @_check_of(
        spec,
        spec.index_key(definition.name),
        "freshness",
        f"Is the index up to date? Warns if more than {spec.settings.max_freshness_lag} of the newest data snapshots "
        f"lack a version{since}. A snapshot with nothing to index needs none. Reads metadata only.",
    )
    def freshness(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        if missing := missing_ref(table, spec.first_ref):
            return _warning(missing)
        lag = current_lag(context.instance, spec, definition, table)
        late = is_late(spec, lag)
        why = {"what to do": _SWITCH_ON.format(spec.sensor_name)} if late and _sensor_is_off(context, spec) else {}
        return dg.AssetCheckResult(
            passed=not late,
            severity=dg.AssetCheckSeverity.WARN,
            description=lag.in_words,
            metadata={**lag_metadata(lag), **why},
        )

    return freshness


def _check_of(
    spec: TableSpec, key: dg.AssetKey, name: str, description: str
) -> Callable[[Callable[..., _Results]], dg.AssetChecksDefinition]:
    """An asset check whose step begins with the check's name. Dagster's own name for the step ends with it, and the UI
    cuts long names off: the two checks of the verify job looked the same.
    """
    decorator: Any = dg.multi_asset_check(
        name=f"check_{name}__{key.to_python_identifier()}",
        specs=[dg.AssetCheckSpec(name, asset=key, description=description)],
        description=description,
        required_resource_keys={spec.resources.catalogs},
        can_subset=True,  # else a run without a result fails
    )
    checked: Callable[[Callable[..., _Results]], dg.AssetChecksDefinition] = decorator
    return checked


def _warning(why: str) -> dg.AssetCheckResult:
    """The result of a check that has nothing to look at."""
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, metadata={"why": why})


def _sensor_is_off(context: dg.AssetCheckExecutionContext, spec: TableSpec) -> bool:
    """Whether nobody has switched the table's sensor on, or somebody has switched it off.

    Another code location may have a sensor of this name, with a switch of its own. A run that belongs to none, as of a
    script, counts them all.
    """
    location, instance = context.op_execution_context.get_tag(_LOCATION_TAG), context.instance
    states = () if instance.schedule_storage is None else instance.all_instigator_state()  # none in memory
    switches = [
        state.status.value
        for state in states
        if (state.instigator_type.value, state.instigator_name) == ("SENSOR", spec.sensor_name)
        and location in (None, state.origin.repository_origin.get_label())
    ]
    if "RUNNING" in switches:
        return False
    return "STOPPED" in switches or not spec.settings.sensor_running


def integrity_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """Reads the whole index file, and its columns of the whole table."""

    @_check_of(
        spec,
        spec.index_key(definition.name),
        "integrity",
        f"Is the index file intact? Every shard of the version at ann_{definition.name} has the published bytes and "
        "decodes, every live row has a node with its own vector, and some rows of each shard are searched by their own "
        "vectors. Reads the whole file, all vectors, and the columns in filters, include and text. Runs that make "
        "versions leave it out.",
    )
    def integrity(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if spec.index_key(definition.name) in context.job_def.asset_layer.executable_asset_keys:
            context.log.info("left to verify_%s: each run of a backfill would read all vectors", spec.slug)
        else:
            yield integrity_result(spec, definition, spec.resources.catalogs_of(context))

    return integrity


def integrity_result(spec: TableSpec, definition: IndexDefinition, catalogs: Catalogs) -> dg.AssetCheckResult:
    """The result of the integrity check for the version at the tag."""
    table = catalogs.table(spec.catalog, spec.identifier)
    version = tagged_version(table, definition.name)
    if version is None:
        return _warning(f"there is no version at ann_{definition.name} yet")
    from icepuffin.ops.index.verify.integrity import check_integrity, remedy  # noqa: PLC0415  numba: not to define the check

    report = check_integrity(RunContext(table, storage_of(table)), version)
    unsearched = "see the faults" if report.faults else "the index has no graphs"
    for fault in listed(report.faults):
        dg.get_dagster_logger().error("%s: %s", report.path, fault)
    return dg.AssetCheckResult(
        passed=not report.faults,
        severity=dg.AssetCheckSeverity.WARN if report.from_later_release else dg.AssetCheckSeverity.ERROR,
        description=f"{plural(report.rows, 'row')} compared with the file: "
        + (plural(len(report.faults), "fault") if report.faults else "every one has a node with its own vector."),
        metadata={
            "file": report.path,
            "bytes read": report.bytes_read,
            "shards": report.shards,
            "rows compared": report.rows,
            "self-search": report.self_search.summary if report.self_search else f"not done: {unsearched}",
            "faults": "; ".join(listed(report.faults)) or "none",
            **({"what to do": remedy(spec.identifier, definition.name, version, report)} if report.faults else {}),
        },
    )


def sketches_check(spec: TableSpec) -> dg.AssetChecksDefinition:
    """Reads the statistics file of the newest sketches."""

    @_check_of(
        spec,
        spec.theta_key,
        "integrity",
        "Are the newest sketches intact? Each that the table's metadata lists is read from its file and decodes.",
    )
    def integrity(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        if missing := missing_ref(table, spec.first_ref):
            return _warning(missing)
        head = find_snapshot(table, resolve_snapshot(table, spec.first_ref).snapshot_id)
        statistics = nearest_statistics(table, head)
        if statistics is None:
            return _warning("there are no sketches yet")
        damage = damage_of(open_storage(statistics.statistics_path, storage_of(table)), statistics)
        remedy = f"icepuffin refresh {quote(spec.identifier)} --snapshot {statistics.snapshot_id} --verify"
        return dg.AssetCheckResult(
            passed=not damage,
            description=f"The sketches of snapshot {statistics.snapshot_id} {'are damaged' if damage else 'decode'}.",
            metadata={"file": statistics.statistics_path, **({"why": damage, "what to do": remedy} if damage else {})},
        )

    return integrity


def live_recall_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """Reads the reports of the processes that search; for tables whose settings name the folder of these."""

    @_check_of(
        spec,
        spec.index_key(definition.name),
        "live_recall",
        f"Do live queries find what they should? Warns if their recall with the version at ann_{definition.name} is "
        f"certainly below the target of {definition.target_recall:g}: if its 95 % confidence interval is. Of readers "
        "that were opened with recall_sample and recall_reports. Reads their reports only.",
    )
    def live_recall(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        version = tagged_version(table, definition.name)
        try:
            reports = RecallReports(str(spec.settings.recall_reports), storage_of(table), table.metadata.table_uuid)
            reported = reports.read(definition.name, {version.index_snapshot_id} if version else set())
        except (StorageError, RecallReportError) as error:
            return _warning(f"the reports of readers cannot be read: {error}")
        newest = reported.get(version.index_snapshot_id) if version else None
        passed = newest is None or newest.high >= definition.target_recall
        return dg.AssetCheckResult(
            passed=passed,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                **_live_recall_metadata(newest),
                **({} if passed else {"what to do": _RAISE_RECALL.format(quote(spec.identifier), definition.name)}),
            },
        )

    return live_recall


def _live_recall_metadata(newest: ReportedRecall | None) -> dict[str, int | float | str]:
    if newest is None:
        return {"queries": 0, "why": "no live query of the newest version has been measured yet"}
    if newest.recall is None:
        why = "no live query of the newest version could be measured: the readers' stats() have the reason"
        return {"queries": 0, "why": why, "not measured": newest.left_out, "readers": newest.readers}
    return {
        "queries": newest.queries,
        "recall": round(newest.recall, 4),
        "95 % interval": f"{newest.low:.4f} to {newest.high:.4f}",
        "not measured": newest.left_out,
        "readers": newest.readers,
    }
