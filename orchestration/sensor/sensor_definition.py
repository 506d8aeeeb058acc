"""The sensor of a table, and what it does once: record new snapshots of the watched refs as partitions, drop expired
ones, and request the runs that are due.

An evaluation writes records and partitions itself. The daemon would write them from the sensor's result, but then an
evaluation could not stop when its time is up, however slow the database is.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.metadata import plain_text
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.pools import free_pool, limit_pool
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import ArgumentError, IcepuffinError
from icepuffin.ops.messages import plural
from icepuffin.ops.resources import Engine
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import hides_snapshots
from icepuffin.orchestration.jobs import AssetJob
from icepuffin.orchestration.processes import end_lost_runs
from icepuffin.orchestration.sensor.facts import (
    absent_refs,
    freshness_events,
    gather_facts,
    keys_of_backfills,
    run_tags,
    snapshot_materialization,
    unknown_freshness_events,
)
from icepuffin.orchestration.sensor.sensor_plan import (
    RunPlan,
    SensorCursor,
    TableFacts,
    expired_partitions,
    plan_runs,
    run_key,
    snapshots_to_record,
)

WRITING_SECONDS = 3.0
"""Time that one evaluation may write into Dagster's database. The rest waits for the next evaluation."""
_OWNERS = "icepuffin/tables/"
"""Prefix of a set of partitions of no asset: uuids of the tables that were evaluated with another set, the last one
last. Dagster keeps partitions wherever it runs, other than keys and values.
"""
_MAX_OWNERS = 8
_AWAY_MINUTES = 15
"""Minutes that a catalog may be unreachable before the freshness checks warn."""
_UNKNOWN = "unknown"


class SharedPartitionsError(ArgumentError):
    """Raised when two tables have one set of partitions in a Dagster instance, before the set is changed."""


@dataclass(frozen=True, slots=True)
class SensorEvaluation:
    """What an evaluation has written, and the runs that are due."""

    recorded: tuple[str, ...]
    """Snapshots that were recorded and became partitions."""
    dropped: tuple[str, ...]
    """Partitions of expired snapshots, which were dropped."""
    postponed: int
    """Snapshots and partitions for which the time was not enough."""
    plan: RunPlan
    oldest_unfinished_run: str = ""
    """Id and status of the oldest unfinished run of the table, in words."""
    failed_run: str = ""
    """Id of the failed run of the first ref's head, while its work is undone."""
    ended_runs: tuple[str, ...] = ()
    """Runs of any table that were marked as failed because their process is gone."""


def evaluate(instance: dg.DagsterInstance, spec: TableSpec, table: Table, cursor: SensorCursor) -> SensorEvaluation:
    """Write for WRITING_SECONDS at most (but one record in any case), and plan from what Dagster shows then.

    An evaluation that was cut off is repeated with the same cursor: nothing is recorded, added or requested twice.
    Raises SharedPartitionsError.
    """
    settings = spec.settings
    may_drop = _require_own_partitions(instance, spec, str(table.metadata.table_uuid))
    limit_pool(instance, spec.pool)
    ended_runs = end_lost_runs(instance)
    free_pool(instance, spec.pool)
    facts = gather_facts(instance, spec, table, cursor)
    new = snapshots_to_record(facts, cursor, settings.snapshots)
    until = time.monotonic() + WRITING_SECONDS  # of a long history, gathering alone may take as long
    recorded = _record(instance, spec, table, facts, new, until)
    expired = expired_partitions(facts) if may_drop else ()
    if expired:
        kept = set(expired) if hides_snapshots(table) else keys_of_backfills(instance)
        expired = tuple(key for key in expired if key not in kept)
    dropped = tuple(_in_time(expired, until, lambda key: instance.delete_dynamic_partition(partitions_name(spec), key)))
    facts = replace(facts, partitions=[*facts.partitions, *recorded], recorded={*facts.recorded, *recorded})
    return SensorEvaluation(
        recorded,
        dropped,
        postponed=len(new) - len(recorded) + len(expired) - len(dropped),
        plan=plan_runs(facts, cursor, policy=settings.snapshots, runs_ahead=settings.runs_ahead),
        oldest_unfinished_run=facts.oldest_unfinished_run,
        failed_run=facts.failed_run,
        ended_runs=ended_runs,
    )


def _require_own_partitions(instance: dg.DagsterInstance, spec: TableSpec, table_uuid: str) -> bool:
    """Whether partitions without a snapshot may be dropped: not at the first evaluation of a table whose partitions
    another one has had, which may have been dropped since, or may be watched as well.

    Raises SharedPartitionsError where the other one was evaluated since the last evaluation of this one. The uuid of a
    table that was dropped, and made again under its name, does not come back.
    """
    name = partitions_name(spec)
    before = list(instance.get_dynamic_partitions(_OWNERS + name))
    if before[-1:] == [table_uuid]:
        return True
    for owner in {table_uuid, *before[:-_MAX_OWNERS]} & {*before}:
        instance.delete_dynamic_partition(_OWNERS + name, owner)
    instance.add_dynamic_partitions(_OWNERS + name, [table_uuid])
    if table_uuid in before:
        raise SharedPartitionsError(
            f"nothing is done for {spec.identifier}: another table of this name has the partitions '{name}' of this "
            "Dagster instance, too, and its sensor is on. Give each of the two an instance (dagster_home), or the "
            "catalog of one another name"
        )
    return not before


def _record(
    instance: dg.DagsterInstance,
    spec: TableSpec,
    table: Table,
    facts: TableFacts,
    keys: Sequence[str],
    until: float,
) -> tuple[str, ...]:
    """Record the snapshots in this order, as far as time allows, and add those as partitions."""
    already = set(facts.recorded)
    snapshots = snapshots_by_id(table.metadata)
    newest = facts.watched[-1].key if facts.watched else ""

    def record(key: str) -> None:
        if key not in already and spec.is_recorded:
            listed = table if key == newest else None
            instance.report_runless_asset_event(snapshot_materialization(spec, snapshots[int(key)], newest_of=listed))

    recorded = tuple(_in_time(keys, until, record))
    if recorded:
        instance.add_dynamic_partitions(partitions_name(spec), list(recorded))
    return recorded


def _in_time(keys: Sequence[str], until: float, write: Callable[[str], None]) -> Iterator[str]:
    """Write one key after the other, the first in any case; yields the keys that were written."""
    for number, key in enumerate(keys):
        if number and time.monotonic() >= until:
            return
        write(key)
        yield key


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
