"""One look at every table without a daemon: what the sensor would do, and the runs it asks for, in this process."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import uuid4

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster_shared.error import SerializableErrorInfo
from pyiceberg.table import Table

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.definitions import build
from icepuffin.orchestration.discovery import find_indexes, indexes_of, shown_spec
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.processes import process_tags
from icepuffin.orchestration.sensor import plan as planning
from icepuffin.orchestration.sensor.definition import sensor_name
from icepuffin.orchestration.sensor.evaluate import Look, look
from icepuffin.orchestration.sensor.facts import gather, run_tags
from icepuffin.orchestration.settings import Settings, TableSettings

_CURSOR = "icepuffin/tick/"
_LOOKED = "icepuffin/tick-time/"
"""When, in seconds since the epoch."""
_WRAPPERS = frozenset({"DagsterExecutionStepExecutionError", "Failure", "RetryRequestedFromPolicy"})
"""What Dagster puts around the error of a step."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""The instance keeps every event; the terminal belongs to the command."""


@dataclass(frozen=True, slots=True)
class TickedRun:
    """A run that a look asked for, and how it ended."""

    table: str
    snapshot_id: str
    run_id: str
    succeeded: bool
    message: str
    """Of the first failure; empty when the run succeeded."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one look at one table found."""

    table: str
    found: Look


@dataclass(frozen=True, slots=True)
class Unseen:
    """A table that could not be looked at: it or its catalog is not there, or its properties are wrong."""

    table: str
    message: str


@dataclass(frozen=True, slots=True)
class Due:
    """The snapshots of a table for which a run is due, were all of them shown in Dagster."""

    table: str
    snapshots: tuple[str, ...]


def due(settings: Settings, instance: dg.DagsterInstance) -> Iterator[Due | Unseen]:
    """What a look at every table would ask for. Changes nothing."""
    catalogs = catalogs_of(settings)
    for table in settings.tables.values():
        try:
            yield _due(instance, table, catalogs)
        except IcepuffinError as error:
            yield Unseen(_path(table), str(error))


def _path(table: TableSettings) -> str:
    return "/".join((table.catalog, *table.name.split(".")))


def _due(instance: dg.DagsterInstance, table: TableSettings, catalogs: Catalogs) -> Due:
    loaded = catalogs.table(table.catalog, table.name)
    spec = shown_spec(table, catalogs, indexes_of(loaded, table))
    cursor = _cursor(instance, spec, loaded)
    facts = gather(instance, spec, loaded, cursor, table.snapshots)
    known = [item.key for item in facts.watched]
    shown = replace(facts, partitions=known, recorded=known)
    plan = planning.plan(shown, cursor, policy=table.snapshots, runs_ahead=len(known))
    return Due(_path(table), plan.runs)


def _cursor(instance: dg.DagsterInstance, spec: TableSpec, table: Table) -> planning.Cursor:
    """What was dealt with by looks like this one, and by the sensor's; the rest as the later of the two left it."""
    uuid, kept = str(table.metadata.table_uuid), _CURSOR + spec.slug
    stored = instance.daemon_cursor_storage.get_cursor_values({kept, _LOOKED + spec.slug})
    ours, ours_at = planning.Cursor.parse(stored.get(kept), uuid), float(stored.get(_LOOKED + spec.slug, 0.0))
    sensors, sensors_at = _sensors_cursor(instance, spec, uuid)
    return ours.joined(sensors) if ours_at >= sensors_at else sensors.joined(ours)


def _sensors_cursor(instance: dg.DagsterInstance, spec: TableSpec, uuid: str) -> tuple[planning.Cursor, float]:
    """(the cursor that the daemon keeps for the table's sensor, when it looked last)."""
    if instance.schedule_storage is None:  # an instance in memory has no daemon
        return planning.Cursor(uuid), 0.0
    found = [
        (state.instigator_data.last_tick_timestamp or 0.0, state.instigator_data.cursor)
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        if state.instigator_name == sensor_name(spec) and isinstance(state.instigator_data, SensorInstigatorData)
    ]
    at, text = max(found, default=(0.0, None), key=lambda item: item[0])
    return planning.Cursor.parse(text, uuid), at


def look_at(instance: dg.DagsterInstance, spec: TableSpec, table: TableSettings, catalogs: Catalogs) -> TickResult:
    """What the sensor does at a look, but for the runs. The cursor moves with `finish`: one that is cut off is made
    again.
    """
    loaded = catalogs.table(spec.catalog, spec.identifier)
    return TickResult("/".join(spec.path), look(instance, spec, table, loaded, _cursor(instance, spec, loaded)))


def finish(instance: dg.DagsterInstance, spec: TableSpec, plan: planning.Plan) -> None:
    """Remember that the plan was carried out."""
    kept = {_CURSOR + spec.slug: plan.cursor.text(), _LOOKED + spec.slug: str(time.time())}
    instance.daemon_cursor_storage.set_cursor_values(kept)


def run_partition(
    instance: dg.DagsterInstance, definitions: dg.Definitions, spec: TableSpec, table: TableSettings, key: str
) -> TickedRun:
    """The refresh job for one snapshot, in this process. A failure is a result, and is in the instance."""
    job = definitions.resolve_job_def(f"refresh_{spec.slug}")
    run_id = str(uuid4())
    result = job.execute_in_process(
        instance=instance,
        partition_key=key,
        run_id=run_id,
        tags={**run_tags(spec, key, table.max_runtime_seconds), **process_tags(run_id)},
        run_config=_QUIET,
        raise_on_error=False,
    )
    failures = [event for event in result.all_events if event.is_step_failure]
    message = _why(failures[0].step_failure_data.error) if failures else ""
    return TickedRun("/".join(spec.path), key, result.run_id, result.success, message)


def _why(error: SerializableErrorInfo | None) -> str:
    """The outermost error that is not Dagster's own: it names the file and what to do, those beneath do not."""
    while error is not None and error.cause is not None and error.cls_name in _WRAPPERS:
        error = error.cause
    if error is None:
        return "failed; see the run in the UI"
    name, _, text = error.message.strip().partition(": ")
    return text if name.startswith("icepuffin.") else error.message.strip()


def tick(settings: Settings, instance: dg.DagsterInstance) -> Iterator[TickResult | TickedRun | Unseen]:
    """Look at every table and do the runs that are due, oldest snapshot first. Yields each thing as it is done."""
    catalogs = catalogs_of(settings)
    found = {key: find_indexes(table, catalogs) for key, table in settings.tables.items()}
    definitions = build(settings, found)
    for key, table in settings.tables.items():
        if found[key].unknown:  # a snapshot would pass for dealt with, without their versions
            yield Unseen(_path(table), found[key].unknown)
            continue
        spec = shown_spec(table, catalogs, found[key])
        try:
            looked = look_at(instance, spec, table, catalogs)
        except IcepuffinError as error:
            yield Unseen(_path(table), str(error))
            continue
        yield looked
        plan = looked.found.plan
        for snapshot in plan.runs if spec.derived_keys else ():
            yield run_partition(instance, definitions, spec, table, snapshot)
        finish(instance, spec, plan)
