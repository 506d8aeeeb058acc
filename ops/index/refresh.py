"""A version derived from a base version, at the cost of rows that are gone, moved or new. See docs/concepts.md."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.errors import LayoutMisfitError
from icepuffin.ops.index.index_layout import Layout
from icepuffin.ops.index.masked_recall import measure_masked
from icepuffin.ops.index.moved_rows import match_moved_rows
from icepuffin.ops.index.planning import dead_nodes, sizes
from icepuffin.ops.index.planning.dead_nodes import DeadNodes, Nodes
from icepuffin.ops.index.planning.deltas import NEW_DELTA, Placement, place
from icepuffin.ops.index.planning.slots import assign_slots, file_table
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.recall_across import draw_queries, measured_across
from icepuffin.ops.index.stages import (
    BuildContext,
    ReadSummary,
    ShardSet,
    make_shards,
    require_capacity,
    require_few_rows,
    scatter_rows,
    search_shards,
    shard_task,
)
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.model import FileSlot, How, ObjectRange, ShardId, StorageConfig, StoredShard
from icepuffin.ops.process.memory import memory_bytes
from icepuffin.ops.recall.shard_recall import AcrossShards, ShardRecall
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import relative_to
from icepuffin.ops.tasks.base_shard import BaseShard, RelocatedShard, RelocateTask, relocate
from icepuffin.ops.tasks.delta_rows import DeltaRowsTask, DissolvedDelta, PassedRows, scatter_delta
from icepuffin.ops.tasks.matching.match_hashes import StagedMoves
from icepuffin.ops.tasks.shard_task import ShardResult, ShardTask
from icepuffin.ops.tasks.staged_blocks import Block, blocks_by_destination
from icepuffin.ops.tasks.task_runner import (
    SMALL_WORK,
    RunContext,
    TaskRunner,
    balanced_groups,
    driver_runner,
    is_local,
)
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.blobs.routing_blob import ShardEntry

OnKept = Callable[[Mapping[ShardId, ShardResult], Sequence[ObjectRange]], None]
"""Function of the shards that keep their blobs, and of the locations of vectors that others keep"""

_MEMORY_OF_SMALL_WORK = 4 << 30
"""Bytes of a process's memory, for each of which a stage may keep SMALL_WORK"""
_MAX_SMALL_WORK = 1 << 30
"""Bytes that a stage may keep at most, since all of it is done again after a fault: some minutes of work"""


@dataclass(frozen=True, slots=True, eq=False)
class _EarlierShard:
    """A shard of the base version, as it is in the new snapshot."""

    shard_id: ShardId
    """Id in the base version"""
    entry: ShardEntry
    stored: StoredShard
    recall: ShardRecall
    """Recall as it was last measured, in the base version"""
    curve: str
    tombstones: Nodes
    """Nodes that are dead in the new snapshot"""
    moves: tuple[StagedMoves, ...]
    moved: int
    """Nodes with a new address"""
    slots: npt.NDArray[np.uint32] | None
    """File slots that its nodes lay in before they moved; None where addresses were not read"""

    @property
    def live_rows(self) -> int:
        return self.entry.count - len(self.tombstones)

    def outcome(self, arriving: int, definition: IndexDefinition, dims: int) -> How:
        """What becomes of the shard if `arriving` rows come to it."""
        if sizes.why_rebuilt(definition, dims, self.entry, len(self.tombstones), arriving):
            return How.REBUILT
        if arriving:
            return How.INSERTED
        if self.moves:
            return How.REMAPPED
        return How.COPIED if len(self.tombstones) == len(self.entry.tombstones) else How.MASKED


def refresh_shards(
    run: RunContext, plan: VersionPlan, base: OpenVersion, dead: DeadNodes, *, on_kept: OnKept, memory: str = ""
) -> ShardSet:
    """Match rows that moved, place new rows, and write the shards that change.

    on_kept: called once, before any shard is written, with the shards of the new version that keep the base version's
    blobs, by id, and with locations of the vectors that others keep; of those whose rows have moved the new addresses
    are not known yet.
    memory: folder of `memory_folder` for what is staged and small, until the shards are copied; empty: all is staged
    in the table's storage.
    Raises VectorColumnError, ShardTooLargeError, LayoutMisfitError, StorageError, PuffinError.
    """
    routing = base.routing
    layout = Layout(
        routing.codebook,
        routing.partition_to_shard,
        routing.routed_shards,
        _pq_codebook(base, run.storage),
        base.sample_curve,
        base.routing_curve,
        across=base.across,
    )
    context = BuildContext(run, plan, layout, assign_slots(plan), _small_work(run.runner), memory)
    matches = match_moved_rows(context, base, dead.nodes)
    shards = [
        _shard(base, ShardId(shard_id), dead, matches.moves.get(ShardId(shard_id), ()))
        for shard_id in range(len(base.shards))
    ]
    placement = place(
        plan.definition,
        routed_rows=sum(shard.live_rows for shard in shards[: layout.shards]),
        deltas={shard.shard_id: shard.live_rows for shard in shards[layout.shards :]},
        arriving=matches.unmatched_rows,
        largest=sizes.rows_per_shard(layout.dims, plan.definition.max_degree),
    )
    if matches.unmatched_rows:
        require_few_rows(context, matches.unmatched_rows + sum(shard.live_rows for shard in shards))
    dropped = (*placement.dissolved, *placement.dropped)
    kept = [shard for shard in shards if shard.shard_id not in dropped]
    dissolved = [shards[shard_id] for shard_id in placement.dissolved]
    scattered = scatter_rows(context, matches.unmatched, _routes(layout, placement, kept))
    deltas = _scatter_deltas(context, dissolved)
    staged = blocks_by_destination([*(result.blocks for result in scattered), *(delta.blocks for delta in deltas)])
    arrivals = Arrivals.from_blocks(staged, chain(*(delta.passed for delta in deltas)))
    routed = [shard.live_rows + arrivals.count(ShardId(number)) for number, shard in enumerate(kept[: layout.shards])]
    fit = fit_of(base.bound.sizes).after(routed, sum(shard.live_rows for shard in shards), scattered)
    if fit.imbalance and plan.may_build_anew:
        raise LayoutMisfitError(fit.imbalance)
    if plan.other_error is not None:  # a build was tried in vain: the next refresh tries none for this cause
        fit = replace(fit, kept_balance=fit.balance)
    live_rows = sum(shard.live_rows for shard in shards) + sum(n for it in scattered for _, n in it.live_rows)
    shard_count = len(kept) + (len(kept) in arrivals.blocks)  # rows without a vector make no delta
    queries = None
    if shard_count == 1:  # a search of the index finds what a search of the shard does
        layout = replace(layout, across=AcrossShards())
    elif placement.may_read_shards(plan.definition) and fit.outdates_recall(live_rows):
        queries = draw_queries(_without_empty_files(plan, base), shard_count, run.storage)
    if queries is not None:
        fit, context = replace(fit, arrived=0.0), replace(context, layout=replace(layout, routing_queries=queries))
    results = _make(context, kept, arrivals, placement, on_kept)
    read = ReadSummary.joined(
        matches.read if matches.unmatched_are_read else (*matches.read, ReadSummary.from_results(scattered))
    )
    files = file_table(plan, context.files, read.rows, dead.removed_rows, _referenced(results))
    if queries is not None:
        layout = measured_across(layout, queries, results, plan.definition.metric)
    return ShardSet(layout, files, results, read, sum(shard.live_rows for shard in dissolved), fit)


def _without_empty_files(plan: VersionPlan, base: OpenVersion) -> VersionPlan:
    """The plan, without the files in which the base version has no row: a new column has none in most."""
    empty = {file.path for file in base.routing.files if file.present and not file.live_rows}
    empty -= {relative_to(file.path, plan.live.location) for file in plan.added}
    files = (file for file in plan.live.files if relative_to(file.path, plan.live.location) not in empty)
    return replace(plan, live=replace(plan.live, files=tuple(files)))


def _small_work(runner: TaskRunner) -> int:
    """Bytes of vectors up to which a stage runs in the driver and is not recorded: more in a process that does all the
    work itself and has much memory, where it saves writing what is staged.
    """
    if not is_local(runner):
        return SMALL_WORK
    return min(_MAX_SMALL_WORK, SMALL_WORK * max(1, memory_bytes() // _MEMORY_OF_SMALL_WORK))


def _routes(layout: Layout, placement: Placement, kept: Sequence[_EarlierShard]) -> npt.NDArray[np.uint32]:
    """u32[k], the new version's shard that takes the new rows of each partition."""
    if placement.target is None:
        return layout.partition_to_shard
    target = len(kept)
    if placement.target != NEW_DELTA:
        target = next(shard_id for shard_id, shard in enumerate(kept) if shard.shard_id == placement.target)
    return np.full_like(layout.partition_to_shard, target)


def _pq_codebook(base: OpenVersion, storage: StorageConfig) -> npt.NDArray[np.float32] | None:
    """The PQ codebook that all shards of a lean index share; None for other indexes."""
    if base.definition.vectors != "none":
        return None
    return open_shard(base.shards[0], storage).read_pq()[0]


def _shard(base: OpenVersion, shard_id: ShardId, dead: DeadNodes, moves: tuple[StagedMoves, ...]) -> _EarlierShard:
    nodes = dead.nodes[shard_id]
    moved = [deletion_vector_blob.decode(move.nodes) for move in moves]
    return _EarlierShard(
        shard_id=shard_id,
        entry=base.routing.shards[shard_id],
        stored=base.shards[shard_id],
        recall=base.recalls[shard_id],
        curve=base.curves[shard_id],
        tombstones=np.setdiff1d(nodes, np.concatenate(moved), assume_unique=True) if moved else nodes,
        moves=moves,
        moved=sum(map(len, moved)),
        slots=dead.slots[shard_id],
    )


def _referenced(results: Sequence[ShardResult]) -> frozenset[FileSlot] | None:
    """File slots that some node lies in; None where that is not known of every shard."""
    slots: set[FileSlot] = set()
    for shard in results:
        if shard.slots is None:
            return None
        slots.update(shard.slots.tolist())
    return frozenset(slots)


# ----------------------------------------------------------------------------------------------------- what is written


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows that come to the shards of the new version."""

    blocks: Mapping[int, tuple[Block, ...]]
    """Staged rows, by shard"""
    passed: Mapping[int, tuple[PassedRows, ...]]
    """Rows of dissolved deltas whose vectors stay where they lie, by shard"""

    @classmethod
    def from_blocks(cls, blocks: Mapping[int, tuple[Block, ...]], passed: Iterable[PassedRows]) -> "Arrivals":
        """Arrivals of staged rows, by shard, and of passed rows, which keep their order."""
        by_shard: defaultdict[int, list[PassedRows]] = defaultdict(list)
        for rows in passed:
            by_shard[rows.destination].append(rows)
        return cls(blocks, {shard_id: tuple(rows) for shard_id, rows in by_shard.items()})

    def passed_to(self, shard_id: ShardId) -> tuple[PassedRows, ...]:
        """The rows of dissolved deltas that come to a shard."""
        return self.passed.get(shard_id, ())

    def count(self, shard_id: ShardId) -> int:
        """Number of all rows that come to a shard."""
        staged = sum(count for _, count in self.blocks.get(shard_id, ()))
        return staged + sum(rows.count for rows in self.passed_to(shard_id))


def _scatter_deltas(context: BuildContext, deltas: Sequence[_EarlierShard]) -> list[DissolvedDelta]:
    """Stage the rows of delta shards that are dissolved, by the shards that their partitions belong to."""
    rows = sum(shard.entry.count for shard in deltas)
    runner = context.runner_for(rows)
    tasks = [
        DeltaRowsTask(
            shard_id=shard.shard_id,
            base=_base_shard(context, shard),
            codebook=context.layout.codebook,
            partition_to_shard=context.layout.partition_to_shard,
            staging=context.staging_of_blocks(rows),
            storage=context.run.storage,
            threads=runner.task_threads,
        )
        for shard in deltas
    ]
    return runner.run(scatter_delta, tasks, label="dissolve deltas", progress=context.run.stage_progress("deltas"))


def _make(
    context: BuildContext,
    kept: Sequence[_EarlierShard],
    arrivals: Arrivals,
    placement: Placement,
    on_kept: OnKept,
) -> tuple[ShardResult, ...]:
    """All shards of the new version, by id. Tasks write those that change."""
    results: dict[ShardId, ShardResult] = {}
    tasks: list[ShardTask] = []
    lasting: list[ObjectRange] = []
    moved: list[tuple[ShardId, BaseShard]] = []
    rows = 0
    definition = context.plan.definition
    for shard_id, shard in zip(map(ShardId, range(len(kept))), kept, strict=True):
        arriving = arrivals.count(shard_id)
        how = shard.outcome(arriving, definition, context.layout.dims)
        if how.keeps_bytes:
            results[shard_id] = _kept_result(shard_id, how, shard)
            if how is How.REMAPPED:
                moved.append((shard_id, _base_shard(context, shard)))
        else:
            require_capacity(context, shard_id, shard.live_rows + arriving)
            staged, passed = arrivals.blocks.get(shard_id, ()), arrivals.passed_to(shard_id)
            tasks.append(shard_task(context, shard_id, how, staged, _base_shard(context, shard), passed))
            if how is How.INSERTED and definition.holds_vectors:
                lasting += [run.location for run in chain(shard.stored.runs, *(part.runs for part in passed))]
            rows += shard.entry.count + arriving
    delta_id = ShardId(len(kept))
    if placement.target == NEW_DELTA and delta_id in arrivals.blocks:
        tasks.append(shard_task(context, delta_id, How.BUILT, arrivals.blocks[delta_id]))
        arriving = arrivals.count(delta_id)
        require_capacity(context, delta_id, arriving)
        rows += arriving
    on_kept(dict(results), lasting)
    for shard_id, recall in measure_masked(context, results.values()).items():
        results[shard_id] = replace(results[shard_id], recall=recall)
    results |= _searched(context, kept, results)
    results |= {shard.shard_id: shard for shard in make_shards(context, tasks, rows)}
    for relocated in _relocate(context, moved):
        result = results[relocated.shard_id]
        stored = replace(result.stored, addresses=relocated.addresses)
        results[relocated.shard_id] = replace(result, stored=stored, slots=relocated.slots)
    return tuple(results[shard_id] for shard_id in sorted(results))


def _searched(
    context: BuildContext, kept: Sequence[_EarlierShard], results: Mapping[ShardId, ShardResult]
) -> dict[ShardId, ShardResult]:
    """The shards that stay, with what is found in them for the layout's queries; nothing where it has none."""
    if context.layout.routing_queries is None:
        return {}
    tasks = [
        shard_task(context, shard_id, result.how, (), _base_shard(context, kept[shard_id]))
        for shard_id, result in results.items()
    ]
    answers = search_shards(context, tasks, sum(result.count for result in results.values()))
    return {
        shard_id: replace(result, routing=routing, found=found)
        for (shard_id, result), (routing, found) in zip(results.items(), answers, strict=True)
    }


def _relocate(context: BuildContext, shards: Sequence[tuple[ShardId, BaseShard]]) -> list[RelocatedShard]:
    """Write the new addresses of shards whose rows have only moved."""
    nodes = sum(base.moved for _, base in shards)
    runner = driver_runner(context.run.runner) if nodes <= dead_nodes.NODES_AT_ONCE else context.run.runner
    groups = balanced_groups(shards, runner, lambda item: (item[0], item[1].moved))
    tasks = [RelocateTask(group, context.staging, context.run.storage, runner.task_threads) for group in groups]
    results = runner.run(relocate, tasks, label="write addresses", progress=context.run.stage_progress("addresses"))
    return list(chain(*results))


def _base_shard(context: BuildContext, shard: _EarlierShard) -> BaseShard:
    return BaseShard(
        stored=shard.stored,
        recall=shard.entry.recall,
        curve=shard.curve,
        tombstones=deletion_vector_blob.encode(shard.tombstones),
        moves=shard.moves,
        moved=shard.moved,
        files=() if context.plan.definition.holds_vectors else context.files,
        schema=context.plan.schema,
        field_id=context.plan.field_id,
        storage=context.run.storage,
    )


def _kept_result(shard_id: ShardId, how: How, shard: _EarlierShard) -> ShardResult:
    """The result for a shard whose blob stays as it is, with the base version's addresses."""
    return ShardResult(
        shard_id=shard_id,
        how=how,
        stored=shard.stored,
        sha256=shard.entry.sha256,
        count=shard.entry.count,
        medoid=shard.entry.medoid,
        written_recall=shard.entry.recall,
        recall=shard.recall.after(len(np.setxor1d(shard.tombstones, shard.entry.tombstones, assume_unique=True))),
        curve=shard.curve,
        tombstones=shard.tombstones,
        inserted=0,
        remapped=shard.moved,
        slots=shard.slots,
    )
