"""`icepuffin stats`."""

import dataclasses
from typing import Any

import click

from icepuffin.orchestration.cli.session import Session, cell, counted, print_json
from icepuffin.orchestration.cli.table_options import OnTable, on_table


@click.command("stats")
@on_table
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: main]")
def command(on: OnTable, /, snapshot: str | None) -> None:
    """Show how many distinct values each column has, whether that is fresh, and how far each index is.

    \b
    Example:
      icepuffin stats demo.packages --json
    """
    from icepuffin.ops.catalog.bound_versions import versions
    from icepuffin.ops.catalog.snapshots import snapshot_rows
    from icepuffin.ops.index.freshness import index_lag
    from icepuffin.ops.theta import read_ndv

    snapshot_id = on.snapshot_id(snapshot)
    statistics = read_ndv(on.loaded, snapshot_id)
    indexes = {item.name: (item, versions(on.loaded, "ann", item.name)) for item in on.indexes}
    told: dict[str, Any] = {
        "table": on.name,
        "catalog": on.spec.catalog,
        "snapshot_id": str(snapshot_id),
        "records": snapshot_rows(on.loaded, snapshot_id),
        "fresh": statistics.fresh,
        "statistics_path": statistics.statistics_path,
        "ndv": {name: entry.ndv for name, entry in statistics.entries.items()},
        "columns": {
            name: {"ndv": entry.ndv, "fresh": entry.fresh, "ours": entry.ours, "why": entry.why}
            for name, entry in statistics.entries.items()
        },
        "indexes": {
            name: {
                "versions": len(found),
                "snapshots": [str(version.base_snapshot_id) for version in found],
                "covers_snapshot": snapshot_id in {version.base_snapshot_id for version in found},
                "lag": dataclasses.asdict(index_lag(on.loaded, index, on.spec.first_ref)),
            }
            for name, (index, found) in indexes.items()
        },
    }
    if on.as_json:
        print_json(told)
        return
    _show(on.session, told)


def _show(session: Session, told: dict[str, Any]) -> None:
    from rich.table import Table

    title = cell(f"{told['table']} at snapshot {told['snapshot_id']}", 200)
    shown = Table("column", "distinct values", "fresh", title=title)
    for name, entry in told["columns"].items():
        shown.add_row(cell(name, 80), f"{entry['ndv']:,}", "yes" if entry["fresh"] else "no")
    if told["columns"]:
        session.console.print(shown)
        for why in dict.fromkeys(entry["why"] for entry in told["columns"].values() if not entry["fresh"]):
            session.console.print(f"not fresh: {why}", markup=False, highlight=False)
    else:
        remedy = f"icepuffin refresh {told['table']} --snapshot {told['snapshot_id']}"
        session.console.print(
            f"{told['table']} at snapshot {told['snapshot_id']}: no sketches; make them with: {remedy}",
            markup=False,
            highlight=False,
        )
    for name, found in told["indexes"].items():
        covered = "has a version for this snapshot" if found["covers_snapshot"] else "has no version for this snapshot"
        versions = counted(found["versions"], "version")
        session.console.print(f"index [bold]{name}[/]: {versions}; it {covered}{_behind(found['lag'])}")


def _behind(lag: dict[str, Any]) -> str:
    if not lag["snapshots"]:
        return ""
    return f"; {counted(lag['snapshots'], 'snapshot')} behind, the oldest of {lag['minutes']:,.0f} min ago"
