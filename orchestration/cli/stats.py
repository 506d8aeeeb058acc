"""`icepuffin stats`."""

from pathlib import Path
from typing import Any

import click

from orchestration.cli.on_table import catalog_option, json_option, table_argument
from orchestration.cli.session import Session, located, print_json


@click.command("stats")
@table_argument
@catalog_option
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: main]")
@json_option
@located
@click.pass_obj
def command(
    session: Session,
    table: str,
    catalog: str | None,
    snapshot: str | None,
    directory: Path | None,
    settings: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show how many distinct values each column has, whether that is fresh, and which index versions exist.

    \b
    Example:
      icepuffin stats demo.packages --json
    """
    from ops.catalog.snapshots import resolve_snapshot  # noqa: PLC0415
    from ops.catalog.versions import versions  # noqa: PLC0415
    from ops.graphs.rows import snapshot_rows  # noqa: PLC0415
    from ops.theta import read_ndv  # noqa: PLC0415

    session = session.at(directory, settings)
    spec = session.spec(catalog, table)
    loaded = session.catalogs.table(spec.catalog, table)
    snapshot_id = resolve_snapshot(loaded, snapshot).snapshot_id
    statistics = read_ndv(loaded, snapshot_id)
    indexes = {item.name: versions(loaded, "ann", item.name) for item in spec.indexes}
    told: dict[str, Any] = {
        "table": table,
        "catalog": spec.catalog,
        "snapshot_id": str(snapshot_id),
        "records": snapshot_rows(loaded, snapshot_id),
        "fresh": statistics.fresh,
        "statistics_path": statistics.statistics_path,
        "ndv": {name: entry.ndv for name, entry in statistics.entries.items()},
        "columns": {
            name: {"ndv": entry.ndv, "fresh": entry.fresh, "why": entry.why}
            for name, entry in statistics.entries.items()
        },
        "indexes": {
            name: {
                "versions": len(found),
                "snapshots": [str(version.base_snapshot_id) for version in found],
                "covers_snapshot": snapshot_id in {version.base_snapshot_id for version in found},
            }
            for name, found in indexes.items()
        },
    }
    if as_json:
        print_json(told)
        return
    _show(session, told)


def _show(session: Session, told: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415

    shown = Table("column", "distinct values", "fresh", title=f"{told['table']} at snapshot {told['snapshot_id']}")
    for name, entry in told["columns"].items():
        shown.add_row(name, f"{entry['ndv']:,}", "yes" if entry["fresh"] else entry["why"])
    if told["columns"]:
        session.console.print(shown)
    else:
        session.console.print(f"{told['table']}: no sketches yet; make them with: icepuffin refresh {told['table']}")
    for name, found in told["indexes"].items():
        covered = "has a version for this snapshot" if found["covers_snapshot"] else "has no version for this snapshot"
        session.console.print(f"index [bold]{name}[/]: {found['versions']} versions; it {covered}")
