"""The sketches of a snapshot: files that no earlier sketch covers are counted by tasks, and all sketches are united."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from icepuffin.ann_kernels.theta import union
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.storage import Storage
from icepuffin.ops.tasks.runner import Progress, TaskRunner
from icepuffin.ops.tasks.theta import FilePart, SketchResult, plan_tasks, sketch_files
from icepuffin.ops.theta.columns import SketchedColumn
from icepuffin.ops.theta.earlier_sketches import Places
from icepuffin.ops.theta.estimate import estimate_work
from icepuffin.ops.theta.file_sketches import PART_ROWS, FileKey
from icepuffin.ops.theta.plan import MissingSketches, SketchPlan, find_missing
from icepuffin.ops.theta.report import ThetaEstimate
from icepuffin.puffin.blobs import theta as theta_blob
from icepuffin.puffin.blobs.theta import ThetaSketch


@dataclass(frozen=True, slots=True)
class SnapshotSketches:
    """Sketches of the live rows of a snapshot, and the work that they took."""

    united: Mapping[int, ThetaSketch]
    places: Places
    """Places of the file sketches that earlier versions have and that can be read, as far as they were tried"""
    read: Mapping[FileKey, Mapping[int, ThetaSketch]]
    """File sketches that were made or read, by field id; the others lie at their places"""
    missing: MissingSketches
    """Sketches that were missing, and were made now"""
    estimate: ThetaEstimate


def sketch_snapshot(
    plan: SketchPlan, store: Storage, config: StorageConfig, runner: TaskRunner, progress: Progress | None
) -> SnapshotSketches:
    """Read the columns of files that no sketch covers, and unite their sketches with an ancestor's or the kept ones."""
    places = plan.earlier.places(plan.keys.values(), plan.columns)
    missing = find_missing(plan, store, {path: places[key].keys() for path, key in plan.keys.items()})
    to_read = {
        key: {i: reader for i, reader in places[key].items() if not missing.is_covered(path, i)}
        for path, key in plan.keys.items()
    }
    read = plan.earlier.read(to_read)
    broken = {key: readers.keys() - read[key].keys() for key, readers in to_read.items()}
    missing = _with_broken(plan, missing, broken)
    places = {key: {i: r for i, r in readers.items() if i not in broken[key]} for key, readers in places.items()}
    expected = estimate_work(plan, missing, config, runner)
    for result in _run(plan, config, runner, missing.columns, progress):
        sketches = read[plan.keys[result.path]]
        for column, image in zip(missing.columns[result.path], result.images, strict=True):
            sketch = theta_blob.decode(image)
            other = sketches.get(column.field_id)
            sketches[column.field_id] = _union([sketch, other] if other else [sketch])
    united = {c.field_id: _united(c.field_id, plan, read, missing) for c in plan.columns}
    return SnapshotSketches(united, places, read, missing, expected)


def _with_broken(
    plan: SketchPlan, missing: MissingSketches, broken: Mapping[FileKey, Collection[int]]
) -> MissingSketches:
    """The missing sketches and those that could not be read. broken: field ids, by key."""
    columns = dict(missing.columns)
    for path, key in plan.keys.items():
        if broken[key]:
            columns[path] = (*columns.get(path, ()), *(c for c in plan.columns if c.field_id in broken[key]))
    return replace(missing, columns=columns)


def _united(
    field_id: int, plan: SketchPlan, read: Mapping[FileKey, Mapping[int, ThetaSketch]], missing: MissingSketches
) -> ThetaSketch:
    parts = [missing.extensions[field_id].sketch] if field_id in missing.extensions else []
    parts += [
        read[key][field_id]
        for path, key in plan.keys.items()
        if not missing.is_covered(path, field_id) and field_id in read[key]
    ]
    return _union(parts)


def _union(sketches: Sequence[ThetaSketch]) -> ThetaSketch:
    return ThetaSketch(*union((s.theta, s.hashes) for s in sketches))


def _run(
    plan: SketchPlan,
    config: StorageConfig,
    runner: TaskRunner,
    columns_by_path: Mapping[str, Sequence[SketchedColumn]],
    progress: Progress | None,
) -> list[SketchResult]:
    files: Mapping[str, LiveFile] = plan.live.by_path()
    file_parts = []
    distinct = {id(columns): columns for columns in columns_by_path.values()}  # most files share one tuple
    types = {key: tuple((c.field_id, c.type) for c in columns) for key, columns in distinct.items()}
    for path in sorted(columns_by_path):
        columns = types[id(columns_by_path[path])]
        parts = 1 if files[path].deletes else max(1, -(-files[path].record_count // PART_ROWS))
        file_parts += [FilePart(files[path], columns, part, parts) for part in range(parts)]
    tasks = plan_tasks(file_parts, config, plan.schema, parallelism=runner.parallelism, threads=runner.task_threads)
    if not tasks:
        return []
    done = runner.run(sketch_files, tasks, label=f"theta sketches of {plan.live.table}", progress=progress)
    return [result for results in done for result in results]
