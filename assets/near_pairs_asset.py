"""Pairs of near rows of one index of one table: rows of a table of their own, per snapshot."""

from typing import Any

import dagster as dg

from icepuffin.assets.derived_asset import derived_asset
from icepuffin.assets.metadata import plain_text
from icepuffin.assets.partitions import snapshot_of
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import NearPairsSettings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import current_definition
from icepuffin.ops.tasks.task_runner import RunContext


def near_pairs_asset(spec: TableSpec, definition: IndexDefinition, settings: NearPairsSettings) -> dg.AssetsDefinition:
    """`<table>/near_pairs/<index>`: a run replaces the rows of its snapshot, so that a retry doubles none."""

    def make(context: dg.AssetExecutionContext, run: RunContext, engine: Engine) -> dg.MaterializeResult[Any]:
        from icepuffin.ops.runs.near_pairs_table import publish_pairs  # noqa: PLC0415  numba: not to define the asset

        current = current_definition(run.table, definition, in_settings=True)
        catalog = spec.resources.catalogs_of(context).catalog(spec.catalog)
        chosen = settings.model_dump(exclude={"table"})
        found = publish_pairs(run, current, snapshot_of(context), catalog, settings.table, **chosen)
        low, high = found.interval
        return dg.MaterializeResult(
            metadata={
                "table": settings.table,
                "pairs": len(found),
                "missed (share)": round(1 - found.recall, 4),
                "95 % interval": f"{1 - high:.4f} to {1 - low:.4f}",
                "pairs compared": found.expected,
                "rows without a distance": found.skipped,
            }
        )

    return derived_asset(
        spec,
        spec.near_pairs_key(definition.name),
        make,
        deps=[spec.index_key(definition.name)],
        description=plain_text(
            f"Pairs of rows of {spec.identifier} nearer than {settings.within:g} by index {definition.name}, in the "
            f"table {settings.table}: each partition replaces the rows of its snapshot_id."
        ),
    )
