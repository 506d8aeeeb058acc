"""What a search answers: rows, and how they were found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from ops.probe.knobs import Knobs
from ops.probe.loaded import ShardWork


class Coverage(StrEnum):
    """How the answer covers the snapshot that was asked for."""

    EXACT_VERSION = "exact-version"
    """The snapshot's own index version."""
    NEAREST_VERSION_AND_TAIL = "nearest-version+tail"
    """Another snapshot's version, rows that are gone masked, rows that it lacks scanned exactly: complete."""
    NEAREST_VERSION_ONLY = "nearest-version-only"
    """Another snapshot's version, rows that are gone masked; rows that it lacks are MISSING."""
    EXACT_SCAN = "exact-scan"
    """No index: every row was compared."""


class StalePolicy(StrEnum):
    """What to do where the snapshot has no version of its own."""

    COMPLETE = "complete"
    """Nearest version and an exact scan of what it lacks."""
    EXACT = "exact"
    """Scan every row."""
    NEAREST_ONLY = "nearest-only"
    """Nearest version alone; the result says that rows may be missing."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a threshold query did not have to look at."""

    files: int
    """Live files of the snapshot"""
    files_pruned: int
    rows: int
    """Rows in them, deleted ones included"""
    rows_pruned: int
    why: str
    """How files were pruned, or why they were not"""

    @property
    def share(self) -> float:
        """Of the rows; 0 where there are none."""
        return self.rows_pruned / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """What one search cost."""

    why: str
    """Why this path was taken."""
    strategy: str
    """`beam`, `scan` (no index), for a condition `filtered beam`, `exact over matches`, for a distance `threshold`"""
    shards: int
    nodes_expanded: int
    distances: int
    tail_rows: int
    """Rows scanned exactly."""
    milliseconds: Mapping[str, float]
    """By stage."""
    matching_rows: int | None = None
    """Live rows that satisfy the condition; None without one."""
    pruning: Pruning | None = None
    """Of a threshold query"""
    knobs: Knobs | None = None
    """How hard the index was searched; None where it was not"""
    work: tuple[ShardWork, ...] = ()
    """What each shard that was searched did"""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Nearest rows of every query."""

    rows: pa.Table
    """query int32, rank int32 (1 = nearest), distance float, then the columns; by query, then rank"""
    coverage: Coverage
    snapshot_id: int
    """The data snapshot that the answer is about."""
    index_snapshot_id: int | None
    """The snapshot S' whose index file was used."""
    base_snapshot_id: int | None
    """The data snapshot that the index was made for."""
    profile: Profile
    warnings: tuple[str, ...] = field(default=())
