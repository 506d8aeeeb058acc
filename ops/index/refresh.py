"""A version derived from an older one, for what has changed: rows that died, moved, or came. See docs/concepts.md."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index import sample
from icepuffin.ops.index.deltas import NEW_DELTA, Placement, place
from icepuffin.ops.index.moved_rows import match_moved_rows
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.sample import Layout, rows_per_shard
from icepuffin.ops.index.slots import file_table, slots_of
from icepuffin.ops.index.stages import (
    SMALL_WORK,
    BuildContext,
    Progress,
    ReadSummary,
    ShardSet,
    blocks_by_shard,
    share_out,
)
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.model import How, ObjectRange, StorageConfig
from icepuffin.ops.storage import PartSource, open_storage
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.dead_nodes import DeadNodesTask, mark_dead_nodes
from icepuffin.ops.tasks.delta_rows import DeltaRowsTask, scatter_delta
from icepuffin.ops.tasks.match_hashes import StagedMoves
from icepuffin.ops.tasks.relocation import RelocateTask, relocate
from icepuffin.ops.tasks.runner import LocalRunner, TaskRunner
from icepuffin.ops.tasks.shard import ShardResult, ShardTask
from icepuffin.ops.tasks.staged_blocks import Block
from icepuffin.puffin.blobs import deletion_vector
from icepuffin.puffin.blobs.routing import ShardEntry
from icepuffin.puffin.blobs.shard import ShardReader

Nodes = npt.NDArray[np.int64]

_NODES_AT_ONCE = 1 << 24
"""Nodes whose addresses the driver handles sooner than Spark starts a job"""


@dataclass(frozen=True, slots=True, eq=False)
class DeadNodes:
    """What of a base is not live in the snapshot."""

    nodes: tuple[Nodes, ...]
    """By shard"""
    lost: Mapping[int, int]
    """By slot: how many of them were live before"""
    slots: tuple[npt.NDArray[np.uint32] | None, ...]
    """By shard: all that its nodes lie in; None where nothing was read"""


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    """A shard of the base, as it is in the new snapshot."""

    number: int
    entry: ShardEntry
    blob: ObjectRange
    curve: str
    tombstones: Nodes
    moves: tuple[StagedMoves, ...]
    moved: int
    slots: npt.NDArray[np.uint32] | None
    """All that its nodes lay in before they moved, where they were read"""

    @property
    def live(self) -> int:
        return self.entry.count - len(self.tombstones)

    def outcome(self, arriving: int, rebuild_ratio: float, most: int) -> How:
        """What is to be done, if so many rows come to it, and it may have `most` nodes."""
        if len(self.tombstones) > rebuild_ratio * (self.entry.count + arriving):
            return How.REBUILT
        if (arriving and self.entry.count + arriving > most) or self.entry.length > sample.MAX_BLOB_BYTES:
            return How.REBUILT
        if arriving:
            return How.INSERTED
        if self.moves:
            return How.REMAPPED
        return How.COPIED if len(self.tombstones) == len(self.entry.tombstones) else How.MASKED


def find_dead_nodes(plan: VersionPlan, base: OpenVersion, *, runner: TaskRunner, storage: StorageConfig) -> DeadNodes:
    """Nodes whose rows are not live where the base has them. Reads location maps, where rows have gone at all."""
    before = tuple(entry.tombstones for entry in base.routing.shards)
    if not plan.live_positions_change:
        return DeadNodes(before, {}, (None,) * len(before))
    nodes = sum(entry.count for entry in base.routing.shards)
    runner = LocalRunner() if nodes <= _NODES_AT_ONCE else runner
    groups = share_out(list(enumerate(base.shards)), runner, lambda item: (item[0], item[1].length))
    deleted = tuple((slot, deletion_vector.encode(rows)) for slot, rows in sorted(plan.changes.deleted.items()))
    gone = np.array(plan.changes.gone, np.uint32)
    tasks = [
        DeadNodesTask(
            tuple((shard, deletion_vector.encode(before[number])) for number, shard in group), gone, deleted, storage
        )
        for group in groups
    ]
    marked = runner.run(mark_dead_nodes, tasks, label="find nodes without rows")
    by_shard = {number: found for (number, _), found in zip(chain(*groups), chain(*marked), strict=True)}
    lost = Counter[int]()
    for found in by_shard.values():
        lost.update(dict(found.lost))
    return DeadNodes(
        nodes=tuple(deletion_vector.decode(by_shard[number].nodes) for number in range(len(before))),
        lost=lost,
        slots=tuple(by_shard[number].slots for number in range(len(before))),
    )


def refresh_shards(
    plan: VersionPlan,
    base: OpenVersion,
    dead: DeadNodes,
    *,
    runner: TaskRunner,
    storage: StorageConfig,
    settled: Callable[[Sequence[ShardResult]], None],
    progress: Progress | None = None,
) -> ShardSet:
    """Recognise rows that moved, place those that are new, write the shards that are not the same.

    `settled` is told the first shards of the new version that are the base's, before any other is written.
    """
    routing = base.routing
    layout = Layout(
        routing.codebook,
        routing.partition_to_shard,
        routing.base_shards,
        _pq_codebook(base, storage),
        base.routing_curve,
    )
    work = BuildContext(plan, layout, slots_of(plan), storage, runner, progress, SMALL_WORK)
    known = match_moved_rows(work, base, dead.nodes)
    shards = [_shard(base, number, dead, known.moves.get(number, ())) for number in range(len(base.shards))]
    placement = place(
        plan.definition,
        base_rows=sum(shard.live for shard in shards[: layout.shards]),
        deltas={shard.number: shard.live for shard in shards[layout.shards :]},
        arriving=known.arriving,
        largest=rows_per_shard(layout.dims, plan.definition.max_degree),
    )
    gone = (*placement.spilled, *placement.dropped)
    kept = [shard for shard in shards if shard.number not in gone]
    target = len(kept)
    if placement.target not in (None, NEW_DELTA):
        target = next(number for number, shard in enumerate(kept) if shard.number == placement.target)
    routes = layout.partition_to_shard if placement.target is None else np.full_like(layout.partition_to_shard, target)
    scattered = work.scatter(known.left, routes)
    spilled = _spill(work, [shards[number] for number in placement.spilled])
    blocks = blocks_by_shard([*(result.blocks for result in scattered), *spilled])
    made = _make(work, kept, blocks, placement, settled)
    read = ReadSummary.joined(known.read if known.left_is_read else (*known.read, ReadSummary.of(scattered)))
    merged = sum(shards[number].live for number in placement.spilled)
    slots = file_table(plan, work.slots, read.rows, dead.lost, _referenced(made))
    return ShardSet(layout, slots, made, read, merged)


def _pq_codebook(base: OpenVersion, storage: StorageConfig) -> npt.NDArray[np.float32] | None:
    """All shards of a lean index share one."""
    if base.definition.vectors != "none":
        return None
    return ShardReader(PartSource(open_storage(base.shards[0].path, storage), base.shards[0])).read_pq()[0]


def _shard(base: OpenVersion, number: int, dead: DeadNodes, moves: tuple[StagedMoves, ...]) -> _Shard:
    nodes = dead.nodes[number]
    moved = [deletion_vector.decode(item.nodes) for item in moves]
    return _Shard(
        number=number,
        entry=base.routing.shards[number],
        blob=base.shards[number],
        curve=base.curves[number],
        tombstones=np.setdiff1d(nodes, np.concatenate(moved), assume_unique=True) if moved else nodes,
        moves=moves,
        moved=sum(map(len, moved)),
        slots=dead.slots[number],
    )


def _referenced(made: Sequence[ShardResult]) -> frozenset[int] | None:
    """Slots that some node lies in; None where that is not known of every shard."""
    found: set[int] = set()
    for shard in made:
        if shard.slots is None:
            return None
        found.update(shard.slots.tolist())
    return frozenset(found)


# ----------------------------------------------------------------------------------------------------- what is written


def _spill(work: BuildContext, deltas: Sequence[_Shard]) -> list[tuple[tuple[int, str, int], ...]]:
    runner = work.runner_of(sum(shard.entry.count for shard in deltas))
    tasks = [
        DeltaRowsTask(
            number=shard.number,
            base=_base(work, shard),
            codebook=work.layout.codebook,
            partition_to_shard=work.layout.partition_to_shard,
            staging=work.staging,
            storage=work.storage,
            threads=runner.task_threads,
        )
        for shard in deltas
    ]
    return runner.run(scatter_delta, tasks, label="deal out deltas", progress=work.stage("deltas"))


def _make(
    work: BuildContext,
    kept: Sequence[_Shard],
    blocks: Mapping[int, tuple[Block, ...]],
    placement: Placement,
    settled: Callable[[Sequence[ShardResult]], None],
) -> tuple[ShardResult, ...]:
    """All shards of the new version, in their order; those that need a task are written by it."""
    done: dict[int, ShardResult] = {}
    tasks: list[ShardTask] = []
    moved: list[tuple[int, BaseShard]] = []
    rows = 0
    most = sample.max_shard_rows(work.plan.definition, work.layout.dims)
    for number, shard in enumerate(kept):
        arriving = sum(count for _, count in blocks.get(number, ()))
        how = shard.outcome(arriving, work.plan.definition.rebuild_ratio, most)
        if how in (How.COPIED, How.MASKED):
            done[number] = _unwritten(number, how, shard)
        elif how is How.REMAPPED:
            moved.append((number, _base(work, shard)))
        else:
            work.require_room(number, shard.live + arriving)
            tasks.append(work.shard_task(number, how, blocks.get(number, ()), _base(work, shard)))
            rows += shard.entry.count + arriving
    if placement.target == NEW_DELTA and len(kept) in blocks:
        tasks.append(work.shard_task(len(kept), How.BUILT, blocks[len(kept)]))
        arriving = sum(count for _, count in blocks[len(kept)])
        work.require_room(len(kept), arriving)
        rows += arriving
    settled([done[number] for number in takewhile(done.__contains__, range(len(kept)))])
    done |= {result.number: result for result in [*work.make(tasks, rows), *_relocate(work, moved)]}
    return tuple(done[number] for number in sorted(done))


def _relocate(work: BuildContext, shards: Sequence[tuple[int, BaseShard]]) -> list[ShardResult]:
    nodes = sum(base.moved for _, base in shards)
    runner = LocalRunner(max(2, work.runner.task_threads)) if nodes <= _NODES_AT_ONCE else work.runner
    groups = share_out(shards, runner, lambda item: (item[0], item[1].moved))
    tasks = [RelocateTask(group, work.staging, work.storage, runner.task_threads) for group in groups]
    made = runner.run(relocate, tasks, label="write addresses", progress=work.stage("addresses"))
    return [result for results in made for result in results]


def _base(work: BuildContext, shard: _Shard) -> BaseShard:
    return BaseShard(
        blob=shard.blob,
        recall=shard.entry.recall,
        curve=shard.curve,
        tombstones=deletion_vector.encode(shard.tombstones),
        moves=tuple(item.staged for item in shard.moves),
        moved=shard.moved,
        files=work.slots if work.plan.definition.vectors == "none" else (),
        schema=work.plan.schema,
        field_id=work.plan.field_id,
        storage=work.storage,
    )


def _unwritten(number: int, how: How, shard: _Shard) -> ShardResult:
    return ShardResult(
        number=number,
        how=how,
        parts=(shard.blob,),
        sha256=shard.entry.sha256,
        count=shard.entry.count,
        medoid=shard.entry.medoid,
        recall=shard.entry.recall,
        curve=shard.curve,
        tombstones=shard.tombstones,
        inserted=0,
        remapped=0,
        slots=shard.slots,
    )
