"""`icepuffin stats`."""

import dataclasses
import math
from shlex import quote
from typing import TYPE_CHECKING

import click

from icepuffin.ops.messages import plural, readable_bytes
from icepuffin.ops.model import SnapshotId
from icepuffin.orchestration.cli.output import (
    cell,
    print_grid,
    print_json,
    print_lines,
    print_warnings,
    report_document,
)
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.ops.index.upkeep.index_states import IndexState
    from icepuffin.ops.recall.recall_reports import ReportedRecall
    from icepuffin.ops.theta.snapshot_statistics import HistogramStatistic, SnapshotStatistics
    from icepuffin.ops.theta.theta_report import ThetaStatistics

_NAME_WIDTH = 80
_DRAWN = 60
"""Bars of a histogram, at most"""
_LINES = 4
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@click.command("stats")
@metadata_command
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: main]")
def command(context: TableContext, /, snapshot: str | None) -> None:
    """Show how many distinct values each column has, whether that is fresh, how far behind each index is,
    and the recall of live queries where readers report it (recall_reports).

    The numbers are estimates by theta sketches: exact up to some 4,096 values, within a few percent above.
    Statistics of other kinds, where the settings ask for any, are shown with what they may be off by.

    \b
    Example:
      icepuffin stats demo.packages --json
    """
    from icepuffin.ops.index.upkeep.freshness import missing_ref
    from icepuffin.ops.storage import StorageError
    from icepuffin.ops.table.snapshots import schema_at, snapshot_rows
    from icepuffin.ops.theta.errors import LostStatisticsError
    from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
    from icepuffin.ops.theta.ndv import read_ndv
    from icepuffin.ops.theta.snapshot_statistics import statistics_beside_ndvs
    from icepuffin.ops.theta.theta_estimate import files_over_budget

    snapshot_id = context.snapshot_id(snapshot)
    statistics = read_ndv(context.table, snapshot)
    others, lost = None, list[str]()
    try:
        schema = schema_at(context.table, snapshot)
        others = statistics_beside_ndvs(context.table, snapshot_id, schema, context.storage)
    except (LostStatisticsError, StorageError) as error:
        lost.append(str(error))
    states = context.index_states
    live = {state.definition.name: _live_recall(context, state.definition.name) for state in states}
    if context.as_json:
        rows = snapshot_rows(context.table, snapshot_id)
        print_json(
            {
                "table": context.name,
                "catalog": context.spec.catalog,
                "snapshot_id": str(snapshot_id),
                "records": rows,
                **_statistics_document(statistics),
                **({"statistics": others.to_arrow().to_pylist()} if others else {}),
                **({"left_out": [*others.left_out] if others else lost} if others or lost else {}),
                "files_over_budget": files_over_budget(context.table),
                "indexes": {
                    state.definition.name: _index_document(state, snapshot_id, *live[state.definition.name])
                    for state in states
                },
            }
        )
        return
    _show_statistics(context.console, context.name, statistics, others)
    print_warnings(context.console, lost)
    if over := files_over_budget(context.table):
        budget = f"over {readable_bytes(BUDGET_BYTES)}, to be read again where need be"
        print_lines(context.console, f"the kept sketches leave out {plural(over, 'file')}: {budget}")
    for state in states:
        _show_index(context.console, state, snapshot_id, *live[state.definition.name])
    if any(state.lag is None for state in states):
        print_warnings(context.console, [missing_ref(context.table, context.spec.first_ref)])


def _live_recall(context: TableContext, index: str) -> tuple["ReportedRecall | None", str]:
    """(what readers report of the newest version, error that kept it from being read)."""
    from icepuffin.ops.binding.bound_versions import tagged_version
    from icepuffin.ops.recall.recall_reports import RecallReportError, RecallReports
    from icepuffin.ops.storage import StorageError

    folder, newest = context.settings.recall_reports, tagged_version(context.table, index)
    if not folder or newest is None:
        return None, ""
    try:
        reports = RecallReports(folder, context.storage, context.table.metadata.table_uuid)
        return reports.read(index, {newest.index_snapshot_id}).get(newest.index_snapshot_id), ""
    except (StorageError, RecallReportError) as error:
        return None, str(error)


def _statistics_document(statistics: "ThetaStatistics") -> dict[str, object]:
    return {
        "fresh": statistics.fresh,
        "statistics_path": statistics.statistics_path,
        "columns": {
            name: {"ndv": entry.ndv, "fresh": entry.fresh, "ours": entry.ours, "why": entry.why}
            for name, entry in statistics.entries.items()
        },
    }


def _index_document(
    state: "IndexState", snapshot_id: SnapshotId, live: "ReportedRecall | None", why: str
) -> dict[str, object]:
    return {
        "versions": len(state.versions),
        "snapshots": [*map(str, state.versions)],
        "covers_snapshot": snapshot_id in state.versions,
        "lag": dataclasses.asdict(state.lag) if state.lag else None,
        "live_recall": report_document(live) if live else None,
        "live_recall_why": why,
    }


def _show_statistics(
    console: "Console", table: str, statistics: "ThetaStatistics", others: "SnapshotStatistics | None"
) -> None:
    """NDVs, or the statistics of all kinds with a picture of each histogram."""
    remedy = f"icepuffin refresh {quote(table)} --snapshot {statistics.snapshot_id}"
    if not statistics.entries:
        title = f"{table} at snapshot {statistics.snapshot_id}"
        print_lines(console, f"{title}: no sketches; make them with: {remedy}")
        return
    values, *reasons = (others or statistics).grids()
    print_grid(console, values, width=_NAME_WIDTH)
    for name, histogram in others.histogram.items() if others else ():
        title = f"{cell(name, _DRAWN)}, the middle 99 % of {plural(histogram.count, 'value')}"
        print_lines(console, title, *_drawn(histogram))
    print_lines(console, *(f"{grid.title}: {reason}" for grid in reasons for (reason,) in grid.rows))
    if any(grid.title == "not fresh" for grid in reasons):
        print_lines(console, f"count them for this snapshot with: {remedy}")


def _drawn(histogram: "HistogramStatistic") -> list[str]:
    """Bars of four lines, with the values at both ends below them."""
    from icepuffin.ops.tasks.sketches.histogram_values import text_of

    if not (bars := histogram.bars(_DRAWN)):
        return []
    highest, last = max(bar.share for bar in bars) or 1.0, len(_EIGHTHS) - 1
    heights = [math.ceil(_LINES * last * bar.share / highest) for bar in bars]
    lines = ["".join(_EIGHTHS[min(last, max(0, height - last * line))] for height in heights) for line in range(_LINES)]
    low, high = text_of(bars[0].low), text_of(bars[-1].high)
    return [
        *(f"  {line}".rstrip() for line in reversed(lines)),
        f"  {low}{high:>{max(len(bars) - len(low), len(high) + 1)}}",
    ]


def _show_index(
    console: "Console", state: "IndexState", snapshot_id: SnapshotId, live: "ReportedRecall | None", why: str
) -> None:
    from rich.text import Text

    versions = plural(len(state.versions), "version")
    covered = f"has {'a' if snapshot_id in state.versions else 'no'} version for this snapshot"
    lag = f"; {state.lag.in_words}" if state.lag is not None and state.lag.snapshots else ""
    console.print(Text.assemble("index ", (state.definition.name, "bold"), f": {versions}; it {covered}{lag}"))
    if why:
        print_lines(console, f"  the recall of live queries cannot be read: {why}")
    if live is not None and live.recall is not None:
        queries, readers = f"{live.queries:,} measured", plural(live.readers, "reader")
        interval = f"{live.recall:.4f} ({live.low:.4f} to {live.high:.4f})"
        print_lines(console, f"  recall of live queries, newest version: {interval}; {queries}, by {readers}")
