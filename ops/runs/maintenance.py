"""Runs that expire the versions of one table by policy, and delete its unreferenced files."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from pyiceberg.table import Table

from icepuffin.ops.catalog.bindings import make_lasting
from icepuffin.ops.catalog.blob_kind import SKETCHES_TAG, BlobKind, index_tag
from icepuffin.ops.catalog.commit import reload_table
from icepuffin.ops.catalog.expiration import expire_packs, unnamed_packs
from icepuffin.ops.catalog.snapshots import require_all_snapshots
from icepuffin.ops.index import collect_garbage
from icepuffin.ops.index.ddl import defined_names
from icepuffin.ops.index.report import GcReport
from icepuffin.ops.index.retention import carry_out_retention, plan_retention, retention_of_dropped
from icepuffin.ops.index.retention_policy import RetentionPolicy
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import open_storage


def collect_table_garbage(
    table: Table,
    *,
    storage: StorageConfig,
    retentions: Mapping[str, RetentionPolicy],
    default: RetentionPolicy,
    grace_hours: float,
    dry_run: bool = False,
) -> GcReport:
    """Expire versions by policy, pin those of tagged snapshots, and delete icepuffin's files that nothing references.

    `retentions`: policy per index; `default` for all others and for the file sketches. Raises PartialMetadataError, and
    what the catalog and the store raise.
    """
    reload_table(table)
    require_all_snapshots(table)
    grace = timedelta(hours=grace_hours)
    folder = f"{table.metadata.location.rstrip('/')}/metadata"
    now_ms = open_storage(folder, storage).now_ms(folder)
    defined = defined_names(table)
    policies = {name: retentions.get(name, default) for name in defined} | dict(retention_of_dropped(table, defined))
    for tag in () if dry_run else (*(index_tag(name) for name in defined), SKETCHES_TAG):
        make_lasting(table, tag)
    plans = {
        index_tag(name): plan_retention(table, BlobKind.INDEX, name, policy, grace=grace, now_ms=now_ms)
        for name, policy in policies.items()
    }
    sketches = plan_retention(table, BlobKind.SKETCHES, BlobKind.SKETCHES, default, grace=grace, now_ms=now_ms)
    plans[SKETCHES_TAG] = replace(sketches, pin=())  # only a cache: pinning it would pin data files
    expired = tuple(
        version
        for tag, plan in plans.items()
        for version in (plan.expire if dry_run else carry_out_retention(table, tag, plan))
    )
    expiring = {version.index_snapshot_id for version in expired} if dry_run else set()
    if dry_run:
        expiring |= unnamed_packs(table, expiring).keys()
    else:
        expire_packs(table)
    report = collect_garbage(table, storage=storage, grace=grace, dry_run=dry_run, expiring=expiring)
    pinned = tuple(f"{tag}-{version.base_snapshot_id}" for tag, plan in plans.items() for version in plan.pin)
    later = sum(plan.young for plan in plans.values())
    return replace(report, retired=expired, retired_later=later, pinned=pinned)
