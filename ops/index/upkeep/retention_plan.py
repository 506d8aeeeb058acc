"""Retention of index versions: decided from metadata alone, then carried out on tags and snapshots.

Iceberg's own expiry removes old snapshots without a tag. A retention policy can go further: keep fewer versions than
Iceberg would, or keep a version for as long as the table's owner tags its snapshot.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import (
    DerivedVersion,
    bound_names,
    lost_versions,
    own_tag_target,
    own_tags,
    tag_target,
    versions,
)
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.messages import plural
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import LASTING_MS, BlobKind, version_tag
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import base_snapshot_id, derived_ids, history_of_data

_DAY_MS = 24 * 3600 * 1000


_WITH_TAGGED = (RetentionScope.ALL, RetentionScope.TAGGED)


@dataclass(frozen=True, slots=True)
class ExpiredVersion:
    """A version that its policy does not keep: its index snapshot is removed, and its file is deleted later."""

    name: str
    base_snapshot_id: SnapshotId
    index_snapshot_id: SnapshotId
    puffin_path: str
    why: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Versions that a policy expires and pins at this moment."""

    expire: tuple[ExpiredVersion, ...] = ()
    pin: tuple[DerivedVersion, ...] = ()
    """Versions of tagged snapshots, which need a tag so that Iceberg's expiry does not remove them."""
    postponed: int = 0
    """Number of versions that stay only until they are older than the grace period."""
    drops_tag: bool = False
    """Whether the index was dropped, and its tag goes with the version: a run that had begun may have put it there"""


def plan_retention(
    table: Table,
    kind: BlobKind,
    name: str,
    retention: RetentionPolicy,
    *,
    grace: timedelta,
    now_ms: int | None = None,
) -> RetentionPlan:
    """Decide for one index, or for the file sketches. Reads the metadata that `table` shows, no file.

    Versions younger than `grace` stay: a run that began before may be building on them.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    all_versions = versions(table, kind, name)
    tag = version_tag(kind, name)
    tags = own_tags(table, tag)
    is_dropped = retention.versions is RetentionScope.NONE
    newest = None if is_dropped else tag_target(table, tag) if tag in tags else _newest_untagged(table, all_versions)
    distances = next((version.distances for version in all_versions if tag in version.tags), "") if tag in tags else ""
    lasting = {name for name in tags if name == tag or table.metadata.refs[name].max_ref_age_ms == LASTING_MS}
    tagged, history = _owners_snapshots(table), history_of_data(table.metadata)
    # the version of main's head needs no tag of its own: the index tag is on it, or returns to it
    pinned = _owners_snapshots(table, but="main") if retention.versions in _WITH_TAGGED else frozenset()
    expire: list[ExpiredVersion] = []
    pin: list[DerivedVersion] = []
    postponed = 0
    for version, reason in _reasons_to_expire(table, all_versions, newest, distances, tagged, retention, now):
        foreign = [ref for ref in version.tags if ref not in tags]
        if reason and not foreign and version.index_snapshot_id not in history:
            if now - version.timestamp_ms <= grace.total_seconds() * 1000:
                postponed += 1
                continue
            path, base = version.puffin_path, version.base_snapshot_id
            expire.append(ExpiredVersion(name, base, version.index_snapshot_id, path, reason))
        elif not reason and not foreign and lasting.isdisjoint(version.tags) and version.base_snapshot_id in pinned:
            pin.append(version)
    for lost in lost_versions(table, kind, name):
        snapshot_id, base_id = SnapshotId(lost.snapshot_id), base_snapshot_id(lost)
        refs = {ref for ref, target in table.metadata.refs.items() if target.snapshot_id == snapshot_id}
        if base_id is None or snapshot_id in history or refs - (tags if is_dropped else tags - {tag}):
            continue
        if now - lost.timestamp_ms <= grace.total_seconds() * 1000:
            postponed += 1
            continue
        expire.append(ExpiredVersion(name, base_id, snapshot_id, "", "its statistics entry was removed"))
    return RetentionPlan(tuple(reversed(expire)), tuple(reversed(pin)), postponed, drops_tag=is_dropped)


def _newest_untagged(table: Table, all_versions: Sequence[DerivedVersion]) -> SnapshotId | None:
    """The version that counts as the newest where the index tag is missing."""
    snapshot_ids = snapshots_by_id(table.metadata)
    with_base = [version for version in all_versions if version.base_snapshot_id in snapshot_ids]
    return max(with_base, key=_order).index_snapshot_id if with_base else None


def retention_of_dropped(table: Table, defined: Collection[str]) -> Iterator[tuple[str, RetentionPolicy]]:
    """(name, a retention that keeps nothing) of each index that has versions and no definition any more."""
    for name in sorted(bound_names(table, BlobKind.INDEX) - set(defined)):
        yield name, RetentionPolicy(RetentionScope.NONE)


def _reasons_to_expire(
    table: Table,
    all_versions: Sequence[DerivedVersion],
    newest: SnapshotId | None,
    distances: str,
    tagged: Collection[SnapshotId],
    retention: RetentionPolicy,
    now: int,
) -> Iterator[tuple[DerivedVersion, str]]:
    """(version, reason to expire it, empty where it stays), newest data snapshots first.

    distances: those of the index's tagged version. An index that had the name before had others, and was dropped.
    """
    snapshot_ids = snapshots_by_id(table.metadata)
    snapshots_before: set[SnapshotId] = set()
    counted = 1 if newest is not None else 0
    for version in sorted(all_versions, key=_order, reverse=True):
        base, age = version.base_snapshot_id, (now - version.timestamp_ms) / _DAY_MS
        is_of_dropped = bool(distances) and not version.may_have(distances)
        repeated = base in snapshots_before
        if not is_of_dropped:
            snapshots_before.add(base)
        reason = ""
        if version.index_snapshot_id == newest:
            pass
        elif base not in snapshot_ids:
            reason = "its snapshot has expired"
        elif retention.versions is RetentionScope.NONE or is_of_dropped:
            reason = "its index was dropped"
        elif repeated:
            reason = "a newer version of the same snapshot exists"
        elif retention.versions is RetentionScope.NEWEST:
            reason = "only the newest version is kept"
        elif base in tagged:
            pass
        elif retention.versions is RetentionScope.TAGGED:
            reason = "no branch or tag points at its snapshot"
        elif retention.days is not None and age > retention.days:
            reason = f"it is older than {plural(retention.days, 'day')}"
        elif retention.last is not None and counted >= retention.last:
            reason = f"there {'is' if retention.last == 1 else 'are'} {plural(retention.last, 'newer one')}"
        else:
            counted += 1
        yield version, reason


def _order(version: DerivedVersion) -> tuple[int, int, int]:
    """Sort key: by data snapshot, then by the time of publication."""
    return version.base_sequence_number, version.sequence_number, version.timestamp_ms


def _owners_snapshots(table: Table, *, but: str = "") -> frozenset[SnapshotId]:
    """Data snapshots that refs of the table's owner point at, `but` this one."""
    derived = derived_ids(table.metadata)
    targets = (SnapshotId(ref.snapshot_id) for name, ref in table.metadata.refs.items() if name != but)
    return frozenset(target for target in targets if target not in derived)


def carry_out_retention(table: Table, tag: str, plan: RetentionPlan) -> tuple[ExpiredVersion, ...]:
    """Tag the pinned versions, and remove the index snapshots of expired versions with their tags in one commit.

    Returns the versions that were removed. Deletes no file. Raises LostRaceError where a tag came up meanwhile,
    BindingError, the errors of `reload_table`.
    """
    for version in plan.pin:
        pinned = f"{tag}-{version.base_snapshot_id}"
        bindings.move_tag(table, pinned, version.index_snapshot_id, expected_ref=own_tag_target(table, pinned))
    if not plan.expire:
        return ()
    reload_table(table)
    tags = own_tags(table, tag) - (frozenset() if plan.drops_tag else {tag})
    removed = frozenset(expire_derived(table, {item.index_snapshot_id for item in plan.expire}, tags))
    return tuple(item for item in plan.expire if item.index_snapshot_id in removed)
