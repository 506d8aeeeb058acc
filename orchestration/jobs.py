"""The jobs of one table, which refresh a snapshot, verify the index files, and maintain the versions; and schedules: a
nightly run for the newest snapshots, whatever the sensor did, weekly maintenance, and an hourly look at the recall of
live queries.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import dagster as dg

from icepuffin.assets.derived_asset import no_vain_retries
from icepuffin.assets.metadata import plain_text
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.pools import free_pool, limit_pool
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.index_materialization import rebuild_tombstoned_shards
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import current_definition, ensure_defined
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import head_of
from icepuffin.orchestration.processes import run_process_executor
from icepuffin.orchestration.sensor.facts import job_tags, run_tags, snapshot_materialization, watched_snapshots
from icepuffin.orchestration.settings import GarbageSettings

_FIRST = {"dagster/priority": "1"}
"""Tags of the op that a job begins with, of several that need nothing of each other"""
AssetJob: TypeAlias = Any
"""A job over assets, as `define_asset_job` returns it: Dagster does not export the class."""


def jobs_by_kind(spec: TableSpec, garbage: GarbageSettings) -> dict[str, AssetJob]:
    """The jobs of one table: its maintenance alone, where nothing is derived from it.

    Each runs in one process: one process per op would start one JVM per op.
    """
    jobs: dict[str, AssetJob] = {"maintain": _maintenance_job(spec, garbage)}
    if not spec.derived_keys:
        return jobs
    name = spec.identifier
    fresh, intact, live = (_checks(spec, check) for check in ("freshness", "integrity", "live_recall"))
    about = f"Theta sketches and index versions of one snapshot of {name}."
    jobs["refresh"] = _job(spec, "refresh", dg.AssetSelection.assets(*spec.derived_keys) - intact - live, about)
    about = f"Checks of what is derived from {name}: are its files intact, and indexes up to date?"
    jobs["verify"] = _job(spec, "verify", intact | fresh, about)
    if spec.indexes and spec.settings.recall_reports:
        about = f"A check per index of {name}: do live queries find what they should?"
        jobs["live_recall"] = _job(spec, "live_recall", live, about)
    return jobs


def _job(spec: TableSpec, kind: str, selection: dg.AssetSelection, about: str) -> AssetJob:
    return dg.define_asset_job(
        f"{kind}_{spec.slug}",
        selection,
        executor_def=run_process_executor,
        tags=job_tags(spec),
        description=plain_text(about),
    )


def _checks(spec: TableSpec, name: str) -> dg.AssetSelection:
    """The checks of that name, one per index and of sketches; nothing where the table has none."""
    if name == "live_recall" and not spec.settings.recall_reports:
        return dg.AssetSelection.checks()
    keys = [spec.index_key(index.name) for index in spec.indexes]
    if name == "integrity" and spec.settings.statistics.keeps_ndv:
        keys.append(spec.theta_key)
    return dg.AssetSelection.checks(*(dg.AssetCheckKey(key, name) for key in keys))


def _maintenance_job(spec: TableSpec, garbage: GarbageSettings) -> dg.JobDefinition:
    """Rebuild shards with too many tombstones, expire versions, then delete the files that no version needs.

    The second op needs nothing of the first: garbage is collected where an index cannot be rebuilt, too.
    """

    @dg.op(
        name=f"rebuild_tombstoned_shards_{spec.slug}",
        pool=spec.pool,
        retry_policy=spec.retry_policy,
        required_resource_keys={spec.resources.catalogs, spec.resources.engine},
        out=dg.Out(dg.Nothing),
        tags=_FIRST,
    )
    @no_vain_retries()
    def rebuild(context: dg.OpExecutionContext) -> None:
        engine = spec.resources.engine_of(context)
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        run = engine.run_on(table, head_of(table, spec.first_ref), spec.first_ref)
        errors: list[IcepuffinError] = []
        for index in spec.indexes:
            try:
                definition = current_definition(table, index, in_settings=index.name in spec.settings.indexes)
                report = rebuild_tombstoned_shards(run, ensure_defined(table, definition))
            except IcepuffinError as error:
                context.log.error("index %s: %s", index.name, error)  # noqa: TRY400  it is raised below
                errors.append(error)
            else:
                context.log.info("index %s: %s", index.name, _rebuilt(report))
        if errors:
            raise next((error for error in errors if error.retryable), errors[0])

    @dg.op(
        name=f"sweep_{spec.slug}",
        pool=spec.pool,
        retry_policy=spec.retry_policy,
        required_resource_keys={spec.resources.catalogs},
        out=dg.Out(dg.Nothing),
    )
    def sweep(context: dg.OpExecutionContext) -> None:
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        report = collect_table_garbage(
            table,
            storage=storage_of(table),
            retentions=spec.retentions,
            default=spec.retention,
            grace_hours=garbage.garbage_grace_hours,
            dry_run=garbage.dry_run,
            recall_reports=spec.settings.recall_reports,
        )
        for line in report.lines(brief=True):  # each becomes a row of the event log
            context.log.info(line)

    @dg.job(
        name=f"maintain_{spec.slug}",
        executor_def=run_process_executor,
        tags=job_tags(spec),
        description=(
            f"Rebuild shards of {plain_text(spec.identifier)} with too many tombstones, expire versions that `keep` "
            "does not keep, and delete index files that nothing references."
        ),
    )
    def maintain() -> None:
        rebuild()
        sweep()

    return maintain


def _rebuilt(report: IndexReport | None) -> str:
    if report is None:
        return "no shard has too many tombstones"
    return f"{report.shards_rebuilt} of {report.shards} shards rebuilt: {report.reason}"


def schedules(spec: TableSpec, jobs: Mapping[str, AssetJob], engine: Engine) -> Iterator[dg.ScheduleDefinition]:
    """The schedules that the settings name. They run if `schedules_running` is set, or once switched on in the UI."""
    settings = spec.settings
    status = dg.DefaultScheduleStatus.RUNNING if settings.schedules_running else dg.DefaultScheduleStatus.STOPPED
    if settings.nightly != "off":
        yield _nightly(spec, jobs["refresh"], status, engine)
    for name, cron, what in (
        ("maintain", settings.maintenance, "Rebuilds worn shards, expires versions, deletes index files."),
        ("verify", settings.maintenance, "Reads index files and sketches whole: are they intact, up to date?"),
        ("live_recall", settings.recall_check, "Do live queries find what they should?"),
    ):
        if cron != "off" and name in jobs:
            named = f"{name}_{spec.slug}_schedule"
            yield dg.ScheduleDefinition(
                name=named, job=jobs[name], cron_schedule=cron, default_status=status, description=what
            )


def _nightly(
    spec: TableSpec, refresh: AssetJob, status: dg.DefaultScheduleStatus, engine: Engine
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"nightly_{spec.slug}",
        job=refresh,
        cron_schedule=spec.settings.nightly,
        default_status=status,
        required_resource_keys={spec.resources.catalogs},
        description="A run per watched ref, for its newest snapshot: what is there stays, what failed is repeated.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.SkipReason | list[dg.RunRequest]:
        limit_pool(context.instance, spec.pool)
        free_pool(context.instance, spec.pool)
        try:
            table = spec.resources.catalogs_of(context).poll(spec.catalog, spec.identifier)
        except IcepuffinError as error:
            return dg.SkipReason(str(error))
        heads = [item for item in watched_snapshots(table, spec.settings.watched_refs) if item.is_head]
        if not heads:
            return dg.SkipReason(f"{spec.identifier} has no snapshot yet")
        partitions = set(context.instance.get_dynamic_partitions(partitions_name(spec)))
        for head in heads:
            snapshot = snapshots_by_id(table.metadata).get(head.snapshot_id)
            if snapshot is not None and head.key not in partitions and spec.is_recorded:
                context.instance.report_runless_asset_event(snapshot_materialization(spec, snapshot, newest_of=table))
        context.instance.add_dynamic_partitions(partitions_name(spec), [head.key for head in heads])
        return [
            dg.RunRequest(
                run_key=f"nightly:{context.scheduled_execution_time:%Y-%m-%dT%H:%M}:{head.key}",
                partition_key=head.key,
                tags=run_tags(spec, table, head.key, engine),
            )
            for head in heads
        ]

    return nightly
