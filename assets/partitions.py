"""One set of partitions a table: its data snapshots, by id, in the order in which they were committed.

No asset sets a backfill policy: a run a partition is Dagster's default, and a run over several would copy one result's
metadata to all of them.
"""

import dagster as dg

from icepuffin.assets.spec import TableSpec


def partitions_name(spec: TableSpec) -> str:
    return f"snapshots/{'/'.join(spec.path)}"


def snapshot_partitions(spec: TableSpec) -> dg.DynamicPartitionsDefinition:
    """Snapshot ids as text: the UI's numbers lose precision past 32 bits."""
    return dg.DynamicPartitionsDefinition(name=partitions_name(spec))
