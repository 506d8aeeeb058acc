"""Reports and estimates of runs on an index, in numbers. Their fields are the keys of `--json` output."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from icepuffin.ops.index.upkeep.retention_plan import ExpiredVersion
from icepuffin.ops.index.verify.self_search_proof import SelfSearch
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.messages import counted, listed, plural, readable_bytes, readable_seconds, readable_share
from icepuffin.ops.model import MIB, Action, How, ShardId, SnapshotId
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.recall.curves import WIDE_K
from icepuffin.ops.recall.shard_recall import AcrossShards, RecallBasis, ShardRecall, mean_recall

_DUE = {
    Action.BUILT: "build",
    Action.REFRESHED: "refresh",
    Action.REUSED: "nothing to do",
    Action.RETAGGED: "move the tag",
    Action.EMPTY: "nothing to publish",
}
"""Actions before the work, in words"""


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


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(Presentation):
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

    def headline(self) -> str:
        work = f", {readable_bytes(self.bytes_written)} to write, {readable_seconds(self.seconds)}"
        return _DUE[self.action] + (work if self.bytes_written else "")

    def fields(self) -> dict[str, str]:
        """What is to be done and what it takes, by a short name, in words."""
        fields = {"action": f"{_DUE[self.action]}: {self.reason}"}
        if self.shards:
            rows = {"to insert": self.inserted, "moved": self.remapped, "gone": self.tombstoned}
            fields["rows"] = counted({**rows, "to merge from deltas": self.merged}) or "none to change"
            kept = f"{self.shards_rebuilt} to rebuild, {self.shards_copied} kept"
            fields["shards"] = f"{len(self.shards)}: {'all to build' if self.action is Action.BUILT else kept}"
        elif self.bytes_written:  # without graphs
            fields["rows"] = f"{self.inserted:,} to read"
        else:
            return fields
        fields["bytes"] = f"{readable_bytes(self.bytes_read)} to read, {readable_bytes(self.bytes_written)} to write"
        return {**fields, "time": f"{readable_seconds(self.seconds)} ({self.rates})"}

    def grids(self) -> Iterator[Grid]:
        yield Grid.of_fields("", self.fields())
        rows = [
            (shard.number, f"{shard.nodes:,}", f"{shard.insert:,}", f"{shard.remap:,}", f"{shard.tombstone:,}",
             f"{shard.bytes_read / MIB:,.1f}", f"{shard.bytes_written / MIB:,.1f}", f"{shard.how}: {shard.reason}")
            for shard in self.shards
        ]  # fmt: skip
        if rows:
            yield Grid("", rows, ("shard", "nodes", "insert", "remap", "gone", "MiB read", "written", "what"))


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
    """Queries for recall@10, over all shards; those of earlier runs are counted. Where a search of all shards differs,
    those that all of them were searched for."""
    wide: float | None = None
    """recall@100, of the shards of which it was measured; None where there are none."""
    wide_queries: int = 0
    """Queries for recall@100."""
    rows_here: int = 0
    """Live rows of shards that this run measured: it wrote them, or they have lost rows."""
    rows_unchanged: int = 0
    """Live rows of shards that have the same live nodes as when an earlier run measured them."""
    rows_outdated: int = 0
    """Live rows of shards that were not measured since they lost rows: they count as they were before."""

    @classmethod
    def from_shards(cls, shards: Iterable[tuple[ShardRecall, int]], across: AcrossShards) -> "VersionRecall":
        """The sum over shards, each with its live rows."""
        measured = list(shards)
        rows = Counter[RecallBasis]()
        for shard, live_rows in measured:
            rows[shard.basis] += live_rows
        return cls(
            queries=across.told_by(sum(shard.queries for shard, _ in measured), len(measured), rows.total()),
            wide=mean_recall(
                ((shard.wide_recall, live_rows) for shard, live_rows in measured if shard.wide_queries),
                across.share(WIDE_K),
            ),
            wide_queries=across.told_by(
                sum(shard.wide_queries for shard, _ in measured), len(measured), rows.total(), WIDE_K
            ),
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
        shares = {where: readable_share(count / rows, 0) for where, count in parts.items() if count}
        return ", ".join(f"{share} of the rows {where}" for where, share in shares.items())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IndexReport(Presentation):
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

    def headline(self) -> str:
        recall = "" if self.recall is None else f", recall@10 {self.recall:.4f}"
        rows = f"{plural(self.rows, 'row')}{recall}, {readable_seconds(self.seconds)}"
        return f"index {self.index!r} of {self.table!r}, snapshot {self.snapshot_id}, {self.action}, {rows}"

    def fields(self) -> dict[str, str]:
        """What was done and what it took, by a short name, in words. What is zero is left out."""
        if self.index_snapshot_id is None:
            return {"action": f"nothing to publish: {self.reason}"}
        took = {stage: readable_seconds(time) for stage, time in self.stage_seconds.items() if time >= 0.05}
        stages = ", ".join(f"{stage} {seconds}" for stage, seconds in took.items())
        live = f"{self.rows:,} in {plural(self.files, 'file')}"
        changes = {"inserted": self.inserted, "moved": self.remapped, "gone": self.gone}
        others = {"merged from deltas": self.merged, "without a vector": self.without_vector}
        shards = {"in all": self.shards, "for later rows": self.deltas, "rebuilt": self.shards_rebuilt}
        shards["kept"] = self.shards_copied
        written = f"{readable_bytes(self.bytes_written)} newly written" if self.bytes_written else ""
        shared = f"{readable_bytes(self.bytes_shared)} shared with other versions" if self.bytes_shared else ""
        dead, expected = readable_share(self.tombstone_ratio), ""
        if self.estimate is not None:
            expected = f"; {readable_seconds(self.estimate.seconds)} expected ({self.estimate.rates})"
        fields = {
            "action": f"{self.action}: {self.reason}",
            "rows": ", ".join(filter(None, (live, counted(changes | others)))),
            "tombstones": f"{self.tombstones:,}, {dead} of the nodes" if self.tombstones else "",
            "shards": counted(shards) or "none: answers are exact, by balls around the vectors of each file",
            "recall@10": self._recall_in_words(),
            "self-search": self.self_search.summary if self.self_search else "",
            "bytes": ", ".join(filter(None, (readable_bytes(self.bytes_total), written, shared))),
            "time": readable_seconds(self.seconds) + (f" ({stages})" if stages else "") + expected,
            "version": str(self.index_snapshot_id),
            "file": self.puffin_path or "",
        }
        return {key: text for key, text in fields.items() if text}

    def _recall_in_words(self) -> str:
        recall, basis = self.recall, self.recall_basis
        if recall is None or basis is None:
            return ""
        low, high = confidence_interval(recall, basis.queries)
        wide = "" if basis.wide is None else f"recall@100 {basis.wide:.4f}"
        return "; ".join(filter(None, [f"{recall:.4f} ({low:.3f} to {high:.3f})", wide, basis.summary]))


@dataclass(frozen=True, slots=True, repr=False)
class GcReport(Presentation):
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

    def headline(self) -> str:
        return f"{self.table!r}, {self._totals()}"

    def grids(self) -> Iterator[Grid]:
        yield Grid("", [(line,) for line in self.lines(brief=True)])

    def lines(self, *, brief: bool = False) -> Iterator[str]:
        """Lines that name each version, tag and file, then the totals. `brief`: of each kind the first lines alone."""
        shorten = listed if brief else tuple[str, ...]
        expired, deleted = self._verbs()
        would = "would " if self.dry_run else ""
        yield from shorten(
            [f"{expired} {old.name}'s version of snapshot {old.base_snapshot_id}: {old.why}" for old in self.retired]
        )
        yield from shorten([f"{would}tag {tag}: its snapshot is tagged" for tag in self.pinned])
        yield from shorten([f"{deleted} {path}" for path in self.deleted])
        yield f"{self.table}: {self._totals()}"
        yield from shorten([f"left for the next time: {why}" for why in self.refused])
        if self.retired_later or self.kept_young:
            yield f"to go after the grace period: versions: {self.retired_later}, files: {self.kept_young}"

    def _totals(self) -> str:
        expired, deleted = self._verbs()
        files = f"{deleted} files: {len(self.deleted)}, {readable_bytes(self.bytes_freed)}"
        return f"{expired} versions: {len(self.retired)}, {files}"

    def _verbs(self) -> tuple[str, str]:
        """(of versions, of files)"""
        return ("would expire", "would delete") if self.dry_run else ("expired", "deleted")
