"""`icepuffin gc`."""

import dataclasses

import click

from icepuffin.orchestration.cli.session import print_json
from icepuffin.orchestration.cli.table_options import OnTable, on_table


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
    from icepuffin.ops.runs.maintenance import collect, told

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
    for line in told(report):
        session.console.print(line, highlight=False, markup=False, soft_wrap=True)
