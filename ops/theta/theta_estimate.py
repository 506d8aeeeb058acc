"""Estimates of the work of sketching a snapshot, learned from measurements of earlier snapshots."""

import statistics
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import sketch_versions
from icepuffin.ops.binding.measurements import (
    EARLIER_VERSIONS,
    LEFT_OUT,
    Measurement,
    measured_versions,
    source_in_words,
)
from icepuffin.ops.messages import plural
from icepuffin.ops.model import LiveFile, SnapshotId, StorageConfig
from icepuffin.ops.rows.datafile import column_names, open_data_file
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import SKETCHES_TAG
from icepuffin.ops.tasks.sketches.statistic import field_ids_of, image_bound
from icepuffin.ops.theta.columns import is_enabled
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.theta_plan import (
    MissingSketches,
    SketchPlan,
    data_snapshot,
    find_missing,
    is_current,
    plan_sketches,
)
from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaOutcome

if TYPE_CHECKING:
    from icepuffin.ops.tasks.task_runner import RunContext, TaskRunner


def default_seconds(values: int, threads: int) -> float:
    """Seconds of the commit, and 30 ns of one core per value; `python -m benchmarks.sketches` measures both."""
    return 0.2 + 30e-9 * values / threads


def estimate_theta_sketches(
    run: "RunContext", snapshot_id: SnapshotId, *, requested: RequestedStatistics = KEPT_UP
) -> ThetaEstimate:
    """Outcome and cost of `count_theta_sketches` beforehand. Changes nothing, starts no Spark session.

    Reads metadata, footers of file sketches and of one data file, and sketches of an ancestor that would be extended.
    """
    snapshot = data_snapshot(run.table, snapshot_id)
    if not is_enabled():
        return ThetaEstimate(ThetaOutcome.OFF)
    store = open_storage(run.table.location(), run.storage)
    plan = plan_sketches(run.table, snapshot, store, requested)
    if not plan.statistics:
        return ThetaEstimate(ThetaOutcome.NO_COLUMNS)
    if is_current(plan, store):
        return ThetaEstimate(
            ThetaOutcome.CURRENT, len(field_ids_of(plan.statistics)), files_reused=len(plan.live.files)
        )
    located = plan.earlier.located(plan.keys.values(), plan.build_ids)
    covered = {path: located[key].keys() for path, key in plan.keys.items()}
    return estimate_work(run, plan, find_missing(plan, store, covered))


def estimate_work(run: "RunContext", plan: SketchPlan, missing: MissingSketches) -> ThetaEstimate:
    """Estimate the work of a plan. Reads at most one data file's footer; raises what the work would raise for it."""
    files = plan.live.by_path()
    rows = {path: files[path].record_count for path in missing.statistics}
    values = sum(rows[path] * len(statistics) for path, statistics in missing.statistics.items())
    lengths = Counter(file.record_count for file in plan.live.files)
    per_file = sum(number * _sketch_bytes(plan, length) for length, number in lengths.items())
    seconds, rates = _predicted(run, values)
    return ThetaEstimate(
        outcome=ThetaOutcome.WRITTEN,
        columns=len(field_ids_of(plan.statistics)),
        files_sketched=len(missing.statistics),
        files_reused=len(files) - len(missing.statistics),
        values=values,
        bytes_read=_bytes_read(plan, missing, run.storage, files),
        bytes_written=_sketch_bytes(plan, plan.live.record_count)
        + (min(BUDGET_BYTES, per_file) if missing.are_kept else 0),
        seconds=round(seconds, 3),
        rates=rates,
    )


def _sketch_bytes(plan: SketchPlan, rows: int) -> int:
    """Bytes of the sketches of so many rows, at most."""
    return sum(image_bound(key, rows) for key in plan.build_ids)


def _bytes_read(
    plan: SketchPlan, missing: MissingSketches, storage: StorageConfig, by_path: Mapping[str, LiveFile]
) -> int:
    if not missing.statistics:
        return 0
    files = [by_path[path] for path in missing.statistics]
    longest = max(files, key=lambda file: file.record_count)
    shares = _shares(plan, longest, storage)
    return round(
        sum(file.size * sum(shares.get(i, 0.0) for i in field_ids_of(missing.statistics[file.path])) for file in files)
    )


def _shares(plan: SketchPlan, file: LiveFile, storage: StorageConfig) -> dict[int, float]:
    """Share of a file's bytes that each column takes, by field id."""
    parquet = open_data_file(open_storage(file.path, storage), file)
    sizes: dict[str, int] = {}
    for group in range(parquet.metadata.num_row_groups):
        for name, chunk in parquet.chunks(group):
            sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    names = column_names(parquet.schema, file, plan.schema)
    return {i: sizes.get(name, 0) / max(1, file.size) for i, name in names.items()}


def measurement_text(values: int, seconds: float, runner: "TaskRunner") -> str:
    """The measurement of a run as text, for the summary of the snapshot that refers to the file sketches."""
    return Measurement(type(runner).__name__, runner.task_threads, seconds, {"values": values}).text()


def files_over_budget(table: Table) -> int:
    """Number of data files that the kept sketches of the newest version leave out, for want of room."""
    newest = (version for version in sketch_versions(table) if SKETCHES_TAG in version.tags)
    return max((measured.amounts.get(LEFT_OUT, 0) for _, measured in measured_versions(newest)), default=0)


def _predicted(run: "RunContext", values: int) -> tuple[float, str]:
    """(seconds, their source in words): those of the default rate, times the median correction of earlier snapshots."""
    runner = run.runner
    expected = default_seconds(values, runner.task_threads)
    misses = [
        measurement.seconds / default_seconds(measurement.amounts.get("values", 0), measurement.threads)
        for _, measurement in measured_versions(sketch_versions(run.table))
        if measurement.runner == type(runner).__name__ and measurement.amounts.keys() <= {"values", LEFT_OUT}
    ]
    chosen = misses[-EARLIER_VERSIONS:]
    if not chosen:
        threads = plural(runner.task_threads, "thread")
        return expected, f"default rate, {threads}; one that starts Spark or compiles kernels takes longer"
    return expected * statistics.median(chosen), f"measured on {source_in_words('snapshot', len(chosen))}"
