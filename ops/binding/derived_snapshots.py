"""The snapshots that a binding adds to a table, and what a commit of one consists of. Commits nothing.

They have no parent, and the table's last sequence number, where a write takes the next one: a writer that loaded its
table before such a commit finds the number that it takes still free. PyIceberg's own check of that number is outside
its repetitions. Iceberg demands a higher number of a snapshot with a parent alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
)

from icepuffin.ops.binding.assertions import unchanged
from icepuffin.ops.binding.manifest_lists import new_snapshot_id, write_empty_manifest_list, write_own_manifest_list
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import (
    DISTANCES_KEY,
    FIELDS_KEY,
    KIND_KEY,
    LASTING_MS,
    SIDE_TAG_AGE_MS,
    SIZES_KEY,
    STATISTICS_FILE_KEY,
    BlobKind,
    owner_tag,
    pack_tag,
    side_tag,
)
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.table.summaries import summary_of

_TOTALS = ("total-records", "total-data-files", "total-position-deletes")
"""What planners and readers go by that count the rows of such a snapshot, and writers on a branch of it; and what shows
that its manifest list was cut short"""


@dataclass(frozen=True, slots=True)
class NewPack:
    """A complete file of shards, or of file sketches, that later versions may share."""

    path: str
    size: int
    footer_size: int


@dataclass(frozen=True, slots=True)
class Binding:
    """What is to be bound to which snapshot."""

    kind: BlobKind
    name: str
    """Name of the index; for file sketches the name of the kind"""
    tag: str
    base_snapshot_id: SnapshotId
    build_id: str
    puffin_path: str
    file_size: int
    footer_size: int
    expected_ref: SnapshotId | None
    """Snapshot that the tag pointed at when the work began; None where there was no tag"""
    max_ref_age_ms: int = LASTING_MS
    measurement: str = ""
    """Text of the `Measurement` of the run, for the summary of the snapshot"""
    sizes: str = ""
    """Text of the version's sizes, for the summary; empty for file sketches"""
    distances: str = ""
    """Column and distances of the version, for the summary; empty for file sketches"""
    packs: tuple[SnapshotId, ...] = ()
    """Holder snapshots of the packs that the version shares with others, in the order of their numbers"""
    new_packs: tuple[NewPack, ...] = ()
    """The packs that are bound with the version; their numbers follow those of the others"""
    fields: frozenset[int] = frozenset()
    """Field ids of the columns that have file sketches; none for an index"""

    @property
    def new_paths(self) -> tuple[str, ...]:
        """Paths of the files that were written for it: the version's own, and its new packs'."""
        return (self.puffin_path, *(pack.path for pack in self.new_packs))

    @property
    def needs_side_tag(self) -> bool:
        """Whether a commit that removes packs could not tell by the owner's tag that this version names some."""
        return bool(self.packs) and self.tag != owner_tag(self.name)


def derive_snapshot(table: Table, binding: Binding, holders: Sequence[Snapshot]) -> Snapshot:
    base = find_snapshot(table, binding.base_snapshot_id)
    snapshot_id = new_snapshot_id(table)
    packs = [*binding.packs, *(holder.snapshot_id for holder in holders)]
    properties = summary_of(base)
    totals = {key: properties[key] for key in _TOTALS if key in properties}
    index_name = {f"{binding.kind}.index": binding.name} if binding.name != binding.kind else {}
    measurement = {f"{binding.kind}.took": binding.measurement} if binding.measurement else {}
    summary = Summary(
        Operation.REPLACE,
        **totals,
        **index_name,
        **measurement,
        **({SIZES_KEY: binding.sizes} if binding.sizes else {}),
        **({DISTANCES_KEY: binding.distances} if binding.distances else {}),
        **({f"{binding.kind}.packs": ",".join(map(str, packs))} if packs else {}),
        **({FIELDS_KEY: ",".join(map(str, sorted(binding.fields)))} if binding.fields else {}),
        **({STATISTICS_FILE_KEY: binding.puffin_path} if binding.kind is BlobKind.INDEX else {}),
        **{
            KIND_KEY: binding.kind,
            f"{binding.kind}.base-snapshot-id": str(binding.base_snapshot_id),
            f"{binding.kind}.build-id": binding.build_id,
        },
    )
    sequence_number = last_number(table.metadata)
    path = write_own_manifest_list(table, base, snapshot_id, sequence_number)
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=sequence_number,
        timestamp_ms=_time_after(table),
        manifest_list=path,
        summary=summary,
        schema_id=base.schema_id,
        **_no_rows(table),
    )


def holder_snapshots(table: Table, binding: Binding) -> tuple[Snapshot, ...]:
    """The snapshots that carry the new packs: without a parent and without files, so that they keep no data alive.

    They come in one commit with the version.
    """
    return tuple(_holder_snapshot(table, binding) for _ in binding.new_packs)


def _holder_snapshot(table: Table, binding: Binding) -> Snapshot:
    snapshot_id = new_snapshot_id(table)
    sequence_number = last_number(table.metadata)
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=sequence_number,
        timestamp_ms=_time_after(table),
        manifest_list=write_empty_manifest_list(table, snapshot_id, sequence_number),
        summary=Summary(
            Operation.REPLACE,
            **dict.fromkeys(_TOTALS, "0"),
            **{KIND_KEY: binding.kind, f"{binding.kind}.pack": binding.name},
        ),
        schema_id=table.metadata.current_schema_id,
        **_no_rows(table),
    )


def last_number(metadata: TableMetadata) -> int:
    """The last sequence number that a snapshot has taken; 0 in format v1."""
    numbers = (snapshot.sequence_number or 0 for snapshot in metadata.snapshots)
    return max(getattr(metadata, "last_sequence_number", 0), *numbers, 0)


def same_numbers(table: Table) -> tuple[TableRequirement, ...]:
    """Requirements by which a commit that adds a snapshot of ours never sets the table's last sequence number back:
    nobody else may have added one since. What moves a branch is refused by any server. Iceberg's Java library refuses
    metadata whose last number is below that of a snapshot.
    """
    refs = table.metadata.refs
    branches = {MAIN_BRANCH, *(name for name, ref in refs.items() if ref.snapshot_ref_type is SnapshotRefType.BRANCH)}
    unmoved = (
        AssertRefSnapshotId(ref=name, snapshot_id=refs[name].snapshot_id if name in refs else None)
        for name in sorted(branches)
    )
    return (unchanged(table, "last sequence number", last_number), *unmoved)


def last_number_updates(table: Table) -> tuple[TableUpdate, ...]:
    """Updates that put the table's last sequence number right where it is below that of a snapshot; none where it is
    right. A copy of that snapshot comes and goes with them: nothing else sets the number.
    """
    metadata = table.metadata
    number = last_number(metadata)
    if getattr(metadata, "last_sequence_number", number) == number:
        return ()
    snapshot_id = new_snapshot_id(table)
    changed = {"snapshot_id": snapshot_id, "parent_snapshot_id": None, "timestamp_ms": _time_after(table)}
    newest = next(snapshot for snapshot in metadata.snapshots if snapshot.sequence_number == number)
    copy = newest.model_copy(update={**changed, **_no_rows(table)})
    return AddSnapshotUpdate(snapshot=copy), RemoveSnapshotsUpdate(snapshot_ids=[snapshot_id])


def _time_after(table: Table) -> int:
    """The time of a new snapshot, in milliseconds: now, or later than the table's last change where this machine's
    clock is behind that. Iceberg's Java library reads no table whose time went back by more than a minute.
    """
    return max(int(datetime.now(UTC).timestamp() * 1000), table.metadata.last_updated_ms + 1)


def _no_rows(table: Table) -> dict[str, int]:
    """The fields of format v3 for a snapshot that adds no row; None in either corrupts the table for Spark."""
    if isinstance(table.metadata, TableMetadataV3):
        return {"first_row_id": table.metadata.next_row_id or 0, "added_rows": 0}
    return {}


def version_updates(binding: Binding, snapshot: Snapshot) -> tuple[TableUpdate, ...]:
    file = _statistics(snapshot, binding.puffin_path, binding.file_size, binding.footer_size)
    snapshot_id = SnapshotId(snapshot.snapshot_id)
    tags = [tag_update(binding.tag, tag_ref(snapshot_id, binding.max_ref_age_ms))]
    if binding.needs_side_tag:
        tags.append(tag_update(side_tag(binding.name), tag_ref(snapshot_id, SIDE_TAG_AGE_MS)))
    return AddSnapshotUpdate(snapshot=snapshot), *tags, SetStatisticsUpdate(statistics=file)


def holder_updates(binding: Binding, holders: Sequence[Snapshot]) -> tuple[TableUpdate, ...]:
    updates: list[TableUpdate] = []
    for holder, pack in zip(holders, binding.new_packs, strict=True):
        file = _statistics(holder, pack.path, pack.size, pack.footer_size)
        holder_id = SnapshotId(holder.snapshot_id)
        tag = tag_update(pack_tag(binding.name, holder_id), tag_ref(holder_id, LASTING_MS))
        updates += (AddSnapshotUpdate(snapshot=holder), tag, SetStatisticsUpdate(statistics=file))
    return tuple(updates)


def _statistics(snapshot: Snapshot, path: str, file_size: int, footer_size: int) -> StatisticsFile:
    return StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=file_size,
        file_footer_size_in_bytes=footer_size,
        blob_metadata=[],  # a custom type listed here breaks PyIceberg's load_table and misleads Spark
    )


def tag_ref(snapshot_id: SnapshotId, max_ref_age_ms: int) -> SnapshotRef:
    return SnapshotRef(
        snapshot_id=snapshot_id,
        snapshot_ref_type=SnapshotRefType.TAG,
        max_ref_age_ms=max_ref_age_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def tag_update(tag: str, ref: SnapshotRef | None) -> TableUpdate:
    if ref is None:
        return RemoveSnapshotRefUpdate(ref_name=tag)
    return SetSnapshotRefUpdate(
        ref_name=tag,
        type=SnapshotRefType.TAG,
        snapshot_id=ref.snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
