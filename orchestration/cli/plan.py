"""`icepuffin plan`."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Session, print_json
from icepuffin.orchestration.cli.table_options import OnTable, on_table

if TYPE_CHECKING:
    from icepuffin.ops.index.report import Estimate
    from icepuffin.ops.theta import ThetaEstimate

_MIB = 1 << 20
_UNTOUCHED = {
    "current": "these sketches are registered",
    "no columns": "no column is to have a sketch",
    "off": "sketches are switched off",
}
_ACTIONS = {
    "built": "build",
    "refreshed": "refresh",
    "reused": "nothing to do",
    "retagged": "move the tag",
    "empty": "nothing to publish",
}
"""Before the work, of what its report will call by the key."""
_LINE = "{:>6} {:>12} {:>10} {:>10} {:>10} {:>9} {:>9}  {}"


@click.command("plan")
@on_table
@click.argument("index", required=False)
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
def command(on: OnTable, /, index: str | None, snapshot: str | None) -> None:
    """Say what a refresh of the table's sketches and indexes will do and take, before it does anything. Writes nothing.

    Reads metadata, where the rows of the last version lie, and a sample of vectors where files were rewritten. Which
    shard a new row goes to is known only when it is read: rows to insert are expected values.

    \b
    Examples:
      icepuffin plan demo.packages
      icepuffin plan demo.packages embedding --snapshot 3821550127947089009 --json
    """
    from icepuffin.ops.runs.index import estimate_snapshot
    from icepuffin.ops.runs.sketches import estimate_sketches

    session, spec = on.session, on.spec
    snapshot_id = on.snapshot_id(snapshot or spec.first_ref)
    chosen = on.chosen(index)
    where: Any = {"engine": session.engine, "storage": on.storage}
    sketches = (
        estimate_sketches(on.loaded, snapshot_id, **where, columns=spec.settings.theta_columns)
        if spec.settings.theta_sketches and index is None
        else None
    )
    found = {
        item.name: estimate_snapshot(on.loaded, item, snapshot_id, **where, watched_ref=spec.first_ref)
        for item in chosen
    }
    if on.as_json:
        shown = {name: {**dataclasses.asdict(item), **_cost(session, item)} for name, item in found.items()}
        theta = {"theta_sketches": {**dataclasses.asdict(sketches), **_cost(session, sketches)}} if sketches else {}
        print_json({"table": on.name, "snapshot_id": str(snapshot_id), **theta, "indexes": shown})
        return
    if sketches is not None:
        session.console.rule(f"theta sketches, snapshot {snapshot_id}", align="left")
        _show_sketches(session, sketches)
    if not found:
        session.console.print(f"{on.name} has no index; make one with: icepuffin index create {on.name} --help")
    for name, item in found.items():
        session.console.rule(f"{name}, snapshot {snapshot_id}", align="left")
        _show(session, item)


def _cost(session: Session, expected: "Estimate | ThetaEstimate") -> dict[str, Any]:
    prices = session.engine.prices
    return {"cost": round(prices.of(expected), 6), "currency": prices.currency} if prices else {}


def _show_sketches(session: Session, expected: "ThetaEstimate") -> None:
    if expected.outcome != "written":
        _show_lines(session, {"action": f"nothing to do: {_UNTOUCHED[expected.outcome]}"})
        return
    told = {
        "action": "count what is new, unite, register",
        "files": f"{expected.files_sketched:,} to sketch, {expected.files_reused:,} known",
        "values": f"{expected.values:,} to read, of {expected.columns} columns",
    }
    _show_totals(session, told, expected)


def _show_totals(session: Session, told: dict[str, str], expected: "Estimate | ThetaEstimate") -> None:
    told["MiB"] = f"{expected.bytes_read / _MIB:,.1f} to read, {expected.bytes_written / _MIB:,.1f} to write"
    told["seconds"] = f"{expected.seconds:,.1f} ({expected.rates})"
    if cost := _cost(session, expected):
        told["cost"] = f"{cost['cost']:,.4f} {cost['currency']}"
    _show_lines(session, told)


def _show_lines(session: Session, told: dict[str, str]) -> None:
    for key, value in told.items():
        session.console.print(f"{key:>10}  {value}", highlight=False, markup=False, soft_wrap=True)


def _show(session: Session, expected: "Estimate") -> None:
    action = f"{_ACTIONS[expected.action]}: {expected.reason}"
    if not expected.shards:
        _show_lines(session, {"action": action})
        return
    told = {
        "action": action,
        "rows": f"{expected.inserted:,} to insert, {expected.remapped:,} moved, {expected.tombstoned:,} gone"
        + (f"; {expected.merged:,} to deal out from deltas" if expected.merged else ""),
        "shards": f"{len(expected.shards)}: all to build"
        if expected.action == "built"
        else f"{len(expected.shards)}: {expected.shards_rebuilt} to rebuild, {expected.shards_copied} kept",
    }
    _show_totals(session, told, expected)
    heads = ("shard", "nodes", "insert", "remap", "gone", "MiB read", "written", "what")
    session.console.print(_LINE.format(*heads), style="bold", highlight=False, soft_wrap=True)
    for shard in expected.shards:
        line = _LINE.format(
            shard.number,
            f"{shard.nodes:,}",
            f"{shard.insert:,}",
            f"{shard.remap:,}",
            f"{shard.tombstone:,}",
            f"{shard.bytes_read / _MIB:,.1f}",
            f"{shard.bytes_written / _MIB:,.1f}",
            f"{shard.how}: {shard.reason}",
        )
        session.console.print(line, highlight=False, soft_wrap=True)
