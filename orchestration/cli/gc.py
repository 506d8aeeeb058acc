"""`icepuffin gc`."""

import dataclasses
from pathlib import Path

import click

from orchestration.cli.index import catalog_option, json_option, table_argument
from orchestration.cli.session import Session, located, print_json


@click.command("gc")
@table_argument
@catalog_option
@click.option("--grace-hours", type=float, help="Keep younger files. [default: retention.garbage_grace_hours]")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@located
@click.pass_obj
def command(
    session: Session,
    table: str,
    catalog: str | None,
    grace_hours: float | None,
    directory: Path | None,
    settings: Path | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete files that failed attempts left and that no table metadata references.

    Published versions are never touched: they go with their snapshots, by Iceberg's own expiry.

    \b
    Example:
      icepuffin gc demo.packages --dry-run
    """
    from ops.graphs.upkeep import collect  # noqa: PLC0415

    session = session.at(directory, settings)
    grace = session.settings.retention.garbage_grace_hours if grace_hours is None else grace_hours
    report = collect(session.catalogs, session.catalog_name(catalog, table), table, grace_hours=grace, dry_run=dry_run)
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    for key, value in dataclasses.asdict(report).items():
        session.console.print(f"{key:>20}  {value}", highlight=False)
