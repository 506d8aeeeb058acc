"""Versions that are bound to a table: index versions and file sketches in its metadata, and the tags on them. Reads no
file.

A ref is icepuffin's own only if it is a tag, on a version, with the name that a tag on this very version has. Any other
ref belongs to the table's owner, whatever its name: it is neither moved nor dropped.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ops.errors import TableStateError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import (
    DISTANCES_KEY,
    SIZES_KEY,
    BlobKind,
    index_tag,
    owner_tag,
    pack_tag,
    side_tag,
    version_tag,
)
from icepuffin.ops.table.metadata_memo import once_per_metadata, snapshots_by_id, statistics_by_id
from icepuffin.ops.table.ownership import own_snapshot, own_snapshots
from icepuffin.ops.table.snapshots import pack_owner, table_name
from icepuffin.ops.table.summaries import summary_of

_log = logging.getLogger(__name__)


class TagTakenError(TableStateError):
    """Raised before any work when a ref of the table's owner has the name that a tag of icepuffin's is to have."""

    retryable = False


@dataclass(frozen=True, slots=True)
class BoundPack:
    """A file of shards, or of file sketches, that several versions share, from the table's metadata."""

    holder_id: SnapshotId
    """Id of the holder snapshot that carries it"""
    path: str
    """Location of the pack; empty where the holder snapshot has expired"""
    size: int
    is_kept: bool
    """Whether its tag is in place, so that no expiry takes it"""


@dataclass(frozen=True, slots=True)
class DerivedVersion:
    """A bound version, from the table's metadata."""

    kind: BlobKind
    name: str
    index_snapshot_id: SnapshotId
    """Id of the snapshot that carries the version"""
    base_snapshot_id: SnapshotId
    build_id: str
    puffin_path: str
    sequence_number: int
    timestamp_ms: int
    base_sequence_number: int
    """Sequence number of the data snapshot; that of the version itself where the data snapshot has expired"""
    tags: tuple[str, ...]
    """Tags that point at it; none where it only waits to expire"""
    measurement: str = ""
    """Text of the `Measurement` of the run that made it; empty where its summary has none"""
    sizes: str = ""
    """Text of its sizes; empty for file sketches, and where its summary has none, as without graphs"""
    distances: str = ""
    """Column and distances; empty for file sketches, and where its summary has none"""
    packs: tuple[BoundPack, ...] = ()
    """Packs that its shards or sketches lie in, in the order of the numbers that a routing blob gives them"""
    fields: frozenset[int] = frozenset()
    """Field ids of the columns that have file sketches; none for an index"""
    file_size: int | None = None
    """Bytes of the file at `puffin_path`, by its statistics entry; None where that is not known"""
    table_location: str = ""
    """Location of the table today"""

    def may_have(self, distances: str) -> bool:
        """Whether the version is of this column and these distances, or its summary does not have its own."""
        return self.distances in (distances, "")


def index_versions(table: Table, name: str) -> tuple[DerivedVersion, ...]:
    """All versions of the indexes that have had a name, oldest first, tagged or not. One that was dropped may have had
    another column: `icepuffin.ops.index.planning.current_versions` leaves its versions out.
    """
    return versions(table, BlobKind.INDEX, name)


def tagged_version(table: Table, index: str) -> DerivedVersion | None:
    """The version that the index tag points at."""
    target = tag_target(table, index_tag(index))
    return next((version for version in index_versions(table, index) if version.index_snapshot_id == target), None)


def sketch_versions(table: Table) -> tuple[DerivedVersion, ...]:
    """All versions of the file sketches in the table's metadata, oldest first, tagged or not."""
    return versions(table, BlobKind.SKETCHES, BlobKind.SKETCHES)


def versions(table: Table, kind: BlobKind, name: str) -> tuple[DerivedVersion, ...]:
    """All versions of one kind and name in the table's metadata, oldest first, tagged or not."""
    return versions_in(table.metadata, kind, name)


@once_per_metadata
def versions_in(metadata: TableMetadata, kind: BlobKind, name: str) -> tuple[DerivedVersion, ...]:
    """`versions` of a table's metadata."""
    tags: dict[SnapshotId, list[str]] = {}
    for ref, target in metadata.refs.items():
        tags.setdefault(SnapshotId(target.snapshot_id), []).append(ref)
    snapshots, files, ours = snapshots_by_id(metadata), statistics_by_id(metadata), own_snapshots(metadata)

    def pack(holder_id: SnapshotId) -> BoundPack:
        file = files.get(holder_id) if holder_id in snapshots else None
        is_kept = pack_tag(name, holder_id) in tags.get(holder_id, ())
        path, size = (file.statistics_path, _size_of(file) or 0) if file else ("", 0)
        return BoundPack(holder_id, path, size, is_kept)

    bound = []
    for snapshot in metadata.snapshots:
        # the statistics slot is the truth for the path: moving a table rewrites it, and not the summary
        file = files.get(snapshot.snapshot_id)
        if file is None:
            continue
        owned, properties = ours.get(SnapshotId(snapshot.snapshot_id)), summary_of(snapshot)
        if not owned or owned.base_id is None or owned.kind != kind or properties.get(f"{kind}.index", kind) != name:
            continue
        data = snapshots.get(owned.base_id, snapshot)
        bound.append(
            DerivedVersion(
                kind=kind,
                name=name,
                index_snapshot_id=SnapshotId(snapshot.snapshot_id),
                base_snapshot_id=owned.base_id,
                build_id=properties.get(f"{kind}.build-id", ""),
                puffin_path=file.statistics_path,
                sequence_number=snapshot.sequence_number or 0,
                timestamp_ms=snapshot.timestamp_ms,
                base_sequence_number=data.sequence_number or 0,
                tags=tuple(sorted(tags.get(SnapshotId(snapshot.snapshot_id), ()))),
                measurement=properties.get(f"{kind}.took", ""),
                sizes=properties.get(SIZES_KEY, ""),
                distances=properties.get(DISTANCES_KEY, ""),
                packs=tuple(map(pack, owned.pack_ids)),
                fields=owned.fields,
                file_size=_size_of(file),
                table_location=metadata.location,
            )
        )
    return tuple(sorted(bound, key=lambda version: (version.sequence_number, version.timestamp_ms)))


def lost_versions(table: Table, kind: BlobKind, name: str) -> tuple[Snapshot, ...]:
    """Snapshots of versions that no entry gives a file any more, as after `drop_extended_stats` of Trino."""
    files, snapshots = statistics_by_id(table.metadata), snapshots_by_id(table.metadata)
    return tuple(
        snapshots[snapshot_id]
        for snapshot_id, owned in own_snapshots(table.metadata).items()
        if owned.kind == kind and owned.base_id is not None and snapshot_id not in files
        if summary_of(snapshots[snapshot_id]).get(f"{kind}.index", kind) == name
    )


def _size_of(file: StatisticsFile) -> int | None:
    """Bytes of a file by its entry, which any writer may set; None, with a warning, where no file has so many."""
    if 0 <= file.file_size_in_bytes < 2**63:
        return file.file_size_in_bytes
    _log.warning(
        "the statistics entry of snapshot %s has a file-size-in-bytes of %.40s, which no file has: it is left out of "
        "account. Its writer set it",
        file.snapshot_id, file.file_size_in_bytes,
    )  # fmt: skip
    return None


def holder_ids(snapshot: Snapshot) -> tuple[SnapshotId, ...]:
    """Holder snapshots of the packs that the version of a derived snapshot shares, in the order of their numbers."""
    owned = own_snapshot(snapshot)
    return () if owned is None else owned.pack_ids


def untagged_packs(table: Table, index_snapshot_ids: Collection[SnapshotId]) -> dict[str, SnapshotId]:
    """Packs of some versions that have no tag: their holder snapshots, by the tag that each is to have. Those that have
    expired are left out, and with a warning those for whose tag a ref of the table's owner has the name.
    """
    snapshots = snapshots_by_id(table.metadata)
    named = (snapshots[snapshot_id] for snapshot_id in index_snapshot_ids if snapshot_id in snapshots)
    holders = {holder_id for version in named for holder_id in holder_ids(version) if holder_id in snapshots}
    owners = {holder_id: pack_owner(snapshots[holder_id]) for holder_id in holders}
    tags = {pack_tag(owner, holder_id): holder_id for holder_id, owner in owners.items() if owner is not None}
    for tag, holder_id in tags.items():
        if tag_target(table, tag) not in (holder_id, None):
            _log.warning(
                "%s: the ref %r, which icepuffin did not make, has the name that the tag of a pack is to have. Without "
                "that tag the pack is deleted when its snapshot %s expires. Give the ref another name",
                table_name(table), tag, holder_id,
            )  # fmt: skip
    return {tag: holder_id for tag, holder_id in tags.items() if tag not in table.metadata.refs}


def bound_names(table: Table, kind: BlobKind) -> frozenset[str]:
    """Names that have a version in the table's metadata."""
    snapshots = snapshots_by_id(table.metadata)
    return frozenset(
        summary_of(snapshots[snapshot_id]).get(f"{kind}.index", kind)
        for snapshot_id, owned in own_snapshots(table.metadata).items()
        if owned.kind == kind and owned.base_id is not None
    )


def tag_target(table: Table, tag: str) -> SnapshotId | None:
    """The snapshot that a ref points at, whoever made it; None where there is no such ref."""
    ref = table.metadata.refs.get(tag)
    return SnapshotId(ref.snapshot_id) if ref else None


def own_tag_target(table: Table, tag: str) -> SnapshotId | None:
    """The snapshot that a tag of icepuffin's points at; None where there is no ref of that name.

    Raises TagTakenError where there is one that is not icepuffin's.
    """
    ref = table.metadata.refs.get(tag)
    if ref is None:
        return None
    target = snapshots_by_id(table.metadata).get(ref.snapshot_id)
    if ref.snapshot_ref_type is SnapshotRefType.TAG and target is not None and tag in dict(_possible_tags(target)):
        return SnapshotId(ref.snapshot_id)
    ref_type = ref.snapshot_ref_type.value
    raise TagTakenError(
        f"{table_name(table)} has a {ref_type} {tag!r} that icepuffin did not make, and it is left alone. Keep what it "
        f"points at under another name and drop it (ALTER TABLE ... DROP {ref_type.upper()} `{tag}`), or, where it "
        "stands in the way of an index, give the index another name"
    )


def own_tags(table: Table, tag: str) -> frozenset[str]:
    """Names of the tags that icepuffin made: the index tag `tag`, and those of the same index's other versions."""
    snapshots = snapshots_by_id(table.metadata)
    return frozenset(
        name
        for name, ref in table.metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.TAG
        and ref.snapshot_id in snapshots
        and (name, tag) in _possible_tags(snapshots[ref.snapshot_id])
    )


def own_names(snapshot: Snapshot) -> frozenset[str]:
    """Names of the tags that icepuffin may put on a snapshot; none for a snapshot that it did not make."""
    return frozenset(name for name, _ in _possible_tags(snapshot))


def _possible_tags(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """(name, index tag) of each tag that icepuffin may put on a snapshot; none for a snapshot that it did not make."""
    owned = own_snapshot(snapshot)
    if owned is None or owned.kind not in tuple(BlobKind):
        return
    if owned.base_id is not None:
        kind = BlobKind(owned.kind)
        name = summary_of(snapshot).get(f"{kind}.index", kind)
        tag = version_tag(kind, name)
        yield tag, tag
        yield f"{tag}-{owned.base_id}", tag
        yield side_tag(name), tag
    if owned.pack_owner is not None:
        yield pack_tag(owned.pack_owner, SnapshotId(snapshot.snapshot_id)), owner_tag(owned.pack_owner)
