"""Binding: how a Puffin file comes to belong to a snapshot, in one catalog commit. See docs/concepts.md.

A `replace` snapshot S' without a parent, with the manifests of S in a list of its own, a tag on it, and the Puffin
file in its statistics slot. The file is reachable from metadata, `main` and its statistics are not touched, and no
writer has to try again because of it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from icepuffin.ops.binding.bound_versions import (
    DerivedVersion,
    holder_ids,
    own_tag_target,
    own_tags,
    tag_target,
    untagged_packs,
    versions,
)
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.binding.derived_snapshots import (
    Binding,
    derive_snapshot,
    holder_snapshots,
    holder_updates,
    last_number_updates,
    same_numbers,
    tag_ref,
    tag_update,
    version_updates,
)
from icepuffin.ops.binding.errors import BindingError, LostRaceError, UnknownOutcomeError, UnsupportedCatalogError
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.binding.joint_commit import Change, CommitPart, commit_together
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.table.blob_kind import LASTING_MS, pack_tag, side_tag
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import UnknownSnapshotError, table_name


class VersionPart(CommitPart[DerivedVersion]):
    """The part of a commit that binds a version: its snapshot, the tag, the statistics entry, and new packs."""

    def __init__(self, binding: Binding) -> None:
        super().__init__()
        self.binding = binding
        self._sent: list[SnapshotId] = []
        self._previous_ref: SnapshotRef | None = None

    def find(self, table: Table) -> DerivedVersion | None:
        """The version, wherever somebody has moved the tag since."""
        version = _find_committed(table, self.binding, self._sent)
        if version is not None and version.index_snapshot_id in self._sent:
            return _verify_committed(table, self.binding, version.index_snapshot_id, self._previous_ref)
        return version

    def change(self, table: Table) -> Change:
        """Raises LostRaceError, UnknownOutcomeError, UnknownSnapshotError, TagTakenError, UnsupportedFormatError."""
        binding = self.binding
        self._require_tag_unmoved(table)
        self._require_packs(table)
        if binding.needs_side_tag:
            own_tag_target(table, side_tag(binding.name))  # refuses to move one of the table's owner
        self._previous_ref = table.metadata.refs.get(binding.tag)
        holders = holder_snapshots(table, binding)
        snapshot = derive_snapshot(table, binding, holders)
        self._sent.append(SnapshotId(snapshot.snapshot_id))
        reached(RunStep.LIST_WRITTEN)
        updates = (*version_updates(binding, snapshot), *holder_updates(binding, holders))
        return updates, (*same_numbers(table), *_requirements(binding))

    def verify(self, table: Table) -> DerivedVersion:
        """Raises UnknownSnapshotError, UnsupportedCatalogError, BindingError."""
        return _verify_committed(table, self.binding, self._sent[-1], self._previous_ref)

    def failure(self, table: Table, attempts: int) -> IcepuffinError:
        if self.is_unanswered:
            return self._unknown_outcome(table)
        return BindingError(
            f"{table_name(table)}: {self.binding.tag} could not be committed in {attempts} attempts; try again"
        )

    def _unknown_outcome(self, table: Table) -> UnknownOutcomeError:
        binding = self.binding
        return UnknownOutcomeError(
            f"{table_name(table)}: the catalog's answer was lost, and whether {binding.tag} was committed for snapshot "
            f"{binding.base_snapshot_id} is not known. {binding.puffin_path} is kept; run it again when the catalog "
            "is up"
        )

    def _require_tag_unmoved(self, table: Table) -> None:
        binding, target = self.binding, own_tag_target(table, self.binding.tag)
        if target == binding.expected_ref:
            return
        if self.is_unanswered:  # the tag may come back to where it was, and the late commit then be accepted
            raise self._unknown_outcome(table)
        raise LostRaceError(
            f"{table_name(table)}: {binding.tag} pointed at {binding.expected_ref} when the work began, now at "
            f"{target}; somebody else published first"
        )

    def _require_packs(self, table: Table) -> None:
        binding = self.binding
        if all(tag_target(table, pack_tag(binding.name, holder_id)) == holder_id for holder_id in binding.packs):
            return
        if self.is_unanswered:  # the late commit may have been accepted before the tag went
            raise self._unknown_outcome(table)
        raise LostRaceError(
            f"{table_name(table)}: packs of {binding.tag} that the version shares were dropped meanwhile; run it again"
        )


def publish(table: Table, binding: Binding, beside: Sequence[CommitPart[object]] = ()) -> DerivedVersion:
    """Bind a version, and `beside` in the same commit. Retries on the table's newest state as long as the tag is where
    it was expected.

    Returns the version, also where an earlier attempt of the same build had already succeeded; its tags are empty
    where somebody has moved the tag on since. No file that a commit refers to is deleted here, even if the commit was
    refused: the first request of a gateway may land after its repetition was refused. Garbage collection removes files
    that nothing came to refer to.

    Raises LostRaceError, UnknownOutcomeError, UnknownSnapshotError (the base expired meanwhile), TagTakenError,
    UnsupportedCatalogError, UnsupportedFormatError, BindingError, and the errors of
    `icepuffin.ops.binding.commit.reload_table`.
    """
    part = VersionPart(binding)
    commit_together(table, (part, *beside))
    return part.outcome()


def _requirements(binding: Binding) -> tuple[AssertRefSnapshotId, ...]:
    """The tag and the tags of the packs are where they were, so that a sweep and this commit cannot both succeed."""
    packs = ((pack_tag(binding.name, holder_id), holder_id) for holder_id in binding.packs)
    return tuple(
        AssertRefSnapshotId(ref=ref, snapshot_id=target)
        for ref, target in ((binding.tag, binding.expected_ref), *packs)
    )


def move_tag(table: Table, tag: str, index_snapshot_id: SnapshotId, *, expected_ref: SnapshotId | None) -> None:
    """Point `tag` at a version that exists already, to stay there whatever the table's properties say of refs, and tag
    its packs again where their tags were dropped. Packs that have expired are left out.

    Raises LostRaceError where the tag was moved meanwhile, BindingError where the version has expired, TagTakenError.
    """

    def packs() -> Mapping[str, SnapshotId]:
        if index_snapshot_id not in snapshots_by_id(table.metadata):
            raise BindingError(f"{table_name(table)}: version {index_snapshot_id} expired meanwhile; try again")
        return untagged_packs(table, [index_snapshot_id])

    _change_tag(table, tag, tag_ref(index_snapshot_id, LASTING_MS), expected_ref, packs)


def keep_packs(table: Table) -> None:
    """Tag the packs of all versions that a ref points at, where their tags were dropped.

    A version may be tagged by the table's owner after its index was dropped. Raises BindingError.
    """
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        holders = untagged_packs(table, {SnapshotId(ref.snapshot_id) for ref in table.metadata.refs.values()})
        if not holders:
            return
        if not attempt.may_commit:
            break
        if attempt_commit(table, *_pack_tags(holders), attempt.number) is CommitOutcome.DONE:
            return
    raise BindingError(f"{table_name(table)}: packs could not be tagged in {attempt.number} attempts; try again")


def _pack_tags(holders: Mapping[str, SnapshotId]) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """(updates, requirements) of the tags of packs that have none. `holders`: holder snapshots, by tag."""
    updates = (tag_update(tag, tag_ref(holder_id, LASTING_MS)) for tag, holder_id in holders.items())
    return tuple(updates), tuple(AssertRefSnapshotId(ref=tag, snapshot_id=None) for tag in holders)


def make_lasting(table: Table, tag: str) -> None:
    """Give a tag of icepuffin's that has no `max-ref-age-ms` the longest one, so that no expiry drops it."""
    ref = table.metadata.refs.get(tag)
    if ref is None or ref.max_ref_age_ms is not None or tag not in own_tags(table, tag):
        return
    with suppress(LostRaceError):  # whoever moved it made it anew
        move_tag(table, tag, SnapshotId(ref.snapshot_id), expected_ref=SnapshotId(ref.snapshot_id))


def drop(table: Table, *tags: str) -> tuple[str, ...]:
    """Remove tags of icepuffin's, in one commit; their versions expire like any snapshot. Returns the removed tags.

    Raises TagTakenError where one is somebody else's; then none is removed.
    """
    dropped: tuple[str, ...] = ()
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        targets = {tag: target for tag in tags if (target := own_tag_target(table, tag)) is not None}
        if not targets:
            return dropped
        if not attempt.may_commit:
            break
        dropped = tuple(targets)
        updates = tuple(RemoveSnapshotRefUpdate(ref_name=tag) for tag in targets)
        unmoved = tuple(AssertRefSnapshotId(ref=tag, snapshot_id=target) for tag, target in targets.items())
        if attempt_commit(table, updates, unmoved, attempt.number) is CommitOutcome.DONE:
            reload_table(table, patient=True)
            return dropped
    raise BindingError(
        f"{table_name(table)}: {', '.join(tags)} could not be dropped in {attempt.number} attempts; try again"
    )


def _change_tag(
    table: Table,
    tag: str,
    new_ref: SnapshotRef | None,
    expected_ref: SnapshotId | None,
    packs: Callable[[], Mapping[str, SnapshotId]] = dict,
) -> None:
    """Set the tag to `new_ref` (None: remove it).

    packs: gives packs to be tagged in the same commit, for the state that `table` shows: holder snapshots, by tag.
    """
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        previous_target = tag_target(table, tag)
        if table.metadata.refs.get(tag) == new_ref:
            return
        if not attempt.may_commit:
            break
        if own_tag_target(table, tag) != expected_ref:
            raise LostRaceError(f"{table_name(table)}: somebody else moved {tag}; look again before you decide")
        tags, untagged = _pack_tags(packs())
        updates = (tag_update(tag, new_ref), *tags)
        requirements = (AssertRefSnapshotId(ref=tag, snapshot_id=expected_ref), *untagged)
        if attempt_commit(table, updates, requirements, attempt.number) is CommitOutcome.DONE:
            reload_table(table, patient=True)
            if tag_target(table, tag) == previous_target != (new_ref.snapshot_id if new_ref else None):
                raise _tag_not_kept(table, tag)
            return
    raise BindingError(f"{table_name(table)}: {tag} could not be changed in {attempt.number} attempts; try again")


def _find_committed(table: Table, binding: Binding, sent: Collection[int]) -> DerivedVersion | None:
    """The version of this very file, by one of the snapshots that were sent or by an earlier run, wherever the tag
    points now.
    """
    of_file = [each for each in versions(table, binding.kind, binding.name) if each.puffin_path == binding.puffin_path]
    for version in of_file:
        if binding.tag in version.tags or version.index_snapshot_id in sent:
            return version
    # one that the tag left for what this work began from, as after a rollback, is no success of this work
    moved_on = tag_target(table, binding.tag) != binding.expected_ref
    return of_file[0] if of_file and moved_on else None


def _verify_committed(
    table: Table, binding: Binding, snapshot_id: SnapshotId, previous_ref: SnapshotRef | None
) -> DerivedVersion:
    """The version that a commit of ours made, after a check of what the catalog kept: our snapshot, its base and its
    packs must be there, no snapshot of ours with a parent, and main must not be one. `previous_ref`: the tag before the
    commit.
    """
    _mend_last_number(table)
    snapshot, current_id = snapshots_by_id(table.metadata).get(snapshot_id), table.metadata.current_snapshot_id
    if current_id in (snapshot_id, *(holder_ids(snapshot) if snapshot else ())):
        raise unsupported_catalog(
            table,
            f"made snapshot {current_id}, which is icepuffin's, the current one",
            f". Roll back to {binding.base_snapshot_id}",
        )
    if snapshot is not None and snapshot.parent_snapshot_id is not None:  # so it is no version by any rule
        raise unsupported_catalog(table, f"gave index snapshot {snapshot_id} a parent")
    if binding.base_snapshot_id not in snapshots_by_id(table.metadata):
        _undo(table, binding, snapshot_id, previous_ref)
        raise UnknownSnapshotError(
            f"{table_name(table)}: snapshot {binding.base_snapshot_id} expired while its version was published; undone"
        )
    version = _find_committed(table, binding, (snapshot_id,))
    if version is None or tag_target(table, binding.tag) in (None, binding.expected_ref):
        raise _tag_not_kept(table, binding.tag)
    _require_kept_packs(table, binding, version)
    return version


def _require_kept_packs(table: Table, binding: Binding, version: DerivedVersion) -> None:
    """Raises UnsupportedCatalogError where the catalog gave a holder a parent, or does not keep the packs."""
    if binding.tag in version.tags:  # where it has moved on, the packs may have gone as they should
        for pack in version.packs:
            if not pack.is_kept or not pack.path:
                raise _tag_not_kept(table, pack_tag(binding.name, pack.holder_id))
            if snapshots_by_id(table.metadata)[pack.holder_id].parent_snapshot_id is not None:
                raise unsupported_catalog(table, f"gave holder snapshot {pack.holder_id} a parent")


def _mend_last_number(table: Table) -> None:
    """Put the table's last sequence number right where a commit of ours set it back: on servers that do not compare it,
    if somebody added a snapshot during the commit that is in no branch which the commit asserts. Raises BindingError.
    """
    for attempt in commit_attempts(table):
        if not (updates := last_number_updates(table)):
            return
        if not attempt.may_commit:
            break
        attempt_commit(table, updates, same_numbers(table), attempt.number)
        reload_table(table, patient=True)
    raise BindingError(
        f"{table_name(table)}: the table's last sequence number is below that of its newest snapshot, and could not be "
        f"put right in {attempt.number} attempts; run it again, before Iceberg's Java library reads the table"
    )


def _tag_not_kept(table: Table, tag: str) -> UnsupportedCatalogError:
    return unsupported_catalog(table, f"accepted tag {tag} and did not keep it, so nothing would keep the version")


def unsupported_catalog(table: Table, change: str, more: str = "") -> UnsupportedCatalogError:
    """The error for a catalog that did something else with a commit; `change` follows the catalog's name."""
    advice = f"use another catalog for tables with indexes{more}"
    error = UnsupportedCatalogError(f"{table_name(table)}: catalog {table.catalog.name!r} {change}; {advice}")
    error.change = change
    return error


def _undo(table: Table, binding: Binding, snapshot_id: SnapshotId, previous_ref: SnapshotRef | None) -> None:
    """Restore the tag, if the snapshot that it pointed at is there, and remove our snapshot, unless the table's owner
    has put a ref on it. Does nothing where the tag has moved on.
    """
    restored_ref = (
        previous_ref if previous_ref and previous_ref.snapshot_id in snapshots_by_id(table.metadata) else None
    )
    with suppress(LostRaceError):
        if tag_target(table, binding.tag) == snapshot_id:
            _change_tag(table, binding.tag, restored_ref, snapshot_id)
            expire_derived(table, [snapshot_id], [side_tag(binding.name)])
