"""Stage 1 seen from the driver: what a build and a refresh share."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.errors import ShardTooLargeError
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.sample import Layout, max_shard_rows
from icepuffin.ops.model import How, LiveFile, StorageConfig
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.file_balls import BallSet
from icepuffin.ops.tasks.match_hashes import HashResult
from icepuffin.ops.tasks.runner import LocalRunner, TaskRunner
from icepuffin.ops.tasks.scatter import RowSelection, ScatterResult, ScatterTask, scatter
from icepuffin.ops.tasks.shard import ShardResult, ShardTask, make_shard
from icepuffin.ops.tasks.staged_blocks import Block
from icepuffin.puffin.blobs.routing import CoveredFile

Progress = Callable[[str, int, int], None]
"""Told (stage, tasks done, tasks in all)."""
Slotted = tuple[int, LiveFile]
"""(slot, file)"""
T = TypeVar("T")

SMALL_WORK = 64 * 1024**2
"""Bytes of vectors that a refresh handles in the driver, sooner than Spark starts a job for them, and unrecorded: after
a fault it is done again
"""


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """The data files that were read for a version."""

    rows: Mapping[int, int]
    """By slot: live rows that have a vector"""
    without_vector: int
    """Live rows that have none"""
    balls: tuple[BallSet, ...]

    @classmethod
    def of(cls, results: Sequence[ScatterResult] | Sequence[HashResult]) -> "ReadSummary":
        return cls(
            rows=dict(pair for result in results for pair in result.live_rows),
            without_vector=sum(result.without_vector for result in results),
            balls=tuple(result.balls for result in results),
        )

    @classmethod
    def joined(cls, parts: "Sequence[ReadSummary]") -> "ReadSummary":
        """Of one file different rows may have been read in each."""
        rows = Counter[int]()
        for part in parts:
            rows.update(part.rows)
        return cls(rows, sum(part.without_vector for part in parts), tuple(b for part in parts for b in part.balls))


@dataclass(frozen=True, slots=True)
class ShardSet:
    """All shards of a version, not yet in one file."""

    layout: Layout
    slots: tuple[CoveredFile, ...]
    """The file table as of the snapshot"""
    shards: tuple[ShardResult, ...]
    read: ReadSummary
    merged: int = 0
    """Rows that were dealt out from deltas to the other shards"""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where and how the stages of one version run."""

    plan: VersionPlan
    layout: Layout
    slots: tuple[Slotted, ...]
    """Of every live file"""
    storage: StorageConfig
    runner: TaskRunner
    progress: Progress | None
    small: int = 0
    """Bytes of vectors that the driver handles itself, unrecorded"""

    @property
    def staging(self) -> str:
        return staging_prefix(self.plan)

    def is_small(self, rows: int) -> bool:
        """Whether work on so many vectors costs less than a job, or than a record by which a retry finds it done."""
        return 4 * self.layout.dims * rows <= self.small

    def runner_of(self, rows: int) -> TaskRunner:
        """The driver itself where the work is small."""
        if isinstance(self.runner, LocalRunner) or not self.is_small(rows):
            return self.runner
        return LocalRunner(max(2, self.runner.task_threads))

    def stage(self, name: str) -> Callable[[int, int], None] | None:
        progress = self.progress
        return None if progress is None else lambda done, total: progress(name, done, total)

    def scatter(self, files: Sequence[RowSelection], routes: npt.NDArray[np.uint32]) -> list[ScatterResult]:
        """Stage the files' vectors by shard; `routes` u32[k] is the shard of each partition."""
        rows = sum(item.file.record_count for item in files)
        runner = self.runner_of(rows)
        groups = share_out(files, runner, lambda item: (item.slot, item.file.record_count))
        tasks = [
            ScatterTask(
                number=number,
                files=group,
                schema=self.plan.schema,
                field_id=self.plan.field_id,
                metric=self.plan.definition.metric_value,
                codebook=self.layout.codebook,
                partition_to_shard=routes,
                vectors=self.plan.definition.vectors,
                staging=self.staging,
                storage=self.storage,
                recorded=not self.is_small(rows),
                threads=runner.task_threads,
            )
            for number, group in enumerate(groups)
        ]
        return runner.run(scatter, tasks, label="read and scatter vectors", progress=self.stage("scatter"))

    def shard_task(self, number: int, how: How, blocks: tuple[Block, ...], base: BaseShard | None = None) -> ShardTask:
        definition = self.plan.definition
        return ShardTask(
            number=number,
            how=how,
            dims=self.layout.dims,
            metric=definition.metric_value,
            params=definition.params,
            vectors=definition.vectors,
            pq_codebook=self.layout.pq_codebook,
            blocks=blocks,
            base=base,
            is_delta=number >= self.layout.shards,
            target_recall=definition.target_recall,
            staging=self.staging,
            storage=self.storage,
            recorded=True,
            threads=self.runner.task_threads,
        )

    def require_room(self, number: int, rows: int) -> None:
        """Raises ShardTooLargeError where a shard would have so many rows that no reader might take its blob."""
        most = max_shard_rows(self.plan.definition, self.layout.dims)
        if rows > most:
            raise ShardTooLargeError(
                f"{self.plan.live.table}, index {self.plan.definition.name}: shard {number} of {self.layout.shards} "
                f"would have {rows:,} rows, and {most:,} fit into 2 GiB for certain. Raise `shards` (drop the index, "
                "and create it again with more), or keep smaller vectors (f16, none); rows with nearly equal vectors "
                "lie in one shard"
            )

    def make(self, tasks: Sequence[ShardTask], rows: int) -> list[ShardResult]:
        """Write shards; `rows` of all of them tells where."""
        runner, recorded = self.runner_of(rows), not self.is_small(rows)
        tasks = [replace(task, threads=runner.task_threads, recorded=recorded) for task in tasks]
        return runner.run(make_shard, tasks, label="write shards", progress=self.stage("shards"))


def staging_prefix(plan: VersionPlan) -> str:
    """Where objects lie until they are part of a published file; hidden from Java's cleaners, swept by ours.

    Indexes that differ in name alone have one build id: each sweeps its own objects only.
    """
    return f"{plan.live.location}/metadata/_icepuffin/{plan.definition.name}/{plan.build_id}"


def share_out(items: Sequence[T], runner: TaskRunner, weigh: Callable[[T], tuple[int, int]]) -> list[tuple[T, ...]]:
    """Items for tasks of about equal weight, two for each that runs at once; `weigh` gives (order, weight)."""
    groups = min(len(items), 2 * runner.parallelism)
    loads = np.zeros(groups, np.int64)
    members: list[list[T]] = [[] for _ in range(groups)]
    for item in sorted(items, key=lambda item: -weigh(item)[1]):
        lightest = int(loads.argmin())
        members[lightest].append(item)
        loads[lightest] += weigh(item)[1]
    return [tuple(sorted(group, key=lambda item: weigh(item)[0])) for group in members]


def blocks_by_shard(staged: Sequence[tuple[tuple[int, str, int], ...]]) -> dict[int, tuple[Block, ...]]:
    """The (destination, path, rows) of several tasks, by destination, in the order of the tasks."""
    out: dict[int, tuple[Block, ...]] = {}
    for number, path, rows in (block for blocks in staged for block in blocks):
        out[number] = (*out.get(number, ()), (path, rows))
    return out
