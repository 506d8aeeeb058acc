"""`icepuffin plan`."""

import dataclasses
from typing import TYPE_CHECKING

import click

from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB, Action, SnapshotId
from icepuffin.orchestration.cli.output import print_fields, print_json, print_lines
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.ops.index.planning.index_report import Estimate
    from icepuffin.ops.theta.theta_report import ThetaEstimate

_SKETCHES_KEPT = {
    "current": "these sketches are registered",
    "no columns": "no column is to have a sketch",
    "off": "sketches are switched off",
}
"""Reasons why nothing is done, by the outcome that the report will have."""
_ACTIONS = {
    Action.BUILT: "build",
    Action.REFRESHED: "refresh",
    Action.REUSED: "nothing to do",
    Action.RETAGGED: "move the tag",
    Action.EMPTY: "nothing to publish",
}
"""Actions before the work, by the action that the report will have."""
_SHARD_LINE = "{:>6} {:>12} {:>10} {:>10} {:>10} {:>9} {:>9}  {}"


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
    snapshot_id = context.snapshot_id(context.spec.first_ref if snapshot is None else snapshot)
    sketches, indexes = _estimates(context, snapshot_id, index)
    if context.as_json:
        theta = {"theta_sketches": _document(context, sketches)} if sketches else {}
        shown = {name: _document(context, estimate) for name, estimate in indexes.items()}
        print_json({"table": context.name, "snapshot_id": str(snapshot_id), **theta, "indexes": shown})
        return
    console = context.console
    if sketches is not None:
        console.rule(f"theta sketches, snapshot {snapshot_id}", align="left")
        print_fields(console, _sketch_fields(context, sketches))
    if not indexes:
        print_lines(
            console, f"{context.name} has no index; make one with: icepuffin index create {context.name} --help"
        )
    for name, estimate in indexes.items():
        console.rule(f"{name}, snapshot {snapshot_id}", align="left")
        print_fields(console, _index_fields(context, estimate))
        _show_shards(console, estimate)


def _estimates(
    context: TableContext, snapshot_id: SnapshotId, index: str | None
) -> "tuple[ThetaEstimate | None, dict[str, Estimate]]":
    """The estimate of the sketches, None where they are left out; and that of each index, by name."""
    from icepuffin.ops.runs.index_runs import estimate_refresh
    from icepuffin.ops.theta.theta_estimate import estimate_theta_sketches

    definitions, statistics = context.indexes_named(index), context.spec.settings.statistics
    run = context.session.engine.run_on(context.table, snapshot_id, context.spec.first_ref)
    sketches = None
    if statistics.keeps_ndv and index is None:
        sketches = estimate_theta_sketches(run, snapshot_id, columns=statistics.ndv_columns)
    return sketches, {definition.name: estimate_refresh(run, definition, snapshot_id) for definition in definitions}


def _document(context: TableContext, estimate: "Estimate | ThetaEstimate") -> dict[str, object]:
    cost_model = context.session.engine.cost_model
    cost = {"cost": round(cost_model.estimate_cost(estimate), 6), "currency": cost_model.currency} if cost_model else {}
    return {**dataclasses.asdict(estimate), **cost}


def _sketch_fields(context: TableContext, estimate: "ThetaEstimate") -> dict[str, str]:
    if estimate.outcome != "written":
        return {"action": f"nothing to do: {_SKETCHES_KEPT[estimate.outcome]}"}
    return {
        "action": "count what is new, unite, register",
        "files": f"{estimate.files_sketched:,} to sketch, {estimate.files_reused:,} known",
        "values": f"{estimate.values:,} to read, of {plural(estimate.columns, 'column')}",
        **_total_fields(context, estimate),
    }


def _index_fields(context: TableContext, estimate: "Estimate") -> dict[str, str]:
    action = f"{_ACTIONS[estimate.action]}: {estimate.reason}"
    if not estimate.shards:
        work = {"rows": f"{estimate.inserted:,} to read", **_total_fields(context, estimate)}  # without graphs
        return {"action": action, **(work if estimate.bytes_written else {})}
    return {
        "action": action,
        "rows": f"{estimate.inserted:,} to insert, {estimate.remapped:,} moved, {estimate.tombstoned:,} gone"
        + (f"; {estimate.merged:,} to merge from deltas" if estimate.merged else ""),
        "shards": f"{len(estimate.shards)}: all to build"
        if estimate.action is Action.BUILT
        else f"{len(estimate.shards)}: {estimate.shards_rebuilt} to rebuild, {estimate.shards_copied} kept",
        **_total_fields(context, estimate),
    }


def _total_fields(context: TableContext, estimate: "Estimate | ThetaEstimate") -> dict[str, str]:
    cost_model = context.session.engine.cost_model
    return {
        "MiB": f"{estimate.bytes_read / MIB:,.1f} to read, {estimate.bytes_written / MIB:,.1f} to write",
        "seconds": f"{estimate.seconds:,.1f} ({estimate.rates})",
        **({"cost": f"{cost_model.estimate_cost(estimate):,.4f} {cost_model.currency}"} if cost_model else {}),
    }


def _show_shards(console: "Console", estimate: "Estimate") -> None:
    if not estimate.shards:
        return
    names = ("shard", "nodes", "insert", "remap", "gone", "MiB read", "written", "what")
    console.print(_SHARD_LINE.format(*names), style="bold", highlight=False)
    print_lines(
        console,
        *(
            _SHARD_LINE.format(
                shard.number,
                f"{shard.nodes:,}",
                f"{shard.insert:,}",
                f"{shard.remap:,}",
                f"{shard.tombstone:,}",
                f"{shard.bytes_read / MIB:,.1f}",
                f"{shard.bytes_written / MIB:,.1f}",
                f"{shard.how}: {shard.reason}",
            )
            for shard in estimate.shards
        ),
    )
