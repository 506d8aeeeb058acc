"""Reports and statistics of theta sketches."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from icepuffin.ops.model import SnapshotId

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


@dataclass(frozen=True, slots=True)
class ThetaEstimate:
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


@dataclass(frozen=True, slots=True)
class ThetaReport:
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


@dataclass(frozen=True, slots=True)
class ThetaStatistics:
    """Numbers of distinct values of one snapshot, from the table's metadata."""

    table: str
    snapshot_id: SnapshotId
    entries: Mapping[str, ColumnNdv]
    """Numbers by column name, from the snapshot's own slot, or else from its nearest ancestor's (then not fresh)"""
    statistics_path: str | None

    @property
    def fresh(self) -> bool:
        return bool(self.entries) and all(entry.fresh for entry in self.entries.values())
