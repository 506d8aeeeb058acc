"""The newest snapshots of a table, as entries and as a time line: when and how each was written, and what is derived
from it. Reads metadata only.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.binding.bound_versions import index_versions, sketch_versions
from icepuffin.ops.binding.measurements import measured_versions
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.upkeep.freshness import nothing_to_index
from icepuffin.ops.index.versions.version_format import given_up
from icepuffin.ops.messages import readable_seconds
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import snapshots_by_id, statistics_by_id
from icepuffin.ops.table.snapshots import base_snapshot_id, derived_ids
from icepuffin.ops.table.summaries import find_count, summary_of
from icepuffin.ops.theta.ndv import is_sketched

SKETCHES = "theta_sketches"
_MAX_POINTS = 20
"""Snapshots of a time line, at most"""
_COUNTS = {
    *("total-records", "added-records", "deleted-records"),
    *("total-position-deletes", "added-position-deletes", "removed-position-deletes", "total-equality-deletes"),
}
"""Properties of a summary that tell of rows"""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One data snapshot of a table."""

    snapshot_id: SnapshotId
    committed: datetime
    """Time of the commit, in UTC."""
    operation: str
    rows_added: int | None
    """Rows of added files; None where the writer did not say."""
    rows_removed: int | None
    """Rows of removed files and of position deletes; None where the writer did not say. Equality deletes name no rows,
    and are not counted.
    """
    rows: int | None
    """Live rows after the commit, by its summary; None where it does not tell, as with equality deletes, or where more
    rows are deleted than there are: engines leave deletes of rows that were rewritten since.
    """
    refs: tuple[str, ...]
    """Branches and tags at the snapshot, and branches at an index snapshot of it; icepuffin's own are left out."""
    theta_sketches: bool
    """Whether theta sketches of this very snapshot are registered."""
    indexes: tuple[str, ...]
    """Names of the indexes that have a version of this snapshot."""
    missing: tuple[str, ...]
    """Names of what the settings define and the snapshot lacks: `theta_sketches`, and indexes. Where the metadata shows
    that there is nothing to index, no index is missing.
    """
    given_up: tuple[str, ...]
    """Names of the missing indexes that have a version of the snapshot, in a layout that was given up."""

    @property
    def derived(self) -> tuple[str, ...]:
        """Names of everything that is derived from the snapshot."""
        return (*((SKETCHES,) if self.theta_sketches else ()), *self.indexes)

    @property
    def cells(self) -> dict[str, str]:
        """What tables show of the snapshot, by the heads of their columns."""
        counts = {"rows": self.rows, "added": self.rows_added, "removed": self.rows_removed}
        return {
            "snapshot": str(self.snapshot_id),
            "committed (UTC)": f"{self.committed:%Y-%m-%d %H:%M:%S}",
            "operation": self.operation,
            **{name: "?" if count is None else f"{count:,}" for name, count in counts.items()},
            "refs": ", ".join(self.refs),
        }


def newest_snapshots(
    table: Table, spec: TableSpec, count: int | None = None, *, also: SnapshotId | None = None
) -> tuple[SnapshotEntry, ...]:
    """The last `count` data snapshots of all branches, newest first, and behind them `also`, where it is older; None:
    all that the metadata has.
    """
    ordered = sorted(table.metadata.snapshots, key=lambda item: (item.sequence_number or 0, item.timestamp_ms))
    derived = derived_ids(table.metadata)
    data = [item for item in reversed(ordered) if item.snapshot_id not in derived]
    newest = [item for rank, item in enumerate(data) if count is None or rank < count or item.snapshot_id == also]
    refs = _refs(table)
    statistics = statistics_by_id(table.metadata)
    indexed = {
        index.name: {version.base_snapshot_id for version in versions_of(table, index)} for index in spec.indexes
    }
    given_up_at = {
        index.name: {it.base_snapshot_id for it in index_versions(table, index.name) if given_up(it.build_id)}
        for index in spec.indexes
    }
    needless = {index.name: nothing_to_index(table, index) for index in spec.indexes}
    entries = []
    for snapshot in newest:
        sketched = is_sketched(snapshot, statistics.get(snapshot.snapshot_id))
        indexes = tuple(name for name, snapshots in indexed.items() if snapshot.snapshot_id in snapshots)
        needed = tuple(name for name, is_needless in needless.items() if not is_needless(snapshot))
        expected = (*((SKETCHES,) if spec.settings.statistics.keeps_ndv else ()), *needed)
        present = {*((SKETCHES,) if sketched else ()), *indexes}
        missing = tuple(name for name in expected if name not in present)
        added, removed, rows = row_counts(snapshot)
        entries.append(
            SnapshotEntry(
                snapshot_id=SnapshotId(snapshot.snapshot_id),
                committed=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
                operation=snapshot.summary.operation.value if snapshot.summary else "unknown",
                rows_added=added,
                rows_removed=removed,
                rows=rows,
                refs=tuple(refs.get(SnapshotId(snapshot.snapshot_id), ())),
                theta_sketches=sketched,
                indexes=indexes,
                missing=missing,
                given_up=tuple(name for name in missing if snapshot.snapshot_id in given_up_at.get(name, ())),
            )
        )
    return tuple(entries)


def _refs(table: Table) -> dict[SnapshotId, list[str]]:
    """Names of the table's own branches and tags, by data snapshot. A branch on an index snapshot is of its base."""
    by_id = snapshots_by_id(table.metadata)
    named: dict[SnapshotId, list[str]] = {}
    for name, ref in sorted(table.metadata.refs.items()):
        target = by_id.get(ref.snapshot_id)
        base = None if target is None else base_snapshot_id(target)
        if base is None:
            named.setdefault(SnapshotId(ref.snapshot_id), []).append(name)
        elif ref.snapshot_ref_type.value == "branch":
            named.setdefault(base, []).append(name)
    return named


def row_counts(snapshot: Snapshot) -> tuple[int | None, int | None, int | None]:
    """(rows added, rows removed, live rows), as far as the summary tells."""
    keys = summary_of(snapshot).keys()
    count = {key: find_count(snapshot, key) for key in _COUNTS & keys}
    total = count.get("total-records")
    if total is None and not any(key.endswith("-records") for key in keys):
        return None, None, None
    of = Counter({key: number for key, number in count.items() if number is not None})
    rows = None if total is None else total - of["total-position-deletes"]
    added = of["added-records"]
    removed = of["deleted-records"] + of["added-position-deletes"] - of["removed-position-deletes"]
    is_known = rows is not None and rows >= 0 and not of["total-equality-deletes"]
    return added, max(0, removed), rows if is_known else None


@dataclass(frozen=True, slots=True)
class TimeLinePoint:
    """One data snapshot of a table, and what was made for it."""

    entry: SnapshotEntry
    made: str
    """What was made, in words; empty where nothing was"""
    recall: float | None
    """recall@10 of its index version, the lowest of several; None where none was measured"""
    seconds: float | None
    """Time that it took; None where no run has recorded it"""
    is_here: bool
    """Whether the time line is that of this snapshot"""

    @property
    def figures(self) -> str:
        """What was made, its recall and its time, in words; empty where nothing was made."""
        recall = "" if self.recall is None else f", recall {self.recall:.4f}"
        seconds = "" if self.seconds is None else f", {readable_seconds(self.seconds)}"
        return f"{self.made}{recall}{seconds}" if self.made else ""


def time_line(
    table: Table, spec: TableSpec, *, name: str = "", here: SnapshotId | None = None
) -> tuple[TimeLinePoint, ...]:
    """The newest data snapshots of all branches, newest first, and `here` in any case. Reads metadata only.

    `name`: what is told of each, an index or SKETCHES; empty: all that is derived from the table.
    """
    took = {(SKETCHES, version.base_snapshot_id): it for version, it in measured_versions(sketch_versions(table))}
    for index in spec.indexes:
        measured = measured_versions(versions_of(table, index))
        took |= {(index.name, version.base_snapshot_id): it for version, it in measured}
    points = []
    for entry in newest_snapshots(table, spec, _MAX_POINTS, also=here):
        derived = [it for it in entry.derived if name in ("", it)]
        runs = [took[it, entry.snapshot_id] for it in derived if (it, entry.snapshot_id) in took]
        action = next((str(run.action) for run in runs if name and run.action), "")
        points.append(
            TimeLinePoint(
                entry,
                made=action or ", ".join("sketches" if it == SKETCHES else it for it in derived),
                recall=min((run.recall for run in runs if run.recall is not None), default=None),
                seconds=sum(run.seconds for run in runs) if runs else None,
                is_here=entry.snapshot_id == here,
            )
        )
    return tuple(points)


def seconds_of(points: Sequence[TimeLinePoint], otherwise: float) -> float:
    """Time of the run that made what a time line's own snapshot has; `otherwise` where none has recorded it."""
    return next((point.seconds for point in points if point.is_here and point.seconds is not None), otherwise)
