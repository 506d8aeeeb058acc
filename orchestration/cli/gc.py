"""`icepuffin gc`."""

import math
from typing import Any

import click

from icepuffin.ops.model import MAX_GRACE_HOURS
from icepuffin.orchestration.cli.output import print_json, print_lines, report_document
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command


class _Hours(click.FloatRange):
    """A number of hours. click itself lets `nan` pass any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        hours: float = super().convert(value, param, ctx)
        if math.isnan(hours):
            self.fail("nan is no number of hours", param, ctx)
        return hours


@click.command("gc")
@metadata_command
@click.option(
    "--grace-hours",
    type=_Hours(0, MAX_GRACE_HOURS),
    help="Keep what is younger. [default: retention.garbage_grace_hours]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def command(context: TableContext, /, grace_hours: float | None, *, dry_run: bool) -> None:
    """Expire versions that the table's `keep` settings do not keep, and delete files that nothing references.

    Versions that stay and everything that icepuffin did not write are never touched. Look first with --dry-run.

    \b
    Example:
      icepuffin gc demo.packages --dry-run
    """
    from icepuffin.ops.runs.maintenance import collect_table_garbage

    default_hours = context.session.settings.retention.garbage_grace_hours
    report = collect_table_garbage(
        context.table,
        storage=context.storage,
        retentions=context.spec.retentions,
        default=context.spec.retention,
        grace_hours=default_hours if grace_hours is None else grace_hours,
        dry_run=dry_run,
        recall_reports=context.settings.recall_reports,
    )
    if context.as_json:
        print_json(report_document(report))
    else:
        print_lines(context.console, *report.lines())
