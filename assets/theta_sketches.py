"""The theta sketches of one snapshot: an estimate of how many distinct values (NDV) each column has."""

from dataclasses import replace
from shlex import quote
from typing import Any

import dagster as dg

from icepuffin.assets.derived_asset import check_per_snapshot, derived_asset
from icepuffin.assets.drift import drift_result
from icepuffin.assets.glance import histogram_bars, time_line_metadata, value_bars
from icepuffin.assets.metadata import bullet_list, details, kept_metadata, plain_text, plotted, when_and_how
from icepuffin.assets.newest_snapshots import SKETCHES, row_counts, seconds_of, time_line
from icepuffin.assets.partitions import snapshot_of
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.resources import Engine
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.snapshot_statistics import SnapshotStatistics, statistics_beside_ndvs
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport

_MAX_PLOTTED_COLUMNS = 6
"""Columns whose distinct values are plotted over snapshots, and of whose histograms quantiles are: the first ones of
each. The picture of distinct values has all
"""
_Metadata = dict[str, dg.MetadataValue[Any]]
_PLOTTED_RANKS = (0.05, 0.5, 0.95)
_WORDS = {Kind.SIZE: "bytes of values", Kind.FREQUENT: "most frequent", Kind.JOINT: "distinct together"}


def theta_sketches_asset(spec: TableSpec) -> dg.AssetsDefinition:
    """`<table>/theta_sketches`, one partition per snapshot. Materialising it twice writes nothing the second time."""

    def make(context: dg.AssetExecutionContext, run: RunContext, engine: Engine) -> dg.MaterializeResult[Any]:
        snapshot_id = snapshot_of(context)
        context.log.info("snapshot %s: sketching with %s", snapshot_id, type(run.runner).__name__)
        report = count_theta_sketches(run, snapshot_id, requested=spec.settings.statistics.requested).publish()
        if report.note:
            context.log.info(report.note)
        metadata = sketches_metadata(run, report, spec)
        is_repeat = report.outcome is ThetaOutcome.CURRENT
        return dg.MaterializeResult(
            metadata=kept_metadata(context, spec.theta_key, "statistics_path", metadata) if is_repeat else metadata,
            data_version=dg.DataVersion(str(snapshot_id)),
            check_results=[drift_result(run.table, snapshot_id, drift, run.storage)] if drift else [],
        )

    drift = spec.settings.statistics.drift
    about = (
        "How far has the table moved? Compares distinct values, quantiles and nulls with those of the snapshot before."
    )

    return derived_asset(
        spec,
        spec.theta_key,
        make,
        description=(
            "How many distinct values (NDV) each column has, as estimates for query planners: in the statistics file "
            "of each snapshot, where Spark and Trino look for it. Each partition is a snapshot of the table, whose id "
            "is the key; the time line says when each was written. In a shell: "
            f"{plain_text(f'icepuffin stats {quote(spec.identifier)}')}"
        ),
        check_specs=[check_per_snapshot(spec, spec.theta_key, "drift", about)] if drift else [],
    )


def sketches_metadata(run: RunContext, report: ThetaReport, spec: TableSpec) -> dict[str, dg.MetadataValue[Any]]:
    """The sketches on the table's time line, as bars, in words, and in the numbers that are plotted."""
    snapshot = snapshots_by_id(run.table.metadata).get(report.snapshot_id)
    points = time_line(run.table, spec, name=SKETCHES, here=report.snapshot_id)
    if report.outcome is ThetaOutcome.CURRENT:
        report = replace(report, seconds=seconds_of(points, report.seconds))
    line = time_line_metadata(points)
    fields = {name: text for name, text in report.fields().items() if name not in ("distinct", "file")}
    statistics = None
    if report.outcome in (ThetaOutcome.WRITTEN, ThetaOutcome.CURRENT):
        statistics = statistics_beside_ndvs(run.table, report.snapshot_id, run.table.schema(), run.storage)
    for kind, columns, statistic in statistics.rows() if statistics else ():
        if kind in (Kind.SIZE, Kind.FREQUENT, Kind.JOINT):
            value, error = statistic.words()
            known = f"{', '.join(columns)}: {value}" + (f" ({error})" if error != "exact" else "")
            fields[_WORDS[kind]] = "; ".join(filter(None, (fields.get(_WORDS[kind]), known)))
    words = {
        "summary": bullet_list({"snapshot": when_and_how(snapshot), **fields}),
        "outcome": dg.MetadataValue.text(str(report.outcome)),
    }
    if not any(report.ndv.values()):
        return {**line, **words}
    pictures, quantiles = _of_histograms(statistics)
    return {
        **line,
        "distinct values": dg.MetadataValue.md(value_bars("distinct values", report.ndv)),
        **pictures,
        **words,
        **plotted(rows=row_counts(snapshot)[2] if snapshot else None),
        **plotted(**{f"ndv/{column}": report.ndv[column] for column in list(report.ndv)[:_MAX_PLOTTED_COLUMNS]}),
        **quantiles,
        **plotted(bytes=report.bytes_written, seconds=report.seconds),
        "details": details(report),
    }


def _of_histograms(statistics: SnapshotStatistics | None) -> tuple[_Metadata, _Metadata]:
    """(pictures of the first histograms, their quantiles, of dates as days since 1970)."""
    pictures, numbers = _Metadata(), dict[str, float]()
    shown = list(statistics.histogram.items())[:_MAX_PLOTTED_COLUMNS] if statistics else []
    for column, histogram in shown:
        if histogram.count:
            pictures[f"values of {column}"] = dg.MetadataValue.md(histogram_bars(histogram))
            quantiles = map(float, histogram.sketch.quantiles(_PLOTTED_RANKS))
            labels = (f"quantile/{column}/p{100 * rank:.0f}" for rank in _PLOTTED_RANKS)
            numbers |= dict(zip(labels, quantiles, strict=True))
    return pictures, plotted(**numbers)
