"""What the theta room hands out: reports and statistics, small and frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ThetaOutcome(StrEnum):
    """What a materialisation did."""

    WRITTEN = "written"
    CURRENT = "current"
    """The slot already holds these sketches; nothing was written."""
    NO_COLUMNS = "no columns"
    """No column of the snapshot is to have a sketch."""
    OFF = "off"
    """Switched off by setting or by BODO_ENABLE_THETA_SKETCHES=0."""


@dataclass(frozen=True, slots=True)
class ThetaEstimate:
    """What a materialisation will take, as far as can be told before it."""

    outcome: ThetaOutcome
    columns: int = 0
    files_sketched: int = 0
    files_reused: int = 0
    values: int = 0
    """Rows times columns that are read."""
    bytes_read: int = 0
    """Of data files: their columns as stored, by the footer of the longest."""
    bytes_written: int = 0
    """At most: as if each column of each file had thousands of distinct values."""
    seconds: float = 0.0
    rates: str = "nothing to do"
    """What the seconds are from: measured, on how many earlier snapshots; or the default."""


@dataclass(frozen=True, slots=True)
class ThetaReport:
    """One snapshot's sketches, and what they cost."""

    table: str
    snapshot_id: int
    statistics_path: str | None
    """The Puffin file in the snapshot's statistics slot; None when there is none."""
    ndv: Mapping[str, int]
    """Number of distinct values by column name, of our columns and of those that were merged in."""
    fresh: bool
    """Whether all of `ndv` was counted by us for this very snapshot."""
    files_sketched: int
    """Data files that were read."""
    files_reused: int
    """Live data files whose kept sketches, or whose part in an ancestor's sketch, served."""
    bytes_written: int
    seconds: float
    outcome: ThetaOutcome
    merged_columns: tuple[str, ...] = ()
    """Columns whose sketch by another engine was in the slot and was kept as it is: what it counts is not known."""
    extended_columns: tuple[str, ...] = ()
    """Columns for which our sketch of an ancestor was united with the added files' alone."""
    file_sketches_path: str | None = None
    """The Puffin file that now keeps the sketches per data file; None where none was written."""
    estimate: ThetaEstimate | None = None
    """What was expected before the work began; None where there was none to do."""
    note: str = ""
    """What could not be done, in words; empty when all was."""


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
    """What the metadata of a table says about the distinct values of one of its snapshots."""

    table: str
    snapshot_id: int
    entries: Mapping[str, ColumnNdv]
    """By column name. From the snapshot's own slot, or else from its nearest ancestor's (then not fresh)."""
    statistics_path: str | None

    @property
    def fresh(self) -> bool:
        return bool(self.entries) and all(entry.fresh for entry in self.entries.values())
