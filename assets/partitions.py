"""One set of partitions a table: its data snapshots, by id, in the order in which they were committed."""

import dagster as dg

from assets.spec import TableSpec

ONE_RUN_A_PARTITION = dg.BackfillPolicy.multi_run(max_partitions_per_run=1)
"""A run over several partitions would copy one result's metadata to all of them."""


def partitions_name(spec: TableSpec) -> str:
    return f"snapshots/{'/'.join(spec.path)}"


def snapshot_partitions(spec: TableSpec) -> dg.DynamicPartitionsDefinition:
    """Snapshot ids as text: the UI's numbers lose precision past 32 bits."""
    return dg.DynamicPartitionsDefinition(name=partitions_name(spec))
