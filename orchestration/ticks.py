"""One look at every table without a daemon: what the sensor would do, and the runs it asks for, in this process."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import dagster as dg
from dagster_shared.error import SerializableErrorInfo
from pyiceberg.table import Table

from assets.spec import TableSpec
from ops.errors import IcepuffinError
from ops.resources import Catalogs
from orchestration import watch
from orchestration.definitions import build
from orchestration.discovery import find_indexes, indexes_of, table_spec
from orchestration.engines import catalogs_of
from orchestration.facts import gather, run_tags
from orchestration.looks import Look, look
from orchestration.settings import Settings, TableSettings

_CURSOR = "icepuffin/tick/"
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
    spec = table_spec(table, catalogs, indexes_of(loaded, table))
    facts = gather(instance, spec, loaded)
    known = [item.key for item in facts.watched]
    shown = replace(facts, partitions=known, recorded=known)
    plan = watch.plan(shown, _cursor(instance, spec, loaded), policy=table.snapshots, runs_ahead=len(known))
    return Due(_path(table), plan.runs)


def _cursor(instance: dg.DagsterInstance, spec: TableSpec, table: Table) -> watch.Cursor:
    stored = instance.daemon_cursor_storage.get_cursor_values({_CURSOR + spec.slug}).get(_CURSOR + spec.slug)
    return watch.Cursor.parse(stored, str(table.metadata.table_uuid))


def look_at(instance: dg.DagsterInstance, spec: TableSpec, table: TableSettings, catalogs: Catalogs) -> TickResult:
    """What the sensor does at a look, but for the runs. The cursor moves with `finish`: one that is cut off is made
    again.
    """
    loaded = catalogs.table(spec.catalog, spec.identifier)
    return TickResult("/".join(spec.path), look(instance, spec, table, loaded, _cursor(instance, spec, loaded)))


def finish(instance: dg.DagsterInstance, spec: TableSpec, plan: watch.Plan) -> None:
    """Remember that the plan was carried out."""
    instance.daemon_cursor_storage.set_cursor_values({_CURSOR + spec.slug: plan.cursor.text()})


def run_partition(
    instance: dg.DagsterInstance, definitions: dg.Definitions, spec: TableSpec, table: TableSettings, key: str
) -> TickedRun:
    """The refresh job for one snapshot, in this process. A failure is a result, and is in the instance."""
    job = definitions.resolve_job_def(f"refresh_{spec.slug}")
    result = job.execute_in_process(
        instance=instance,
        partition_key=key,
        tags=run_tags(spec, key, table.max_runtime_seconds),
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
    return text if name.startswith("ops.") else error.message.strip()


def tick(settings: Settings, instance: dg.DagsterInstance) -> Iterator[TickResult | TickedRun | Unseen]:
    """Look at every table and do the runs that are due, oldest snapshot first. Yields each thing as it is done."""
    catalogs = catalogs_of(settings)
    found = {key: find_indexes(table, catalogs) for key, table in settings.tables.items()}
    definitions = build(settings, found)
    for key, table in settings.tables.items():
        if found[key].unknown:  # a snapshot would pass for dealt with, without their versions
            yield Unseen(_path(table), found[key].unknown)
            continue
        spec = table_spec(table, catalogs, found[key])
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
