"""`icepuffin gc`."""

import click

from icepuffin.orchestration.cli.output import print_json, print_lines, report_document
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command


@click.command("gc")
@metadata_command
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def command(context: TableContext, /, *, dry_run: bool) -> None:
    """Expire versions that the table's `keep` settings do not keep, and delete files that nothing references.

    Nothing younger than retention.garbage_grace_hours goes. Versions that stay and everything that icepuffin did not
    write are never touched. Look first with --dry-run.

    \b
    Example:
      icepuffin gc demo.packages --dry-run
    """
    from icepuffin.ops.runs.maintenance import collect_table_garbage

    report = collect_table_garbage(
        context.table,
        storage=context.storage,
        retentions=context.spec.retentions,
        default=context.spec.retention,
        grace_hours=context.session.settings.retention.garbage_grace_hours,
        dry_run=dry_run,
        recall_reports=context.settings.recall_reports,
    )
    if context.as_json:
        print_json(report_document(report))
    else:
        print_lines(context.console, *report.lines())
