"""`icepuffin refresh`."""

from functools import partial
from typing import Any

import click

from orchestration.cli.on_table import OnTable, on_table
from orchestration.cli.session import Bars, print_json, told


@click.command("refresh")
@on_table
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
@click.option(
    "--index", "index", help="Only this index, and no sketches. [default: all of the table, and the sketches]"
)
def command(on: OnTable, /, snapshot: str | None, index: str | None) -> None:
    """Make the sketches and index versions of one snapshot now, without Dagster.

    What exists is found and not made again; the rest costs its difference from the nearest version.

    \b
    Examples:
      icepuffin refresh demo.packages
      icepuffin refresh demo.packages --snapshot 6170229538723520381 --index embedding --json
    """
    from ops.graphs.sketches import sketch_snapshot  # noqa: PLC0415
    from ops.graphs.versions import index_snapshot  # noqa: PLC0415

    session, spec = on.session, on.spec
    snapshot_id = on.snapshot_id(snapshot or spec.watched_refs[0])
    chosen = on.chosen(index)
    reports: dict[str, Any] = {}
    with session.bars(quiet=on.as_json) as bars:
        if spec.theta_sketches and index is None:
            reports["theta_sketches"] = sketch_snapshot(
                session.catalogs,
                session.engine,
                spec.catalog,
                on.name,
                snapshot_id,
                columns=spec.theta_columns,
                progress=partial(bars, "sketches"),
            )
        for item in chosen:
            reports[item.name] = index_snapshot(
                session.catalogs,
                session.engine,
                spec.catalog,
                on.name,
                item,
                snapshot_id,
                watched_ref=spec.watched_refs[0],
                progress=partial(_staged, bars, item.name),
            )
    shown = {name: told(report) for name, report in reports.items()}
    if on.as_json:
        print_json({"table": on.name, "snapshot_id": str(snapshot_id), **shown})
        return
    for name, report in shown.items():
        session.console.rule(f"{name}, snapshot {snapshot_id}", align="left")
        for key, value in report.items():
            session.console.print(f"{key:>20}  {value}", highlight=False)


def _staged(bars: Bars, index: str, stage: str, done: int, total: int) -> None:
    bars(f"index {index}: {stage}", done, total)
