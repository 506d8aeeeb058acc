"""The facts of one look at a table, from its metadata and from the Dagster instance."""

from collections.abc import Sequence

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from pyiceberg.table import Table

from assets.partitions import partitions_name
from assets.spec import TableSpec
from ops.catalog.snapshots import data_snapshots, find_snapshot, is_derived, resolve_snapshot
from orchestration.watch import Facts, Watched

TABLE_TAG = "icepuffin/table"
SNAPSHOT_TAG = "icepuffin/snapshot"
_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def watched_snapshots(table: Table, refs: Sequence[str]) -> tuple[Watched, ...]:
    """Data snapshots of all watched refs, each once, in sequence order. A ref that does not exist yet has none."""
    found: dict[int, Watched] = {}
    for ref in refs:
        if not _exists(table, ref):
            continue
        lineage = data_snapshots(table, ref)
        for snapshot in lineage:
            is_head = snapshot is lineage[-1] or (snapshot.snapshot_id in found and found[snapshot.snapshot_id].is_head)
            found[snapshot.snapshot_id] = Watched(snapshot.snapshot_id, snapshot.sequence_number, is_head)
    return tuple(sorted(found.values(), key=lambda item: (item.sequence_number, item.snapshot_id)))


def _exists(table: Table, ref: str) -> bool:
    return ref == "main" or ref in table.metadata.refs


def gather(instance: dg.DagsterInstance, spec: TableSpec, table: Table) -> Facts:
    """Everything that `watch.plan` decides from."""
    watched = watched_snapshots(table, spec.watched_refs)
    first = spec.watched_refs[0]
    head = resolve_snapshot(table, first).snapshot_id if _exists(table, first) and watched else ""
    done = [set(instance.get_materialized_partitions(key)) for key in spec.derived_keys]
    return Facts(
        watched=watched,
        head=str(head),
        existing={str(snapshot.snapshot_id) for snapshot in table.metadata.snapshots if not is_derived(snapshot)},
        partitions=instance.get_dynamic_partitions(partitions_name(spec)),
        recorded=instance.get_materialized_partitions(spec.key),
        done=set.intersection(*done) if done else set(),
        in_flight=instance.get_runs_count(RunsFilter(statuses=_UNFINISHED, tags={TABLE_TAG: "/".join(spec.path)})) > 0,
    )


def table_materialization(spec: TableSpec, table: Table, key: str) -> dg.AssetMaterialization:
    """The event that says: this snapshot of the table exists. With the totals of its summary, which plot."""
    snapshot = find_snapshot(table, int(key))
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    numbers = {
        name.removeprefix("total-").replace("-", " "): dg.MetadataValue.int(int(value))
        for name, value in summary.items()
        if name.startswith("total-") and value.isdigit()
    }
    return dg.AssetMaterialization(
        asset_key=spec.key,
        partition=key,
        metadata={
            **numbers,
            "snapshot_id": key,
            "sequence number": snapshot.sequence_number or 0,
            "operation": snapshot.summary.operation.value if snapshot.summary else "unknown",
            "committed": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
        },
        tags={"dagster/data_version": key},
    )


def run_tags(spec: TableSpec, key: str, max_runtime_seconds: int) -> dict[str, str]:
    """Tags of a run for one snapshot. A run without a heartbeat is ended after the maximum."""
    return {
        TABLE_TAG: "/".join(spec.path),
        SNAPSHOT_TAG: key,
        "dagster/max_runtime": str(max_runtime_seconds),
    }
