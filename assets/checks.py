"""Checks of an index that need no run of its own partition: how far behind it is, and whether its file is whole."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.metadata import line_chart
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.snapshots import newest_data_snapshots
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.freshness import FreshnessLag, index_lag
from icepuffin.ops.index.integrity import check_integrity, remedy, tagged_version
from icepuffin.ops.index.recall_history import RecallMeasurement, recall_history
from icepuffin.ops.index.report import Action
from icepuffin.ops.resources import Catalogs

_VERSIONS_DRAWN = 60
_ASKED = 50
"""Of so many of the newest snapshots Dagster is asked what their runs found, at most."""


def is_late(spec: TableSpec, lag: FreshnessLag) -> bool:
    """Counts data snapshots first: a quiet table is not stale, however old its newest snapshot is."""
    return lag.snapshots > spec.settings.max_freshness_lag and lag.minutes >= spec.settings.max_freshness_minutes


def lag_now(instance: dg.DagsterInstance, spec: TableSpec, index: IndexDefinition, table: Table) -> FreshnessLag:
    """How far the index is behind. Of the newest snapshots, Dagster knows where a run found nothing to index."""
    ref = spec.first_ref
    lag = index_lag(table, index, ref)
    if not is_late(spec, lag):
        return lag
    newest = newest_data_snapshots(table, ref, min(spec.settings.max_freshness_lag + 1, _ASKED))
    empty = _found_empty(instance, spec.index_key(index.name), [str(item.snapshot_id) for item in newest])
    return index_lag(table, index, ref, empty=empty) if empty else lag


def _found_empty(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]) -> set[int]:
    """Those of the snapshots whose last run found nothing to index."""
    found = {}
    made = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions=set(partitions)
    )
    for partition in made:
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition])
        records = instance.fetch_materializations(wanted, limit=1).records
        event = records[0].asset_materialization if records else None
        found[int(partition)] = event.metadata.get("action") if event else None
    return {snapshot for snapshot, action in found.items() if action and action.value == Action.EMPTY.value}


def lag_metadata(lag: FreshnessLag) -> dict[str, int | float | str]:
    return {
        "lag (snapshots)": lag.snapshots,
        "lag (minutes)": round(lag.minutes, 1),
        "coverage": lag.coverage,
        "newest snapshot": lag.newest,
    }


def freshness_evaluation(
    spec: TableSpec, index: str, *, passed: bool, metadata: Mapping[str, Any]
) -> dg.AssetCheckEvaluation:
    """The result of the freshness check as an event of its own, for those who look outside of a run."""
    return dg.AssetCheckEvaluation(
        asset_key=spec.index_key(index),
        check_name="freshness",
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata,
    )


def freshness_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """The sensor tells the same check whenever something has changed; running it asks now."""
    since = (
        f", the oldest for {spec.settings.max_freshness_minutes:g} minutes"
        if spec.settings.max_freshness_minutes
        else ""
    )

    @dg.asset_check(
        asset=spec.index_key(definition.name),
        name="freshness",
        description=(
            f"Warns if more than {spec.settings.max_freshness_lag} of the newest data snapshots lack a version{since}. "
            "A snapshot with nothing to index needs none."
        ),
    )
    def freshness(context: dg.AssetCheckExecutionContext, catalogs: dg.ResourceParam[Catalogs]) -> dg.AssetCheckResult:
        lag = lag_now(context.instance, spec, definition, catalogs.table(spec.catalog, spec.identifier))
        return dg.AssetCheckResult(
            passed=not is_late(spec, lag), severity=dg.AssetCheckSeverity.WARN, metadata=lag_metadata(lag)
        )

    return freshness


def recall_so_far(history: Sequence[RecallMeasurement], target: float) -> dict[str, dg.MetadataValue[Any]]:
    """The last versions' recall as a picture, whoever made them. Nothing where no version noted its recall."""
    last = history[-_VERSIONS_DRAWN:]
    if not last:
        return {}
    chart = line_chart(
        f"recall@10 of the last {len(last)} versions; large: built anew; dashed: target",
        [str(item.base_snapshot_id) for item in last],
        [item.recall for item in last],
        floor=target,
        marked=[at for at, item in enumerate(last) if item.action == Action.BUILT],
    )
    return {"recall so far": chart}


def integrity_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """Reads the whole index file, and all vectors of the table. It comes seldom, and so it is what draws all versions'
    recall: each partition's would repeat the picture.
    """

    @dg.asset_check(
        asset=spec.index_key(definition.name),
        name="integrity",
        description=f"Every shard of the version at ann_{definition.name} has the published bytes and decodes, and "
        "every live row has a node with its own vector.",
    )
    def integrity(catalogs: dg.ResourceParam[Catalogs]) -> dg.AssetCheckResult:
        table = catalogs.table(spec.catalog, spec.identifier)
        version = tagged_version(table, definition.name)
        if version is None:
            return dg.AssetCheckResult(
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"why": f"there is no version at ann_{definition.name} yet"},
            )
        found = check_integrity(table, version, storage_of(table))
        for fault in found.faults:
            dg.get_dagster_logger().error("%s: %s", found.path, fault)
        return dg.AssetCheckResult(
            passed=not found.faults,
            metadata={
                "file": found.path,
                "bytes read": found.bytes_read,
                "shards": found.shards,
                "rows compared": found.rows,
                "faults": "; ".join(found.faults) or "none",
                **recall_so_far(recall_history(index_versions(table, definition.name)), definition.target_recall),
                **({"what to do": remedy(spec.identifier, definition.name, version)} if found.faults else {}),
            },
        )

    return integrity
