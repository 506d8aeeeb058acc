"""What the stages of a build and of a refresh share: their context, their tasks and what they make."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.errors import ShardTooLargeError, TooFewShardsError
from icepuffin.ops.index.index_layout import Layout
from icepuffin.ops.index.planning.sizes import ADDRESS_BYTES, EDGE_BYTES, cell_row_bytes, has_outgrown, max_shard_rows
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import FileSlot, How, LiveFile, ShardId
from icepuffin.ops.recall.shard_recall import shared_queries
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.delta_rows import PassedRows
from icepuffin.ops.tasks.file_balls import BallSet
from icepuffin.ops.tasks.found_rows import FoundRows
from icepuffin.ops.tasks.recall_gate import curve_queries
from icepuffin.ops.tasks.routing_distances import RoutingDistances
from icepuffin.ops.tasks.scatter import RowSelection, ScatterTask, scatter
from icepuffin.ops.tasks.shard_task import Partitions, ShardResult, ShardTask, make_shard, search_base
from icepuffin.ops.tasks.staged_blocks import Block, StagedRows
from icepuffin.ops.tasks.task_runner import RunContext, TaskRunner, balanced_groups, driver_runner, is_local
from icepuffin.ops.tasks.vectors import VectorColumn
from icepuffin.puffin.blobs.routing_blob import CoveredFile

SlottedFile = tuple[FileSlot, LiveFile]
"""A live file with its slot in the version"""


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """Data files that were read for a version."""

    rows: Mapping[FileSlot, int]
    """Live rows with a vector, by file slot"""
    without_vector: int
    """Live rows without a vector, in all of the files"""
    balls: tuple[BallSet, ...]
    """Balls around the vectors of the files"""

    @classmethod
    def from_results(cls, results: Sequence[StagedRows]) -> "ReadSummary":
        """Join the results of tasks; each read other files."""
        return cls(
            rows=dict(pair for result in results for pair in result.live_rows),
            without_vector=sum(result.without_vector for result in results),
            balls=tuple(result.balls for result in results),
        )

    @classmethod
    def joined(cls, parts: "Sequence[ReadSummary]") -> "ReadSummary":
        """Join partial reads. The parts may cover different rows of one file."""
        rows = Counter[FileSlot]()
        for part in parts:
            rows.update(part.rows)
        return cls(
            rows, sum(part.without_vector for part in parts), tuple(balls for part in parts for balls in part.balls)
        )


@dataclass(frozen=True, slots=True)
class ShardSet:
    """All shards of a version, not yet joined in one file."""

    layout: Layout
    files: tuple[CoveredFile, ...]
    """The version's file table, by file slot"""
    shards: tuple[ShardResult, ...]
    """Shards by id"""
    read: ReadSummary
    merged: int = 0
    """Rows that moved from delta shards to the other shards"""
    fit: LayoutFit = field(default_factory=LayoutFit)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where and how the stages of one version run."""

    run: RunContext
    plan: VersionPlan
    layout: Layout
    files: tuple[SlottedFile, ...]
    """All live files of the snapshot, with their slots"""
    driver_bytes: int = 0
    """Bytes of vectors up to which a stage runs in the driver and is not recorded"""
    memory: str = ""
    """Folder in the driver's memory for what such a stage writes, where only the driver reads it and it has no more
    than `driver_bytes`; empty: none
    """

    @property
    def column(self) -> VectorColumn:
        plan = self.plan
        return VectorColumn(plan.schema, plan.field_id, self.layout.dims, plan.definition.metric, self.run.storage)

    @property
    def staging(self) -> str:
        """Prefix of all staged objects."""
        return self.plan.staging_prefix

    def is_small(self, rows: int) -> bool:
        """Whether work on so many vectors costs less than a Spark job, or than a record of it for a retry."""
        return 4 * self.layout.dims * rows <= self.driver_bytes

    def runner_for(self, rows: int) -> TaskRunner:
        """The runner for work on so many vectors: the driver where the work is small."""
        return driver_runner(self.run.runner) if self.is_small(rows) else self.run.runner

    def staging_of_blocks(self, rows: int) -> str:
        """Prefix of the staged rows of a stage. Whatever takes them must reach them, be it small or not."""
        return (
            self._staging_of(rows, 4 * self.layout.dims + ADDRESS_BYTES) if is_local(self.run.runner) else self.staging
        )

    def staging_of_shards(self, rows: int) -> str:
        """Prefix of the shards that a stage writes: the driver alone reads them, and copies them where they belong."""
        definition, dims = self.plan.definition, self.layout.dims
        of_graph = math.ceil(EDGE_BYTES * definition.max_degree)
        return self._staging_of(rows, 4 * dims + ADDRESS_BYTES + of_graph + cell_row_bytes(definition, dims))

    def _staging_of(self, rows: int, row_bytes: int) -> str:
        return self.memory if self.memory and rows * row_bytes <= self.driver_bytes else self.staging


def scatter_rows(
    context: BuildContext, selections: Sequence[RowSelection], routes: npt.NDArray[np.uint32]
) -> list[StagedRows]:
    """Stage the rows' vectors by shard.

    routes: u32[k], the shard of each partition. Raises VectorColumnError naming file and row.
    """
    rows = sum(selection.file.record_count for selection in selections)
    runner = context.runner_for(rows)
    groups = balanced_groups(selections, runner, lambda item: (item.slot, item.file.record_count))
    tasks = [
        ScatterTask(
            task_number=number,
            files=group,
            column=context.column,
            codebook=context.layout.codebook,
            partition_to_shard=routes,
            vectors=context.plan.definition.vectors,
            staging=context.staging_of_blocks(rows),
            recorded=not context.is_small(rows),
            threads=runner.task_threads,
        )
        for number, group in enumerate(groups)
    ]
    return runner.run(scatter, tasks, label="read and scatter vectors", progress=context.run.stage_progress("scatter"))


def shard_task(
    context: BuildContext,
    shard_id: ShardId,
    how: How,
    blocks: tuple[Block, ...],
    base: BaseShard | None = None,
    passed: tuple[PassedRows, ...] = (),
) -> ShardTask:
    """The task that builds a shard, or changes that of the base version.

    `blocks`: the staged rows that come to it; `passed`: those whose vectors stay where they lie. Its runner and whether
    it is recorded are decided by `make_shards`.
    """
    definition, layout = context.plan.definition, context.layout
    is_delta = shard_id >= layout.shards
    return ShardTask(
        shard_id=shard_id,
        how=how,
        dims=layout.dims,
        metric=definition.metric,
        params=definition.params,
        vectors=definition.vectors,
        cell_bits=definition.cell_bits,
        pq_codebook=layout.pq_codebook,
        blocks=blocks,
        passed=passed,
        base=base,
        partitions=Partitions(layout.codebook, layout.partition_to_shard) if is_delta and layout.shards > 1 else None,
        is_delta=is_delta,
        target_recall=definition.target_recall,
        staging=context.staging,
        storage=context.run.storage,
        recorded=True,
        curve_queries=curve_queries(layout.shards),
        shared_queries=shared_queries(layout.shards),
        routing_queries=layout.routing_queries,
        threads=context.run.runner.task_threads,
    )


def make_shards(context: BuildContext, tasks: Sequence[ShardTask], rows: int) -> list[ShardResult]:
    """Write shards that have `rows` nodes in all."""
    runner, recorded = context.runner_for(rows), not context.is_small(rows)
    staging = context.staging_of_shards(rows)
    tasks = [replace(task, threads=runner.task_threads, recorded=recorded, staging=staging) for task in tasks]
    return runner.run(make_shard, tasks, label="write shards", progress=context.run.stage_progress("shards"))


def search_shards(
    context: BuildContext, tasks: Sequence[ShardTask], rows: int
) -> list[tuple[RoutingDistances | None, tuple[FoundRows, ...]]]:
    """Search shards that stay, of `rows` nodes in all, for the layout's `routing_queries`."""
    runner = context.runner_for(rows)
    tasks = [replace(task, threads=runner.task_threads) for task in tasks]
    return runner.run(search_base, tasks, label="search shards", progress=context.run.stage_progress("recall"))


def require_few_rows(context: BuildContext, rows: int) -> None:
    """Raises TooFewShardsError where an index would have too many rows for the shards that it has."""
    plan, layout = context.plan, context.layout
    if has_outgrown(plan.definition, rows, layout.dims, layout.shards):
        raise TooFewShardsError(
            f"{plan.live.table}, index {plan.definition.name}: {rows:,} rows are too many for {layout.shards} shards"
        )


def require_capacity(context: BuildContext, shard_id: ShardId, rows: int) -> None:
    """Raises ShardTooLargeError where a shard of so many rows might exceed the 2 GiB that readers take of a blob."""
    plan, layout = context.plan, context.layout
    most = max_shard_rows(plan.definition, layout.dims)
    if rows > most:
        raise ShardTooLargeError(
            f"{plan.live.table}, index {plan.definition.name}: shard {shard_id} of {layout.shards} "
            f"would have {rows:,} rows, and {most:,} fit into 2 GiB for certain. Drop the index, and create it again "
            "with more `shards`, a smaller `max_degree`, or without codes and cells (vectors = 'f32' or 'f16' lie "
            "apart from the shard); rows with nearly equal vectors lie in one shard"
        )
