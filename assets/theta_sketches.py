"""The theta sketches of one snapshot: an estimate of how many distinct values (NDV) each column has."""

from typing import Any

import dagster as dg

from icepuffin.assets.derived_asset import derived_asset
from icepuffin.assets.glance import value_bars
from icepuffin.assets.metadata import (
    bar_chart,
    bullet_list,
    details,
    kept_metadata,
    plotted,
    readable_bytes,
    snapshot_metadata,
)
from icepuffin.assets.partitions import snapshot_of
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.resources import Engine
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport

_MAX_PLOTTED_COLUMNS = 6
"""Columns whose numbers of distinct values are plotted over snapshots: the first ones. The picture has all"""


def theta_sketches_asset(spec: TableSpec) -> dg.AssetsDefinition:
    """`<table>/theta_sketches`, one partition per snapshot. Materialising it twice writes nothing the second time."""

    def make(context: dg.AssetExecutionContext, run: RunContext, engine: Engine) -> dg.MaterializeResult[Any]:
        snapshot_id = snapshot_of(context)
        columns = spec.settings.statistics.ndv_columns
        context.log.info("snapshot %s: sketching with %s", snapshot_id, type(run.runner).__name__)
        report = count_theta_sketches(run, snapshot_id, columns=columns).publish()
        if report.note:
            context.log.info(report.note)
        metadata: dict[str, Any] = {
            **_drawing(report),
            "summary": bullet_list(_summary(report)),
            **snapshot_metadata(snapshots_by_id(run.table.metadata).get(report.snapshot_id)),
            "outcome": dg.MetadataValue.text(str(report.outcome)),
            **plotted(**{f"ndv/{column}": report.ndv[column] for column in list(report.ndv)[:_MAX_PLOTTED_COLUMNS]}),
            **plotted(bytes=report.bytes_written, seconds=report.seconds),
            "details": details(report),
            **({"statistics_path": dg.MetadataValue.path(report.statistics_path)} if report.statistics_path else {}),
            **(engine.cost_model.report_costs(report) if engine.cost_model else {}),
        }
        is_repeat = report.outcome is ThetaOutcome.CURRENT
        return dg.MaterializeResult(
            metadata=kept_metadata(context, spec.theta_key, "statistics_path", metadata) if is_repeat else metadata,
            data_version=dg.DataVersion(str(snapshot_id)),
        )

    return derived_asset(
        spec,
        spec.theta_key,
        make,
        description=(
            "Estimated number of distinct values (NDV) of each column, in the snapshot's statistics file, where Spark "
            "and Trino look for it."
        ),
    )


def _drawing(report: ThetaReport) -> dict[str, dg.MetadataValue[Any]]:
    """The estimates as bars: shown at once where they are few, else as a picture to open."""
    if not report.ndv:
        return {}
    title, columns, values = "distinct values (estimates)", list(report.ndv), list(report.ndv.values())
    inline = value_bars(title, columns, values)
    return {title: dg.MetadataValue.md(inline) if inline else bar_chart(title, columns, values, log=True)}


def _summary(report: ThetaReport) -> dict[str, str]:
    expected = f"; {report.estimate.seconds:,.1f} s estimated" if report.estimate else ""
    return {
        "outcome": f"{report.outcome}{'' if report.fresh else ', not all of this very snapshot'}",
        "files": f"{report.files_sketched:,} read, {report.files_reused:,} known from before",
        "bytes": f"{readable_bytes(report.bytes_written)} written",
        "time": f"{report.seconds:,.1f} s{expected}",
        **({"note": report.note} if report.note else {}),
    }
