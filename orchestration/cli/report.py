"""`icepuffin report`."""

from pathlib import Path

import click

from icepuffin.ops.messages import plural
from icepuffin.orchestration.cli.output import print_json, print_lines
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command


@click.command("report")
@metadata_command
@click.option("--output", "-o", "path", type=click.Path(path_type=Path), help="The file. [default: TABLE.html]")
def command(context: TableContext, /, path: Path | None) -> None:
    """Write a page on a table, as one HTML file: snapshots, index versions, recall by cost, shards, sizes, distinct
    values, and what is behind, with the command that mends it.

    A report that is there is replaced, no other file. Reads metadata, and of each index its map and the
    columns in filters, and no vectors.

    \b
    Examples:
      icepuffin report demo.packages
      icepuffin report demo.packages -o /srv/www/packages.html --json
    """
    from icepuffin.assets.report.report_file import require_folder, write_page
    from icepuffin.assets.report.table_report import table_report

    path = Path(f"{context.name}.html") if path is None else path
    require_folder(path)
    report = table_report(context.table, context.spec, context.storage)
    write_page(report, path)
    if context.as_json:
        behind = [{"text": shortfall.text, "command": shortfall.command} for shortfall in report.shortfalls]
        print_json({"table": context.name, "path": str(path), "behind": behind})
        return
    print_lines(
        context.console,
        f"written to {path}: {plural(report.snapshot_count, 'snapshot')}, {plural(len(report.indexes), 'index')}",
    )
    print_lines(
        context.console,
        *(f"behind: {it.text}" + (f" Mend it with: {it.command}" if it.command else "") for it in report.shortfalls),
    )
