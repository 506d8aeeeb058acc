"""`icepuffin gc`."""

import dataclasses
from pathlib import Path

import click

from orchestration.cli.on_table import catalog_option, json_option, table_argument
from orchestration.cli.session import Session, located, print_json


@click.command("gc")
@table_argument
@catalog_option
@click.option("--grace-hours", type=float, help="Keep what is younger. [default: retention.garbage_grace_hours]")
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
    """Let go of versions that the table's `keep` settings do not keep, and delete files that nothing references.

    Versions that stay and everything that icepuffin did not write are never touched. Look first with --dry-run.

    \b
    Example:
      icepuffin gc demo.packages --dry-run
    """
    from ops.graphs.upkeep import collect  # noqa: PLC0415

    session = session.at(directory, settings)
    spec = session.spec(catalog, table)
    report = collect(
        session.catalogs,
        spec.catalog,
        table,
        retentions=spec.retentions,
        default=spec.retention,
        grace_hours=session.settings.retention.garbage_grace_hours if grace_hours is None else grace_hours,
        dry_run=dry_run,
    )
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    would = "would " if dry_run else ""
    for item in report.retired:
        told = f"{would}let go of {item.name}'s version of snapshot {item.base_snapshot_id}: {item.why}"
        session.console.print(told, highlight=False, soft_wrap=True)
    for tag in report.pinned:
        session.console.print(f"{would}keep {tag}: its snapshot is tagged", highlight=False, soft_wrap=True)
    for path in report.deleted:
        session.console.print(f"{would}delete {path}", highlight=False, soft_wrap=True)
    session.console.print(
        f"{report.table}: {len(report.retired)} versions, {len(report.deleted)} files, {report.bytes_freed:,} bytes; "
        f"{report.kept_young} files are too young",
        highlight=False,
        soft_wrap=True,
    )
