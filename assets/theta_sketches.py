"""The theta sketches of one snapshot: how many distinct values each column has."""

import dagster as dg

from icepuffin.assets.failures import no_vain_retries
from icepuffin.assets.metadata import bar_chart, from_report, of_snapshot
from icepuffin.assets.partitions import snapshot_partitions
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.ops.runs.sketches import sketch_snapshot


def theta_sketches_asset(spec: TableSpec) -> dg.AssetsDefinition:
    """`<table>/theta_sketches`, a partition a snapshot. Materialising it twice writes nothing the second time."""

    @dg.asset(
        key=spec.theta_key,
        deps=[spec.key],
        kinds={"python", "puffin"},
        description="NDV of each column, in the snapshot's statistics file, where Spark and Trino look for it.",
        partitions_def=snapshot_partitions(spec),
        group_name=spec.slug,
        pool=spec.pool,
        retry_policy=spec.retry_policy,
    )
    @no_vain_retries()
    def theta_sketches(
        context: dg.AssetExecutionContext, catalogs: dg.ResourceParam[Catalogs], engine: dg.ResourceParam[Engine]
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]  # dagster tells checks from outputs by the bare class
        table = catalogs.table(spec.catalog, spec.identifier)
        report = sketch_snapshot(
            table,
            int(context.partition_key),
            engine=engine,
            storage=storage_of(table),
            columns=spec.settings.theta_columns,
            log=context.log.info,
        )
        metadata = of_snapshot(table.metadata.snapshot_by_id(report.snapshot_id))
        metadata |= from_report(report, lead=("outcome", "ndv", "fresh", "files_sketched", "files_reused", "seconds"))
        costs = engine.prices.told(report) if engine.prices else {}
        if report.ndv:
            metadata["distinct values"] = bar_chart(
                f"distinct values, snapshot {context.partition_key}",
                list(report.ndv),
                list(report.ndv.values()),
                log=True,
            )
        return dg.MaterializeResult(metadata={**metadata, **costs}, data_version=dg.DataVersion(context.partition_key))

    return theta_sketches
