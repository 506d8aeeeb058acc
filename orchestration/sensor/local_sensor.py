"""The sensor without a daemon: evaluate every table once, and run what is due in this process."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.instance_records import sensor_states
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError, faults_of
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.discovery import (
    TableListing,
    list_tables,
    listed_tables,
    shown_spec,
)
from icepuffin.orchestration.engines import catalogs_of, engine_of
from icepuffin.orchestration.processes import LOCATION_TAGS, execute, lost_runs
from icepuffin.orchestration.sensor.facts import TABLE_TAG, gather_facts, run_tags
from icepuffin.orchestration.sensor.sensor_definition import SensorEvaluation, evaluate
from icepuffin.orchestration.sensor.sensor_plan import RunPlan, SensorCursor, plan_runs
from icepuffin.orchestration.settings import Settings

_CURSOR = "icepuffin/tick/"
_EVALUATED = "icepuffin/tick-time/"
"""Prefix of the key under which the time of the last evaluation is stored, in seconds since the epoch."""
_WRAPPERS = frozenset({"DagsterExecutionStepExecutionError", "Failure", "RetryRequestedFromPolicy"})
"""Errors of Dagster that wrap the error of a step."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config: the instance keeps every event, and the terminal belongs to the command."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that an evaluation requested, and how it ended."""

    table: str
    partition_key: str
    """Id of the snapshot, as Dagster has it"""
    run_id: str
    succeeded: bool
    message: str
    """The error of the first failed step; empty when the run succeeded."""


@dataclass(frozen=True, slots=True)
class TableTick:
    """One table and its evaluation."""

    table: str
    evaluation: SensorEvaluation


@dataclass(frozen=True, slots=True)
class SkippedTable:
    """A table that could not be evaluated: it or its catalog cannot be reached, or its properties are wrong."""

    table: str
    message: str


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The snapshots of a table for which a run is due, as if Dagster showed all of them."""

    table: str
    snapshots: tuple[str, ...]


def due_runs(settings: Settings, instance: dg.DagsterInstance) -> Iterator[DueRuns | SkippedTable]:
    """What an evaluation of every table would request. Changes nothing."""
    catalogs = catalogs_of(settings)
    for spec in _specs(settings, catalogs, list_tables(settings.tables, catalogs)):
        if isinstance(spec, SkippedTable):
            yield spec
            continue
        try:
            with faults_of(spec.identifier):
                due = _due_runs(instance, spec, catalogs)
        except IcepuffinError as error:
            yield SkippedTable(_path(spec), str(error))
        else:
            yield DueRuns(_path(spec), due)


def _specs(
    settings: Settings, catalogs: Catalogs, listings: Mapping[str, TableListing]
) -> Iterator[TableSpec | SkippedTable]:
    """Each table; skipped are patterns whose tables could not be listed, and tables whose own indexes are unknown: a
    snapshot would count as processed, without the versions of these indexes.
    """
    for key, listing in listings.items():
        if listing.unknown:
            yield SkippedTable(_path(TableSpec(settings.tables[key])), listing.unknown)
    for _, table, indexes in listed_tables(settings.tables, listings):
        unknown = indexes.unknown
        yield SkippedTable(_path(TableSpec(table)), unknown) if unknown else shown_spec(table, catalogs, indexes)


def _path(spec: TableSpec) -> str:
    return "/".join(spec.path)


def _due_runs(instance: dg.DagsterInstance, spec: TableSpec, catalogs: Catalogs) -> tuple[str, ...]:
    """Raises IcepuffinError where the catalog does not answer."""
    loaded = catalogs.table(spec.catalog, spec.identifier)
    cursor = _cursor(instance, spec, loaded)
    facts = gather_facts(instance, spec, loaded, cursor)
    keys = [item.key for item in facts.watched]
    # an evaluation ends these runs
    to_be_ended = sum(run.tags.get(TABLE_TAG) == spec.label for run, _ in lost_runs(instance))
    after = replace(facts, partitions=keys, recorded=keys, in_flight=facts.in_flight - to_be_ended)
    return plan_runs(after, cursor, policy=spec.settings.snapshots, runs_ahead=len(keys) + after.in_flight).runs


def _cursor(instance: dg.DagsterInstance, spec: TableSpec, table: Table) -> SensorCursor:
    """What local evaluations and the daemon's sensor have processed, together; all else from the later of the two."""
    uuid, key = str(table.metadata.table_uuid), _CURSOR + spec.slug
    stored = instance.daemon_cursor_storage.get_cursor_values({key, _EVALUATED + spec.slug})
    local, local_time = SensorCursor.parse(stored.get(key), uuid), float(stored.get(_EVALUATED + spec.slug, 0.0))
    daemon, daemon_time = _daemon_cursor(instance, spec, uuid)
    return local.joined(daemon) if local_time >= daemon_time else daemon.joined(local)


def _daemon_cursor(instance: dg.DagsterInstance, spec: TableSpec, uuid: str) -> tuple[SensorCursor, float]:
    """(the cursor that the daemon stores for the table's sensor, the time of its last tick).

    Another code location may have a sensor of this name, for a table of the same name: the cursor has the table's uuid.
    """
    states = [state.instigator_data for state in sensor_states(instance, spec)]
    stored = [(SensorCursor.parse(state.cursor), state.last_tick_timestamp or 0.0) for state in states if state]
    own = [(cursor, seconds) for cursor, seconds in stored if cursor.table_uuid == uuid]
    return max(own, default=(SensorCursor(uuid), 0.0), key=lambda pair: pair[1])


def save_cursor(instance: dg.DagsterInstance, spec: TableSpec, plan: RunPlan) -> None:
    """Store that the plan was carried out."""
    values = {_CURSOR + spec.slug: plan.cursor.text(), _EVALUATED + spec.slug: str(time.time())}
    instance.daemon_cursor_storage.set_cursor_values(values)


def run_partition(
    instance: dg.DagsterInstance, definitions: dg.Definitions, spec: TableSpec, key: str, tags: Mapping[str, str]
) -> LocalRun:
    """Run the refresh job for one snapshot in this process. A failure is a result, and is in the instance.

    Raises KeyboardInterrupt where the process was interrupted, once the run is marked as failed.
    """
    job = definitions.resolve_job_def(f"refresh_{spec.slug}")
    partition_tags = job.get_tags_for_partition_key(key, selected_asset_keys=())
    result = execute(job, instance, run_config=_QUIET, tags={**partition_tags, **tags, **LOCATION_TAGS})
    ends = [event.job_failure_data.failure_reason for event in result.all_events if event.is_job_failure]
    if any(reason is not None and reason.value == "UNEXPECTED_TERMINATION" for reason in ends):
        raise KeyboardInterrupt
    failures = [event for event in result.all_events if event.is_step_failure]
    message = _root_message(failures[0].step_failure_data.error) if failures else ""
    return LocalRun(_path(spec), key, result.run_id, result.success, message)


def _root_message(error: Any) -> str:
    """The message of the outermost error that is not Dagster's own: it names the file and the remedy."""
    while error is not None and error.cause is not None and error.cls_name in _WRAPPERS:
        error = error.cause
    if error is None:
        return "failed; see the run in the UI"
    name, _, text = error.message.strip().partition(": ")
    return str(text if name.startswith("icepuffin.") else error.message.strip())


def tick(settings: Settings, instance: dg.DagsterInstance) -> Iterator[TableTick | LocalRun | SkippedTable]:
    """Evaluate every table and run what is due, oldest snapshot first. Yields each result when it is there."""
    from icepuffin.orchestration.factory import build  # noqa: PLC0415  assets and jobs, which `due_runs` does not need

    catalogs, engine = catalogs_of(settings), engine_of(settings)
    listings = list_tables(settings.tables, catalogs)
    definitions = build(settings, listings)
    for spec in _specs(settings, catalogs, listings):
        if isinstance(spec, SkippedTable):
            yield spec
            continue
        try:
            with faults_of(spec.identifier):
                loaded = catalogs.table(spec.catalog, spec.identifier)
                evaluation = evaluate(instance, spec, loaded, _cursor(instance, spec, loaded))
                due = evaluation.plan.runs if spec.derived_keys else ()
                tags = {snapshot: run_tags(spec, loaded, snapshot, engine) for snapshot in due}
        except IcepuffinError as error:
            yield SkippedTable(_path(spec), str(error))
            continue
        yield TableTick(_path(spec), evaluation)
        for snapshot in due:
            yield run_partition(instance, definitions, spec, snapshot, tags[snapshot])
        save_cursor(instance, spec, evaluation.plan)  # until now, the same evaluation can be repeated
