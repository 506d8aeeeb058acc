"""The check `drift` of sketches: how far the columns of a snapshot are from those of the snapshot before."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.metadata import plain_text
from icepuffin.assets.newest_snapshots import row_counts
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.messages import listed, plural, readable_share
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.table.summaries import snapshot_count
from icepuffin.ops.theta.ancestry import nearest_ancestors
from icepuffin.ops.theta.errors import LostStatisticsError
from icepuffin.ops.theta.ndv import is_sketched
from icepuffin.ops.theta.requested_statistics import ALL
from icepuffin.ops.theta.snapshot_statistics import SnapshotStatistics, statistics_at


def drift_result(
    table: Table, snapshot_id: SnapshotId, thresholds: Mapping[str, float], storage: StorageConfig
) -> dg.AssetCheckResult:
    """The result for one snapshot, compared with its nearest ancestor that has sketches of its own: it warns of each
    change of which more is certain than its column's threshold allows.
    """
    line = (SnapshotId(it.snapshot_id) for it in nearest_ancestors(table, find_snapshot(table, snapshot_id)))
    before = next((it for it in line if is_sketched(find_snapshot(table, it), find_statistics(table, it))), None)
    if before is None:
        return _result("no snapshot before has sketches")
    try:
        pair = [statistics_at(table, it, table.schema(), storage) for it in (snapshot_id, before)]
    except LostStatisticsError as error:
        return _result(str(error))
    there = [columns[0] for statistics in pair for _, columns, _ in statistics.rows() if len(columns) == 1]
    of_all = dict.fromkeys(there, thresholds[ALL]) if ALL in thresholds else {}
    named = {column: threshold for column, threshold in thresholds.items() if column != ALL}
    snapshots = [find_snapshot(table, it) for it in (snapshot_id, before)]
    rows = [(row_counts(it)[2], snapshot_count(it, "total-records")) for it in snapshots]
    over = [
        f"settings name {name}, which the table lacks"
        for name in sorted(named.keys() - set(table.schema().column_names))
    ]
    unknown = [text for statistics in pair for text in statistics.left_out]
    for column, threshold in {**of_all, **named}.items():
        changes = _changes(column, pair, rows)
        if column not in named and not any(changes.values()):
            unknown.append(column)
        for figure, change in changes.items():
            if change is None:
                unknown += [f"{figure} of {column}"] * (column in named)
            elif change[1] > threshold:
                words = f"{readable_share(change[0])} ({readable_share(change[1])} for certain)"
                over.append(f"{figure} of {column}: {words}, allowed are {readable_share(threshold)}")
    return _result(*unknown, over=over, compared=f"snapshot {before}, {plural(len(of_all | named), 'column')}")


def _result(*unknown: str, over: list[str] = [], compared: str = "") -> dg.AssetCheckResult:  # noqa: B006  not changed
    good = "No column has certainly moved further than is allowed." if compared else "There is nothing to compare."
    what = {"drifted": listed(over), "compared with": [compared] if compared else [], "not compared": listed(unknown)}
    return dg.AssetCheckResult(
        check_name="drift",
        passed=not over,
        severity=dg.AssetCheckSeverity.WARN,
        description=plain_text("; ".join(listed(over)) or good),
        metadata={name: "; ".join(lines) for name, lines in what.items() if lines},
    )


def _changes(
    column: str, pair: Sequence[SnapshotStatistics], rows: Sequence[tuple[int | None, int]]
) -> dict[str, tuple[float, float] | None]:
    """(change, how much is certain) by what is compared; None: not known. `rows`: live by summaries, and in files."""

    def both(kind: str) -> list[Any]:
        """A statistic of either snapshot; none where one lacks it, or has none that counts for it."""
        found = [it for statistics in pair if (it := getattr(statistics, kind).get(column)) and it.fresh]
        return found if len(found) == len(pair) else []

    changes: dict[str, tuple[float, float] | None] = dict.fromkeys(("distinct values", "quantiles", "share of nulls"))
    if counts := both("ndv"):
        now, then = counts
        gap = max(0, now.lower - then.upper, then.lower - now.upper)
        changes["distinct values"] = abs(now.ndv - then.ndv) / max(1, then.ndv), gap / max(1, then.ndv)
    if (histograms := both("histogram")) and all(it.count for it in histograms):
        distance = histograms[0].distance(histograms[1])
        changes["quantiles"] = distance, max(0.0, distance - sum(it.rank_error for it in histograms))
    # histograms leave out NaNs, too; live rows may be more than summaries tell, whose deletes may delete nothing
    present = [it.total for it in both("frequent")] or [it.count for it in histograms]
    if present and all(live for live, _ in rows):
        now, then = ((it / most, min(1.0, it / (live or 1))) for it, (live, most) in zip(present, rows, strict=True))
        changes["share of nulls"] = abs(now[1] - then[1]), max(0.0, now[0] - then[1], then[0] - now[1])
    return changes
