"""`icepuffin plan`."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from orchestration.cli.on_table import OnTable, on_table
from orchestration.cli.session import Session, print_json

if TYPE_CHECKING:
    from ops.index.estimate import Estimate

_MIB = 1 << 20
_LINE = "{:>6} {:>12} {:>10} {:>10} {:>10} {:>9} {:>9}  {}"


@click.command("plan")
@on_table
@click.argument("index", required=False)
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
def command(on: OnTable, /, index: str | None, snapshot: str | None) -> None:
    """Say what a refresh of the table's indexes will do and take, before it does anything. Writes nothing.

    Reads metadata, where the rows of the last version lie, and a sample of vectors where files were rewritten. Which
    shard a new row goes to is known only when it is read: rows to insert are expected values.

    \b
    Examples:
      icepuffin plan demo.packages
      icepuffin plan demo.packages embedding --snapshot 3821550127947089009 --json
    """
    from ops.graphs.versions import estimate_snapshot  # noqa: PLC0415

    session, spec = on.session, on.spec
    snapshot_id = on.snapshot_id(snapshot or spec.watched_refs[0])
    found = {
        item.name: estimate_snapshot(
            session.catalogs,
            session.engine,
            spec.catalog,
            on.name,
            item,
            snapshot_id,
            watched_ref=spec.watched_refs[0],
        )
        for item in on.chosen(index)
    }
    costs = {name: _cost(session, item) for name, item in found.items()}
    if on.as_json:
        shown = {name: {**dataclasses.asdict(item), **costs[name]} for name, item in found.items()}
        print_json({"table": on.name, "snapshot_id": str(snapshot_id), "indexes": shown})
        return
    if not found:
        session.console.print(f"{on.name} has no index; make one with: icepuffin index create {on.name} --help")
    for name, item in found.items():
        session.console.rule(f"{name}, snapshot {snapshot_id}", align="left")
        _show(session, item, costs[name])


def _cost(session: Session, expected: "Estimate") -> dict[str, Any]:
    prices = session.engine.prices
    if prices is None:
        return {}
    cost = prices.cost(seconds=expected.seconds, bytes_written=expected.bytes_written)
    return {"cost": round(cost, 6), "currency": prices.currency}


def _show(session: Session, expected: "Estimate", cost: dict[str, Any]) -> None:
    told = {
        "action": f"{expected.action}: {expected.reason}",
        "rows": f"{expected.inserted:,} to insert, {expected.remapped:,} moved, {expected.tombstoned:,} gone",
        "shards": f"{len(expected.shards)}: {expected.shards_rebuilt} to rebuild, {expected.shards_copied} kept",
        "MiB": f"{expected.bytes_read / _MIB:,.1f} to read, {expected.bytes_written / _MIB:,.1f} to write",
        "seconds": f"{expected.seconds:,.1f} ({expected.rates})",
    }
    if cost:
        told["cost"] = f"{cost['cost']:,.4f} {cost['currency']}"
    for key, value in told.items():
        session.console.print(f"{key:>10}  {value}", highlight=False, soft_wrap=True)
    if expected.shards:
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
