"""Partition statistics of a snapshot, as the Iceberg specification has them: a Parquet file, a row per partition.

The counts are those of all entries of the snapshot's manifests, which are read for the sketches anyway: no earlier file
is added to, so nothing that was wrong once is carried on. What an ancestor's file of ours has is when a partition lost
files, which the snapshot's own manifests do not tell.
"""

import math
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from icepuffin.ops.binding.files_folder import folder_of
from icepuffin.ops.binding.statistics import PartitionStatisticsPart
from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.messages import plural, readable_bytes
from icepuffin.ops.model import CREATED_BY, SnapshotId, StorageConfig
from icepuffin.ops.storage import ObjectMissingError, open_storage
from icepuffin.ops.table.live_files import partition_key, partition_values, reading_manifests
from icepuffin.ops.table.manifests import deleted_entries, read_manifests
from icepuffin.ops.table.metadata_memo import partition_statistics_by_id, snapshots_by_id
from icepuffin.ops.table.snapshots import ancestors_from
from icepuffin.ops.theta.side_files import SideFiles, unpublished

_REQUIRED = {
    "spec_id": IntegerType(),
    "data_record_count": LongType(),
    "data_file_count": IntegerType(),
    "total_data_file_size_in_bytes": LongType(),
}
_REQUIRED_IN_V3 = {
    "position_delete_record_count": LongType(),
    "position_delete_file_count": IntegerType(),
    "equality_delete_record_count": LongType(),
    "equality_delete_file_count": IntegerType(),
}
_OPTIONAL = {"total_record_count": LongType(), "last_updated_at": LongType(), "last_updated_snapshot_id": LongType()}
_ONLY_IN_V3 = {"dv_count": IntegerType()}
"""Columns after `partition`, in the order of their field ids, with their types"""
_V3 = 3
_WHAT = "partition statistics"
_SNAPSHOTS_AT_ONCE = 32
"""Ancestors whose manifests are read side by side"""

_Moment = tuple[int, int, int]
"""(milliseconds since the epoch, sequence number, id) of a snapshot that changed a partition"""
_NEVER: _Moment = (-1, -1, -1)
_Key = tuple[int, tuple[Any, ...]]
"""Spec and values of a partition, such that equal ones are one partition"""


@dataclass(slots=True)
class _Partition:
    spec_id: int
    values: Sequence[Any]
    counts: Counter[str] = field(default_factory=Counter)
    changed: _Moment = _NEVER


class PartitionTally:
    """What the partitions of a snapshot have, by the entries of its manifests. Threads may add at once."""

    def __init__(self, metadata: TableMetadata, over: str | None = None) -> None:
        """`over`: path of a file that is lost, and is to be replaced."""
        self.over = over
        self._snapshots = snapshots_by_id(metadata)
        self.partitions: dict[_Key, _Partition] = {}
        """All partitions that an entry names. Those of deleted entries alone have counts of 0, as in Iceberg's Java
        library.
        """
        self._adding = Lock()

    def add(self, manifest: ManifestFile, entries: Iterable[ManifestEntry]) -> None:
        """Count all entries of a manifest, deleted ones too."""
        with self._adding:
            for entry in entries:
                self._add(manifest, entry)

    def _add(self, manifest: ManifestFile, entry: ManifestEntry) -> None:
        file = entry.data_file
        key = partition_key(file)
        if (partition := self.partitions.get(key)) is None:
            partition = self.partitions[key] = _Partition(key[0], partition_values(file))
        changed_by = entry.snapshot_id
        if entry.status == ManifestEntryStatus.DELETED:
            changed_by = manifest.added_snapshot_id  # some writers leave the one that added the file in the entry
        else:
            partition.counts.update(_counts_of(file))
        if changed_by in self._snapshots:
            partition.changed = max(partition.changed, _moment(self._snapshots[changed_by]))


def _counts_of(file: DataFile) -> Mapping[str, int]:
    if file.content == DataFileContent.DATA:
        size = file.file_size_in_bytes
        return {"data_record_count": file.record_count, "data_file_count": 1, "total_data_file_size_in_bytes": size}
    if file.content == DataFileContent.EQUALITY_DELETES:
        return {"equality_delete_record_count": file.record_count, "equality_delete_file_count": 1}
    kind = "dv_count" if file.file_format == FileFormat.PUFFIN else "position_delete_file_count"
    return {"position_delete_record_count": file.record_count, kind: 1}


def _moment(snapshot: Snapshot) -> _Moment:
    return snapshot.timestamp_ms, snapshot.sequence_number or 0, snapshot.snapshot_id


def tally_for(table: Table, snapshot_id: SnapshotId, storage: StorageConfig) -> PartitionTally | None:
    """A tally to fill for a snapshot that is to have partition statistics; None where its table never had partitions,
    or a file is there, whoever wrote it.
    """
    entry = partition_statistics_by_id(table.metadata).get(snapshot_id)
    path = entry.statistics_path if entry else None
    is_there = path and open_storage(path, storage).exists(path)
    transforms = [part.transform for spec in table.metadata.partition_specs for part in spec.fields]
    has_partitions = any(not isinstance(transform, VoidTransform) for transform in transforms)
    return PartitionTally(table.metadata, path) if has_partitions and not is_there else None


def write_partition_statistics(
    table: Table, storage: StorageConfig, snapshot: Snapshot, tally: PartitionTally | None
) -> SideFiles:
    """Write a snapshot's partition statistics. `tally`: of all its manifests; None where none are to be written."""
    if tally is None:
        return SideFiles(table, storage)
    partitions = tally.partitions
    snapshot_id, location = snapshot.snapshot_id, table.location().rstrip("/")
    try:
        kind = _partition_type(table.metadata)
        if not partitions or not kind.fields:  # all columns that it was partitioned by may be gone
            return SideFiles(table, storage)
        _note_removals(table, storage, snapshot, partitions, kind)
        data = _as_parquet(table.metadata, kind, partitions.values())
        path = f"{location}/{folder_of(table)}/partition-stats-{snapshot_id}-{uuid.uuid4()}.parquet"
        open_storage(path, storage).create(path, data)
    except Exception as error:  # of a table that is not sound, of a store: the sketches do without
        return SideFiles(table, storage, note=unpublished(table, _WHAT, error))
    entry = PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=len(data))
    told = f"{plural(len(partitions), 'row')}, {readable_bytes(len(data))} written"
    return SideFiles(table, storage, _WHAT, PartitionStatisticsPart(entry, tally.over), (path,), len(data), told)


def _partition_type(metadata: TableMetadata) -> StructType:
    """The fields of all specs whose source is a column still, by field id, each by its newest name.

    Raises TableFaultError for a transform that is not known, and for a field id that stands for two fields.
    """
    found: dict[int, tuple[str, int, Any]] = {}
    for spec in sorted(metadata.partition_specs, key=lambda spec: spec.spec_id, reverse=True):
        for part in spec.fields:
            name, source_id, transform = found.get(part.field_id, (part.name, part.source_id, part.transform))
            if isinstance(transform, VoidTransform):  # what v1 has in place of a field that was dropped
                transform = part.transform
            is_same = source_id == part.source_id and part.transform in (transform, VoidTransform())
            if isinstance(transform, UnknownTransform) or not is_same:
                raise TableFaultError(f"partition field {part.field_id} has a transform of no release, or two: {part}")
            found[part.field_id] = name, source_id, transform
    schema = metadata.schema()
    return StructType(
        *(
            NestedField(field_id, name, transform.result_type(schema.find_type(source_id)), required=False)
            for field_id, (name, source_id, transform) in sorted(found.items())
            if source_id in schema.field_ids
        )
    )


def _note_removals(
    table: Table, storage: StorageConfig, snapshot: Snapshot, partitions: Mapping[_Key, _Partition], kind: StructType
) -> None:
    """Note when ancestors took files out of the partitions, by the nearest file of ours and what was removed since it;
    without one by what all ancestors have removed, as far back as that can be the last change.
    """
    between: list[Snapshot] = []
    for ancestor in islice(ancestors_from(table, snapshot.snapshot_id), 1, None):
        known = _changes_in_file(table, storage, ancestor, kind)
        if known is not None:
            rows = partitions.values()
            for partition, values in zip(rows, _unified(table.metadata, kind, rows), strict=True):
                key = partition.spec_id, tuple(map(_plain, values))
                partition.changed = max(partition.changed, known.get(key, _NEVER))
            break
        if ancestor.summary is None or ancestor.summary.operation is not Operation.APPEND:
            between.append(ancestor)
    for start in range(0, len(between), _SNAPSHOTS_AT_ONCE):
        at_once = between[start : start + _SNAPSHOTS_AT_ONCE]
        if at_once[0].timestamp_ms < min(partition.changed for partition in partitions.values())[0]:
            break
        removed = ExecutorFactory.get_or_create().map(partial(_removed_by, table), at_once)
        for ancestor, keys in zip(at_once, removed, strict=True):
            for partition in filter(None, map(partitions.get, keys)):
                partition.changed = max(partition.changed, _moment(ancestor))


def _removed_by(table: Table, snapshot: Snapshot) -> set[_Key]:
    """Partitions that a snapshot took files out of. Raises ManifestError."""
    with reading_manifests(table, SnapshotId(snapshot.snapshot_id)):
        return {
            partition_key(entry.data_file)
            for manifest in read_manifests(table.io, snapshot)
            if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count != 0
            for entry in deleted_entries(table.io, manifest)
        }


def _changes_in_file(
    table: Table, storage: StorageConfig, snapshot: Snapshot, kind: StructType
) -> dict[_Key, _Moment] | None:
    """When partitions were changed, by the partition statistics of a snapshot; None where there are none of ours, or a
    field is gone that told rows apart, now or before they were written: they are alike without it.
    """
    entry = partition_statistics_by_id(table.metadata).get(snapshot.snapshot_id)
    rows = own_statistics(entry.statistics_path, storage) if entry else None
    if rows is None:
        return None
    column, spec_ids = rows["partition"].combine_chunks(), rows["spec_id"].to_pylist()
    stored = {int(part.metadata[b"PARQUET:field_id"]): column.field(index) for index, part in enumerate(column.type)}
    fields = [part.field_id for part in kind.fields]
    if not stored.keys() <= set(fields):
        return None
    values = zip(*(_stored(stored.get(field_id, pa.nulls(len(rows)))) for field_id in fields), strict=True)
    moments = zip(rows["last_updated_at"].to_pylist(), rows["last_updated_snapshot_id"].to_pylist(), strict=True)
    changes = {
        key: _NEVER if at is None else (at, 0, by)
        for key, (at, by) in zip(zip(spec_ids, values, strict=True), moments, strict=True)
    }
    return changes if len(changes) == len(rows) else None


def own_statistics(path: str, storage: StorageConfig) -> pa.Table | None:
    """Rows of a file of partition statistics; None where it is lost or damaged, or icepuffin did not write it."""
    store = open_storage(path, storage)
    try:
        rows = pq.read_table(pa.BufferReader(store.read_range(path, 0, store.size(path))))
    except (ObjectMissingError, pa.ArrowException, OSError):
        return None
    made_by = (rows.schema.metadata or {}).get(b"created-by", b"").decode()
    return rows if made_by.startswith(f"{CREATED_BY.split()[0]} ") else None


def _stored(column: pa.Array) -> list[Any]:
    """Values of a field as `_plain` has those of manifests, in which times are numbers."""
    if pa.types.is_temporal(column.type):
        column = column.view(f"int{column.type.bit_width}")
    return list(map(_plain, getattr(column, "storage", column).to_pylist()))


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value


def _as_parquet(metadata: TableMetadata, kind: StructType, partitions: Iterable[_Partition]) -> bytes:
    """The file: rows by partition, null first, and then by spec."""
    rows = sorted(
        zip(_unified(metadata, kind, partitions), partitions, strict=True),
        key=lambda row: (tuple(map(_order, row[0])), row[1].spec_id),
    )
    required = _REQUIRED if metadata.format_version < _V3 else _REQUIRED | _REQUIRED_IN_V3 | _ONLY_IN_V3
    types = _REQUIRED | _REQUIRED_IN_V3 | _OPTIONAL | required
    others = (NestedField(i, name, types[name], required=name in required) for i, name in enumerate(types, 2))
    schema = schema_to_pyarrow(Schema(NestedField(1, "partition", kind, required=True), *others))
    changed = [partition.changed if partition.changed != _NEVER else (None, 0, None) for _, partition in rows]
    columns = {name: [partition.counts[name] for _, partition in rows] for name in types} | {
        "partition": _struct(schema.field("partition").type, [values for values, _ in rows]),
        "spec_id": [partition.spec_id for _, partition in rows],
        # null as Spark's are, which adds to what an ancestor's file says here no more than what that snapshot has
        "total_record_count": [None] * len(rows),
        "last_updated_at": [moment[0] for moment in changed],
        "last_updated_snapshot_id": [moment[2] for moment in changed],
    }
    sink = pa.BufferOutputStream()
    schema = schema.with_metadata({"created-by": CREATED_BY})
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd")
    return bytes(sink.getvalue())


def _unified(metadata: TableMetadata, kind: StructType, partitions: Iterable[_Partition]) -> list[tuple[Any, ...]]:
    """Values of the fields of `kind`, of each partition; a uuid as its bytes."""
    fields = {spec.spec_id: [part.field_id for part in spec.fields] for spec in metadata.partition_specs}
    named = (dict(zip(fields[item.spec_id], item.values, strict=True)) for item in partitions)
    rows = [[values.get(part.field_id) for part in kind.fields] for values in named]
    return [tuple(it.bytes if isinstance(it, uuid.UUID) else it for it in row) for row in rows]


def _order(value: Any) -> tuple[Any, ...]:
    """Null first; as in Iceberg's Java library -0.0 is under 0.0, and NaN over all else."""
    if value is None:
        return (0,)
    if not isinstance(value, float):
        return 1, value
    return (2,) if math.isnan(value) else (1, value, math.copysign(1, value))


def _struct(kind: pa.StructType, rows: Sequence[Sequence[Any]]) -> pa.StructArray:
    storage = [getattr(part.type, "storage_type", part.type) for part in kind]  # that of a uuid
    columns = (pa.array([row[index] for row in rows], stored) for index, stored in enumerate(storage))
    cast = [column.cast(part.type) for column, part in zip(columns, kind, strict=True)]
    return pa.StructArray.from_arrays(cast, fields=list(kind))
