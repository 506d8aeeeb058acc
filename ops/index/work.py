"""Stage 1 seen from the driver: cut the work into tasks, run them, collect their small results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ops.catalog.deletes import fingerprint
from ops.index.plan import VersionPlan
from ops.index.report import Action
from ops.index.sample import Layout, lay_out
from ops.model import LiveFile, StorageConfig
from ops.spark.runner import TaskRunner
from ops.storage import relative_to
from ops.tasks.scatter import ScatterResult, ScatterTask, scatter
from ops.tasks.shard import ShardResult, ShardTask, make_shard
from puffin.blobs.routing import CoveredFile

Progress = Callable[[str, int, int], None]
"""Told (stage, tasks done, tasks in all)."""


@dataclass(frozen=True, slots=True)
class ShardsMade:
    """All shards of a version, not yet in one file."""

    layout: Layout
    slots: tuple[CoveredFile, ...]
    """The file table; live rows and fingerprints as of the snapshot"""
    shards: tuple[ShardResult, ...]
    scattered: tuple[ScatterResult, ...]


def staging_prefix(plan: VersionPlan) -> str:
    """Where objects lie until they are part of a published file; hidden from Java's cleaners, swept by ours.

    Indexes that differ in name alone have one build id: each sweeps its own objects only.
    """
    return f"{plan.live.location}/metadata/_icepuffin/{plan.definition.name}/{plan.build_id}"


def make_shards(
    plan: VersionPlan, *, runner: TaskRunner, storage: StorageConfig, progress: Progress | None = None
) -> ShardsMade | None:
    """Sample, scatter and build. None where no row is live after deletes."""
    layout = _layout(plan, storage, runner)
    if layout is None:
        return None
    slots = _slots(plan)
    added = {file.path for file in plan.added}
    new_slots = [(slot, file) for slot, file in slots if file.path in added]
    scattered = runner.run(
        scatter,
        _scatter_tasks(plan, layout, new_slots, storage, runner),
        label="read and scatter vectors",
        progress=_stage("scatter", progress),
    )
    tasks = [_shard_task(plan, layout, number, slots, scattered, storage, runner) for number in range(layout.shards)]
    due = [task for task in tasks if not _untouched(plan, task)]
    made = runner.run(make_shard, due, label="build shards", progress=_stage("shards", progress))
    done = {result.number: result for result in made}
    shards = tuple(done.get(task.number) or _copied(plan, task) for task in tasks)
    return ShardsMade(layout, _file_table(plan, slots), shards, tuple(scattered))


def _layout(plan: VersionPlan, storage: StorageConfig, runner: TaskRunner) -> Layout | None:
    if plan.action is Action.REFRESHED and plan.base is not None:
        routing = plan.base.routing
        return Layout(routing.codebook, routing.partition_to_shard, len(routing.shards), None, plan.base.routing_curve)
    return lay_out(plan, storage, threads=max(2, runner.task_threads))


def _slots(plan: VersionPlan) -> list[tuple[int, LiveFile]]:
    """Slot of each live file: the base's where it keeps its nodes, a new one otherwise."""
    old = plan.base.routing.files if plan.action is Action.REFRESHED and plan.base else ()
    known = {file.path: slot for slot, file in enumerate(old) if file.present}
    added = {file.path for file in plan.added}
    slots, free = [], len(old)
    for file in plan.live.files:
        if file.path in added:
            slots.append((free, file))
            free += 1
        else:
            slots.append((known[relative_to(file.path, plan.live.location)], file))
    return slots


def _file_table(plan: VersionPlan, slots: list[tuple[int, LiveFile]]) -> tuple[CoveredFile, ...]:
    """All slots; live rows are filled in when they have been counted."""
    old = plan.base.routing.files if plan.action is Action.REFRESHED and plan.base else ()
    table = [CoveredFile(file.path, file.rows, 0, file.delete_fingerprint, present=False) for file in old]
    size = max((slot + 1 for slot, _ in slots), default=0)
    table += [CoveredFile("", 0, 0, bytes(32), present=False)] * (size - len(table))
    for slot, file in slots:
        path = relative_to(file.path, plan.live.location)
        table[slot] = CoveredFile(path, file.record_count, file.record_count, fingerprint(file), present=True)
    return tuple(table)


def _scatter_tasks(
    plan: VersionPlan,
    layout: Layout,
    files: list[tuple[int, LiveFile]],
    storage: StorageConfig,
    runner: TaskRunner,
) -> list[ScatterTask]:
    groups = min(len(files), 2 * runner.parallelism) if files else 0
    loads = np.zeros(groups, np.int64)
    members: list[list[tuple[int, LiveFile]]] = [[] for _ in range(groups)]
    for slot, file in sorted(files, key=lambda item: -item[1].record_count):
        lightest = int(loads.argmin())
        members[lightest].append((slot, file))
        loads[lightest] += file.record_count
    return [
        ScatterTask(
            number=number,
            files=tuple(sorted(group)),
            schema=plan.schema,
            field_id=plan.field_id,
            metric=int(plan.definition.metric_value),
            codebook=layout.codebook,
            partition_to_shard=layout.partition_to_shard,
            staging=f"{staging_prefix(plan)}/{groups}",
            storage=storage,
            threads=runner.task_threads,
        )
        for number, group in enumerate(members)
    ]


def _shard_task(
    plan: VersionPlan,
    layout: Layout,
    number: int,
    slots: list[tuple[int, LiveFile]],
    scattered: list[ScatterResult],
    storage: StorageConfig,
    runner: TaskRunner,
) -> ShardTask:
    base = plan.base if plan.action is Action.REFRESHED else None
    blocks = tuple((path, rows) for result in scattered for shard, path, rows in result.blocks if shard == number)
    return ShardTask(
        number=number,
        dims=layout.dims,
        metric=int(plan.definition.metric_value),
        params=plan.definition.params,
        vectors=plan.definition.vectors,
        pq_codebook=layout.pq_codebook,
        blocks=blocks,
        base=base.shards[number] if base else None,
        base_recall=base.routing.shards[number].recall if base else 1.0,
        base_curve=base.curves[number] if base else "",
        slots=tuple(slots),
        schema=plan.schema,
        field_id=plan.field_id,
        rebuild_ratio=plan.definition.rebuild_ratio,
        staging=staging_prefix(plan),
        storage=storage,
        threads=runner.task_threads,
    )


def _untouched(plan: VersionPlan, task: ShardTask) -> bool:
    """Nothing came and nothing can have gone: the shard need not even be looked at."""
    return task.base is not None and not task.blocks and not plan.live_positions_change


def _copied(plan: VersionPlan, task: ShardTask) -> ShardResult:
    if plan.base is None or task.base is None:
        raise ValueError(f"shard {task.number} has neither been made nor a base")
    entry = plan.base.routing.shards[task.number]
    return ShardResult(
        number=task.number,
        how="copied",
        path=task.base.path,
        offset=task.base.offset,
        length=task.base.length,
        sha256=entry.sha256,
        count=entry.count,
        medoid=entry.medoid,
        recall=entry.recall,
        tombstones=entry.tombstones,
        inserted=0,
        remapped=0,
        curve=task.base_curve,
    )


def _stage(name: str, progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done, total)
