"""What a run on an index did, in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from icepuffin.ops.model import How

if TYPE_CHECKING:
    from icepuffin.ops.index.retention import RetiredVersion


class Action(StrEnum):
    """What was due for a snapshot."""

    BUILT = "built"
    REFRESHED = "refreshed"
    REUSED = "reused"
    """A version of this snapshot and definition was there."""
    RETAGGED = "retagged"
    """It was there, and the tag pointed elsewhere (a rollback): only the tag moved."""
    EMPTY = "empty"
    """The snapshot has no rows: nothing is published, a search of it finds nothing."""


@dataclass(frozen=True, slots=True)
class ShardEstimate:
    """What is to become of one shard."""

    number: int
    how: How
    reason: str
    nodes: int
    """Before the work."""
    insert: int
    remap: int
    tombstone: int
    """Nodes whose rows are gone, and are not among those that come back elsewhere."""
    bytes_read: int
    bytes_written: int
    bytes_copied: int
    """Of the base's, by the store itself."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a materialisation will take, as far as can be told before it."""

    action: Action
    reason: str
    inserted: int
    remapped: int
    tombstoned: int
    merged: int
    """Rows that are dealt out from deltas to the other shards."""
    shards_rebuilt: int
    shards_copied: int
    bytes_read: int
    """Of data files and of the base's shards; the store's own copying is not in it."""
    bytes_written: int
    """Newly made bytes of the file that is published; what is staged before is about as much again."""
    seconds: float
    rates: str
    """What the seconds are from: measured, on how many earlier versions; or the default."""
    shards: tuple[ShardEstimate, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard of a version."""

    number: int
    how: How
    nodes: int
    live: int
    inserted: int
    remapped: int
    recall: float
    bytes: int


@dataclass(frozen=True, slots=True)
class IndexReport:
    """One materialisation."""

    table: str
    index: str
    snapshot_id: int
    index_snapshot_id: int | None
    base_snapshot_id: int | None
    """The indexed snapshot that a refresh started from."""
    action: Action
    reason: str
    """Why this action, in words."""
    build_id: str
    puffin_path: str | None
    files: int
    rows: int
    """Live rows in the version."""
    without_vector: int
    """Live rows of the files that were read for it whose vector is null: in no index, in no answer."""
    inserted: int
    remapped: int
    tombstones: int
    """Dead nodes in the version."""
    gone: int
    """Rows that the version before had and this one has not: their nodes are dead, or were left out of a rebuild."""
    shards: int
    deltas: int
    """Of the shards, those that hold what came since the others were made: the last ones."""
    merged: int
    """Rows that were dealt out from deltas to the other shards."""
    shards_rebuilt: int
    shards_copied: int
    recall: float
    bytes_total: int
    bytes_written: int
    """Bytes that were newly made; the rest the store copied."""
    seconds: float
    stage_seconds: Mapping[str, float]
    shard_reports: tuple[ShardReport, ...] = ()
    estimate: Estimate | None = None
    """What was expected before the work began; None where there was none to do."""

    @property
    def tombstone_ratio(self) -> float:
        nodes = self.rows + self.tombstones
        return self.tombstones / nodes if nodes else 0.0


@dataclass(frozen=True, slots=True)
class GcReport:
    """What garbage collection found and did."""

    table: str
    dry_run: bool
    deleted: tuple[str, ...]
    """Objects removed, or that would be."""
    bytes_freed: int
    kept_young: int
    """Unreferenced objects younger than the grace period."""
    retired_later: int = 0
    """Versions that the retention policy lets go once they are older than the grace period."""
    retired: "tuple[RetiredVersion, ...]" = ()
    """Versions that the retention policy let go, or would; their files are among the objects once they are old."""
    pinned: tuple[str, ...] = ()
    """Tags that were given to versions of tagged snapshots, or would be."""
