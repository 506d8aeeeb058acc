"""Reports and estimates of runs on an index, in numbers. Their fields are the keys of `--json` output."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icepuffin.ops.index.upkeep.retention_plan import ExpiredVersion
from icepuffin.ops.index.verify.self_search_proof import SelfSearch
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import Action, How, ShardId, SnapshotId
from icepuffin.ops.recall.shard_recall import RecallBasis, ShardRecall, mean_recall


@dataclass(frozen=True, slots=True)
class ShardEstimate:
    """Expected work on one shard."""

    number: ShardId
    how: How
    reason: str
    nodes: int
    """Nodes in the base version."""
    insert: int
    remap: int
    tombstone: int
    """Nodes whose rows are gone, and have not moved elsewhere."""
    bytes_read: int
    bytes_written: int
    bytes_copied: int
    """Bytes of the base version that the store copies itself."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected work of a run, made before it."""

    action: Action
    reason: str
    inserted: int
    remapped: int
    tombstoned: int
    merged: int
    """Rows that move from delta shards to the other shards."""
    shards_rebuilt: int
    shards_copied: int
    bytes_read: int
    """Bytes read of data files and of the base version; what the store copies itself is not included."""
    bytes_written: int
    """New bytes of the published file; staged objects take about as many more."""
    seconds: float
    rates: str
    """Source of the seconds: how many earlier versions were measured, or the default rates."""
    shards: tuple[ShardEstimate, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard of a version."""

    number: ShardId
    how: How
    nodes: int
    live: int
    inserted: int
    remapped: int
    recall: float
    """recall@10"""
    queries: int
    """Queries by which it was measured."""
    measured: RecallBasis
    """Whether it was measured here, or earlier and is the same still, or is outdated: the shard has lost rows since."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecall:
    """What the recall of a version is made of."""

    queries: int = 0
    """Queries for recall@10, over all shards; those of earlier runs are counted."""
    wide: float | None = None
    """recall@100 of the shards of which it was measured; None where there are none."""
    wide_queries: int = 0
    """Queries for recall@100."""
    rows_here: int = 0
    """Live rows of shards that this run measured: it wrote them, or they have lost rows."""
    rows_unchanged: int = 0
    """Live rows of shards that have the same live nodes as when an earlier run measured them."""
    rows_outdated: int = 0
    """Live rows of shards that were not measured since they lost rows: they count as they were before."""

    @classmethod
    def from_shards(cls, shards: Iterable[tuple[ShardRecall, int]]) -> "VersionRecall":
        """The sum over shards, each with its live rows."""
        measured = list(shards)
        rows = Counter[RecallBasis]()
        for shard, live_rows in measured:
            rows[shard.basis] += live_rows
        return cls(
            queries=sum(shard.queries for shard, _ in measured),
            wide=mean_recall((shard.wide_recall, live_rows) for shard, live_rows in measured if shard.wide_queries),
            wide_queries=sum(shard.wide_queries for shard, _ in measured),
            rows_here=rows[RecallBasis.HERE],
            rows_unchanged=rows[RecallBasis.UNCHANGED],
            rows_outdated=rows[RecallBasis.OUTDATED],
        )

    @property
    def summary(self) -> str:
        """Where the rows' recall comes from, in words, on one line; empty where there are no rows."""
        rows = self.rows_here + self.rows_unchanged + self.rows_outdated
        parts = {
            "measured here": self.rows_here,
            "in shards unchanged since they were measured": self.rows_unchanged,
            "in shards not measured since they lost rows": self.rows_outdated,
        }
        return ", ".join(f"{count / rows:.0%} of the rows {where}" for where, count in parts.items() if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """One run on an index."""

    table: str
    index: str
    snapshot_id: SnapshotId
    index_snapshot_id: SnapshotId | None = None
    base_snapshot_id: SnapshotId | None = None
    """Data snapshot of the base version that a refresh started from."""
    action: Action
    reason: str
    """Reason for this action, in words."""
    build_id: str
    puffin_path: str | None = None
    files: int
    rows: int = 0
    """Live rows with a node in the version."""
    without_vector: int = 0
    """Live rows whose vector is null, in the files that were read: they are in no index and no answer."""
    inserted: int = 0
    remapped: int = 0
    tombstones: int = 0
    """Nodes of the version without a live row."""
    gone: int = 0
    """Rows that the base version has and this one has not: their nodes are tombstones, or a rebuild left them out."""
    shards: int = 0
    deltas: int = 0
    """Number of delta shards: the last ones, with rows that came since the others were built."""
    merged: int = 0
    """Rows that moved from delta shards to the other shards."""
    shards_rebuilt: int = 0
    shards_copied: int = 0
    recall: float | None = None
    """recall@10 of the version's graphs; None where it has none: answers are exact, or there is no row."""
    recall_basis: VersionRecall | None = None
    """What `recall` is made of; None where there is none."""
    bytes_total: int = 0
    bytes_written: int = 0
    """New bytes; the store copied the rest, but for those that are shared."""
    seconds: float
    stage_seconds: Mapping[str, float]
    shard_reports: tuple[ShardReport, ...] = ()
    estimate: Estimate | None = None
    """Estimate made before the work; None where there was none to do."""
    self_search: SelfSearch | None = None
    """Proof before publication; None where nothing was published."""
    bytes_shared: int = 0
    """Bytes of shards in packs that the base version has, too: neither written nor copied."""
    fit: LayoutFit | None = None
    """How well the layout fits the rows; None where there are no graphs, or nothing was made."""

    @property
    def tombstone_ratio(self) -> float:
        nodes = self.rows + self.tombstones
        return self.tombstones / nodes if nodes else 0.0


@dataclass(frozen=True, slots=True)
class GcReport:
    """One garbage collection."""

    table: str
    dry_run: bool
    deleted: tuple[str, ...]
    """Objects that were deleted, or would be in a dry run."""
    bytes_freed: int
    kept_young: int
    """Unreferenced objects younger than the grace period."""
    retired_later: int = 0
    """Versions that will expire once they are older than the grace period."""
    retired: tuple[ExpiredVersion, ...] = ()
    """Versions that were expired, or would be; their files are deleted once they are old."""
    pinned: tuple[str, ...] = ()
    """Tags that were set on versions of tagged snapshots, or would be."""
    refused: tuple[str, ...] = ()
    """Reasons why tags or snapshots could not be changed: that is left for the next garbage collection."""
