"""`icepuffin refresh`."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Bars, counted, print_json, told
from icepuffin.orchestration.cli.table_options import OnTable, on_table

if TYPE_CHECKING:
    from icepuffin.ops.index.report import IndexReport
    from icepuffin.ops.theta.report import ThetaReport

_SKETCHES = "theta_sketches"
_MIB = 1 << 20


@click.command("refresh")
@on_table
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
@click.option(
    "--index", "index", help="Only this index, and no sketches. [default: all of the table, and the sketches]"
)
@click.option("--verify", is_flag=True, help="Read versions through first; a damaged one is made anew.")
def command(on: OnTable, /, snapshot: str | None, index: str | None, *, verify: bool) -> None:
    """Make the sketches and index versions of one snapshot now, without Dagster.

    What exists is found and not made again; the rest costs its difference from the nearest version.

    \b
    Examples:
      icepuffin refresh demo.packages
      icepuffin refresh demo.packages --snapshot 6170229538723520381 --index embedding --json
    """
    from icepuffin.ops.runs.index import index_snapshot
    from icepuffin.ops.runs.sketches import sketch_snapshot

    session, spec = on.session, on.spec
    snapshot_id = on.snapshot_id(snapshot or spec.first_ref)
    chosen = on.chosen(index)
    reports: dict[str, Any] = {}
    with session.bars(quiet=on.as_json) as bars:
        if spec.settings.theta_sketches and index is None:
            reports[_SKETCHES] = sketch_snapshot(
                on.loaded,
                snapshot_id,
                engine=session.engine,
                storage=on.storage,
                columns=spec.settings.theta_columns,
                progress=partial(bars, "sketches"),
            )
        for item in chosen:
            reports[item.name] = index_snapshot(
                on.loaded,
                item,
                snapshot_id,
                engine=session.engine,
                storage=on.storage,
                watched_ref=spec.first_ref,
                verify=verify,
                progress=partial(_staged, bars, item.name),
            )
    if on.as_json:
        shown = {name: told(report) for name, report in reports.items()}
        print_json({"table": on.name, "snapshot_id": str(snapshot_id), **shown})
        return
    if not reports:
        session.console.print(f"{on.name}: nothing to make, sketches are off and there is no index", highlight=False)
    for name, report in reports.items():
        session.console.print(f"[bold]{name}[/], snapshot {snapshot_id}", highlight=False)
        lines = _of_sketches(report) if name == _SKETCHES else _of_index(report)
        for key, value in lines.items():
            session.console.print(f"{key:>10}  {value}", highlight=False, markup=False)


def _of_sketches(report: "ThetaReport") -> dict[str, str]:
    lines = {
        "action": f"{report.outcome}: {counted(report.files_sketched, 'file')} read, "
        f"{report.files_reused:,} known from before",
        "distinct": ", ".join(f"{name} {ndv:,}" for name, ndv in report.ndv.items()),
        "MiB": f"{report.bytes_written / _MIB:,.1f} written",
        "seconds": f"{report.seconds:,.1f}" + _expected(report),
        "file": report.statistics_path or "",
        "note": report.note,
    }
    return {key: line for key, line in lines.items() if line}


def _of_index(report: "IndexReport") -> dict[str, str]:
    if report.index_snapshot_id is None:
        return {"action": f"nothing to publish: {report.reason}"}
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.stage_seconds.items() if seconds >= 0.05)
    lines = {
        "action": f"{report.action}: {report.reason}",
        "rows": f"{report.rows:,} in {counted(report.files, 'file')}: {report.inserted:,} inserted, "
        f"{report.remapped:,} moved, {report.gone:,} gone"
        + (f"; {report.merged:,} dealt out from deltas" if report.merged else "")
        + (f"; {report.without_vector:,} have no vector" if report.without_vector else ""),
        "shards": _shards(report),
        "recall@10": f"{report.recall:.4f}",
        "MiB": f"{report.bytes_total / _MIB:,.1f}, {report.bytes_written / _MIB:,.1f} of it newly written",
        "seconds": f"{report.seconds:,.1f}" + (f" ({stages})" if stages else "") + _expected(report),
        "version": str(report.index_snapshot_id or ""),
        "file": report.puffin_path or "",
    }
    return {key: line for key, line in lines.items() if line}


def _shards(report: "IndexReport") -> str:
    if report.action == "built":
        return f"{report.shards}: all built"
    return (
        f"{report.shards}: {report.shards_rebuilt} rebuilt, {report.shards_copied} copied; "
        f"{counted(report.deltas, 'delta')}, {counted(report.tombstones, 'tombstone')}"
    )


def _expected(report: "IndexReport | ThetaReport") -> str:
    return f"; {report.estimate.seconds:,.1f} expected" if report.estimate else ""


def _staged(bars: Bars, index: str, stage: str, done: int, total: int) -> None:
    bars(f"index {index}: {stage}", done, total)
