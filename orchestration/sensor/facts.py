"""The facts of one evaluation of a table, from its metadata and from the Dagster instance."""

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.assets.checks import current_lag, freshness_evaluation, is_late, lag_metadata
from icepuffin.assets.glance import time_line_metadata
from icepuffin.assets.metadata import total_metadata
from icepuffin.assets.newest_snapshots import time_line
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import HIDDEN_TAGS, RUN_NUMBERS, has_numbers, with_numbers
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.planning.current_versions import why_given_up
from icepuffin.ops.index.upkeep.freshness import missing_ref
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION, given_up
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.requirements import run_requirements
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import (
    DataSnapshot,
    ancestors_from,
    data_snapshots,
    derived_ids,
    resolve_snapshot,
)
from icepuffin.ops.theta.ndv import outdated_statistics
from icepuffin.orchestration.sensor.sensor_plan import (
    SensorCursor,
    TableFacts,
    WatchedSnapshot,
    pending_snapshots,
    run_key,
)

TABLE_TAG = "icepuffin/table"
_PARTITION_TAG = "dagster/partition"
_RUN_KEY_TAG = "dagster/run_key"
_FAILURE_TAG = "dagster/failure_reason"
_RETRY_TAG = "dagster/will_retry"
_TEXT = re.compile(r'"([^"]*)"')
"""A text in JSON, where it is as short as a partition key"""
_MAX_NAMED_PARTITIONS = 1000
"""The most partitions that a query of Dagster's database names; for more, all are fetched."""
_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def watched_snapshots(table: Table, refs: Sequence[str]) -> tuple[WatchedSnapshot, ...]:
    """Data snapshots of all watched refs, each once, in commit order. A ref that does not exist yet has none."""
    snapshots: dict[SnapshotId, DataSnapshot] = {}
    heads: set[SnapshotId] = set()
    for ref in refs:
        lineage = data_snapshots(table, ref) if _exists(table, ref) else ()
        snapshots |= {snapshot.snapshot_id: snapshot for snapshot in lineage}
        heads |= {snapshot.snapshot_id for snapshot in lineage[-1:]}
    ordered = sorted(snapshots.values(), key=lambda item: (item.sequence_number, item.timestamp_ms, item.snapshot_id))
    return tuple(WatchedSnapshot(item.snapshot_id, item.sequence_number, item.snapshot_id in heads) for item in ordered)


def _exists(table: Table, ref: str) -> bool:
    return ref == "main" or ref in table.metadata.refs


def absent_refs(table: Table, refs: Sequence[str]) -> tuple[str, ...]:
    """The watched refs that do not exist yet."""
    return tuple(ref for ref in refs if not _exists(table, ref))


def _parents(table: Table) -> dict[str, str | None]:
    """Each data snapshot and its parent among the data snapshots, in commit order; index snapshots are left out."""
    by_id, derived = snapshots_by_id(table.metadata), derived_ids(table.metadata)
    parents: dict[str, str | None] = {}
    for snapshot in sorted(by_id.values(), key=lambda item: (item.sequence_number or 0, item.timestamp_ms)):
        if snapshot.snapshot_id in derived:
            continue
        before = (item.snapshot_id for item in ancestors_from(table, snapshot.parent_snapshot_id))
        parent = next((item for item in before if item not in derived), None)
        parents[str(snapshot.snapshot_id)] = None if parent is None else str(parent)
    return parents


def gather_facts(instance: dg.DagsterInstance, spec: TableSpec, table: Table, cursor: SensorCursor) -> TableFacts:
    """Everything that `plan_runs` needs. Dagster is queried only about pending snapshots, about a head that is new, and
    about the last two runs of the head: a table has far more snapshots than these, and expired ones besides.
    """
    watched = watched_snapshots(table, spec.settings.watched_refs)
    first = spec.first_ref
    head = str(resolve_snapshot(table, first).snapshot_id) if _exists(table, first) and watched else ""
    tags = {TABLE_TAG: spec.label}
    unfinished = RunsFilter(statuses=_UNFINISHED, tags=tags)
    oldest = [record.dagster_run for record in instance.get_run_records(unfinished, limit=1, ascending=True)]
    facts = TableFacts(
        watched=watched,
        head=head,
        parents=_parents(table),
        partitions=instance.get_dynamic_partitions(partitions_name(spec)),
        recorded=(),
        done=(),
        index_tags_at_head=bool(spec.indexes)
        and bool(head)
        and all(_tagged_at(table, item.name, head) for item in spec.indexes),
        head_requested=head not in ("", cursor.head) and _has_run(instance, spec, head, str(table.metadata.table_uuid)),
        returns=0 if cursor.head else _highest_return(instance, str(table.metadata.table_uuid)),
        in_flight=instance.get_runs_count(unfinished) if oldest else 0,
        oldest_unfinished_run=f"run {oldest[0].run_id} ({oldest[0].status.value.lower()})" if oldest else "",
        made_again_for=_made_again_for(spec, table, SnapshotId(int(head))) if head else "",
    )
    head_is_new = head not in ("", cursor.head) or facts.made_again_for not in ("", cursor.merged)
    keys = {*pending_snapshots(facts, cursor, spec.settings.snapshots), *([head] if head_is_new else [])}
    done = [_materialized(instance, key, keys) for key in spec.derived_keys]
    failed_run, was_killed = _failed_run(instance, spec, facts)
    return replace(
        facts,
        recorded=_materialized(instance, spec.key, keys) if spec.is_recorded else keys & set(facts.partitions),
        done=set.intersection(*done) if done else set(),
        failed_run=failed_run,
        was_killed=was_killed,
    )


def keys_of_backfills(instance: dg.DagsterInstance) -> set[str]:
    """Every text in the records of unfinished backfills: the partition keys that these name are among them.

    Dagster fails a backfill as soon as one of its partitions is gone, and cancels its runs.
    """
    newest = instance.get_backfills(limit=1)
    if not newest:
        return set()
    requested = type(newest[0].status)("REQUESTED")  # of an enumeration that has no public name
    records = map(dg.serialize_value, instance.get_backfills(status=requested))
    return {text for record in records for text in _TEXT.findall(record)}


def _materialized(instance: dg.DagsterInstance, key: dg.AssetKey, keys: Set[str]) -> set[str]:
    """The partitions among `keys` that have a materialisation."""
    if not keys:
        return set()
    if len(keys) > _MAX_NAMED_PARTITIONS:
        return instance.get_materialized_partitions(key) & keys
    latest = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions=set(keys)
    )
    return set(latest)


def _tagged_at(table: Table, index: str, head: str) -> bool:
    """Whether the index's tag is on a version of the head that is read."""
    version = tagged_version(table, index)
    return version is not None and str(version.base_snapshot_id) == head and not given_up(version.build_id)


def _made_again_for(spec: TableSpec, table: Table, head: SnapshotId) -> str:
    """What the head's run is to be repeated for, in a text that no other occasion has: a version's layout was given up,
    or its statistics are outdated; empty where neither is so.
    """
    if any(why_given_up(table, index.name, head) for index in spec.indexes):
        return f"{head}/format {FORMAT_VERSION}"  # not of which indexes: one run makes all, one after the other
    return (outdated_statistics(table, head) or "") if spec.settings.statistics.keeps_ndv else ""


def _has_run(instance: dg.DagsterInstance, spec: TableSpec, head: str, table_uuid: str) -> bool:
    """Whether Dagster has a run with the head's run key."""
    tags = {TABLE_TAG: spec.label, _RUN_KEY_TAG: run_key(table_uuid, head)}
    return bool(instance.get_run_records(RunsFilter(tags=tags), limit=1))


def _failed_run(instance: dg.DagsterInstance, spec: TableSpec, facts: TableFacts) -> tuple[str, bool]:
    """(id of the head's last run, where that failed and its work is undone; whether its process was lost, Dagster does
    not try it again, and the run before it was not lost as well).
    """
    if not facts.head:
        return "", False
    tags = {TABLE_TAG: spec.label, _PARTITION_TAG: facts.head}
    last = [record.dagster_run for record in instance.get_run_records(RunsFilter(tags=tags), limit=2)]
    if not last or last[0].status is not DagsterRunStatus.FAILURE or last[0].tags.get(_RETRY_TAG) == "true":
        return "", False
    if facts.index_tags_at_head == bool(spec.indexes) and all(
        _materialized(instance, key, {facts.head}) for key in spec.derived_keys
    ):
        return "", False
    return last[0].run_id, _was_killed(last[0]) and not any(map(_was_killed, last[1:]))


def _was_killed(run: dg.DagsterRun) -> bool:
    """Whether a run failed, and no step of it."""
    return run.status is DagsterRunStatus.FAILURE and run.tags.get(_FAILURE_TAG) != "STEP_FAILURE"


def _highest_return(instance: dg.DagsterInstance, table_uuid: str) -> int:
    """Highest number of a return in the table's run keys: a cursor that was reset counts on from there."""
    keys = instance.get_run_tags([_RUN_KEY_TAG], value_prefix=f"{table_uuid}:")
    numbers = (key.split(":")[2:] for _, values in keys for key in values)
    return max((int(number[0]) for number in numbers if number and number[0].isdecimal()), default=0)


def snapshot_materialization(
    spec: TableSpec, snapshot: Snapshot, *, newest_of: Table | None = None
) -> dg.AssetMaterialization:
    """The event that records a snapshot of the table, with the totals of its summary, which the UI plots.

    `newest_of`: the table, where this is its newest snapshot: the newest snapshots are listed then, with what is
    derived from each of them now. One event has the list, not each: Dagster keeps events for ever.
    """
    key = str(snapshot.snapshot_id)
    return dg.AssetMaterialization(
        asset_key=spec.key,
        partition=key,
        metadata={
            **(time_line_metadata(time_line(newest_of, spec)) if newest_of else {}),
            "committed": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
            "operation": snapshot.summary.operation.value if snapshot.summary else "unknown",
            **total_metadata(snapshot),
        },
        tags={"dagster/data_version": key},
    )


def freshness_events(
    instance: dg.DagsterInstance, spec: TableSpec, table: Table, reported: Mapping[str, str]
) -> tuple[list[dg.AssetCheckEvaluation], dict[str, str]]:
    """(evaluations of the freshness checks whose state has changed, the state of each check by index name).

    A run that is late or fails reports no lag. The sensor reports it: when an index becomes late, is later than before,
    or has caught up: far enough, and then altogether. `reported`: the states that were reported last.
    """
    if missing := missing_ref(table, spec.first_ref):
        new = [index.name for index in spec.indexes if reported.get(index.name) != missing]
        evaluations = [freshness_evaluation(spec, name, passed=False, metadata={"why": missing}) for name in new]
        return evaluations, {index.name: missing for index in spec.indexes}
    events, states = [], {}
    for index in spec.indexes:
        lag = current_lag(instance, spec, index, table)
        late = is_late(spec, lag)
        states[index.name] = _freshness_state(reported.get(index.name), lag.snapshots, late=late)
        if reported.get(index.name) != states[index.name]:
            metadata, words = lag_metadata(lag), lag.in_words
            events.append(freshness_evaluation(spec, index.name, passed=not late, metadata=metadata, description=words))
    return events, states


def _freshness_state(reported: str | None, behind: int, *, late: bool) -> str:
    """Once all was there, a few snapshots without a version are no news: their runs report to the check.

    Dagster takes the report that was begun last for the newest. That of a run was begun when the run was requested, so
    that a report of the sensor from meanwhile, which was not the last word, would stay.
    """
    if late:
        return f"late by {behind}"
    return "behind" if behind and reported != "fresh" else "fresh"


def unknown_freshness_events(spec: TableSpec, since: float, why: str) -> list[dg.AssetCheckEvaluation]:
    """Evaluations which report that the lag is unknown, because the catalog does not answer."""
    metadata = {"catalog away since": dg.MetadataValue.timestamp(since), "why": why}
    return [freshness_evaluation(spec, index.name, passed=False, metadata=metadata) for index in spec.indexes]


def job_tags(spec: TableSpec) -> dict[str, str]:
    """Tags of every run of the table's jobs: those of the settings that name no number of a run, and our own.

    Dagster ends a run after `max_runtime_seconds`.
    """
    return {
        **{key: _tag_text(value) for key, value in spec.settings.run_tags.items() if not has_numbers(value)},
        TABLE_TAG: spec.label,
        "dagster/max_runtime": str(spec.settings.max_runtime_seconds),
    }


def run_tags(spec: TableSpec, table: Table, key: str, engine: Engine) -> dict[str, str]:
    """Tags of a run for one snapshot: what it needs, and the tags of the settings with these numbers."""
    required = run_requirements(
        table,
        spec.indexes,
        SnapshotId(int(key)),
        engine=engine,
        statistics=spec.settings.statistics.requested if spec.settings.statistics.keeps_ndv else None,
    )
    numbers = asdict(required)
    return {
        **{key: _tag_text(with_numbers(value, numbers)) for key, value in spec.settings.run_tags.items()},
        **job_tags(spec),
        **{f"{HIDDEN_TAGS}{name}": str(numbers[name]) for name in RUN_NUMBERS},
    }


def _tag_text(value: Any) -> str:
    """A tag's value as Dagster stores it: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
