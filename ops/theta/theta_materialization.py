"""Materialisation of a snapshot's theta sketches: per data file, united over its live files, registered in its slot."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from icepuffin.ops.binding.bindings import make_lasting
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.joint_commit import CommitPart, commit_together
from icepuffin.ops.binding.pack_upkeep import expire_packs_if_possible
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import SKETCHES_TAG
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.columns import is_enabled
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.ndv import counts_for_planners, ndv_at
from icepuffin.ops.theta.partition_statistics import tally_for, write_partition_statistics
from icepuffin.ops.theta.publication import UnpublishedStatistics, settle_folder, write_version
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.side_files import SideFiles
from icepuffin.ops.theta.statistics_slot import NewSketch, damage_of, listed_thetas
from icepuffin.ops.theta.theta_estimate import measurement_text
from icepuffin.ops.theta.theta_plan import data_snapshot, is_current, plan_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport
from icepuffin.puffin import DistinctCount


@dataclass(frozen=True, slots=True)
class CountedSketches:
    """A snapshot's sketches whose files are written, and that the table's metadata may not name yet."""

    parts: Callable[[], tuple[CommitPart[object], ...]]
    """Callable that gives the parts to be committed together with others: those whose files are there still"""
    counts: Mapping[int, DistinctCount]
    """NDVs that the table does not list yet, by field id"""
    publish: Callable[[], ThetaReport]
    """Callable that commits the parts that are not committed yet, and reports"""


def count_theta_sketches(
    run: RunContext,
    snapshot_id: SnapshotId,
    *,
    requested: RequestedStatistics = KEPT_UP,
    budget_bytes: int = BUDGET_BYTES,
    verify: bool = False,
) -> CountedSketches:
    """Make a snapshot's theta sketches, and the statistics of other kinds that are `requested`: count what is new, and
    unite. `publish` of the result registers them; a re-run writes nothing.

    BODO_ENABLE_THETA_SKETCHES=0 switches it off. By default columns that have a theta sketch get one, or, where none
    has, those of common types. Where no column has a theta sketch, none has other statistics.
    `budget_bytes` bounds the file sketches that are published for the next snapshot, and those that are in memory: a
    larger budget makes removals and deletes cheap to follow, at 32 KiB per file and column at most. `note` counts the
    files over the budget; what the snapshot's sketches count does not depend on it. With `verify`, sketches that are
    there are read first, and made anew where one is damaged: `note` has that. A partitioned table gets a file of
    partition statistics, too, where it has none for the snapshot.

    Raises UnknownSnapshotError, also for a derived snapshot, UnsketchableColumnError, EqualityDeletesError,
    TableFaultError, UnsupportedFormatError for a v3 table in a catalog that cannot commit it; what the catalog, the
    storage and the runner raise. No statistics are published then. Where file sketches or the old statistics file
    are lost, or partition statistics fail, `note` has it: that is no error.
    """
    started = time.perf_counter()
    table, storage = run.table, run.storage
    name, snapshot = table_name(table), data_snapshot(table, snapshot_id)

    def report(outcome: ThetaOutcome, seconds: float, **counts: object) -> ThetaReport:
        statistics = find_statistics(table, snapshot_id)
        entries = ndv_at(table, snapshot_id, table.schema()).entries if listed_thetas(statistics) else {}
        all_counts = {"files_sketched": 0, "files_reused": 0, "bytes_written": 0, **counts}
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

    def unchanged(outcome: ThetaOutcome, of_partitions: SideFiles, **counts: object) -> CountedSketches:
        seconds = time.perf_counter() - started

        def publish() -> ThetaReport:
            commit_together(table, of_partitions.parts())
            words, written, note = of_partitions.result()
            return report(outcome, seconds, bytes_written=written, partitions=words, note=note, **counts)

        return CountedSketches(of_partitions.parts, {}, publish)

    if not is_enabled():
        return unchanged(ThetaOutcome.OFF, SideFiles(table, storage))
    store = open_storage(table.location(), storage)
    tally = tally_for(table, snapshot_id, storage) if requested.partitions else None
    plan = plan_sketches(table, snapshot, store, requested, tally.add if tally else None)
    if not plan.statistics:
        return unchanged(ThetaOutcome.NO_COLUMNS, write_partition_statistics(table, storage, snapshot, tally))
    damage, is_there = "", is_current(plan, store)
    if is_there and verify and (entry := find_statistics(table, snapshot_id)) is not None:
        damage = damage_of(store, entry)
    if is_there and not damage:
        make_lasting(table, SKETCHES_TAG)
        of_partitions = write_partition_statistics(table, storage, snapshot, tally)
        return unchanged(ThetaOutcome.CURRENT, of_partitions, files_reused=len(plan.live.files))

    from icepuffin.ops.theta.snapshot_sketches import sketch_snapshot  # noqa: PLC0415  numba, if there is work to do

    sketched = sketch_snapshot(run, plan, store, budget_bytes=budget_bytes)
    reached(RunStep.SKETCHED)
    rows = plan.live.record_count  # deleted rows included: which these are may not have been read
    new = [NewSketch(it, sketched.united[it.key], plan.build_ids[it.key], rows) for it in plan.statistics]
    folder, unbindable = settle_folder(table)
    measurement = measurement_text(sketched.estimate.values, time.perf_counter() - started, run.runner)
    counted = {
        (i := it.statistic.key[0]): DistinctCount(i, snapshot_id, snapshot.sequence_number or 0, ndv)
        for it in new
        if it.statistic.kind is Kind.NDV and (ndv := it.ndv) is not None
    }
    counts = counts_for_planners(table, snapshot, counted)
    version = (
        write_version(plan, storage, sketched, budget_bytes, measurement, unbindable or folder, counts)
        if sketched.missing.are_kept
        else SideFiles(table, storage)
    )
    statistics = UnpublishedStatistics(table, storage, snapshot, new, folder)
    of_partitions = write_partition_statistics(table, storage, snapshot, tally)
    counted_seconds = time.perf_counter() - started

    def parts() -> tuple[CommitPart[object], ...]:
        part = (statistics.part,) if statistics.is_there() else ()
        return (*part, *version.parts(), *of_partitions.parts())

    def publish() -> ThetaReport:
        begun = time.perf_counter()
        statistics.publish(*version.parts(), *of_partitions.parts())
        path, bytes_written, version_note = version.result()
        if path:
            expire_packs_if_possible(table)
        words, partition_bytes, partition_note = of_partitions.result()
        reached(RunStep.STATISTICS_REGISTERED)
        reload_table(table)
        notes = plan.note, plan.earlier.note, sketched.missing.note
        merged = (table.schema().find_column_name(b.metadata.fields[0]) for b in statistics.carried if b.listed)
        return report(
            ThetaOutcome.WRITTEN,
            counted_seconds + time.perf_counter() - begun,
            files_sketched=len(sketched.missing.statistics),
            files_reused=len(plan.live.files) - len(sketched.missing.statistics),
            bytes_written=statistics.bytes_written + bytes_written + partition_bytes,
            partitions=words,
            others=plan.others_in_words,
            merged_columns=tuple(filter(None, merged)),
            extended_columns=tuple(
                it.name for it in plan.statistics if it.kind is Kind.NDV and it.key in sketched.missing.extensions
            ),
            file_sketches_path=path or None,
            estimate=sketched.estimate,
            note="; ".join(filter(None, (damage, *notes, statistics.note, version_note, partition_note))),
        )

    return CountedSketches(parts, counted, publish)
