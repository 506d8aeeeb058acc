"""`icepuffin gc`."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from orchestration.cli.on_table import OnTable, on_table
from orchestration.cli.session import counted, print_json

if TYPE_CHECKING:
    from ops.index.report import GcReport

_MIB = 1 << 20


@click.command("gc")
@on_table
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    help="Keep what is younger. [default: retention.garbage_grace_hours]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def command(on: OnTable, /, grace_hours: float | None, *, dry_run: bool) -> None:
    """Let go of versions that the table's `keep` settings do not keep, and delete files that nothing references.

    Versions that stay and everything that icepuffin did not write are never touched. Look first with --dry-run.

    \b
    Example:
      icepuffin gc demo.packages --dry-run
    """
    from ops.graphs.upkeep import collect

    session, spec = on.session, on.spec
    report = collect(
        on.loaded,
        storage=on.storage,
        retentions=spec.retentions,
        default=spec.retention,
        grace_hours=session.settings.retention.garbage_grace_hours if grace_hours is None else grace_hours,
        dry_run=dry_run,
    )
    if on.as_json:
        print_json(dataclasses.asdict(report))
        return
    for line in _told(report):
        session.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _told(report: "GcReport") -> Iterator[str]:
    would = "would " if report.dry_run else ""
    deleted = "would delete" if report.dry_run else "deleted"
    for item in report.retired:
        yield f"{would}let go of {item.name}'s version of snapshot {item.base_snapshot_id}: {item.why}"
    for tag in report.pinned:
        yield f"{would}tag {tag}: its snapshot is tagged"
    for path in report.deleted:
        yield f"{deleted} {path}"
    versions, files = counted(len(report.retired), "version"), counted(len(report.deleted), "file")
    yield f"{report.table}: {would}let go of {versions}, {deleted} {files} ({report.bytes_freed / _MIB:,.1f} MiB)"
    if report.retired_later or report.kept_young:
        versions, files = counted(report.retired_later, "version"), counted(report.kept_young, "file")
        yield f"within the grace period, and to go after it: {versions}, {files}"
