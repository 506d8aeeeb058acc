"""One sensor per table: records new snapshots of the watched refs as partitions, and requests their runs."""

import time
from collections.abc import Sequence
from dataclasses import replace

import dagster as dg

from icepuffin.assets.metadata import plain_text
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.messages import plural
from icepuffin.ops.resources import Engine
from icepuffin.orchestration.jobs import AssetJob
from icepuffin.orchestration.sensor.evaluation import SensorEvaluation, SharedPartitionsError, evaluate
from icepuffin.orchestration.sensor.facts import absent_refs, freshness_events, run_tags, unknown_freshness_events
from icepuffin.orchestration.sensor.sensor_plan import SensorCursor, run_key

_AWAY_MINUTES = 15
"""Minutes that a catalog may be unreachable before the freshness checks warn."""
_UNKNOWN = "unknown"


def snapshot_sensor(spec: TableSpec, job: AssetJob, engine: Engine) -> dg.SensorDefinition:
    """Reads metadata only. Where the catalog does not answer, the tick is skipped with the reason; nothing is lost.

    `engine`: where the runs will work, which determines what they need.
    """

    settings = spec.settings
    which = "each" if settings.snapshots == "every" else "the newest"

    @dg.sensor(
        name=spec.sensor_name,
        job=job,
        minimum_interval_seconds=settings.sensor_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.sensor_running else dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={spec.resources.catalogs},
        description=plain_text(
            f"New snapshots of {spec.identifier} on {', '.join(settings.watched_refs)}; a run for {which}."
        ),
    )
    def watch_table(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult:  # a direct call has resources
        try:
            table = spec.resources.catalogs_of(context).poll(spec.catalog, spec.identifier)
        except IcepuffinError as error:
            return _catalog_away(spec, SensorCursor.parse(context.cursor), str(error))
        uuid = str(table.metadata.table_uuid)
        cursor = SensorCursor.parse(context.cursor, uuid)
        try:
            evaluation = evaluate(context.instance, spec, table, cursor)
        except SharedPartitionsError as error:
            return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
        plan = evaluation.plan
        if evaluation.recorded or evaluation.dropped:
            context.log.info(
                "%s snapshots recorded, %s partitions dropped, %s left for the next evaluation",
                len(evaluation.recorded),
                len(evaluation.dropped),
                evaluation.postponed,
            )
        for run_id in evaluation.ended_runs:
            context.log.warning("run %s was ended: its process is gone", run_id)

        def request(key: str, *, returns: int = 0, reason: str = "") -> dg.RunRequest:
            tags = run_tags(spec, table, key, engine)
            return dg.RunRequest(run_key=run_key(uuid, key, returns, reason), partition_key=key, tags=tags)

        requests = [] if spec.attributes.automation else [request(key) for key in plan.request]
        if plan.returned_to:
            requests.append(request(plan.returned_to, returns=plan.cursor.returns))
        if plan.again:
            reason = plan.cursor.merged.rpartition("/")[2]
            context.log.info("the run of snapshot %s is requested again: %s", plan.again, reason)
            requests.append(request(plan.again, reason=reason))
        if plan.killed:
            requests.append(request(plan.killed, reason=evaluation.failed_run))
        events, freshness = freshness_events(context.instance, spec, table, cursor.freshness)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _why_no_run(spec, evaluation, absent_refs(table, settings.watched_refs)),
            cursor=replace(plan.cursor, freshness=freshness).text(),
            asset_events=events,
        )

    return watch_table


def _catalog_away(spec: TableSpec, cursor: SensorCursor, why: str) -> dg.SensorResult:
    """Requests nothing and keeps the cursor. After a while the freshness checks report that the lag is unknown."""
    now = time.time()
    since = cursor.away_since or now
    overdue = now - since >= 60 * max(_AWAY_MINUTES, spec.settings.max_freshness_minutes)
    names = [index.name for index in spec.indexes]
    warn = overdue and any(cursor.freshness.get(name) != _UNKNOWN for name in names)
    freshness = dict.fromkeys(names, _UNKNOWN) if warn else cursor.freshness
    return dg.SensorResult(
        skip_reason=why,
        cursor=replace(cursor, away_since=since, freshness=freshness).text(),
        asset_events=unknown_freshness_events(spec, since, why) if warn else [],
    )


def _why_no_run(spec: TableSpec, evaluation: SensorEvaluation, absent: Sequence[str]) -> str:
    if evaluation.postponed:
        recorded = plural(len(evaluation.recorded), "snapshot")
        return f"recorded {recorded}; {evaluation.postponed} left for the next evaluation"
    if evaluation.plan.waiting and evaluation.oldest_unfinished_run:
        waiting, end = evaluation.plan.waiting, f"{evaluation.oldest_unfinished_run} of this table to end"
        return f"1 snapshot waits for {end}" if waiting == 1 else f"{waiting} snapshots wait for {end}"
    if evaluation.plan.request and spec.attributes.automation:
        return f"{plural(len(evaluation.plan.request), 'snapshot')} left to the automation condition"
    reason = "no new snapshot"
    if evaluation.failed_run:
        reason += f"; run {evaluation.failed_run} of the newest one failed: see why, and repeat it"
    return f"{reason}; there is no branch or tag {', '.join(absent)} yet" if absent else reason
