"""The newest snapshots of a table as a time line: when and how each was written, and what was made for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.assets.newest_snapshots import SnapshotEntry, newest_snapshots
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.binding.bound_versions import sketch_versions
from icepuffin.ops.binding.measurements import measured_versions
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.messages import readable_seconds
from icepuffin.ops.model import SnapshotId

SKETCHES = "theta_sketches"
_MAX_SNAPSHOTS = 20


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
    for entry in newest_snapshots(table, spec, _MAX_SNAPSHOTS, also=here):
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
