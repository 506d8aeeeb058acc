"""The user's table: an external asset, which others write and the sensor watches."""

import dagster as dg

from icepuffin.assets.partitions import snapshot_partitions
from icepuffin.assets.spec import TableSpec


def table_asset(spec: TableSpec) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=spec.key,
        partitions_def=snapshot_partitions(spec),
        group_name=spec.slug,
        kinds={"iceberg", "table"},
        description=(
            f"The Iceberg table {spec.identifier} of catalog {spec.catalog}, a partition a data snapshot. "
            f"Watched: {', '.join(spec.settings.watched_refs)}.{' ' + spec.note if spec.note else ''}"
        ),
        metadata={"catalog": spec.catalog, "table": spec.identifier, "watched refs": list(spec.settings.watched_refs)},
    )
