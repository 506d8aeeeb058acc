"""Theta sketches of one snapshot: per data file, united over its live files, registered as its standard statistics."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from icepuffin.ann_kernels.theta import union
from icepuffin.ops.catalog.bindings import make_lasting
from icepuffin.ops.catalog.blob_kind import SKETCHES_TAG
from icepuffin.ops.catalog.commit import refresh
from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.catalog.statistics import find_statistics
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.theta import FileShare, SketchResult, plan_tasks, sketch_files
from icepuffin.ops.theta.ancestry import Extension
from icepuffin.ops.theta.columns import SketchedColumn, is_enabled
from icepuffin.ops.theta.estimate import estimate_work, measurement_text
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES, FileSketches
from icepuffin.ops.theta.kept_sketches import keep
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.plan import Unread, Work, data_snapshot, find_unread, is_current, plan_sketches
from icepuffin.ops.theta.publication import publish
from icepuffin.ops.theta.report import ThetaEstimate, ThetaOutcome, ThetaReport
from icepuffin.ops.theta.statistics_slot import NewSketch, listed_thetas
from icepuffin.puffin.blobs import theta as theta_blob
from icepuffin.puffin.blobs.theta import ThetaSketch

if TYPE_CHECKING:
    from icepuffin.ops.tasks.runner import TaskRunner

PART_ROWS = 1 << 20
"""A longer file is cut into shares of about so many rows, at row groups, so that several cores share one file."""

Progress = Callable[[int, int], None]


def materialize_theta_sketches(
    table: Table,
    snapshot_id: int,
    *,
    runner: "TaskRunner",
    storage: StorageConfig,
    enabled: bool | None = None,
    columns: Collection[str] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: Progress | None = None,
) -> ThetaReport:
    """Give a snapshot its theta sketches: count what is new, unite, register. Idempotent; a re-run writes nothing.

    `enabled` False, or BODO_ENABLE_THETA_SKETCHES=0, switches it off. `columns` names the columns instead of the rules
    of `choose_columns`. `budget_bytes` bounds the sketches that are kept per data file for the next snapshot: more of
    them make removals and deletes cheap to follow, at 32 KiB a file and column at most.

    Raises UnknownSnapshotError, UnsketchableColumnError, EqualityDeletesError, ThetaError for a derived snapshot,
    UnsupportedFormatError for a v3 table in a catalog that cannot commit it; what the catalog, the storage and the
    runner raise. Nothing is published then. That kept sketches or the old statistics file are lost is no error: `note`
    tells of it.
    """
    started = time.perf_counter()
    name, snapshot = table_name(table), data_snapshot(table, snapshot_id)

    def report(outcome: ThetaOutcome, **found: object) -> ThetaReport:
        statistics = find_statistics(table, snapshot_id)
        entries = read_ndv(table, snapshot_id).entries if listed_thetas(statistics) else {}
        known = {"files_sketched": 0, "files_reused": 0, "bytes_written": 0, **found}
        seconds = time.perf_counter() - started
        return ThetaReport(
            name,
            snapshot_id,
            statistics.statistics_path if statistics else None,
            {column: entry.ndv for column, entry in entries.items()},
            bool(entries) and all(entry.fresh for entry in entries.values()),
            seconds=seconds,
            outcome=outcome,
            **known,  # type: ignore[arg-type]
        )

    if not is_enabled(enabled):
        return report(ThetaOutcome.OFF)
    store = open_storage(table.location(), storage)
    work = plan_sketches(table, snapshot, store, columns)
    if not work.columns:
        return report(ThetaOutcome.NO_COLUMNS)
    if is_current(work, store):
        make_lasting(table, SKETCHES_TAG)
        return report(ThetaOutcome.CURRENT, files_reused=len(work.live.files))

    sketched = _sketch(work, store, storage, runner, progress)
    reached(RunStep.SKETCHED)
    new = [NewSketch(i, sketch, work.build_ids[i]) for i, sketch in sketched.united.items()]
    written, carried, note = publish(table, store, snapshot, new)
    reached(RunStep.STATISTICS_REGISTERED)
    measurement = measurement_text(sketched.estimate.values, time.perf_counter() - started, runner)
    kept = keep(work, store, sketched.per_file, budget_bytes, measurement) if sketched.unread.columns else None
    refresh(table)
    merged = (table.schema().find_column_name(b.metadata.fields[0]) for b in carried if b.listed)
    return report(
        ThetaOutcome.WRITTEN,
        files_sketched=len(sketched.unread.columns),
        files_reused=len(work.live.files) - len(sketched.unread.columns),
        bytes_written=written + (kept.bytes_written if kept else 0),
        merged_columns=tuple(filter(None, merged)),
        extended_columns=tuple(c.name for c in work.columns if c.field_id in sketched.unread.extensions),
        file_sketches_path=kept.path if kept else None,
        estimate=sketched.estimate,
        note="; ".join(filter(None, (work.kept.note, sketched.unread.note, note, kept.note if kept else ""))),
    )


@dataclass(frozen=True, slots=True)
class _Sketched:
    united: Mapping[int, ThetaSketch]
    per_file: tuple[FileSketches, ...]
    """Of live files, as far as known."""
    unread: Unread
    """What was read now."""
    estimate: ThetaEstimate


def _sketch(
    work: Work, store: Storage, config: StorageConfig, runner: "TaskRunner", progress: Progress | None
) -> _Sketched:
    """Read what no kept sketch covers; unite."""
    kept = work.kept.read(work.keys.values(), work.columns)
    known = {path: kept[key] for path, key in work.keys.items()}
    unread = find_unread(work, store, known)
    expected = estimate_work(work, unread, config, runner)
    for result in _run(work, config, runner, unread.columns, progress):
        for column, image in zip(unread.columns[result.path], result.images, strict=True):
            sketch = theta_blob.decode(image)
            other = known[result.path].get(column.field_id)
            known[result.path][column.field_id] = _union([sketch, other] if other else [sketch])
    united = {c.field_id: _united(c, known, unread.extensions.get(c.field_id)) for c in work.columns}
    types = {c.field_id: c.counted_as for c in work.columns}
    per_file = tuple(
        FileSketches(work.keys[path], {(i, types[i]): sketch for i, sketch in sketches.items()})
        for path, sketches in sorted(known.items())
        if sketches
    )
    return _Sketched(united, per_file, unread, expected)


def estimate_theta_sketches(
    table: Table,
    snapshot_id: int,
    *,
    runner: "TaskRunner",
    storage: StorageConfig,
    enabled: bool | None = None,
    columns: Collection[str] | None = None,
) -> ThetaEstimate:
    """What `materialize_theta_sketches` would do and take. Changes nothing, starts no Spark session.

    Reads metadata, footers of kept sketches and of one data file, and sketches of an ancestor that would be extended.
    """
    snapshot = data_snapshot(table, snapshot_id)
    if not is_enabled(enabled):
        return ThetaEstimate(ThetaOutcome.OFF)
    store = open_storage(table.location(), storage)
    work = plan_sketches(table, snapshot, store, columns)
    if not work.columns:
        return ThetaEstimate(ThetaOutcome.NO_COLUMNS)
    if is_current(work, store):
        return ThetaEstimate(ThetaOutcome.CURRENT, len(work.columns), files_reused=len(work.live.files))
    known = {path: work.kept.known(key, work.columns) for path, key in work.keys.items()}
    return estimate_work(work, find_unread(work, store, known), storage, runner)


def _united(
    column: SketchedColumn, known: Mapping[str, Mapping[int, ThetaSketch]], extension: Extension | None
) -> ThetaSketch:
    parts = [extension.sketch] if extension else []
    covered = extension.covered if extension else frozenset()
    parts += [s[column.field_id] for path, s in known.items() if path not in covered and column.field_id in s]
    return _union(parts)


def _union(sketches: Sequence[ThetaSketch]) -> ThetaSketch:
    return ThetaSketch(*union((s.theta, s.hashes) for s in sketches))


def _run(
    work: Work,
    config: StorageConfig,
    runner: "TaskRunner",
    todo: Mapping[str, Sequence[SketchedColumn]],
    progress: Progress | None,
) -> list[SketchResult]:
    files: Mapping[str, LiveFile] = work.live.by_path()
    shares = []
    for path in sorted(todo):
        columns = tuple((c.field_id, c.type) for c in todo[path])
        parts = 1 if files[path].deletes else max(1, -(-files[path].record_count // PART_ROWS))
        shares += [FileShare(files[path], columns, part, parts) for part in range(parts)]
    tasks = plan_tasks(shares, config, work.schema, parallelism=runner.parallelism, threads=runner.task_threads)
    if not tasks:
        return []
    done = runner.run(sketch_files, tasks, label=f"theta sketches of {work.live.table}", progress=progress)
    return [result for results in done for result in results]
