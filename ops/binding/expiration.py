"""Expiring versions: removes snapshots that icepuffin made, and its own tags on them, in one commit. Files stay."""

from collections.abc import Callable, Collection, Iterable, Mapping

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from icepuffin.ops.binding.assertions import unchanged
from icepuffin.ops.binding.bound_versions import own_names, tag_target
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import owner_tag, pack_tag, side_tag
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.ownership import own_snapshots
from icepuffin.ops.table.snapshots import (
    history_of_data,
    is_derived,
    require_all_snapshots,
    table_name,
)


def expire_derived(
    table: Table, snapshot_ids: Collection[SnapshotId], own_tags: Collection[str]
) -> tuple[SnapshotId, ...]:
    """Remove derived snapshots, and the tags among `own_tags` that point at them. Returns the snapshots that are gone.

    A data snapshot is never touched, nor a derived one that any other ref points at or that is in the history of data.
    Files are for Iceberg's cleaners and `icepuffin.ops.index.collect_garbage`: nothing names them afterwards.

    Raises BindingError, and the errors of `reload_table`.
    """
    requested = frozenset(snapshot_ids)

    def foreign() -> set[int]:
        named = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in own_tags}
        return named | history_of_data(table.metadata)

    def choose() -> tuple[list[SnapshotId], Iterable[TableRequirement]]:
        others = foreign()
        present = {
            SnapshotId(snapshot.snapshot_id): snapshot
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id in requested and is_derived(snapshot) and snapshot.snapshot_id not in others
        }
        # a catalog drops the tags of a snapshot with it: no run may have put one on, as it does after a rollback
        possible = {name for snapshot in present.values() for name in own_names(snapshot)}
        tags = sorted(possible.union(_refs_on(table.metadata, present)))
        unmoved = (AssertRefSnapshotId(ref=name, snapshot_id=tag_target(table, name)) for name in tags)
        return sorted(present), unmoved

    return _remove_snapshots(table, choose, "versions") or tuple(sorted(requested - foreign()))


def unnamed_packs(table: Table, expiring: Iterable[SnapshotId] = ()) -> Mapping[SnapshotId, str]:
    """Holder snapshots whose packs no version names, and the owner of each; those that a ref of the table's owner
    points at are left out. Reads the metadata that `table` shows.

    expiring: ids of index snapshots that count as gone.
    """
    expiring_ids = frozenset(expiring)
    ours = {
        snapshot_id: owned
        for snapshot_id, owned in own_snapshots(table.metadata).items()
        if snapshot_id not in expiring_ids
    }
    named = {holder_id for owned in ours.values() for holder_id in owned.pack_ids}
    owners = {snapshot_id: owned.pack_owner for snapshot_id, owned in ours.items() if owned.pack_owner is not None}
    unnamed = {holder_id: owner for holder_id, owner in owners.items() if holder_id not in named}
    tags = {pack_tag(index, holder_id) for holder_id, index in unnamed.items()}
    foreign = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in tags}
    return {holder_id: owner for holder_id, owner in unnamed.items() if holder_id not in foreign}


def expire_packs(table: Table) -> tuple[SnapshotId, ...]:
    """Remove the holder snapshots of packs that no version names, with their tags. Returns the snapshots that are gone.

    Raises BindingError, TableFaultError where a version may be hidden, and the errors of `reload_table`.
    """

    def choose() -> tuple[list[SnapshotId], Iterable[TableRequirement]]:
        owners = unnamed_packs(table)
        if not owners:
            return [], ()
        require_all_snapshots(table)
        return sorted(owners), _require_tags_unchanged(table, owners)

    return _remove_snapshots(table, choose, "packs")


def _remove_snapshots(
    table: Table, choose: Callable[[], tuple[list[SnapshotId], Iterable[TableRequirement]]], what: str
) -> tuple[SnapshotId, ...]:
    """Remove snapshots and the refs on them in one commit. Returns the snapshots, none where there are none to remove.

    choose: gives the snapshots, and what the commit requires, for the state that `table` shows. Raises BindingError.
    """
    unanswered: set[SnapshotId] = set()
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        snapshot_ids, requirements = choose()
        if not snapshot_ids:
            return _expired(table, unanswered)
        if not attempt.may_commit:
            break
        refs = _refs_on(table.metadata, snapshot_ids)
        # a catalog drops the refs on a snapshot with it, one that its owner has set since we looked, too
        seen = unchanged(table, "the list of refs on what is removed", lambda now: _refs_on(now, snapshot_ids))  # noqa: B023
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in refs]
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=snapshot_ids))
        outcome = attempt_commit(table, tuple(updates), (seen, *requirements), attempt.number)
        if outcome is CommitOutcome.DONE:
            reload_table(table, patient=True)
            return tuple(snapshot_ids)
        if outcome is CommitOutcome.UNKNOWN:
            unanswered.update(snapshot_ids)
    raise BindingError(f"{table_name(table)}: {what} could not be expired in {attempt.number} attempts; try again")


def _expired(table: Table, snapshot_ids: Collection[SnapshotId]) -> tuple[SnapshotId, ...]:
    present = snapshots_by_id(table.metadata)
    return tuple(item for item in sorted(snapshot_ids) if item not in present)


def _refs_on(metadata: TableMetadata, snapshot_ids: Collection[int]) -> tuple[str, ...]:
    chosen = frozenset(snapshot_ids)
    return tuple(sorted(name for name, ref in metadata.refs.items() if ref.snapshot_id in chosen))


def _require_tags_unchanged(table: Table, owners: Mapping[SnapshotId, str]) -> tuple[TableRequirement, ...]:
    """No version was published since that might name one of these packs: that would have moved the owner's tag, or,
    under a tag of its own, the side tag. Nor was a tag put on a pack.
    """
    tags = {pack_tag(owner, holder_id) for holder_id, owner in owners.items()}
    for owner in owners.values():
        tags |= {owner_tag(owner), side_tag(owner)}
    return tuple(AssertRefSnapshotId(ref=tag, snapshot_id=tag_target(table, tag)) for tag in sorted(tags))
