"""One set of partitions per table: its data snapshots, by id, in commit order.

No asset sets a backfill policy. Dagster's default is one run per partition; a run over several partitions would copy
the metadata of one result to all of them.
"""

import dagster as dg

from icepuffin.assets.spec import TableSpec


def partitions_name(spec: TableSpec) -> str:
    """A name of the table's own: the sensor drops keys that are no snapshot of the table."""
    return spec.attributes.partitions or f"snapshots/{spec.label}"


def snapshot_partitions(spec: TableSpec) -> dg.DynamicPartitionsDefinition:
    """Partition keys are snapshot ids as text, because the UI's numbers lose precision beyond 32 bits."""
    return dg.DynamicPartitionsDefinition(name=partitions_name(spec))
