"""The user's table as an external asset: other engines write it, and the sensor watches it."""

from shlex import quote

import dagster as dg

from icepuffin.assets.metadata import plain_text
from icepuffin.assets.partitions import snapshot_partitions
from icepuffin.assets.spec import TableSpec


def table_asset(spec: TableSpec) -> dg.AssetSpec:
    return dg.AssetSpec(
        key=spec.key,
        partitions_def=snapshot_partitions(spec),
        group_name=spec.group,
        kinds={"iceberg", "table"},
        owners=spec.attributes.owners,
        tags=spec.attributes.tags,
        description=" ".join(filter(None, (_what_it_is(spec), _who_watches(spec), plain_text(spec.note)))),
        metadata={
            "catalog": spec.catalog,
            "table": spec.identifier,
            "watched refs": ", ".join(spec.settings.watched_refs),
            "find a snapshot": f"icepuffin snapshots {quote(spec.identifier)} --catalog {quote(spec.catalog)}",
        },
    )


def _what_it_is(spec: TableSpec) -> str:
    return (
        f"The Iceberg table {plain_text(spec.identifier)} of catalog {plain_text(spec.catalog)}, with one partition "
        f"per data snapshot; a snapshot's id is its key. Watched: {plain_text(', '.join(spec.settings.watched_refs))}."
    )


def _who_watches(spec: TableSpec) -> str:
    """What happens to new snapshots, or what to switch on so that something does."""
    if not spec.derived_keys:
        return "Nothing is derived from it: it has no index, and sketches are switched off in the settings."
    if spec.settings.sensor_running:
        return f"The sensor `{spec.sensor_name}` records new snapshots and requests their runs."
    return (
        f"**The sensor `{spec.sensor_name}` is off until you switch it on** (Automation page, or "
        "`sensor_running = true` in the settings): until then new snapshots get neither a partition nor a run."
    )
