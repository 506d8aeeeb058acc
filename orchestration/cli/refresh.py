"""`icepuffin refresh`."""

from typing import TYPE_CHECKING

import click

from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB, Action, SnapshotId
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.orchestration.cli.output import (
    print_fields,
    print_json,
    print_lines,
    progress_bars,
    report_document,
)
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command

if TYPE_CHECKING:
    from icepuffin.ops.index.planning.index_report import IndexReport
    from icepuffin.ops.runs.snapshot import RefreshReport
    from icepuffin.ops.theta.theta_report import ThetaReport


@click.command("refresh")
@metadata_command
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
@index_name("Only this index, and no sketches. [default: all of the table, and the sketches]")
@click.option("--verify", is_flag=True, help="Read versions and sketches through first; damaged ones are made anew.")
def command(context: TableContext, /, snapshot: str | None, index: str | None, *, verify: bool) -> None:
    """Make the sketches and index versions of one snapshot now, without Dagster.

    What exists is not made again; the rest costs its difference from the nearest version.

    \b
    Examples:
      icepuffin refresh demo.packages
      icepuffin refresh demo.packages --snapshot 6170229538723520381 --index embedding --json
    """
    snapshot_id = context.snapshot_id(context.spec.first_ref if snapshot is None else snapshot)
    refreshed = _refresh(context, snapshot_id, index, verify=verify)
    sketches, indexes = refreshed.sketches, refreshed.indexes
    if context.as_json:
        reports = {} if sketches is None else {"theta_sketches": report_document(sketches)}
        reports |= {name: report_document(report) for name, report in indexes.items()}
        print_json({"table": context.name, "snapshot_id": str(snapshot_id), **reports})
        return
    if sketches is None and not indexes:
        print_lines(context.console, f"{context.name}: nothing to make, sketches are off and there is no index")
    if sketches is not None:
        _print_heading(context, "theta_sketches", snapshot_id)
        print_fields(context.console, _sketch_fields(sketches))
    for name, report in indexes.items():
        _print_heading(context, name, snapshot_id)
        print_fields(context.console, _index_fields(report))


def _refresh(context: TableContext, snapshot_id: SnapshotId, index: str | None, *, verify: bool) -> "RefreshReport":
    from icepuffin.ops.runs.snapshot import refresh_snapshot
    from icepuffin.ops.theta.theta_report import SKETCH_STAGE

    spec = context.spec
    definitions = context.indexes_named(index)
    with progress_bars(quiet=context.as_json) as bars:

        def show(name: str, stage: str, done: int, total: int) -> None:
            bars(name if stage == SKETCH_STAGE else f"index {name}: {stage}", done, total)

        return refresh_snapshot(
            context.session.engine.run_on(context.table, snapshot_id, spec.first_ref),
            snapshot_id,
            definitions,
            sketches=spec.settings.statistics.keeps_ndv and index is None,
            columns=spec.settings.statistics.ndv_columns,
            verify=verify,
            progress=show,
        )


def _print_heading(context: TableContext, name: str, snapshot_id: SnapshotId) -> None:
    from rich.text import Text

    context.console.print(Text.assemble((name, "bold"), f", snapshot {snapshot_id}"))


def _sketch_fields(report: "ThetaReport") -> dict[str, str]:
    fields = {
        "action": f"{report.outcome}: {plural(report.files_sketched, 'file')} read, "
        f"{report.files_reused:,} known from before",
        "distinct": ", ".join(f"{name} {ndv:,}" for name, ndv in report.ndv.items()),
        "MiB": f"{report.bytes_written / MIB:,.1f} written",
        "seconds": f"{report.seconds:,.1f}" + _expected_seconds(report),
        "file": report.statistics_path or "",
        "note": report.note,
    }
    return {key: text for key, text in fields.items() if text}


def _index_fields(report: "IndexReport") -> dict[str, str]:
    if report.index_snapshot_id is None:
        return {"action": f"nothing to publish: {report.reason}"}
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.stage_seconds.items() if seconds >= 0.05)
    fields = {
        "action": f"{report.action}: {report.reason}",
        "rows": f"{report.rows:,} in {plural(report.files, 'file')}: {report.inserted:,} inserted, "
        f"{report.remapped:,} moved, {report.gone:,} gone"
        + (f"; {report.merged:,} merged from deltas" if report.merged else "")
        + (f"; {report.without_vector:,} have no vector" if report.without_vector else ""),
        "shards": _shard_counts(report),
        "recall@10": _recall(report),
        "self-search": report.self_search.summary if report.self_search else "",
        "MiB": f"{report.bytes_total / MIB:,.1f}, {report.bytes_written / MIB:,.1f} of it newly written"
        + (f", {report.bytes_shared / MIB:,.1f} shared with other versions" if report.bytes_shared else ""),
        "seconds": f"{report.seconds:,.1f}" + (f" ({stages})" if stages else "") + _expected_seconds(report),
        "version": str(report.index_snapshot_id or ""),
        "file": report.puffin_path or "",
    }
    return {key: text for key, text in fields.items() if text}


def _recall(report: "IndexReport") -> str:
    recall, basis = report.recall, report.recall_basis
    if recall is None or basis is None:
        return ""
    low, high = confidence_interval(recall, basis.queries)
    wide = "" if basis.wide is None else f"recall@100 {basis.wide:.4f}"
    return "; ".join(filter(None, [f"{recall:.4f} ({low:.3f} to {high:.3f})", wide, basis.summary]))


def _shard_counts(report: "IndexReport") -> str:
    if not report.shards:
        return "none: balls around the vectors of each file alone"
    if report.action is Action.BUILT:
        return f"{report.shards}: all built"
    return (
        f"{report.shards}: {report.shards_rebuilt} rebuilt, {report.shards_copied} copied; "
        f"{plural(report.deltas, 'delta')}, {plural(report.tombstones, 'tombstone')}"
    )


def _expected_seconds(report: "IndexReport | ThetaReport") -> str:
    return f"; {report.estimate.seconds:,.1f} expected" if report.estimate else ""
