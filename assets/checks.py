"""Checks of an index that need no run of its own partition: how far behind it is, and whether its file is whole."""

import dagster as dg

from assets.spec import TableSpec
from ops.catalog.snapshots import data_snapshots
from ops.catalog.versions import versions
from ops.graphs.integrity import check_integrity, tagged_version
from ops.index.definition import IndexDefinition
from ops.resources import Catalogs


def freshness_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """Counts data snapshots, not hours: a quiet table is not stale."""

    @dg.asset_check(
        asset=spec.index_key(definition.name),
        name="freshness",
        description=f"Data snapshots newer than the newest that has a version; over {spec.max_freshness_lag} warns.",
    )
    def freshness(catalogs: dg.ResourceParam[Catalogs]) -> dg.AssetCheckResult:
        table = catalogs.table(spec.catalog, spec.identifier)
        indexed = {version.base_snapshot_id for version in versions(table, "ann", definition.name)}
        lineage = [snapshot.snapshot_id for snapshot in data_snapshots(table, spec.watched_refs[0])]
        lag = next((back for back, snapshot in enumerate(reversed(lineage)) if snapshot in indexed), len(lineage))
        covered = sum(snapshot in indexed for snapshot in lineage)
        return dg.AssetCheckResult(
            passed=lag <= spec.max_freshness_lag,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "lag (snapshots)": lag,
                "coverage": covered / len(lineage) if lineage else 1.0,
                "newest snapshot": str(lineage[-1]) if lineage else "none",
            },
        )

    return freshness


def integrity_check(spec: TableSpec, definition: IndexDefinition) -> dg.AssetChecksDefinition:
    """Reads the whole index file: as much as the index is large."""

    @dg.asset_check(
        asset=spec.index_key(definition.name),
        name="integrity",
        description=f"Every shard of the version at ann_{definition.name} has the published bytes and decodes.",
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
        found = check_integrity(version, catalogs.storage(spec.catalog))
        return dg.AssetCheckResult(
            passed=not found.faults,
            metadata={
                "file": found.path,
                "bytes read": found.bytes_read,
                "shards": found.shards,
                "faults": "; ".join(found.faults) or "none",
            },
        )

    return integrity
