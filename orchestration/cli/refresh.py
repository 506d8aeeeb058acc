"""`icepuffin refresh`."""

from functools import partial
from typing import TYPE_CHECKING

import click

from icepuffin.orchestration.cli.output import (
    MIB,
    ProgressBars,
    plural,
    print_fields,
    print_json,
    print_lines,
    progress_bars,
    report_document,
)
from icepuffin.orchestration.cli.table_options import TableContext, table_command

if TYPE_CHECKING:
    from icepuffin.ops.index.report import IndexReport
    from icepuffin.ops.theta.report import ThetaReport


@click.command("refresh")
@table_command
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: the newest of the watched ref]")
@click.option(
    "--index", "index", help="Only this index, and no sketches. [default: all of the table, and the sketches]"
)
@click.option("--verify", is_flag=True, help="Read versions through first; a damaged one is made anew.")
def command(context: TableContext, /, snapshot: str | None, index: str | None, *, verify: bool) -> None:
    """Make the sketches and index versions of one snapshot now, without Dagster.

    What exists is not made again; the rest costs its difference from the nearest version.

    \b
    Examples:
      icepuffin refresh demo.packages
      icepuffin refresh demo.packages --snapshot 6170229538723520381 --index embedding --json
    """
    snapshot_id = context.snapshot_id(snapshot or context.spec.first_ref)
    sketches, indexes = _refresh(context, snapshot_id, index, verify=verify)
    if context.as_json:
        reports = {} if sketches is None else {"theta_sketches": report_document(sketches)}
        reports |= {report.index: report_document(report) for report in indexes}
        print_json({"table": context.name, "snapshot_id": str(snapshot_id), **reports})
        return
    if sketches is None and not indexes:
        print_lines(context.console, f"{context.name}: nothing to make, sketches are off and there is no index")
    if sketches is not None:
        _print_heading(context, "theta_sketches", snapshot_id)
        print_fields(context.console, _sketch_fields(sketches))
    for report in indexes:
        _print_heading(context, report.index, snapshot_id)
        print_fields(context.console, _index_fields(report))


def _refresh(
    context: TableContext, snapshot_id: int, index: str | None, *, verify: bool
) -> "tuple[ThetaReport | None, list[IndexReport]]":
    """The report on the sketches, None where they are not refreshed; and a report per index."""
    from icepuffin.ops.runs.index import refresh_index
    from icepuffin.ops.runs.sketches import refresh_sketches

    spec, engine = context.spec, context.session.engine
    definitions = context.indexes_named(index)
    sketches = None
    with progress_bars(quiet=context.as_json) as bars:
        if spec.settings.theta_sketches and index is None:
            sketches = refresh_sketches(
                context.table,
                snapshot_id,
                engine=engine,
                storage=context.storage,
                columns=spec.settings.theta_columns,
                progress=partial(bars, "sketches"),
            )
        indexes = [
            refresh_index(
                context.table,
                definition,
                snapshot_id,
                engine=engine,
                storage=context.storage,
                watched_ref=spec.first_ref,
                verify=verify,
                progress=partial(_show_stage, bars, definition.name),
            )
            for definition in definitions
        ]
    return sketches, indexes


def _show_stage(bars: ProgressBars, index: str, stage: str, done: int, total: int) -> None:
    bars(f"index {index}: {stage}", done, total)


def _print_heading(context: TableContext, name: str, snapshot_id: int) -> None:
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
        "recall@10": f"{report.recall:.4f}",
        "MiB": f"{report.bytes_total / MIB:,.1f}, {report.bytes_written / MIB:,.1f} of it newly written",
        "seconds": f"{report.seconds:,.1f}" + (f" ({stages})" if stages else "") + _expected_seconds(report),
        "version": str(report.index_snapshot_id or ""),
        "file": report.puffin_path or "",
    }
    return {key: text for key, text in fields.items() if text}


def _shard_counts(report: "IndexReport") -> str:
    if report.action == "built":
        return f"{report.shards}: all built"
    return (
        f"{report.shards}: {report.shards_rebuilt} rebuilt, {report.shards_copied} copied; "
        f"{plural(report.deltas, 'delta')}, {plural(report.tombstones, 'tombstone')}"
    )


def _expected_seconds(report: "IndexReport | ThetaReport") -> str:
    return f"; {report.estimate.seconds:,.1f} expected" if report.estimate else ""
