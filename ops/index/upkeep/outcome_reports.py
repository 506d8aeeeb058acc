"""The report of a run on an index, from its plan and from what was made."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.index.planning.index_report import IndexReport, ShardReport, VersionRecall
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.model import Action, How, ShardId
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.recall.shard_recall import AcrossShards, ShardRecall, mean_recall
from icepuffin.puffin.blobs.routing_blob import CoveredFile, ShardEntry

if TYPE_CHECKING:
    from icepuffin.ops.index.files.assembly import VersionFile
    from icepuffin.ops.index.stages import ShardSet
    from icepuffin.ops.tasks.shard_task import ShardResult


def empty_report(plan: VersionPlan, clock: StageClock) -> IndexReport:
    """Report a run that published nothing, since the snapshot has no rows to index."""
    return IndexReport(
        table=plan.live.table,
        index=plan.definition.name,
        snapshot_id=plan.live.snapshot_id,
        action=Action.EMPTY,
        reason=plan.reason,
        build_id=plan.build_id,
        files=len(plan.live.files),
        seconds=round(clock.total, 4),
        stage_seconds={name: round(seconds, 4) for name, seconds in clock.stages.items()},
    )


def reuse_report(plan: VersionPlan, clock: StageClock, existing: DerivedVersion) -> IndexReport:
    """Report a run that found the snapshot's version in place."""
    report = replace(
        empty_report(plan, clock),
        action=plan.action,
        index_snapshot_id=existing.index_snapshot_id,
        puffin_path=existing.puffin_path,
    )
    if plan.base is None:
        return report
    routing = plan.base.routing
    recalls = [(recall, entry.live_rows) for recall, entry in zip(plan.base.recalls, routing.shards, strict=True)]
    return replace(
        report,
        rows=_live_rows(routing.shards, routing.files),
        tombstones=sum(entry.count - entry.live_rows for entry in routing.shards),
        shards=len(routing.shards),
        deltas=max(0, len(routing.shards) - routing.routed_shards),
        recall=_mean_recall(recalls, plan.base.across),
        recall_basis=VersionRecall.from_shards(recalls, plan.base.across) if recalls else None,
        bytes_total=plan.base.bytes_total,
        fit=fit_of(existing.sizes) if routing.shards else None,
        shard_reports=tuple(
            _shard_report(ShardId(number), How.REUSED, (entry.count, entry.live_rows, 0, 0), recall, entry.all_bytes)
            for number, (entry, recall) in enumerate(zip(routing.shards, plan.base.recalls, strict=True))
        ),
    )


def _shard_report(
    number: ShardId, how: How, counts: tuple[int, int, int, int], recall: ShardRecall, size: int
) -> ShardReport:
    """`counts`: nodes, live ones, inserted ones, moved ones."""
    return ShardReport(number, how, *counts, recall.recall, recall.queries, recall.basis, size)


def _mean_recall(shards: Sequence[tuple[ShardRecall, int]], across: AcrossShards) -> float | None:
    """recall@10 of a version, out of that of its shards, each with its live rows."""
    return mean_recall(((shard.recall, live_rows) for shard, live_rows in shards), across.share())


def _live_rows(shards: Sequence[ShardEntry] | Sequence["ShardResult"], files: Sequence[CoveredFile]) -> int:
    """Live rows with a vector in a version: of its nodes, or of its files where it has no shards."""
    return sum(shard.live_rows for shard in shards) if shards else sum(file.live_rows for file in files)


def new_version_report(
    plan: VersionPlan, clock: StageClock, shard_set: "ShardSet", file: "VersionFile", version: DerivedVersion
) -> IndexReport:
    """Report a run that published a version."""
    shards = shard_set.shards
    recalls = [(shard.recall, shard.live_rows) for shard in shards]
    base = plan.base if plan.action is Action.REFRESHED else None
    live_before = _live_rows(base.routing.shards, base.routing.files) if base else 0
    live_rows = _live_rows(shards, shard_set.files)
    inserted = sum(shard.inserted for shard in shards) - shard_set.merged
    if not plan.definition.has_graphs:
        inserted = sum(shard_set.read.rows.values())
    return replace(
        empty_report(plan, clock),
        index_snapshot_id=version.index_snapshot_id,
        base_snapshot_id=plan.base.bound.base_snapshot_id if plan.base else None,
        action=plan.action,
        puffin_path=version.puffin_path,
        rows=live_rows,
        without_vector=shard_set.read.without_vector,
        inserted=inserted,
        remapped=sum(shard.remapped for shard in shards),
        tombstones=sum(shard.count - shard.live_rows for shard in shards),
        gone=max(0, live_before + inserted - live_rows),
        shards=len(shards),
        deltas=max(0, len(shards) - shard_set.layout.shards),
        merged=shard_set.merged,
        shards_rebuilt=sum(shard.how is How.REBUILT for shard in shards),
        shards_copied=sum(shard.how.keeps_bytes for shard in shards),
        recall=_mean_recall(recalls, shard_set.layout.across),
        recall_basis=VersionRecall.from_shards(recalls, shard_set.layout.across) if recalls else None,
        bytes_total=file.bytes_total,
        bytes_written=file.bytes_total - file.bytes_shared - file.bytes_copied,
        bytes_shared=file.bytes_shared,
        fit=shard_set.fit if shards else None,
        shard_reports=tuple(
            _shard_report(it.shard_id, it.how, (it.count, it.live_rows, it.inserted, it.remapped), it.recall, it.length)
            for it in shards
        ),
    )
