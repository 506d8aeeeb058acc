"""`icepuffin refresh`."""

import click

from icepuffin.orchestration.cli.output import print_grid, print_json, print_lines, progress_bars, report_document
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command


@click.command("refresh")
@metadata_command
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
@index_name("Only this index, and no sketches. [default: all of the table, and the sketches]")
@click.option("--verify", is_flag=True, help="Read versions and sketches through first; damaged ones are made anew.")
def command(context: TableContext, /, snapshot: str | None, index: str | None, *, verify: bool) -> None:
    """Make the sketches and index versions of one snapshot now, without Dagster.

    What exists is not made again; the rest costs its difference from the nearest version. A build that missed the
    target recall before is made again only where --index asks for it, or a fifth of the rows are others.

    \b
    Examples:
      icepuffin refresh demo.packages
      icepuffin refresh demo.packages --snapshot 6170229538723520381 --index embedding --json
    """
    from icepuffin.ops.runs.snapshot import refresh_snapshot
    from icepuffin.ops.theta.theta_report import SKETCH_STAGE

    with progress_bars(quiet=context.as_json) as bars:

        def show(name: str, stage: str, done: int, total: int) -> None:
            bars(name if stage == SKETCH_STAGE else f"index {name}: {stage}", done, total)

        refreshed = refresh_snapshot(
            **context.work(index, snapshot),
            verify=verify,
            again=index is not None,
            progress=show,
            refused=context.left_out.values() if index is None else (),
        )
    sketches, indexes = refreshed.sketches, refreshed.indexes
    if context.as_json:
        counted = {} if sketches is None else {"theta_sketches": report_document(sketches)}
        made = {name: report_document(report) for name, report in indexes.items()}
        print_json({"table": context.name, "snapshot_id": str(refreshed.snapshot_id), **counted, "indexes": made})
        return
    if sketches is None and not indexes:
        print_lines(context.console, f"{context.name}: nothing to make, sketches are off and there is no index")
    for grid in refreshed.grids():
        print_grid(context.console, grid)
