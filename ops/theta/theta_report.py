"""Reports and statistics of theta sketches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from icepuffin.ops.messages import plural, readable_bytes, readable_seconds
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.presentation import Grid, Presentation

SKETCH_STAGE = "sketch"
"""Name of the one stage of making theta sketches."""


class ThetaOutcome(StrEnum):
    """Outcome of a materialisation."""

    WRITTEN = "written"
    CURRENT = "current"
    """No new sketches: the slot has the same already"""
    NO_COLUMNS = "no columns"
    """No column of the snapshot is to have a sketch"""
    OFF = "off"
    """Sketches are switched off, by the setting or by BODO_ENABLE_THETA_SKETCHES=0"""


_KEPT = {
    ThetaOutcome.CURRENT: "these sketches are registered",
    ThetaOutcome.NO_COLUMNS: "no column is to have a sketch",
    ThetaOutcome.OFF: "sketches are switched off",
}
"""Reasons why nothing is to be done, by the outcome that the report will have"""


@dataclass(frozen=True, slots=True, repr=False)
class ThetaEstimate(Presentation):
    """Estimated work of a materialisation."""

    outcome: ThetaOutcome
    columns: int = 0
    files_sketched: int = 0
    files_reused: int = 0
    values: int = 0
    """Values to read: rows times columns"""
    bytes_read: int = 0
    """Compressed bytes of columns to read from data files, by the footer of the longest file"""
    bytes_written: int = 0
    """Upper bound of the bytes to write: each column of each file counts with thousands of distinct values"""
    seconds: float = 0.0
    rates: str = "nothing to do"
    """Source of the seconds, in words: measured on earlier snapshots, or the default rate"""

    def headline(self) -> str:
        files = f"{plural(self.files_sketched, 'file')} to sketch, {readable_seconds(self.seconds)}"
        return _KEPT.get(self.outcome, files)

    def fields(self) -> dict[str, str]:
        """What is to be done and what it takes, by a short name, in words."""
        if self.outcome != ThetaOutcome.WRITTEN:
            return {"action": f"nothing to do: {_KEPT[self.outcome]}"}
        return {
            "action": "count what is new, unite, register",
            "files": f"{self.files_sketched:,} to sketch, {self.files_reused:,} known",
            "values": f"{self.values:,} to read, of {plural(self.columns, 'column')}",
            "bytes": f"{readable_bytes(self.bytes_read)} to read, {readable_bytes(self.bytes_written)} to write",
            "time": f"{readable_seconds(self.seconds)} ({self.rates})",
        }


@dataclass(frozen=True, slots=True, repr=False)
class ThetaReport(Presentation):
    """Sketches of one snapshot, and their cost."""

    table: str
    snapshot_id: SnapshotId
    statistics_path: str | None
    """Puffin file in the snapshot's statistics slot; None where there is none"""
    ndv: Mapping[str, int]
    """Number of distinct values by column name, of our columns and of those that were merged in."""
    fresh: bool
    """Whether all of `ndv` was counted by us for this very snapshot."""
    files_sketched: int
    """Number of data files that were read"""
    files_reused: int
    """Number of live data files that a file sketch or an ancestor's sketch covered"""
    bytes_written: int
    seconds: float
    outcome: ThetaOutcome
    merged_columns: tuple[str, ...] = ()
    """Columns with another engine's sketch, kept unchanged: the rows that it counts are not known"""
    extended_columns: tuple[str, ...] = ()
    """Columns whose sketch is that of an ancestor, united with those of the added files"""
    file_sketches_path: str | None = None
    """Puffin file that keeps the sketches per data file; None where none was written"""
    estimate: ThetaEstimate | None = None
    """Estimate from before the work; None where there was nothing to do"""
    note: str = ""
    """Parts that failed, in words; empty where none did"""
    partitions: str = ""
    """File of partition statistics that was written, in words; empty where none was"""
    others: str = ""
    """Number of statistics of each kind but NDVs in the file that was written, in words"""

    def headline(self) -> str:
        columns = plural(len(self.ndv), "column")
        done = f"{self.outcome}: {columns}, {readable_seconds(self.seconds)}"
        return f"{self.table!r}, snapshot {self.snapshot_id}, {done}"

    def fields(self) -> dict[str, str]:
        """What was done and what it took, by a short name, in words."""
        read = f"{plural(self.files_sketched, 'file')} read" if self.files_sketched else ""
        known = f"{self.files_reused:,} known from before" if self.files_reused else ""
        files = ", ".join(filter(None, (read, known))) or "no file to read"
        others = "" if self.fresh or not self.ndv else "; not all columns were counted for this very snapshot"
        plan = self.estimate
        expected = f"; {readable_seconds(plan.seconds)} expected ({plan.rates})" if plan else ""
        fields = {
            "action": f"{self.outcome}: {files}{others}",
            "distinct": ", ".join(f"{name} {ndv:,}" for name, ndv in self.ndv.items()),
            "beside them": self.others,
            "bytes": f"{readable_bytes(self.bytes_written)} written" if self.bytes_written else "",
            "partitions": self.partitions,
            "time": readable_seconds(self.seconds) + expected,
            "file": self.statistics_path or "",
            "note": self.note,
        }
        return {key: text for key, text in fields.items() if text}


@dataclass(frozen=True, slots=True)
class ColumnNdv:
    """The number of distinct values of one column, and whether a planner may rely on it."""

    column: str
    field_id: int
    ndv: int
    fresh: bool
    why: str
    ours: bool
    """Whether icepuffin counted it; else another engine did, or a release whose sketches are not trusted any more."""


@dataclass(frozen=True, slots=True, repr=False)
class ThetaStatistics(Presentation):
    """Numbers of distinct values of one snapshot, from the table's metadata."""

    table: str
    snapshot_id: SnapshotId
    entries: Mapping[str, ColumnNdv]
    """Numbers by column name, from the snapshot's own slot, or else from its nearest ancestor's (then not fresh)"""
    statistics_path: str | None

    @property
    def fresh(self) -> bool:
        return bool(self.entries) and all(entry.fresh for entry in self.entries.values())

    def headline(self) -> str:
        columns = plural(len(self.entries), "column")
        return f"{self.table!r}, snapshot {self.snapshot_id}, {columns}, {'fresh' if self.fresh else 'not fresh'}"

    def grids(self) -> Iterator[Grid]:
        rows = [(name, f"{column.ndv:,}", "yes" if column.fresh else "no") for name, column in self.entries.items()]
        title = f"{self.table} at snapshot {self.snapshot_id}"
        yield Grid(title, rows, ("column", "distinct values (estimates)", "fresh"))
        reasons = dict.fromkeys(entry.why for entry in self.entries.values() if not entry.fresh)
        if reasons:
            yield Grid("not fresh", [(reason,) for reason in reasons])
