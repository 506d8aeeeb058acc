"""Live data files of a snapshot, each with the deletes that apply to it, read from the manifests."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory

from icepuffin.ops.errors import FileDamageError, IcepuffinError, TableFaultError, TableStateError
from icepuffin.ops.model import NO_SNAPSHOT, DeleteFile, DeleteKind, LiveFile, LiveFiles, SnapshotId
from icepuffin.ops.storage.locations import normalize
from icepuffin.ops.table.delete_keys import KeyBounds, KeyRanges, KeySchemas, key_bounds
from icepuffin.ops.table.manifests import ROW_ID, EntryObserver, field_of, live_entries, read_manifests
from icepuffin.ops.table.shared_deletes import (
    ChosenDeletes,
    DeletePool,
    Deletes,
    compares_keys,
    distinct_deletes,
    path_and_offset,
)
from icepuffin.ops.table.snapshots import find_snapshot, table_name

PATH_FIELD = 2147483546
"""Field id of `file_path` in position delete files; its bounds name the data files that the deletes are for"""

_READ_AT_ONCE = 1 << 20
"""Bytes of the manifests of data files up to which they are read together with those of deletes, with the statistics of
all columns. Of more, those of the keys of equality deletes are kept alone, which takes knowing these first
"""


class EqualityDeletesError(TableStateError):
    """Raised when equality deletes that cannot be resolved apply to a file whose rows are needed; the message says why,
    and how to rewrite the file.
    """

    retryable = False


def unlike_deletes(path: str) -> TableFaultError:
    """The error for a file that a snapshot lists twice, where deletes apply to one of its entries alone."""
    return TableFaultError(
        f"{path} is listed twice in a snapshot, and deletes apply to one of the two that do not apply to "
        "the other: its rows cannot be told apart. Rewrite the file (rewrite_data_files)"
    )


class ManifestError(FileDamageError):
    """Raised when manifests of a snapshot cannot be read: then nobody knows its files."""


@contextmanager
def reading_manifests(table: Table, snapshot_id: SnapshotId) -> Iterator[None]:
    """Raises ManifestError for what goes wrong while manifests of a snapshot are read."""
    try:
        yield
    except IcepuffinError:
        raise
    except Exception as error:  # PyIceberg has no error of its own for a manifest that is lost or broken
        deleted = isinstance(error, FileNotFoundError)
        remedy = ". A cleaner may have deleted them: name another snapshot, or roll back to one" if deleted else ""
        raise ManifestError(
            f"{table_name(table)}: the manifests of snapshot {snapshot_id} cannot be read: {error}{remedy}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Delete:
    file: DeleteFile
    partition: tuple[int, Any]
    referenced: str | None
    """Path of the only data file that it applies to, where the metadata names it"""
    lower: bytes | None
    upper: bytes | None
    is_global: bool
    """Whether it is an equality delete of an unpartitioned spec, which applies to files of all specs"""
    bounds: Mapping[int, KeyBounds] = field(default_factory=dict)
    """Bounds of the keys of an equality delete, by field id"""

    def applies_to(self, data: ManifestEntry, partition: tuple[int, Any]) -> bool:
        """The scan rules of the Iceberg spec ("Scan Planning"), for one delete and one data file."""
        sequence = data.sequence_number or 0
        path = data.data_file.file_path
        if self.file.kind is DeleteKind.DELETION_VECTOR:
            return self.referenced == path and sequence <= self.file.sequence_number
        if self.file.kind is DeleteKind.EQUALITY:
            return sequence < self.file.sequence_number and (self.is_global or self.partition == partition)
        if sequence > self.file.sequence_number:
            return False
        if self.referenced is not None:
            return self.referenced == path
        raw = path.encode()
        within = (self.lower is None or self.lower <= raw) and (
            self.upper is None or raw[: len(self.upper)] <= self.upper
        )
        return self.partition == partition and within


def live_files(table: Table, snapshot_id: SnapshotId, *, observe: EntryObserver | None = None) -> LiveFiles:
    """The live set of a snapshot, ordered by path. `observe` is given the entries of each of its manifests.

    Raises UnknownSnapshotError, ManifestError. Equality deletes that cannot be resolved are listed like others: reading
    such a file's rows is refused later. Those are left out whose keys no row of the file can have, by the bounds in the
    manifests.
    """
    snapshot = find_snapshot(table, snapshot_id)
    schema_id = table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id
    with reading_manifests(table, snapshot_id):
        manifests = read_manifests(table.io, snapshot)
    of_data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    of_deletes = [manifest for manifest in manifests if manifest.content != ManifestContent.DATA]
    read = partial(_read_entries, table, snapshot_id, observe)
    at_once = bool(of_deletes) and sum(manifest.manifest_length for manifest in of_data) <= _READ_AT_ONCE
    entries = read([*of_deletes, *(of_data if at_once else ())], None)
    deletes = _deletes_of(table, schema_id, entries[: len(of_deletes)])
    # bounds of keys tell which equality deletes may be about a file
    keys = frozenset(key.field_id for delete in deletes for key in _keys_of(delete))
    of_files = entries[len(of_deletes) :] if at_once else read(of_data, keys)
    data = list(chain.from_iterable(of_files))
    index = _DeleteIndex(deletes, data)
    mapping = table.metadata.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
    identities = {spec.spec_id: _identities(spec) for spec in table.metadata.partition_specs}
    files = sorted((_as_live_file(entry, index, mapping, identities) for entry in data), key=lambda f: f.path)
    return LiveFiles(
        table=table_name(table),
        table_uuid=str(table.metadata.table_uuid),
        location=normalize(table.metadata.location).rstrip("/"),
        snapshot_id=snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        schema_id=schema_id,
        files=tuple(files),
    )


def _read_entries(
    table: Table,
    snapshot_id: SnapshotId,
    observe: EntryObserver | None,
    manifests: Sequence[ManifestFile],
    columns: Collection[int] | None,
) -> list[list[ManifestEntry]]:
    """The live entries of each manifest, with statistics of some columns, or of all. Raises ManifestError."""
    with reading_manifests(table, snapshot_id):
        # side by side, as every request waits for a distant store's answer
        read = partial(live_entries, table.io, columns=columns, observe=observe)
        entries = list(ExecutorFactory.get_or_create().map(read, manifests))
    for of_manifest in entries:
        _require_plain(of_manifest)
    return entries


def _deletes_of(table: Table, schema_id: int, entries: Sequence[Sequence[ManifestEntry]]) -> list[_Delete]:
    """The deletes of some manifests. `schema_id`: that of the snapshot."""
    unpartitioned = frozenset(spec.spec_id for spec in table.metadata.partition_specs if _is_unpartitioned(spec))
    key_schemas = KeySchemas(table.schemas(), schema_id)
    return [_as_delete(entry, unpartitioned, key_schemas) for entry in chain.from_iterable(entries)]


def require_resolvable_deletes(live: LiveFiles) -> None:
    """Raises EqualityDeletesError, naming a file of `live`, where equality deletes apply that cannot be resolved."""
    for delete in distinct_deletes(live.files):
        if delete.unreadable:
            path = next(file.path for file in live.files if delete in file.deletes)
            raise EqualityDeletesError(
                f"{live.table}, snapshot {live.snapshot_id}: equality deletes apply to {path}, and {delete.path} "
                f"{delete.unreadable}. Rewrite them first, for example with Spark: CALL system.rewrite_data_files("
                f"table => '{live.table}', options => map('delete-file-threshold', '1'))"
            )


def require_distinct_files(live: LiveFiles) -> None:
    """Raises TableFaultError, naming a file that the snapshot lists twice: engines read each of its rows twice,
    and an index has one address for both.
    """
    for file, following in pairwise(live.files):
        if file.path == following.path:
            raise TableFaultError(
                f"{live.table}, snapshot {live.snapshot_id}: data file {file.path} is listed twice. Engines read each "
                "of its rows twice, and so do searches, by scanning; an index has one address for both. To index it, "
                "rewrite the files, for example with Spark: CALL system.rewrite_data_files("
                f"table => '{live.table}', options => map('rewrite-all', 'true')), or remove "
                "the second entry (it came by add_files without a check)"
            )


def rows_by_position(live: LiveFiles) -> int:
    """Rows of the data files less the position deletes that apply to any of them, without reading a file of deletes.

    Unlike a summary, which counts deletes of files that are gone, too. Equality deletes name no rows, and do not count.
    """
    deletes = distinct_deletes(live.files)
    deleted = sum(delete.record_count for delete in deletes if delete.kind is not DeleteKind.EQUALITY)
    return max(0, live.record_count - deleted)


def require_same_deletes(live: LiveFiles) -> None:
    """Raises TableFaultError for a file that the snapshot lists twice, and not each time with the same deletes."""
    for file, following in pairwise(live.files):
        if file.path == following.path and file.deletes != following.deletes:
            raise unlike_deletes(file.path)


def partition_key(file: DataFile) -> tuple[int, Any]:
    """Equal for files of one partition: as in Iceberg's Java library -0.0 is not 0.0, and NaN is one value."""
    values = partition_values(file)
    return file.spec_id or 0, tuple(value.hex() if isinstance(value, float) else value for value in values)


def partition_values(file: DataFile) -> Sequence[Any]:
    """Values of the file's partition, in the order of its spec's fields."""
    return file.partition._data  # noqa: SLF001


def _is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether a spec has no fields but the void ones that v1 leaves in place of dropped fields."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


def _identities(spec: PartitionSpec) -> tuple[tuple[int, int], ...]:
    """(index in the partition, field id) of each column with an identity transform."""
    return tuple(
        (index, field.source_id)
        for index, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    )


def _as_delete(entry: ManifestEntry, unpartitioned: Collection[int], key_schemas: KeySchemas) -> _Delete:
    file = entry.data_file
    keys, unreadable = None, ""
    if file.content == DataFileContent.EQUALITY_DELETES:
        kind = DeleteKind.EQUALITY
        keys, unreadable = key_schemas.schema_of(tuple(sorted(file.equality_ids or ())))
        if file.file_format != FileFormat.PARQUET:
            keys, unreadable = None, f"is {file.file_format.value}; only Parquet delete files are read"
    elif file.file_format == FileFormat.PUFFIN:
        kind = DeleteKind.DELETION_VECTOR
    else:
        kind = DeleteKind.POSITION
    lower, upper = (file.lower_bounds or {}).get(PATH_FIELD), (file.upper_bounds or {}).get(PATH_FIELD)
    return _Delete(
        file=DeleteFile(
            path=file.file_path,
            kind=kind,
            record_count=file.record_count,
            sequence_number=entry.sequence_number or 0,
            size=file.file_size_in_bytes,
            content_offset=field_of(file, "content_offset"),
            content_length=field_of(file, "content_size_in_bytes"),
            keys=keys,
            unreadable=unreadable,
        ),
        partition=partition_key(file),
        referenced=field_of(file, "referenced_data_file"),
        lower=lower,
        upper=upper,
        is_global=kind is DeleteKind.EQUALITY and (file.spec_id or 0) in unpartitioned,
        bounds={} if keys is None else {field.field_id: key_bounds(file, field) for field in keys.fields},
    )


class _DeleteIndex:
    """An index of deletes by path and by partition, to find those of a data file without a scan of all."""

    def __init__(self, deletes: list[_Delete], data: list[ManifestEntry]) -> None:
        names = {entry.data_file.file_path for entry in data} if deletes else set()
        paths = sorted((name.encode(), name) for name in names)
        self._by_path: defaultdict[str, list[_Delete]] = defaultdict(list)
        by_partition: defaultdict[tuple[bool, tuple[int, Any]], list[_Delete]] = defaultdict(list)
        of_all: list[_Delete] = []
        for delete in deletes:
            if delete.referenced is not None:
                self._by_path[delete.referenced].append(delete)
            elif delete.is_global:
                of_all.append(delete)
            elif delete.file.kind is DeleteKind.POSITION and delete.lower is not None and delete.lower == delete.upper:
                # for one data file; where a writer cut its bounds short, for all whose paths begin like that
                index = bisect_left(paths, (delete.lower, ""))
                while index < len(paths) and paths[index][0].startswith(delete.lower):
                    self._by_path[paths[index][1]].append(delete)
                    index += 1
            else:
                by_partition[compares_keys(delete.file), delete.partition].append(delete)
        raw_paths = [raw for raw, _ in paths]
        self._ranks = {name: rank for rank, (_, name) in enumerate(paths)} if by_partition or of_all else {}
        self._by_partition = {key: _PartitionDeletes(members, raw_paths) for key, members in by_partition.items()}
        self._global = _PartitionDeletes(of_all, raw_paths) if of_all else None

    def deletes_of(self, data: ManifestEntry) -> Collection[DeleteFile]:
        """Deletes of the data file, by path and offset; equal ones that name no data file are one object."""
        partition = partition_key(data.data_file)
        path = data.data_file.file_path
        by_path = [delete.file for delete in self._by_path.get(path, ()) if delete.applies_to(data, partition)]
        positions, keyed = (self._by_partition.get((by_key, partition)) for by_key in (False, True))
        if any(delete.kind is DeleteKind.DELETION_VECTOR for delete in by_path):
            # a deletion vector holds what older position deletes of its file said; the spec says to ignore those
            by_path = [delete for delete in by_path if delete.kind is not DeleteKind.POSITION]
            positions = None
        scopes = [scope for scope in (positions, keyed, self._global) if scope is not None]
        if not by_path and len(scopes) == 1:
            return scopes[0].deletes_of(self._ranks[path], data)
        return Deletes(by_path, (scope.chosen(self._ranks[path], data) for scope in scopes)) or ()


class _PartitionDeletes:
    """Deletes of one partition or of all that name no data file: comparing numbers finds those of a data file."""

    def __init__(self, deletes: list[_Delete], paths: list[bytes]) -> None:
        """`paths`: of all data files, sorted."""
        deletes = sorted(deletes, key=lambda delete: path_and_offset(delete.file))
        self._pool = DeletePool(delete.file for delete in deletes)
        first, end, newest = [], [], []
        for delete in deletes:
            is_equality = delete.file.kind is DeleteKind.EQUALITY
            lower, upper = (None, None) if is_equality else (delete.lower, delete.upper)
            first.append(0 if lower is None else bisect_left(paths, lower))
            end.append(len(paths) if upper is None else _end_of(paths, upper))
            newest.append(delete.file.sequence_number - is_equality)
        self._first, self._end, self._newest = (np.array(numbers, np.int64) for numbers in (first, end, newest))
        self._newest[[delete.file.kind is DeleteKind.DELETION_VECTOR for delete in deletes]] = -1  # names no data file
        self._keys = [
            KeyRanges(key, [delete.bounds.get(key.field_id) for delete in deletes])
            for key in {key.field_id: key for delete in deletes for key in _keys_of(delete)}.values()
        ]
        self._shared: dict[int, Deletes] = {}

    def deletes_of(self, rank: int, data: ManifestEntry) -> Deletes:
        """`chosen` as a whole; equal ones are the same object."""
        chosen = self.chosen(rank, data)
        if chosen.bits not in self._shared:
            self._shared[chosen.bits] = Deletes((), [chosen])
        return self._shared[chosen.bits]

    def chosen(self, rank: int, data: ManifestEntry) -> ChosenDeletes:
        """The deletes of the data file whose path has this rank."""
        applies = (self._first <= rank) & (rank < self._end) & ((data.sequence_number or 0) <= self._newest)
        for keys in self._keys:
            applies &= keys.may_meet(data.data_file)
        return ChosenDeletes.of_mask(self._pool, applies)


def _keys_of(delete: _Delete) -> Sequence[NestedField]:
    return () if delete.file.keys is None else delete.file.keys.fields


def _end_of(paths: list[bytes], upper: bytes) -> int:
    """Index after the last path that an upper bound allows: one that was cut short allows all that begin like it."""
    return bisect_right(paths, upper, key=lambda raw: raw[: len(upper)])


def _require_plain(entries: Sequence[ManifestEntry]) -> None:
    """Raises DataFileError for a file that is encrypted: its entry has the metadata of a key."""
    for entry in entries:
        if entry.data_file.key_metadata:
            from icepuffin.ops.rows.datafile import DataFileError  # noqa: PLC0415  of a failure alone

            raise DataFileError(f"{entry.data_file.file_path} is encrypted, and icepuffin reads plain data files only")


def _as_live_file(
    entry: ManifestEntry,
    index: _DeleteIndex,
    mapping: str | None,
    identities: Mapping[int, tuple[tuple[int, int], ...]],
) -> LiveFile:
    file = entry.data_file
    spec_id, partition = file.spec_id or 0, partition_values(file)
    return LiveFile(
        path=file.file_path,
        size=file.file_size_in_bytes,
        record_count=file.record_count,
        sequence_number=entry.sequence_number or 0,
        file_format=file.file_format.value,
        spec_id=spec_id,
        deletes=index.deletes_of(entry),
        name_mapping=mapping,
        first_row_id=field_of(file, "first_row_id"),
        file_sequence_number=entry.file_sequence_number or 0,
        added_by=SnapshotId(entry.snapshot_id or NO_SNAPSHOT),
        has_row_ids=ROW_ID in (file.column_sizes or {}),
        constants=tuple((field_id, partition[field]) for field, field_id in identities[spec_id]),
    )
