"""Materialisation of a snapshot's theta sketches: per data file, united over its live files, registered in its slot."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ann_kernels.theta import union
from icepuffin.ops.catalog.bindings import make_lasting
from icepuffin.ops.catalog.blob_kind import SKETCHES_TAG
from icepuffin.ops.catalog.commit import reload_table
from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.catalog.statistics import find_statistics
from icepuffin.ops.model import LiveFile, SnapshotId, StorageConfig
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.runner import Progress, TaskRunner
from icepuffin.ops.tasks.theta import FilePart, SketchResult, plan_tasks, sketch_files
from icepuffin.ops.theta.ancestry import Extension
from icepuffin.ops.theta.columns import SketchedColumn, is_enabled
from icepuffin.ops.theta.estimate import estimate_work, measurement_text
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES, FileSketches
from icepuffin.ops.theta.ndv import ndv_at
from icepuffin.ops.theta.plan import MissingSketches, SketchPlan, data_snapshot, find_missing, is_current, plan_sketches
from icepuffin.ops.theta.publication import publish_file_sketches, publish_statistics
from icepuffin.ops.theta.report import ThetaEstimate, ThetaOutcome, ThetaReport
from icepuffin.ops.theta.statistics_slot import NewSketch, listed_thetas
from icepuffin.puffin.blobs import theta as theta_blob
from icepuffin.puffin.blobs.theta import ThetaSketch

PART_ROWS = 1 << 20
"""Rows per part of a file, about, into which a longer file is cut at row groups, so that several cores read one file"""


def materialize_theta_sketches(
    table: Table,
    snapshot_id: SnapshotId,
    *,
    runner: TaskRunner,
    storage: StorageConfig,
    enabled: bool | None = None,
    columns: Collection[str] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: Progress | None = None,
) -> ThetaReport:
    """Give a snapshot its theta sketches: count what is new, unite, register. Idempotent; a re-run writes nothing.

    `enabled` False, or BODO_ENABLE_THETA_SKETCHES=0, switches it off. `columns` names the columns instead of the rules
    of `choose_columns`. `budget_bytes` bounds the file sketches that are published for the next snapshot: a
    larger budget makes removals and deletes cheap to follow, at 32 KiB per file and column at most.

    Raises UnknownSnapshotError, UnsketchableColumnError, EqualityDeletesError, RepeatedFileError, ThetaError for a
    derived snapshot, UnsupportedFormatError for a v3 table in a catalog that cannot commit it; what the catalog, the
    storage and the runner raise. Nothing is published then. Where file sketches or the old statistics file are lost,
    `note` has it: that is no error.
    """
    started = time.perf_counter()
    name, snapshot = table_name(table), data_snapshot(table, snapshot_id)

    def report(outcome: ThetaOutcome, **counts: object) -> ThetaReport:
        statistics = find_statistics(table, snapshot_id)
        entries = ndv_at(table, snapshot_id, table.schema()).entries if listed_thetas(statistics) else {}
        all_counts = {"files_sketched": 0, "files_reused": 0, "bytes_written": 0, **counts}
        seconds = time.perf_counter() - started
        return ThetaReport(
            name,
            snapshot_id,
            statistics.statistics_path if statistics else None,
            {column: entry.ndv for column, entry in entries.items()},
            bool(entries) and all(entry.fresh for entry in entries.values()),
            seconds=seconds,
            outcome=outcome,
            **all_counts,  # type: ignore[arg-type]
        )

    if not is_enabled(enabled):
        return report(ThetaOutcome.OFF)
    store = open_storage(table.location(), storage)
    plan = plan_sketches(table, snapshot, store, columns)
    if not plan.columns:
        return report(ThetaOutcome.NO_COLUMNS)
    if is_current(plan, store):
        make_lasting(table, SKETCHES_TAG)
        return report(ThetaOutcome.CURRENT, files_reused=len(plan.live.files))

    sketched = _sketch(plan, store, storage, runner, progress)
    reached(RunStep.SKETCHED)
    new = [NewSketch(i, sketch, plan.build_ids[i]) for i, sketch in sketched.united.items()]
    written, carried, note = publish_statistics(table, store, snapshot, new)
    reached(RunStep.STATISTICS_REGISTERED)
    measurement = measurement_text(sketched.estimate.values, time.perf_counter() - started, runner)
    published = (
        publish_file_sketches(plan, store, sketched.per_file, budget_bytes, measurement)
        if sketched.missing.columns
        else None
    )
    reload_table(table)
    merged = (table.schema().find_column_name(b.metadata.fields[0]) for b in carried if b.listed)
    return report(
        ThetaOutcome.WRITTEN,
        files_sketched=len(sketched.missing.columns),
        files_reused=len(plan.live.files) - len(sketched.missing.columns),
        bytes_written=written + (published.bytes_written if published else 0),
        merged_columns=tuple(filter(None, merged)),
        extended_columns=tuple(c.name for c in plan.columns if c.field_id in sketched.missing.extensions),
        file_sketches_path=published.path if published else None,
        estimate=sketched.estimate,
        note="; ".join(
            filter(None, (plan.earlier.note, sketched.missing.note, note, published.note if published else ""))
        ),
    )


@dataclass(frozen=True, slots=True)
class _SnapshotSketches:
    """Sketches of the live rows of a snapshot, and the work that they took."""

    united: Mapping[int, ThetaSketch]
    per_file: tuple[FileSketches, ...]
    """Sketches per live file, where there are any"""
    missing: MissingSketches
    """Sketches that were missing, and were made now"""
    estimate: ThetaEstimate


def _sketch(
    plan: SketchPlan, store: Storage, config: StorageConfig, runner: TaskRunner, progress: Progress | None
) -> _SnapshotSketches:
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
    return _SnapshotSketches(united, per_file, missing, expected)


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
