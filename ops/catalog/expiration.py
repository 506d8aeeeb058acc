"""Expiring versions: removes snapshots that icepuffin made, and its own tags on them, in one commit. Files stay."""

from collections.abc import Collection

from pyiceberg.table import Table
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from icepuffin.ops.catalog.bindings import BindingError
from icepuffin.ops.catalog.bound_versions import own_names, tag_target
from icepuffin.ops.catalog.commit import CommitOutcome, attempt_commit, reload_table
from icepuffin.ops.catalog.snapshots import is_derived, table_name

_ATTEMPTS = 12


def expire_derived(table: Table, snapshot_ids: Collection[int], own_tags: Collection[str]) -> tuple[int, ...]:
    """Remove derived snapshots, and the tags among `own_tags` that point at them; -> the snapshots that are gone.

    A data snapshot is never touched, nor a derived one that any other ref points at. Files are for Iceberg's cleaners
    and `icepuffin.ops.index.collect_garbage`: nothing names them afterwards.

    Raises BindingError, and the errors of `reload_table`.
    """
    requested = frozenset(snapshot_ids)
    for attempt in range(_ATTEMPTS):
        reload_table(table, patient=attempt > 0)
        refs = table.metadata.refs
        foreign = {ref.snapshot_id for name, ref in refs.items() if name not in own_tags}
        present = {
            snapshot.snapshot_id: snapshot
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id in requested and is_derived(snapshot) and snapshot.snapshot_id not in foreign
        }
        if not present:
            return tuple(sorted(requested - foreign))
        tags = [name for name, ref in refs.items() if ref.snapshot_id in present]
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in tags]
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(present)))
        # a catalog drops the tags of a snapshot with it: no run may have put one on, as it does after a rollback
        ours = sorted({*tags, *(name for snapshot in present.values() for name in own_names(snapshot))})
        unmoved: list[TableRequirement] = [
            AssertRefSnapshotId(ref=name, snapshot_id=tag_target(table, name)) for name in ours
        ]
        if attempt_commit(table, tuple(updates), tuple(unmoved), attempt) is CommitOutcome.DONE:
            reload_table(table, patient=True)
            return tuple(sorted(present))
    raise BindingError(f"{table_name(table)}: versions could not be expired in {_ATTEMPTS} attempts; try again")
