"""One ANN index of one table: a version per snapshot."""

from dataclasses import asdict, replace
from shlex import quote
from typing import Any

import dagster as dg

from icepuffin.assets.derived_asset import check_per_snapshot, derived_asset
from icepuffin.assets.glance import time_line_metadata, version_glance
from icepuffin.assets.metadata import (
    MAX_TABLE_ROWS,
    bullet_list,
    details,
    kept_metadata,
    plain_text,
    plotted,
    when_and_how,
)
from icepuffin.assets.newest_snapshots import seconds_of, time_line
from icepuffin.assets.partitions import snapshot_of
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import recall_drift, recall_history
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.messages import readable_share
from icepuffin.ops.model import Action
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import current_definition, refresh_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.tasks.task_runner import RunContext

_BUILD_ANEW = "raise build_anew_rows of the index over the number of rows: the next snapshot's refresh builds it anew"
_WATCH_RECALL = "nothing while recall is good: a refresh that misses target_recall builds the index anew"
_REPEATS = (Action.REUSED, Action.RETAGGED)
_FITS = "Codebook and shards fit the rows as well as when all shards were last built, or nearly so."
_WITHOUT_GRAPHS = "answers are exact: every row that may be near enough is compared"


def version_metadata(
    run: RunContext, definition: IndexDefinition, report: IndexReport, spec: TableSpec
) -> dict[str, dg.MetadataValue[Any]]:
    """The version on the table's time line, in a picture, in words, and in the numbers that are plotted."""
    snapshot = snapshots_by_id(run.table.metadata).get(report.snapshot_id)
    points = time_line(run.table, spec, name=definition.name, here=report.snapshot_id)
    if report.action in _REPEATS:
        report = replace(report, seconds=seconds_of(points, report.seconds))
    line = time_line_metadata(points)
    if report.action is Action.EMPTY:
        words = {"snapshot": when_and_how(snapshot), "nothing to index": report.reason}
        return {**line, "summary": bullet_list(words), "action": dg.MetadataValue.text(str(report.action))}
    report = _changed_first(report)
    version = _version(run, definition, report)
    drawings, since_build = version_drawings(run, definition, version)
    return {
        **line,
        **drawings,
        "summary": bullet_list({"snapshot": when_and_how(snapshot), **_summary(definition, report, since_build)}),
        "action": dg.MetadataValue.text(str(report.action)),
        **plotted(
            recall=report.recall,
            rows=report.rows,
            bytes=report.bytes_total,
            seconds=report.seconds,
            tombstones=report.tombstone_ratio,
        ),
        "details": details(report),
    }


def _version(run: RunContext, definition: IndexDefinition, report: IndexReport) -> DerivedVersion | None:
    versions = versions_of(run.table, definition)
    return next((bound for bound in versions if bound.index_snapshot_id == report.index_snapshot_id), None)


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


def _summary(definition: IndexDefinition, report: IndexReport, since_build: float) -> dict[str, str]:
    """What a person wants to know first; stages, the proof and the file are in the details."""
    fields = replace(report, stage_seconds={}, self_search=None, puffin_path=None).fields()
    del fields["version"]
    recall = fields.pop("recall@10", _WITHOUT_GRAPHS)
    if report.recall is not None:
        change = f", {since_build:+.4f} since it was built anew" if round(since_build, 4) else ""
        recall += f"{change}; at least {definition.target_recall:g} is required"
    return {"recall@10": recall, **fields}


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


def _recall_in_words(definition: IndexDefinition, report: IndexReport) -> str:
    if report.action is Action.EMPTY:
        return plain_text(f"Nothing to index: {report.reason}.")
    if report.recall is None:
        return f"Nothing to measure: {_WITHOUT_GRAPHS}."
    required = f"at least {100 * definition.target_recall:g}% is required"
    return f"Searches find {readable_share(report.recall)} of the 10 nearest rows; {required}."


def layout_result(report: IndexReport) -> dg.AssetCheckResult:
    """The result of the layout check: its figures, and what to do where they are no longer good."""
    fit = report.fit
    fault = fit.fault if fit else ""
    advice = _BUILD_ANEW if fit and fit.imbalance else _WATCH_RECALL
    return dg.AssetCheckResult(
        check_name="layout",
        passed=not fault,
        severity=dg.AssetCheckSeverity.WARN,
        description=plain_text(f"{fault}. What to do: {advice}" if fault else _FITS if fit else "No shards were made."),
        metadata={
            **(asdict(fit) if fit else {}),
            **({"why": fault, "what to do": advice} if fault else {}),
        },
    )


def version_drawings(
    run: RunContext, definition: IndexDefinition, version: DerivedVersion | None
) -> tuple[dict[str, dg.MetadataValue[Any]], float]:
    """(recall by cost, shards and tombstones as a picture, the change of recall since the last build). Empty and 0
    where there is no version.
    """
    if version is None:
        return {}, 0.0
    drawn = overview(run.table, definition, run.storage, version=version, ref=run.ref)
    glance = version_glance(drawn) if drawn else None
    drawings: dict[str, dg.MetadataValue[Any]] = {"at a glance": dg.MetadataValue.md(glance)} if glance else {}
    versions = versions_of(run.table, definition)
    until = [bound for bound in versions if bound.base_sequence_number <= version.base_sequence_number]
    return drawings, recall_drift(recall_history(until))


def _description(spec: TableSpec, definition: IndexDefinition) -> str:
    """What the index is for, what a partition is, and how it is searched."""
    column = plain_text(f"column {definition.column} of {spec.identifier} ({definition.metric} distance)")
    how = (
        "A version is published only if searches find at least "
        f"{100 * definition.target_recall:g}% of the nearest rows (recall)."
        if definition.has_graphs
        else "It has balls around the vectors of each data file, and answers are exact."
    )
    command = plain_text(f"icepuffin search {quote(spec.identifier)} --index {definition.name} --like-id ID")
    return (
        f"Finds the rows whose vectors are nearest to a given one: an index of {column}. Each partition is the version "
        f"for one snapshot of the table, whose id is the key; the time line says when each was written. {how} "
        f"In a shell: {command}"
    )


def ann_index_asset(spec: TableSpec, definition: IndexDefinition) -> dg.AssetsDefinition:
    """`<table>/ann_index/<index>`, one partition per snapshot, with the recall that was measured before publication.

    Partitions may be materialised in any order; each costs its difference from the nearest version that exists.
    """
    key = spec.index_key(definition.name)

    def make(context: dg.AssetExecutionContext, run: RunContext, engine: Engine) -> dg.MaterializeResult[Any]:
        current = current_definition(run.table, definition, in_settings=definition.name in spec.settings.indexes)
        report = refresh_index(run, current, snapshot_of(context), log=context.log.info)
        metadata = version_metadata(run, current, report, spec)
        return dg.MaterializeResult(
            metadata=kept_metadata(context, key, "build_id", metadata) if report.action in _REPEATS else metadata,
            data_version=dg.DataVersion(report.build_id),
            check_results=[
                dg.AssetCheckResult(
                    check_name="recall",
                    passed=report.recall is None or report.recall >= current.target_recall,
                    description=_recall_in_words(current, report),
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
                    description=f"{readable_share(report.tombstone_ratio)} of the nodes have no row any more; a shard "
                    f"is rebuilt over {100 * current.rebuild_ratio:g}%.",
                    metadata={"tombstone ratio": report.tombstone_ratio, "rebuild at": current.rebuild_ratio},
                ),
                layout_result(report),
            ],
        )

    checks = {
        "recall": "Do searches find the nearest rows? Compared with exact search before the version is published: one "
        "below the target is not.",
        "tombstones": "How many nodes have no row any more? Searches pass them in vain. Compared with the share over "
        "which a shard is rebuilt.",
        "layout": "Do codebook and shards still fit the rows, as at the last build? Warns where rows of another kind "
        "have come, as of another model.",
    }
    return derived_asset(
        spec,
        key,
        make,
        description=_description(spec, definition),
        check_specs=[check_per_snapshot(spec, key, name, about) for name, about in checks.items()],
    )
