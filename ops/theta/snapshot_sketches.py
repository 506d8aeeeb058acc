"""The sketches of a snapshot: files that no earlier sketch covers are counted by tasks, and all sketches are united.

Sketches of single files serve the next snapshots alone, for which no more are kept than a budget admits. So no more
come back from tasks, and the others come back as unions.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from icepuffin.ops.model import LiveFile
from icepuffin.ops.storage import Storage
from icepuffin.ops.tasks.sketches.accumulators import UnitedSketches, union_of
from icepuffin.ops.tasks.sketches.images import Sketch, decode
from icepuffin.ops.tasks.sketches.sketch_plan import plan_tasks
from icepuffin.ops.tasks.sketches.statistic import Statistic, StatisticKey
from icepuffin.ops.tasks.sketches.theta_task import FilePart, SketchTask, sketch_files
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.earlier_sketches import LocatedSketches
from icepuffin.ops.theta.file_sketches import PART_ROWS, FileKey, image_bytes
from icepuffin.ops.theta.theta_estimate import estimate_work
from icepuffin.ops.theta.theta_plan import MissingSketches, SketchPlan, find_missing
from icepuffin.ops.theta.theta_report import SKETCH_STAGE, ThetaEstimate


@dataclass(frozen=True, slots=True)
class SnapshotSketches:
    """Sketches of the live rows of a snapshot, and the work that they took."""

    united: Mapping[StatisticKey, Sketch]
    located: LocatedSketches
    """The file sketches of earlier versions that can be read, as far as they were tried"""
    by_file: Mapping[FileKey, Mapping[StatisticKey, Sketch]]
    """File sketches in memory, made or read; of the others those that earlier versions have are `located`
    """
    left_out: frozenset[str]
    """Paths of data files that were read, of which no sketches of their own are in memory, or not all"""
    missing: MissingSketches
    """Sketches that were missing, and were made now"""
    estimate: ThetaEstimate


def sketch_snapshot(run: RunContext, plan: SketchPlan, store: Storage, *, budget_bytes: int) -> SnapshotSketches:
    """Read the columns of files that no sketch covers, and unite their sketches with an ancestor's or the kept ones.

    `budget_bytes`: memory for file sketches that are made, and for those that are read.
    """
    located = plan.earlier.located(plan.keys.values(), plan.build_ids)
    missing = find_missing(plan, store, {path: located[key].keys() for path, key in plan.keys.items()})
    to_read = {
        key: {it: reader for it, reader in located[key].items() if not missing.is_covered(path, it)}
        for path, key in plan.keys.items()
    }
    united = UnitedSketches()
    for statistic, extension in missing.extensions.items():
        united.add(statistic, extension.sketch)
    by_file, broken = _read_earlier(plan, to_read, united, budget_bytes)
    missing = _with_broken(plan, missing, broken)
    located = {key: {it: r for it, r in readers.items() if it not in broken[key]} for key, readers in located.items()}
    expected = estimate_work(run, plan, missing)
    tasks = _tasks(run, plan, missing.statistics, budget_bytes)
    returned = _carry_out(run, plan, tasks, missing.statistics, united)
    for path, sketches in returned.items():
        by_file[plan.keys[path]] |= sketches
    return SnapshotSketches(
        {statistic: united.union(statistic) for statistic in plan.build_ids},
        located,
        by_file,
        frozenset(missing.statistics.keys() - returned.keys()),
        missing,
        expected,
    )


def _read_earlier(
    plan: SketchPlan, to_read: LocatedSketches, united: UnitedSketches, budget_bytes: int
) -> tuple[dict[FileKey, dict[StatisticKey, Sketch]], Mapping[FileKey, Collection[StatisticKey]]]:
    """(sketches in memory, statistics whose sketch could not be read), by key. Adds all to `united`."""
    by_file: dict[FileKey, dict[StatisticKey, Sketch]] = {key: {} for key in to_read}
    unread = {key: set(readers) for key, readers in to_read.items()}
    for key, sketches in plan.earlier.read_each(to_read):
        for statistic, sketch in sketches.items():
            united.add(statistic, sketch)
        unread[key] -= sketches.keys()
        size = image_bytes(sketches.values())
        if size <= budget_bytes:
            by_file[key] |= sketches
            budget_bytes -= size
    return by_file, unread


def _with_broken(
    plan: SketchPlan, missing: MissingSketches, broken: Mapping[FileKey, Collection[StatisticKey]]
) -> MissingSketches:
    """The missing sketches and those that could not be read, by file."""
    statistics, are_kept = dict(missing.statistics), missing.are_kept
    for path, key in plan.keys.items():
        if broken[key]:
            statistics[path] = (*statistics.get(path, ()), *(it for it in plan.statistics if it.key in broken[key]))
            are_kept = True
    return replace(missing, statistics=statistics, are_kept=are_kept)


def _tasks(
    run: RunContext, plan: SketchPlan, missing: Mapping[str, tuple[Statistic, ...]], budget_bytes: int
) -> list[SketchTask]:
    files: Mapping[str, LiveFile] = plan.live.by_path()
    file_parts = []
    for path in sorted(missing):
        parts = 1 if files[path].deletes else max(1, -(-files[path].record_count // PART_ROWS))
        file_parts += [FilePart(files[path], missing[path], part, parts) for part in range(parts)]
    return plan_tasks(
        file_parts,
        run.storage,
        plan.schema,
        parallelism=run.runner.parallelism,
        threads=run.runner.task_threads,
        image_bytes=budget_bytes,
    )


def _carry_out(
    run: RunContext,
    plan: SketchPlan,
    tasks: Sequence[SketchTask],
    missing: Mapping[str, Sequence[Statistic]],
    united: UnitedSketches,
) -> dict[str, dict[StatisticKey, Sketch]]:
    """Sketches of each file that tasks returned as a whole, by its path. Adds all to `united`.

    A file may be in several tasks, of which some had no room for its sketches: those of its other parts are of no use.
    """
    if not tasks:
        return {}
    label, watched = f"sketches of {plan.live.table}", run.stage_progress(SKETCH_STAGE)
    results = run.runner.run(sketch_files, tasks, label=label, progress=watched)
    unreturned = Counter(path for task in tasks for path in {file_part.file.path for file_part in task.file_parts})
    parts: dict[str, dict[StatisticKey, Sketch]] = {}
    while results:
        result = results.pop()  # its images do not stay in memory beside the sketches
        for key, image in result.others.items():
            united.add(key, decode(key, memoryview(image)))
        for file in result.files:
            unreturned[file.path] -= 1
            sketches = parts.setdefault(file.path, {})
            for statistic, image in zip(missing[file.path], file.images, strict=True):
                key = statistic.key
                sketch = decode(key, memoryview(image))
                united.add(key, sketch)
                sketches[key] = union_of(key, (sketches[key], sketch)) if key in sketches else sketch
    return {path: sketches for path, sketches in parts.items() if not unreturned[path]}
