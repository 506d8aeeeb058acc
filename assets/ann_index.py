"""One ANN index of one table: a version per snapshot."""

import warnings
from dataclasses import asdict, replace
from typing import Any

import dagster as dg

from icepuffin.assets.charts import render
from icepuffin.assets.derived_asset import derived_asset
from icepuffin.assets.glance import version_glance
from icepuffin.assets.markdown import plain_text
from icepuffin.assets.metadata import (
    MAX_TABLE_ROWS,
    as_table,
    bullet_list,
    details,
    kept_metadata,
    picture,
    plotted,
    readable_bytes,
    snapshot_metadata,
)
from icepuffin.assets.partitions import snapshot_of, snapshot_partitions
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.own_versions import versions_of
from icepuffin.ops.index.upkeep.recall_history import recall_drift, recall_history
from icepuffin.ops.model import Action
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import current_definition, refresh_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.tasks.task_runner import RunContext

_BUILD_ANEW = "raise build_anew_rows of the index over the number of rows: the next snapshot's refresh builds it anew"
_WATCH_RECALL = "nothing while recall is good: a refresh that misses target_recall builds the index anew"
_WITHOUT_GRAPHS = "answers are exact: every row that may be near enough is compared"


def version_metadata(
    run: RunContext, definition: IndexDefinition, report: IndexReport
) -> dict[str, dg.MetadataValue[Any]]:
    """The version in a picture, in words, and in the numbers that are plotted."""
    words = {
        "summary": bullet_list(_summary(definition, report)),
        **snapshot_metadata(snapshots_by_id(run.table.metadata).get(report.snapshot_id)),
        "action": dg.MetadataValue.text(str(report.action)),
    }
    if report.action is Action.EMPTY:
        return {name: value for name, value in words.items() if name != "operation"}
    report = _changed_first(report)
    values = {
        **words,
        **plotted(
            recall=report.recall,
            rows=report.rows,
            bytes=report.bytes_total,
            seconds=report.seconds,
            tombstones=report.tombstone_ratio,
        ),
        **version_drawings(run, definition, report),
        **({"shards": as_table(report.shard_reports)} if report.shard_reports else {}),
        "details": details(report),
        "build_id": dg.MetadataValue.text(report.build_id),
    }
    first = ("at a glance", *words, "recall", "recall since build")
    return {name: values[name] for name in dict.fromkeys((*first, *values)) if name in values}


def _changed_first(report: IndexReport) -> IndexReport:
    """The report with its shards in the order of tables that leave some out: shards that are written, then those whose
    recall is lowest.
    """
    estimate, shards = report.estimate, report.shard_reports
    if len(shards) > MAX_TABLE_ROWS:
        shards = tuple(sorted(shards, key=lambda shard: (shard.how.keeps_bytes, shard.recall)))
    if estimate and len(estimate.shards) > MAX_TABLE_ROWS:
        written = sorted(estimate.shards, key=lambda shard: (shard.how.keeps_bytes, -shard.bytes_written))
        estimate = replace(estimate, shards=tuple(written))
    return replace(report, estimate=estimate, shard_reports=shards)


def _summary(definition: IndexDefinition, report: IndexReport) -> dict[str, str]:
    """What a person wants to know first, with units."""
    done = {"action": f"{report.action}: {report.reason}"}
    if report.action is Action.EMPTY:
        return done
    expected = f"; {report.estimate.seconds:,.1f} s estimated" if report.estimate else ""
    return {
        "recall@10": _WITHOUT_GRAPHS
        if report.recall is None
        else f"{report.recall:.4f}, target {definition.target_recall:g}"
        + (f"; {report.recall_basis.summary}" if report.recall_basis else ""),
        **done,
        "rows": f"{report.rows:,} live; {report.inserted:,} inserted, {report.remapped:,} moved, {report.gone:,} gone",
        "tombstones": f"{report.tombstone_ratio:.1%} of the nodes",
        "shards": f"{report.shards:,} ({report.deltas:,} for new rows); {report.shards_rebuilt:,} rebuilt, "
        f"{report.shards_copied:,} kept",
        "bytes": f"{readable_bytes(report.bytes_total)}; {readable_bytes(report.bytes_written)} newly written"
        + (f", {readable_bytes(report.bytes_shared)} shared with other versions" if report.bytes_shared else ""),
        "time": f"{report.seconds:,.1f} s{expected}",
        **({"self-search": report.self_search.summary} if report.self_search else {}),
    }


def _measured_recall(report: IndexReport) -> dict[str, float | int | str]:
    basis = report.recall_basis
    if report.action is Action.EMPTY:
        return {"not measured": report.reason}
    if report.recall is None or basis is None:
        return {"not measured": _WITHOUT_GRAPHS}
    low, high = confidence_interval(report.recall, basis.queries)
    return {
        "recall": report.recall,
        "queries": basis.queries,
        "95 % interval": f"{low:.4f} to {high:.4f}",
        **({"recall@100": basis.wide} if basis.wide is not None else {}),
        "measured": basis.summary,
        **({"self-search": report.self_search.summary} if report.self_search else {}),
    }


def layout_result(report: IndexReport) -> dg.AssetCheckResult:
    """The result of the layout check: its figures, and what to do where they are no longer good."""
    fit = report.fit
    fault = fit.fault if fit else ""
    advice = _BUILD_ANEW if fit and fit.imbalance else _WATCH_RECALL
    return dg.AssetCheckResult(
        check_name="layout",
        passed=not fault,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            **(asdict(fit) if fit else {}),
            **({"why": fault, "what to do": advice} if fault else {}),
        },
    )


def version_drawings(
    run: RunContext, definition: IndexDefinition, report: IndexReport
) -> dict[str, dg.MetadataValue[Any]]:
    """Shards, tombstones and recall by cost as a picture, small and large, and the change of recall since the last
    build, which Dagster plots over partitions as it does `recall` itself. Empty where there is no version.
    """
    versions = versions_of(run.table, definition)
    version = next((bound for bound in versions if bound.index_snapshot_id == report.index_snapshot_id), None)
    if version is None:
        return {}
    drawings: dict[str, dg.MetadataValue[Any]] = {}
    drawn = overview(run.table, definition, run.storage, version=version, ref=run.ref)
    if drawn is not None:
        if glance := version_glance(drawn):
            drawings["at a glance"] = dg.MetadataValue.md(glance)
        drawings["picture"] = picture(f"index {definition.name}", render(drawn, "png", dpi=64))
    history = recall_history(
        [bound for bound in versions if bound.base_sequence_number <= version.base_sequence_number]
    )
    if history:
        drawings["recall since build"] = dg.MetadataValue.float(round(recall_drift(history), 5))
    return drawings


def _check_per_snapshot(spec: TableSpec, key: dg.AssetKey, name: str, description: str) -> dg.AssetCheckSpec:
    """A check with a result per snapshot. Dagster calls partitions of checks a preview, and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(name, asset=key, description=description, partitions_def=snapshot_partitions(spec))


def _description(definition: IndexDefinition) -> str:
    column = plain_text(f"column {definition.column} ({definition.metric}), tag ann_{definition.name}")
    if not definition.has_graphs:
        return f"Balls around the vectors of each data file, of {column}. They rule out files; others are scanned."
    built = "built in bulk, as PiPNN does, since that is faster"
    return f"Vamana graphs over {column}, {built}. Published only with recall of at least {definition.target_recall:g}."


def ann_index_asset(spec: TableSpec, definition: IndexDefinition) -> dg.AssetsDefinition:
    """`<table>/ann_index/<index>`, one partition per snapshot, with the recall that was measured before publication.

    Partitions may be materialised in any order; each costs its difference from the nearest version that exists.
    """
    key = spec.index_key(definition.name)

    def make(context: dg.AssetExecutionContext, run: RunContext, engine: Engine) -> dg.MaterializeResult[Any]:
        current = current_definition(run.table, definition, in_settings=definition.name in spec.settings.indexes)
        report = refresh_index(run, current, snapshot_of(context), log=context.log.info)
        metadata: dict[str, Any] = {
            **version_metadata(run, current, report),
            **(engine.cost_model.report_costs(report) if engine.cost_model else {}),
        }
        is_repeat = report.action in (Action.REUSED, Action.RETAGGED)
        return dg.MaterializeResult(
            metadata=kept_metadata(context, key, "build_id", metadata) if is_repeat else metadata,
            data_version=dg.DataVersion(report.build_id),
            check_results=[
                dg.AssetCheckResult(
                    check_name="recall",
                    passed=report.recall is None or report.recall >= current.target_recall,
                    metadata={
                        "action": str(report.action),
                        "target": current.target_recall,
                        **_measured_recall(report),
                    },
                ),
                dg.AssetCheckResult(
                    check_name="tombstones",
                    passed=report.tombstone_ratio <= current.rebuild_ratio,
                    severity=dg.AssetCheckSeverity.WARN,
                    metadata={"tombstone ratio": report.tombstone_ratio, "rebuild at": current.rebuild_ratio},
                ),
                layout_result(report),
            ],
        )

    checks = {
        "recall": "Recall against exact search, measured before the commit: the gate.",
        "tombstones": "Share of tombstones, against the ratio over which a shard is rebuilt.",
        "layout": "Do codebook and shards still fit the rows, as at the last build?",
    }
    return derived_asset(
        spec,
        key,
        make,
        description=_description(definition),
        metadata={
            "column": definition.column,
            "metric": str(definition.metric),
            "target recall": definition.target_recall,
        },
        check_specs=[_check_per_snapshot(spec, key, name, about) for name, about in checks.items()],
    )
