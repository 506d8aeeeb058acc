"""One ANN index of one table: a version for each snapshot."""

from typing import Any

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.charts import render
from icepuffin.assets.failures import no_vain_retries
from icepuffin.assets.metadata import from_report, of_snapshot, picture
from icepuffin.assets.partitions import snapshot_partitions
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.recall_history import drift, recall_history
from icepuffin.ops.index.report import Action, IndexReport
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.ops.runs.index import index_snapshot
from icepuffin.ops.search.overview import overview

_LEAD = ("action", "reason", "recall", "rows", "without_vector", "inserted", "gone", "tombstone_ratio",
         "shards_rebuilt", "deltas", "merged", "seconds", "bytes_written", "bytes_total")  # fmt: skip


def drawn(
    table: Table, storage: StorageConfig, definition: IndexDefinition, report: IndexReport
) -> dict[str, dg.MetadataValue[Any]]:
    """Shards, tombstones and recall over cost of the version as a picture, and how far recall has gone since the last
    build, which Dagster plots over partitions as it does `recall` itself; nothing where there is no version.
    """
    known = index_versions(table, definition.name)
    version = next((item for item in known if item.index_snapshot_id == report.index_snapshot_id), None)
    if version is None:
        return {}
    seen = overview(table, definition, storage, version=version)
    found = {} if seen is None else {"picture": picture(f"index {definition.name}", render(seen, "png", dpi=64))}
    until = [item for item in known if item.base_sequence_number <= version.base_sequence_number]
    history = recall_history(until)
    return found | ({"recall since build": dg.MetadataValue.float(round(drift(history), 5))} if history else {})


def ann_index_asset(spec: TableSpec, definition: IndexDefinition) -> dg.AssetsDefinition:
    """`<table>/ann_index/<index>`, a partition a snapshot, with the recall that was measured before publication.

    Whatever order partitions are materialised in, each costs its difference from the nearest version that exists.
    """
    key = spec.index_key(definition.name)

    @dg.asset(
        key=key,
        deps=[spec.key],
        kinds={"python", "puffin"},
        description=(
            f"Vamana graphs over column {definition.column} ({definition.metric}), tag ann_{definition.name}. "
            f"Published only with recall of at least {definition.target_recall:g}."
        ),
        metadata={
            "column": definition.column,
            "metric": str(definition.metric),
            "target recall": definition.target_recall,
        },
        check_specs=[
            dg.AssetCheckSpec(
                "recall", asset=key, description="Recall against exact search, measured before the commit: the gate."
            ),
            dg.AssetCheckSpec(
                "tombstones",
                asset=key,
                description="Share of dead nodes, against the ratio at which a shard is rebuilt.",
            ),
        ],
        partitions_def=snapshot_partitions(spec),
        group_name=spec.slug,
        pool=spec.pool,
        retry_policy=spec.retry_policy,
    )
    @no_vain_retries()
    def ann_index(
        context: dg.AssetExecutionContext, catalogs: dg.ResourceParam[Catalogs], engine: dg.ResourceParam[Engine]
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # dagster tells checks from outputs by the bare class
        table = catalogs.table(spec.catalog, spec.identifier)
        report = index_snapshot(
            table,
            definition,
            int(context.partition_key),
            engine=engine,
            storage=storage_of(table),
            watched_ref=spec.first_ref,
            log=context.log.info,
        )
        return dg.MaterializeResult(
            metadata={
                **of_snapshot(table.metadata.snapshot_by_id(report.snapshot_id)),
                **from_report(report, lead=_LEAD),
                **(engine.prices.told(report) if engine.prices else {}),
                **drawn(table, storage_of(table), definition, report),
            },
            data_version=dg.DataVersion(report.build_id),
            check_results=[
                dg.AssetCheckResult(
                    check_name="recall",
                    passed=report.action is Action.EMPTY or report.recall >= definition.target_recall,
                    metadata={
                        "action": str(report.action),
                        "target": definition.target_recall,
                        **({} if report.action is Action.EMPTY else {"recall": report.recall}),
                    },
                ),
                dg.AssetCheckResult(
                    check_name="tombstones",
                    passed=report.tombstone_ratio <= definition.rebuild_ratio,
                    severity=dg.AssetCheckSeverity.WARN,
                    metadata={"tombstone ratio": report.tombstone_ratio, "rebuild at": definition.rebuild_ratio},
                ),
            ],
        )

    return ann_index
