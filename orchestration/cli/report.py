"""`icepuffin report`."""

from pathlib import Path

import click

from icepuffin.ops.messages import plural
from icepuffin.orchestration.cli.output import confirm, print_json, print_lines
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command


@click.command("report")
@metadata_command
@click.option(
    "--output", "-o", "path", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: TABLE.html]"
)
@click.option("--yes", is_flag=True, help="Replace a file that is no report, without a prompt for confirmation.")
def command(context: TableContext, /, path: Path | None, *, yes: bool) -> None:
    """Write a page on a table, as one HTML file: snapshots, index versions, recall by cost, shards, sizes, distinct
    values, and what is behind, with the command that mends it.

    A report that is there is replaced. Reads metadata and the map of each index, and no vectors.

    \b
    Examples:
      icepuffin report demo.packages
      icepuffin report demo.packages -o /srv/www/packages.html --json
    """
    path = Path(f"{context.name}.html") if path is None else path
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"--output {path}: there is no folder {path.absolute().parent}")

    from icepuffin.assets.report.report_file import is_free, write_page
    from icepuffin.assets.report.table_report import table_report

    report = table_report(context.table, context.spec, context.storage)
    if not yes and not is_free(path):
        confirm(f"Replace {path}? It is no report", f"{path} is there and is no report")
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
