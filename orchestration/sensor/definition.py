"""A sensor a table: sees new snapshots on the watched refs, adds them as partitions, requests their runs."""

import time
from dataclasses import replace

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.sensor import plan as planning
from icepuffin.orchestration.sensor.evaluate import Look, look
from icepuffin.orchestration.sensor.facts import run_tags, told_lags, unknown_lags
from icepuffin.orchestration.settings import TableSettings

_AWAY_MINUTES = 15
"""A catalog that does not answer for so long makes the freshness checks warn."""
_UNKNOWN = "unknown"


def sensor_name(spec: TableSpec) -> str:
    """Under which Dagster keeps its switch and its cursor."""
    return f"watch_{spec.slug}"


def snapshot_sensor(spec: TableSpec, settings: TableSettings, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Looks at metadata only. A catalog that does not answer is a skipped tick that says so, and nothing is lost."""

    of_them = "each" if settings.snapshots == "every" else "the newest"

    @dg.sensor(
        name=sensor_name(spec),
        job=job,
        minimum_interval_seconds=settings.sensor_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.sensor_running else dg.DefaultSensorStatus.STOPPED,
        description=f"New snapshots of {spec.identifier} on {', '.join(spec.watched_refs)}; a run for {of_them}.",
    )
    def watch_table(context: dg.SensorEvaluationContext, catalogs: dg.ResourceParam[Catalogs]) -> dg.SensorResult:
        try:
            table = catalogs.look(spec.catalog, spec.identifier)
        except IcepuffinError as error:
            return _away(spec, planning.Cursor.parse(context.cursor), str(error))
        uuid = str(table.metadata.table_uuid)
        cursor = planning.Cursor.parse(context.cursor, uuid)
        found = look(context.instance, spec, settings, table, cursor)
        plan = found.plan
        if found.shown or found.dropped:
            context.log.info(
                "%s snapshots recorded, %s partitions dropped, %s left for the next look",
                len(found.shown),
                len(found.dropped),
                found.left,
            )
        for run_id in found.lost:
            context.log.warning("run %s was ended: its process is gone", run_id)
        requests = [_request(spec, settings, uuid, key) for key in plan.request]
        if plan.returned_to:
            requests.append(_request(spec, settings, uuid, plan.returned_to, returns=plan.cursor.returns))
        if plan.merge:
            requests.append(_request(spec, settings, uuid, plan.merge, merged=plan.cursor.merged))
        lags, told = told_lags(context.instance, spec, table, cursor.told)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _nothing(found),
            cursor=replace(plan.cursor, told=told).text(),
            asset_events=lags,
        )

    return watch_table


def _request(
    spec: TableSpec, settings: TableSettings, uuid: str, key: str, *, returns: int = 0, merged: str = ""
) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=planning.run_key(uuid, key, returns, merged),
        partition_key=key,
        tags=run_tags(spec, key, settings.max_runtime_seconds),
    )


def _away(spec: TableSpec, cursor: planning.Cursor, why: str) -> dg.SensorResult:
    """Nothing is asked for, and nothing forgotten. After a while the freshness checks say that they know nothing."""
    now = time.time()
    since = cursor.away_since or now
    silent = now - since >= 60 * max(_AWAY_MINUTES, spec.max_freshness_minutes)
    news = silent and any(said != _UNKNOWN for said in _told(spec, cursor))
    told = dict.fromkeys((index.name for index in spec.indexes), _UNKNOWN) if news else cursor.told
    return dg.SensorResult(
        skip_reason=why,
        cursor=replace(cursor, away_since=since, told=told).text(),
        asset_events=unknown_lags(spec, since, why) if news else [],
    )


def _told(spec: TableSpec, cursor: planning.Cursor) -> list[str | None]:
    return [cursor.told.get(index.name) for index in spec.indexes]


def _nothing(found: Look) -> str:
    if found.left:
        return f"recorded {len(found.shown)} snapshots; {found.left} are left for the next look"
    if found.plan.waiting and found.waits_for:
        return f"{found.plan.waiting} snapshots wait for {found.waits_for} of this table to end"
    return "no snapshot that was not seen before"
