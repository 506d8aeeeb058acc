"""`icepuffin plan`."""

import dataclasses
from shlex import quote
from typing import TYPE_CHECKING

import click

from icepuffin.orchestration.cli.output import print_grid, print_json, print_lines
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command

if TYPE_CHECKING:
    from icepuffin.ops.index.planning.index_report import Estimate
    from icepuffin.ops.theta.theta_report import ThetaEstimate


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
        sketches = {} if planned.sketches is None else {"theta_sketches": _document(context, planned.sketches)}
        shown = {name: _document(context, estimate) for name, estimate in planned.indexes.items()}
        print_json({"table": context.name, "snapshot_id": str(planned.snapshot_id), **sketches, "indexes": shown})
        return
    if not planned.indexes:
        print_lines(
            context.console,
            f"{context.name} has no index; make one with: icepuffin index create {quote(context.name)} --help",
        )
    for grid in planned.grids(context.session.engine.cost_model):
        print_grid(context.console, grid)


def _document(context: TableContext, estimate: "Estimate | ThetaEstimate") -> dict[str, object]:
    cost_model = context.session.engine.cost_model
    cost = {"cost": round(cost_model.estimate_cost(estimate), 6), "currency": cost_model.currency} if cost_model else {}
    return {**dataclasses.asdict(estimate), **cost}
