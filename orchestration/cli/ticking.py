"""`icepuffin sensor-tick`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestration.cli.on_table import json_option
from orchestration.cli.session import Session, located, print_json

if TYPE_CHECKING:
    from orchestration.ticks import Unseen


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
    from orchestration.instance import home_of, open_instance

    session = session.at(directory, settings)
    home = home_of(session.settings, session.settings_file)
    with open_instance(home) as instance:
        told, failed = (_dry if dry_run else _tick)(session, instance, quiet=as_json)
    if as_json:
        print_json(told)
    if failed:
        sys.exit(1)


def _dry(session: Session, instance: Any, *, quiet: bool) -> tuple[list[dict[str, Any]], bool]:
    from orchestration.ticks import Unseen, due

    told: list[dict[str, Any]] = []
    failed = False
    for found in due(session.settings, instance):
        if isinstance(found, Unseen):
            failed = True
            told.append({"table": found.table, "error": found.message})
            if not quiet:
                session.console.print(_line(found), highlight=False)
            continue
        table, keys = found
        told.append({"table": table, "due": list(keys)})
        if not quiet:
            session.console.print(f"[bold]{table}[/]: {len(keys)} runs due", highlight=False)
            for key in keys:
                session.console.print(f"  snapshot {key}", highlight=False)
    return told, failed


def _tick(session: Session, instance: Any, *, quiet: bool) -> tuple[list[dict[str, Any]], bool]:
    from orchestration.ticks import TickedRun, Unseen, tick

    told: list[dict[str, Any]] = []
    failed = False
    for event in tick(session.settings, instance):
        if isinstance(event, Unseen):
            failed = True
            told.append({"table": event.table, "error": event.message})
            line = _line(event)
        elif isinstance(event, TickedRun):
            failed |= not event.succeeded
            told[-1]["runs"].append(
                {
                    "snapshot_id": event.snapshot_id,
                    "run_id": event.run_id,
                    "succeeded": event.succeeded,
                    "error": event.message,
                }
            )
            text = "done" if event.succeeded else f"[red]failed[/]: {event.message}"
            line = f"  snapshot {event.snapshot_id}: {text}"
        else:
            found = event.found
            told.append({"table": event.table, "new": list(found.shown), "dropped": list(found.dropped), "runs": []})
            line = f"[bold]{event.table}[/]: {len(found.shown)} new snapshots, {len(found.plan.request)} runs due"
            line += f", {found.left} left for the next look" if found.left else ""
        if not quiet:
            session.console.print(line, highlight=False)
    return told, failed


def _line(unseen: "Unseen") -> str:
    return f"[bold]{unseen.table}[/]: [red]not looked at[/]: {unseen.message}"
