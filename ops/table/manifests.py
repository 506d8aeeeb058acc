"""Reading manifests: PyIceberg's readers, with the row ids of v3, and with partition values as they are stored."""

import json
import logging
import math
import struct
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader, FloatReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.schema import visit_with_partner
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import DoubleType, FloatType, IcebergType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from icepuffin.ops.table.summaries import snapshot_count

_log = logging.getLogger(__name__)
_Struct = TypeVar("_Struct", bound=StructProtocol)
EntryObserver = Callable[[ManifestFile, list[ManifestEntry]], None]
"""Callback that is given a manifest and all of its entries. Threads call it at once."""
_TOTAL_FILES = "total-data-files"
ROW_ID = 2147483540
"""Field id of the column in which data files of v3 have the ids of rows that were copied"""
_SCHEMA_KEY = "avro.schema"
_READ_VERSION = 3  # a superset: v1 and v2 manifests lack row ids and deletion vectors, which then read as null
_FIELD_PLACES = {field.name: number for number, field in enumerate(DATA_FILE_TYPE[_READ_VERSION].fields)}
_STATISTICS = tuple(
    _FIELD_PLACES[name]
    for name in (
        "column_sizes",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
    )
)
"""Indices of the maps by column, by far the largest part of an entry"""
_SIZES = _FIELD_PLACES["column_sizes"]
_LIST_FIELD_PLACES = {
    field.name: number for number, field in enumerate(MANIFEST_LIST_FILE_SCHEMAS[_READ_VERSION].fields)
}


class PlannedManifest(ManifestFile):
    """A manifest whose entries PyIceberg's scan planning reads as this module does."""

    columns: Collection[int] | None = None
    """Field ids of those whose statistics the entries keep; None: of all"""

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Entries with uuids as literals have them, in bytes: with others PyIceberg compares nothing."""
        entries = _entries(io, self, discard_deleted=discard_deleted, columns=self.columns)
        for entry in entries:
            partition = entry.data_file.partition
            for index, value in enumerate(partition._data):  # noqa: SLF001  as in `field_of`
                if isinstance(value, UUID):
                    partition[index] = value.bytes
        return entries


def read_manifests(io: FileIO, snapshot: Snapshot) -> list[PlannedManifest]:
    """The same as `snapshot.manifests`, with the row ids of v3.

    Raises ValueError for a list of no manifests where the snapshot's summary counts data files: one that was cut behind
    its header. One that was cut between two blocks is warned of: some writers miscount.
    """
    path = snapshot.manifest_list
    with _WholeFile[PlannedManifest](io.new_input(path), _list_reader) as reader:
        manifests = list(reader)
    counted, listed = snapshot_count(snapshot, _TOTAL_FILES), _listed_files(manifests)
    if counted > 0 and not manifests:
        raise ValueError(f"{path} is cut short: it has no manifests, and the snapshot counts {counted:,} data files")
    if listed is not None and listed < counted:
        _log.warning("%s lists %d data files, and its snapshot counts %d: it may be cut short", path, listed, counted)
    return manifests


def lists_rows(io: FileIO, snapshot: Snapshot) -> bool:
    """Whether a snapshot's manifest list counts rows of data files, or does not count them. Raises ValueError."""
    of_data = (it for it in read_manifests(io, snapshot) if it.content == ManifestContent.DATA)
    return any(it.added_rows_count != 0 or it.existing_rows_count != 0 for it in of_data)


def _listed_files(manifests: Iterable[ManifestFile]) -> int | None:
    """The live data files that a manifest list counts; None where it does not, as those of v1 may not."""
    total = 0
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            if manifest.added_files_count is None or manifest.existing_files_count is None:
                return None
            total += manifest.added_files_count + manifest.existing_files_count
    return total


def live_entries(
    io: FileIO,
    manifest: ManifestFile,
    *,
    columns: Collection[int] | None = None,
    observe: EntryObserver | None = None,
) -> list[ManifestEntry]:
    """The entries of a manifest that are not deleted. A NaN among partition values is `math.nan`, so it equals others;
    a uuid is a UUID.

    columns: field ids of those whose sizes, counts and bounds entries keep, which take most of their memory; None: of
    all. The size of the column of row ids stays in any case. `observe` is given all entries, deleted ones too.
    """
    entries = _entries(io, manifest, discard_deleted=observe is None, columns=columns)
    if observe is not None:
        observe(manifest, entries)
        entries = [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    _inherit_row_ids(entries, manifest._data[_LIST_FIELD_PLACES["first_row_id"]])  # noqa: SLF001  as in `field_of`
    return entries


def deleted_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """The entries of files that the manifest's snapshot has removed, without statistics of columns."""
    entries = _entries(io, manifest, discard_deleted=False, columns=())
    return [entry for entry in entries if entry.status == ManifestEntryStatus.DELETED]


def field_of(file: DataFile, name: str) -> Any:
    """A field of a data file that v3 added."""
    return file._data[_FIELD_PLACES[name]]  # noqa: SLF001  PyIceberg has no accessors for them


def _entries(
    io: FileIO, manifest: ManifestFile, *, discard_deleted: bool, columns: Collection[int] | None = None
) -> list[ManifestEntry]:
    """Raises ValueError for a manifest of fewer entries and bytes than its list says: one that was cut between two
    blocks. Writers may be wrong about one of the two alone.
    """
    with _WholeFile[ManifestEntry](io.new_input(manifest.manifest_path), _entry_reader) as reader:
        read = reader if columns is None else map(partial(_with_statistics_of, columns), reader)
        entries, is_shorter = list(read), reader.length < manifest.manifest_length
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    listed = sum(count or 0 for count in counts)  # v1 lists may lack them
    if is_shorter and len(entries) < listed:
        raise ValueError(
            f"{manifest.manifest_path} is cut short: it has {len(entries):,} entries, and the manifest list counts "
            f"{listed:,}"
        )
    return [
        _inherit_from_manifest(entry, manifest)
        for entry in entries
        if not discard_deleted or entry.status != ManifestEntryStatus.DELETED
    ]


def _with_statistics_of(columns: Collection[int], entry: ManifestEntry) -> ManifestEntry:
    """The entry, changed: of its maps by column those columns are left, and the size of the column of row ids."""
    file = entry.data_file
    for index in _STATISTICS:
        bounds = file._data[index] or {}  # noqa: SLF001  as in `field_of`
        kept = (*columns, ROW_ID) if index == _SIZES else columns
        file[index] = {field_id: bounds[field_id] for field_id in kept if field_id in bounds} or None
    return entry


class _WholeFile(AvroFile[_Struct]):
    """An Avro file, read with a cached reader of its schema: making one takes longer than reading, and schemas repeat.

    Raises ValueError for a file that was cut short: PyIceberg takes it for one of fewer blocks, or reads past its end.
    """

    def __init__(self, file: InputFile, reader_of: Callable[[str], Reader]) -> None:
        super().__init__(file)
        self._reader_of = reader_of
        self.length = 0

    def __enter__(self) -> "_WholeFile[_Struct]":
        with self.input_file.open() as stream:
            content = stream.read()
        self.decoder, self.length = new_decoder(content), len(content)
        self.header = self._read_header()
        if not content.endswith(self.header.sync):  # as the header and every block do
            raise ValueError(f"{self.input_file.location} is cut short, after {len(content):,} bytes")
        self.reader = self._reader_of(self.header.meta[_SCHEMA_KEY])
        return self


@lru_cache(maxsize=64)
def _list_reader(schema: str) -> Reader:
    resolver = ReadSchemaResolver(
        read_types={-1: PlannedManifest, 508: PartitionFieldSummary}, read_enums={517: ManifestContent}
    )
    return _resolved(schema, MANIFEST_LIST_FILE_SCHEMAS[_READ_VERSION], resolver)


@lru_cache(maxsize=64)
def _entry_reader(schema: str) -> Reader:
    resolver = _EntryResolver(
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    return _resolved(schema, MANIFEST_ENTRY_SCHEMAS[_READ_VERSION], resolver)


def _resolved(schema: str, read: Any, resolver: ReadSchemaResolver) -> Reader:
    stored: Any = AvroSchemaConversion().avro_to_iceberg(json.loads(schema))
    partners: Any = SchemaPartnerAccessor()
    reader: Any = visit_with_partner(stored, read, resolver, partners)
    return reader  # type: ignore[no-any-return]


class _EntryResolver(ReadSchemaResolver):
    """PyIceberg's choice of readers, but for floating point: its fast decoder rounds doubles to f32."""

    def visit_float(self, float_type: FloatType, partner: IcebergType | None) -> Reader:
        return _FloatReader()  # type: ignore[no-untyped-call]

    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:
        return _DoubleReader()  # type: ignore[no-untyped-call]


class _FloatReader(FloatReader):
    _layout: ClassVar = struct.Struct("<f")

    def read(self, decoder: BinaryDecoder) -> float:
        (value,) = self._layout.unpack(decoder.read(self._layout.size))
        return math.nan if math.isnan(value) else value


class _DoubleReader(_FloatReader, DoubleReader):
    _layout: ClassVar = struct.Struct("<d")


def _inherit_row_ids(entries: list[ManifestEntry], next_row_id: int | None) -> None:
    """Number files that have no first row id on from the manifest's; none get one where the manifest has none (Iceberg
    spec, "First Row ID Inheritance").
    """
    index = _FIELD_PLACES["first_row_id"]
    for entry in entries:
        file = entry.data_file
        if next_row_id is None:
            file[index] = None
        elif file[index] is None:
            file[index] = next_row_id
            next_row_id += file.record_count
