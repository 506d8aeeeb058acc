"""Bounds on the work of a run on an index, from the table's metadata alone: summaries of snapshots and of versions.

`icepuffin.ops.index.planning.version_plan` decides by manifests, delete files and routing blobs, which are not read
here. Where the metadata does not show that little is to be done, the bound is that of a build.
"""

from dataclasses import dataclass

from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, versions_in
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import distances_text, find_field_id
from icepuffin.ops.index.planning.deltas import place
from icepuffin.ops.index.planning.sizes import has_outgrown, max_shard_rows, rows_per_shard
from icepuffin.ops.index.planning.version_plan import SHARED_ENOUGH, nearest_first
from icepuffin.ops.index.versions.version_sizes import VersionSizes, graph_id
from icepuffin.ops.model import ShardId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.metadata_memo import once_per_metadata
from icepuffin.ops.table.snapshots import ancestors_from, commits_since
from icepuffin.ops.table.summaries import snapshot_count

_CHANGES_OF_DELETES = ("added-equality-deletes", "removed-equality-deletes", "removed-position-deletes")
"""Summary keys of changes that may concern any number of rows"""
_ADDED = ("added-records", "added-position-deletes", "added-data-files")
_REMOVED = "deleted-records"


@dataclass(frozen=True, slots=True)
class RefreshBounds:
    """The most that a refresh may have to do."""

    base: VersionSizes
    """Sizes of the version that it starts from"""
    arriving: int
    """Rows of new files"""
    removed: int
    """Rows that are deleted, or whose data files are removed"""
    files: int
    """New files"""
    largest: int
    """Nodes of the largest shard that is written, or read whole"""
    written: int
    """Shards that are written, or read whole"""


@dataclass(frozen=True, slots=True)
class _RowChanges:
    """What commits have added and removed, as `RefreshBounds` counts it."""

    arriving: int
    removed: int
    files: int


def refresh_bounds(table: Table, definition: IndexDefinition, snapshot: Snapshot) -> RefreshBounds | None:
    """What a run for the snapshot may have to do, at most; None where it may have to build all shards.

    The base version is known where the nearest one has the definition of today and is of an ancestor.
    """
    field_id = find_field_id(table, definition)
    versions = index_versions(table, definition.name)
    if field_id is None or not snapshot.sequence_number or not any(version.tags for version in versions):
        return None
    if TableProperties.DEFAULT_NAME_MAPPING in table.properties:  # by another one old files may have other vectors
        return None
    identity, distances = graph_id(definition, field_id), distances_text(definition, field_id)
    nearest = nearest_first(versions, snapshot.snapshot_id, snapshot.sequence_number, distances)
    sizes = [VersionSizes.parse(version.sizes) for version in nearest]
    possible = [(version, its) for version, its in zip(nearest, sizes, strict=True) if not _differs(its, identity)]
    base, base_sizes = next(iter(possible), (None, None))
    if base is None or base_sizes is None:
        return None
    changes = _changes_since(
        table,
        base,
        snapshot,
        is_newest=all(version.base_sequence_number <= snapshot.sequence_number for version, _ in possible),
    )
    if changes is None:
        return None
    staying, total = base_sizes.live_rows - changes.removed, snapshot_count(snapshot, "total-records")
    is_misfit = bool(base_sizes.fit.imbalance) and total <= definition.build_anew_rows
    if is_misfit or staying < SHARED_ENOUGH * (staying + changes.arriving):
        return None
    bounds = _bounds(definition, base_sizes, changes)
    reads_whole_shards = not definition.holds_vectors and bounds.written  # whose vectors lie in old data files
    # a build with more shards follows
    is_too_large = bounds.largest > max_shard_rows(definition, base_sizes.dims)
    if changes.arriving:
        is_too_large |= has_outgrown(definition, total, base_sizes.dims, base_sizes.shards)
    return None if reads_whole_shards or is_too_large else bounds


def earlier_sizes(table: Table, definition: IndexDefinition) -> list[VersionSizes]:
    """Sizes of the versions that have the same definition: a run may rebuild all shards of one of these."""
    field_id = find_field_id(table, definition)
    identity = None if field_id is None else graph_id(definition, field_id)
    return [its for its in _sizes_in(table.metadata, definition.name) if its.definition == identity]


@once_per_metadata
def _sizes_in(metadata: TableMetadata, name: str) -> tuple[VersionSizes, ...]:
    """Sizes of all versions of an index that have them."""
    sizes = (VersionSizes.parse(version.sizes) for version in versions_in(metadata, BlobKind.INDEX, name))
    return tuple(its for its in sizes if its is not None)


def _differs(sizes: VersionSizes | None, identity: str) -> bool:
    """Whether a version is known to have another definition."""
    return sizes is not None and sizes.definition != identity


def _changes_since(table: Table, base: DerivedVersion, snapshot: Snapshot, *, is_newest: bool) -> _RowChanges | None:
    """What the commits since a version's snapshot have changed; None where the summaries do not tell.

    is_newest: whether no version is of a later snapshot, which may share more rows where some have removed.
    """
    lineage = ancestors_from(table, snapshot.snapshot_id)
    before, since = commits_since(lineage, lambda ancestor: ancestor.snapshot_id == base.base_snapshot_id)
    if before is None or any(snapshot_count(it, key) for it in since for key in _CHANGES_OF_DELETES):
        return None
    counts = {key: sum(snapshot_count(commit, key) for commit in since) for key in (*_ADDED, _REMOVED)}
    rows_add_up = _growth(before, snapshot, "total-records") == counts["added-records"] - counts[_REMOVED]
    deletes_add_up = _growth(before, snapshot, "total-position-deletes") == counts["added-position-deletes"]
    changes = _RowChanges(
        counts["added-records"], counts[_REMOVED] + counts["added-position-deletes"], counts["added-data-files"]
    )
    return changes if rows_add_up and deletes_add_up and (is_newest or not changes.removed) else None


def _growth(before: Snapshot, now: Snapshot, key: str) -> int:
    return snapshot_count(now, key) - snapshot_count(before, key)


def _bounds(definition: IndexDefinition, base: VersionSizes, changes: _RowChanges) -> RefreshBounds:
    arriving, removed = changes.arriving, changes.removed
    limit = rows_per_shard(base.dims, definition.max_degree)
    largest_delta = max(base.deltas, default=0)
    placement = place(
        definition,
        routed_rows=max(0, base.rows - removed),
        deltas={ShardId(number): nodes for number, nodes in enumerate(base.deltas, base.shards)},
        arriving=arriving,
        largest=limit,
    )
    largest = written = 0
    if arriving and placement.target is not None and largest_delta + arriving <= limit:
        largest, written = largest_delta + arriving, 1
    elif arriving:
        largest, written = base.largest + sum(base.deltas) + arriving, base.shards
    rebuilt = _largest_rebuilt(definition.rebuild_ratio, base, removed)
    if base.fit.outdates_recall(base.live_rows - removed + arriving, arriving):  # then all shards are searched
        largest, written = max(largest, base.largest, largest_delta), base.shards + len(base.deltas) + 1
    if rebuilt:
        largest, written = max(largest, rebuilt + arriving), base.shards + len(base.deltas) + 1
    return RefreshBounds(base, arriving, removed, changes.files, largest, written)


def _largest_rebuilt(ratio: float, base: VersionSizes, removed: int) -> int:
    """Nodes of the largest shard that may be rebuilt, if all rows that are removed lie in one.

    A shard of n nodes with t tombstones is rebuilt where t + removed > ratio n, and t is at most `tombstones` n.
    """
    nodes, slack = max(base.largest, *base.deltas, 0), ratio - base.tombstones
    if slack <= 0:
        return nodes if removed or slack < 0 else 0
    return min(nodes, int(removed / slack))
