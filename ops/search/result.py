"""What a search answers: rows, and how they were found."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from icepuffin.ops.search.shards import ShardWork
from icepuffin.ops.search.tuning import Knobs


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
    tier: str = "in-process"
    """Where the search ran"""
    tier_why: str = ""
    """Why there"""
    bytes_read: Mapping[str, int] = field(default_factory=dict)
    """By stage, of this search alone: stored bytes of the row groups that were read for it; of scans, of the vectors
    that were compared"""


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a reader cost, once."""

    milliseconds: float
    index_bytes: int
    """Of all shards as they are stored; read, or found in the cache"""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Nearest rows of every query."""

    rows: pa.Table
    """query int32, rank int32 (1 = nearest), distance double, then the columns; by query, then rank"""
    coverage: Coverage
    snapshot_id: int
    """The data snapshot that the answer is about."""
    index_snapshot_id: int | None
    """The snapshot S' whose index file was used."""
    base_snapshot_id: int | None
    """The data snapshot that the index was made for."""
    profile: Profile
    warnings: tuple[str, ...] = field(default=())
    opened: Opened | None = None
    """What opening the reader had cost; None where nothing was opened"""

    def explain(self) -> str:
        """How this answer came about, as text: path, knobs, shards, stages, bytes."""
        return "\n".join(f"{name:<10} {text}" for name, text in explain(self))


def explain(found: SearchResult) -> Iterator[tuple[str, str]]:
    """(part, what there is to say of it), in the order in which things happened."""
    profile = found.profile
    yield "answer", f"snapshot {found.snapshot_id}, {found.coverage}: {profile.why}"
    yield "tier", f"{profile.tier}: {profile.tier_why}" if profile.tier_why else profile.tier
    if found.index_snapshot_id is not None:
        yield "version", f"index snapshot {found.index_snapshot_id}, made for {found.base_snapshot_id}"
    if found.opened is not None:
        yield "opened", f"{found.opened.index_bytes:,} bytes of shards in {found.opened.milliseconds:,.1f} ms, once"
    strategy = (
        profile.strategy
        if profile.matching_rows is None
        else f"{profile.strategy}, {profile.matching_rows:,} rows match"
    )
    yield "strategy", strategy
    if (pruning := profile.pruning) is not None:
        share = f"{pruning.files_pruned:,} of {pruning.files:,} files and {pruning.share:.1%} of the rows out of reach"
        yield "pruning", f"{share}; {pruning.why}"
    if (knobs := profile.knobs) is not None and profile.nodes_expanded:
        expected = "" if knobs.expected is None else f", recall to expect {knobs.expected:.4f}"
        yield (
            "knobs",
            f"L = {knobs.search_list}, oversample = {knobs.oversample}, {_shards(knobs)}{expected}; {knobs.why}",
        )
    for item in profile.work:
        visited = f"{item.expanded:,} of {item.nodes:,} nodes visited, " if item.expanded else ""
        did = f"{visited}{item.distances:,} distances"
        yield f"shard {item.shard}", f"{did}" + (f", {item.queries:,} queries" if item.queries > 1 else "")
    yield "distances", f"{profile.distances:,} in the index, {profile.tail_rows:,} rows scanned beside it"
    for stage, milliseconds in profile.milliseconds.items():
        read = profile.bytes_read.get(stage, 0)
        yield stage, f"{milliseconds:,.2f} ms" + (f", {read:,} bytes" if read else "")
    yield "total", f"{sum(profile.milliseconds.values()):,.2f} ms, {sum(profile.bytes_read.values()):,} bytes"
    for warning in found.warnings:
        yield "warning", warning


def _shards(knobs: Knobs) -> str:
    if knobs.shards is not None:
        return f"the nearest {knobs.shards} shards"
    return "every shard" if math.isinf(knobs.slack) else f"shards up to {knobs.slack:.0%} farther than the nearest one"
