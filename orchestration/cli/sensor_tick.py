"""`icepuffin sensor-tick`."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import click

from icepuffin.ops.messages import plural
from icepuffin.orchestration.cli.output import print_json
from icepuffin.orchestration.cli.session import Session, session_command
from icepuffin.orchestration.cli.table_options import json_option

if TYPE_CHECKING:
    from rich.text import Text

    from icepuffin.orchestration.sensor.local_sensor import DueRuns, LocalRun, SkippedTable, TableTick

    Event: TypeAlias = DueRuns | TableTick | LocalRun | SkippedTable


@click.command("sensor-tick")
@click.option("--dry-run", is_flag=True, help="Only say which snapshots are due; record nothing, run nothing.")
@json_option
@session_command
def command(session: Session, *, dry_run: bool, as_json: bool) -> None:
    """Evaluate every table of the settings once, as the Dagster sensor does, and run what is due in this process.

    A table that cannot be read is named, the others are evaluated all the same, and the exit code is 1. Events and runs
    are written to the Dagster instance of the settings, where the UI shows them.

    \b
    Examples:
      icepuffin sensor-tick
      icepuffin sensor-tick --dry-run --json
    """
    if not session.settings.tables:
        raise click.ClickException(f"{session.settings_file} names no table to evaluate; `icepuffin init` writes one")

    from icepuffin.ops.process.arrow_import import import_arrow

    import_arrow()
    from icepuffin.orchestration.instance import home_of, open_instance
    from icepuffin.orchestration.sensor.local_sensor import due_runs, tick

    events: list[Event] = []
    with open_instance(home_of(session.settings, session.settings_file)) as instance:
        for event in (due_runs if dry_run else tick)(session.settings, instance):
            events.append(event)
            if not as_json:
                session.console.print(_lines(event))
    if as_json:
        print_json(_documents(events))
    if any(map(_failed, events)):
        sys.exit(1)


def _failed(event: "Event") -> bool:
    from icepuffin.orchestration.sensor.local_sensor import LocalRun, SkippedTable

    return isinstance(event, SkippedTable) or (isinstance(event, LocalRun) and not event.succeeded)


def _documents(events: "Iterable[Event]") -> list[dict[str, object]]:
    """What JSON has: an object per table, in which its runs are a list."""
    from icepuffin.orchestration.sensor.local_sensor import DueRuns, LocalRun, SkippedTable

    documents: list[dict[str, object]] = []
    runs: list[dict[str, object]] = []
    for event in events:
        if isinstance(event, SkippedTable):
            documents.append({"table": event.table, "error": event.message})
        elif isinstance(event, DueRuns):
            documents.append({"table": event.table, "due": list(event.snapshots)})
        elif isinstance(event, LocalRun):
            outcome = {"succeeded": event.succeeded, "error": event.message}
            runs.append({"snapshot_id": event.partition_key, "run_id": event.run_id, **outcome})
        else:
            runs = []
            snapshots = {"new": list(event.evaluation.recorded), "dropped": list(event.evaluation.dropped)}
            documents.append({"table": event.table, **snapshots, "runs": runs})
    return documents


def _lines(event: "Event") -> "Text":
    """What the terminal shows of one event."""
    from rich.text import Text

    from icepuffin.orchestration.sensor.local_sensor import DueRuns, LocalRun, SkippedTable

    if isinstance(event, LocalRun):
        outcome = ("done",) if event.succeeded else (("failed", "red"), f": {event.message}")
        return Text.assemble(f"  snapshot {event.partition_key}: ", *outcome)
    if isinstance(event, SkippedTable):
        return Text.assemble((event.table, "bold"), ": ", ("not evaluated", "red"), f": {event.message}")
    if isinstance(event, DueRuns):
        runs = [f": {plural(len(event.snapshots), 'run')} due", *(f"  snapshot {key}" for key in event.snapshots)]
        return Text.assemble((event.table, "bold"), "\n".join(runs))
    evaluation = event.evaluation
    text = f": {plural(len(evaluation.recorded), 'new snapshot')}, {plural(len(evaluation.plan.runs), 'run')} due"
    later = max(evaluation.postponed, evaluation.plan.waiting)
    text += f", {plural(later, 'snapshot')} left for the next evaluation" if later else ""
    return Text.assemble((event.table, "bold"), text)
