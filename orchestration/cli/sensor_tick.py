"""`icepuffin sensor-tick`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Session, counted, located, print_json
from icepuffin.orchestration.cli.table_options import json_option

if TYPE_CHECKING:
    from icepuffin.orchestration.sensor.local import DueRuns, LocalRun, SkippedTable, TableTick


@click.command("sensor-tick")
@click.option("--dry-run", is_flag=True, help="Only say which snapshots are due; record nothing, run nothing.")
@json_option
@located
@click.pass_obj
def command(session: Session, directory: Path | None, settings: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Look at every table of the settings once, as the Dagster sensor does, and run what is due in this process.

    A table that cannot be looked at is named, the others are looked at all the same, and the exit code is 1. Events and
    runs are written to the Dagster instance of the settings, where the UI shows them.

    \b
    Examples:
      icepuffin sensor-tick
      icepuffin sensor-tick --dry-run --json
    """
    from icepuffin.orchestration.instance import home_of, open_instance
    from icepuffin.orchestration.sensor.local import LocalRun, SkippedTable, due_runs, tick

    session = session.at(directory, settings)
    if not session.settings.tables:
        raise click.ClickException(f"{session.settings_file} names no table to look at; add [tables.<key>]")
    told: list[dict[str, Any]] = []
    failed = False
    with open_instance(home_of(session.settings, session.settings_file)) as instance:
        for event in (due_runs if dry_run else tick)(session.settings, instance):
            found, shown = _told(event)
            if isinstance(event, LocalRun):
                failed |= not event.succeeded
                told[-1]["runs"].append(found)
            else:
                failed |= isinstance(event, SkippedTable)
                told.append(found)
            if not as_json:
                session.console.print(shown, highlight=False)
    if as_json:
        print_json(told)
    if failed:
        sys.exit(1)


def _told(event: "DueRuns | TableTick | LocalRun | SkippedTable") -> tuple[dict[str, Any], str]:
    """(what JSON has of an event, what the terminal shows)."""
    from rich.markup import escape

    from icepuffin.orchestration.sensor.local import DueRuns, LocalRun, SkippedTable

    if isinstance(event, SkippedTable):
        line = f"[bold]{event.table}[/]: [red]not looked at[/]: {escape(event.message)}"
        return {"table": event.table, "error": event.message}, line
    if isinstance(event, DueRuns):
        lines = [f"[bold]{event.table}[/]: {counted(len(event.snapshots), 'run')} due"]
        lines += [f"  snapshot {key}" for key in event.snapshots]
        return {"table": event.table, "due": list(event.snapshots)}, "\n".join(lines)
    if isinstance(event, LocalRun):
        told = {"snapshot_id": event.snapshot_id, "run_id": event.run_id, "succeeded": event.succeeded}
        ended = "done" if event.succeeded else f"[red]failed[/]: {escape(event.message)}"
        return {**told, "error": event.message}, f"  snapshot {event.snapshot_id}: {ended}"
    evaluation = event.evaluation
    line = f"[bold]{event.table}[/]: {counted(len(evaluation.recorded), 'new snapshot')}, "
    line += f"{counted(len(evaluation.plan.runs), 'run')} due"
    later = max(evaluation.postponed, evaluation.plan.waiting)
    line += f", {counted(later, 'snapshot')} left for the next evaluation" if later else ""
    return {
        "table": event.table,
        "new": list(evaluation.recorded),
        "dropped": list(evaluation.dropped),
        "runs": [],
    }, line
