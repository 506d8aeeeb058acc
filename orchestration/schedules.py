"""Schedules of one table: a nightly run for the newest snapshots, whatever the sensor did, weekly maintenance, and an
hourly look at the recall of live queries.
"""

from collections.abc import Iterator

import dagster as dg

from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.pools import free_pool, limit_pool
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.resources import Engine
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.orchestration.jobs import AssetJob
from icepuffin.orchestration.sensor.facts import run_tags, snapshot_materialization, watched_snapshots


def schedules(
    spec: TableSpec,
    refresh: AssetJob,
    maintenance: dg.JobDefinition,
    verify: AssetJob,
    live_recall: AssetJob | None,
    engine: Engine,
) -> Iterator[dg.ScheduleDefinition]:
    """The schedules that the settings name. They run if `schedules_running` is set, or once switched on in the UI."""
    settings = spec.settings
    running = settings.schedules_running
    status = dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED
    if settings.nightly != "off" and spec.derived_keys:
        yield _nightly(spec, refresh, status, engine)
    for name, job, cron, what in (
        ("maintain", maintenance, settings.maintenance, "Rebuilds worn shards, expires versions, deletes index files."),
        ("verify", verify, settings.maintenance, "Reads index files and sketches whole: are they intact, up to date?"),
        ("live_recall", live_recall, settings.recall_check, "Do live queries find what they should?"),
    ):
        if cron != "off" and job is not None:
            yield dg.ScheduleDefinition(
                name=f"{name}_{spec.slug}_schedule",
                job=job,
                cron_schedule=cron,
                default_status=status,
                description=what,
            )


def _nightly(
    spec: TableSpec,
    refresh: AssetJob,
    status: dg.DefaultScheduleStatus,
    engine: Engine,
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
