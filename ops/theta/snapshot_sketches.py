"""The sketches of a snapshot: files that no earlier sketch covers are counted by tasks, and all sketches are united."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icepuffin.ann_kernels.theta import union
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.storage import Storage
from icepuffin.ops.tasks.runner import Progress, TaskRunner
from icepuffin.ops.tasks.theta import FilePart, SketchResult, plan_tasks, sketch_files
from icepuffin.ops.theta.ancestry import Extension
from icepuffin.ops.theta.columns import SketchedColumn
from icepuffin.ops.theta.estimate import estimate_work
from icepuffin.ops.theta.file_sketches import FileSketches
from icepuffin.ops.theta.plan import MissingSketches, SketchPlan, find_missing
from icepuffin.ops.theta.report import ThetaEstimate
from icepuffin.puffin.blobs import theta as theta_blob
from icepuffin.puffin.blobs.theta import ThetaSketch

PART_ROWS = 1 << 20
"""Rows per part of a file, about, into which a longer file is cut at row groups, so that several cores read one file"""


@dataclass(frozen=True, slots=True)
class SnapshotSketches:
    """Sketches of the live rows of a snapshot, and the work that they took."""

    united: Mapping[int, ThetaSketch]
    per_file: tuple[FileSketches, ...]
    """Sketches per live file, where there are any"""
    missing: MissingSketches
    """Sketches that were missing, and were made now"""
    estimate: ThetaEstimate


def sketch_snapshot(
    plan: SketchPlan, store: Storage, config: StorageConfig, runner: TaskRunner, progress: Progress | None
) -> SnapshotSketches:
    """Read the columns of files that no file sketch covers, and unite all sketches."""
    earlier = plan.earlier.read(plan.keys.values(), plan.columns)
    sketches_by_path = {path: earlier[key] for path, key in plan.keys.items()}
    missing = find_missing(plan, store, sketches_by_path)
    expected = estimate_work(plan, missing, config, runner)
    for result in _run(plan, config, runner, missing.columns, progress):
        for column, image in zip(missing.columns[result.path], result.images, strict=True):
            sketch = theta_blob.decode(image)
            other = sketches_by_path[result.path].get(column.field_id)
            sketches_by_path[result.path][column.field_id] = _union([sketch, other] if other else [sketch])
    united = {c.field_id: _united(c, sketches_by_path, missing.extensions.get(c.field_id)) for c in plan.columns}
    types = {c.field_id: c.counted_as for c in plan.columns}
    per_file = tuple(
        FileSketches(plan.keys[path], {(i, types[i]): sketch for i, sketch in sketches.items()})
        for path, sketches in sorted(sketches_by_path.items())
        if sketches
    )
    return SnapshotSketches(united, per_file, missing, expected)


def _united(
    column: SketchedColumn, sketches_by_path: Mapping[str, Mapping[int, ThetaSketch]], extension: Extension | None
) -> ThetaSketch:
    parts = [extension.sketch] if extension else []
    covered = extension.covered if extension else frozenset()
    parts += [
        s[column.field_id] for path, s in sketches_by_path.items() if path not in covered and column.field_id in s
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
    for path in sorted(columns_by_path):
        columns = tuple((c.field_id, c.type) for c in columns_by_path[path])
        parts = 1 if files[path].deletes else max(1, -(-files[path].record_count // PART_ROWS))
        file_parts += [FilePart(files[path], columns, part, parts) for part in range(parts)]
    tasks = plan_tasks(file_parts, config, plan.schema, parallelism=runner.parallelism, threads=runner.task_threads)
    if not tasks:
        return []
    done = runner.run(sketch_files, tasks, label=f"theta sketches of {plan.live.table}", progress=progress)
    return [result for results in done for result in results]
