"""One set of partitions per table: its data snapshots, by id, in commit order.

No asset sets a backfill policy. Dagster's default is one run per partition; a run over several partitions would copy
the metadata of one result to all of them.
"""

import dagster as dg

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.summaries import number_of


def partitions_name(spec: TableSpec) -> str:
    """A name of the table's own: the sensor drops keys that are no snapshot of the table."""
    return spec.attributes.partitions or f"snapshots/{spec.label}"


def snapshot_partitions(spec: TableSpec) -> dg.DynamicPartitionsDefinition:
    """Partition keys are snapshot ids as text, because the UI's numbers lose precision beyond 32 bits."""
    return dg.DynamicPartitionsDefinition(name=partitions_name(spec))


def snapshot_of(context: dg.AssetExecutionContext) -> SnapshotId:
    """The snapshot that a run is for. Raises Failure, which is not tried again, for a run that is not for one."""
    if not context.has_partition_key:
        several, none = "this run names several snapshots", "this run names no snapshot"
        why = several if context.has_partition_key_range else none
        raise dg.Failure(
            f"{why}, and a run makes what is derived from one: launch one per partition, such as by a backfill, and "
            "not as a single run",
            allow_retries=False,
        )
    key = context.partition_key
    if (number := number_of(key)) is None:
        raise dg.Failure(
            f"the partition '{key}' is no id of a snapshot. The table's sensor adds the partitions, and drops this one",
            allow_retries=False,
        )
    return SnapshotId(number)
