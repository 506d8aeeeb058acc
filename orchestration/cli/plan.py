"""`icepuffin plan`."""

from dataclasses import asdict
from shlex import quote

import click

from icepuffin.orchestration.cli.output import print_grid, print_json, print_lines
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command


@click.command("plan")
@metadata_command
@index_name("The same as INDEX. [default: all of the table, and the sketches]")
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
def command(context: TableContext, /, index: str | None, snapshot: str | None) -> None:
    """Say what a refresh of the table's sketches and indexes will do and take, before it does anything. Writes nothing.

    Reads metadata, where the rows of the last version lie, and a sample of vectors where files were rewritten. Which
    shard a new row goes to is known only when it is read: rows to insert are expected values.

    \b
    Examples:
      icepuffin plan demo.packages
      icepuffin plan demo.packages embedding --snapshot 3821550127947089009 --json
    """
    from icepuffin.ops.runs.refresh_plan import plan_snapshot

    planned = plan_snapshot(**context.work(index, snapshot))
    if context.as_json:
        sketches = {} if planned.sketches is None else {"theta_sketches": asdict(planned.sketches)}
        shown = {name: asdict(estimate) for name, estimate in planned.indexes.items()}
        print_json({"table": context.name, "snapshot_id": str(planned.snapshot_id), **sketches, "indexes": shown})
        return
    if not planned.indexes:
        print_lines(
            context.console,
            f"{context.name} has no index; make one with: icepuffin index create {quote(context.name)} --help",
        )
    for grid in planned.grids():
        print_grid(context.console, grid)
