"""Sketches per data file, kept in a Puffin file of our own, so that only the new files of a snapshot are read.

The file is bound to the table like an index version (tag `theta_sketches`), and so are the packs that several versions
share (see `packs`). One blob per data file in each:

* type `icepuffin-theta-files-v3`, zstd, `fields` = the field ids, `snapshot-id`, `sequence-number` = the base's
* properties: `path` (relative to the table's location where it lies under it), `deletes` (fingerprint of the deletes
  that apply to it, hex), `columns` (JSON: [[field id, type and mapped names, bytes of the image], ..]), and `added-by`
  (id of the snapshot that added it) where the file has no sequence number
* payload: the columns' theta images, one after the other

It is a cache: losing it costs time, never correctness. It is keyed by path, deletes, column type and mapped names, so a
file whose rows changed through a delete, or a column that was promoted or is mapped anew, is sketched anew. So is a
file that was added after the base's sequence number, or by another snapshot where it has none, whatever its path. Blobs
of version 1 are not read: they lack the values that columns have which a data file does not hold (defaults, identity
partitions).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icepuffin.ops.model import CREATED_BY, NO_SNAPSHOT, LiveFile, SnapshotId
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.puffin import BlobMetadata, DistinctCount, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs.theta_blob import ThetaSketch, decode, encode
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.puffin_reader import MAX_FOOTER
from icepuffin.puffin.puffin_writer import ByteSink, FileInfo

FILE_SKETCHES = "icepuffin-theta-files-v3"

BUDGET_BYTES = 256 << 20
"""Budget of the file sketches of a snapshot, in bytes, with their entries in footers; beyond it those of the shortest
files are left out
"""

PART_ROWS = 1 << 20
"""Rows per part of a file, about, into which a longer file is cut at row groups, so that several cores read one file"""

_BESIDE_COLUMNS = 512
"""Bytes of a blob's entry in the footer beside path and columns, at most: keys, numbers, and fingerprints"""
_BESIDE_IDS = 24
"""Bytes of a column there beside its type: its id twice, the length of its image, and marks"""

_FETCHED = 64 << 20
"""Bytes that are fetched at once; a larger blob is fetched alone"""

ColumnKey = tuple[int, str]
"""(field id, `SketchedColumn.counted_as`)"""


@dataclass(frozen=True, slots=True)
class FileKey:
    """Identity of a data file's live rows: the file, and the deletes that apply to it."""

    path: str
    """Path, relative to the table's location where the file lies under it"""
    deletes: str
    """Fingerprint of the deletes, hex; empty without deletes"""
    added: int = 0
    """Sequence number of the commit that added the file, or the newest of its deletes: no earlier snapshot has it so.
    The file's name may be used again for an import with other rows"""
    added_by: SnapshotId = NO_SNAPSHOT
    """Id of the snapshot that added the file, where files have no sequence number (format v1); else 0"""


@dataclass(frozen=True, slots=True)
class FileSketches:
    """The sketches of one data file's live rows."""

    key: FileKey
    columns: Mapping[ColumnKey, ThetaSketch]


def file_key(file: LiveFile, location: str) -> FileKey:
    """The key of a live file in a table at `location`."""
    deletes = fingerprint(file).hex() if file.deletes else ""
    added = max((file.file_sequence_number, *(delete.sequence_number for delete in file.deletes)))
    added_by = NO_SNAPSHOT if file.file_sequence_number else file.added_by
    return FileKey(relative_to(file.path, location), deletes, added, added_by)


class FileSketchesReader:
    """One version's Puffin file. The footer is read at once, sketches on demand.

    `fetch`, if there is one, is called with the (offset, length) of blobs that are about to be read. `path_here` gives
    a path in the file as relative to the table's location today.
    """

    def __init__(
        self,
        reader: PuffinReader,
        fetch: Callable[[Sequence[tuple[int, int]]], None] | None = None,
        path_here: Callable[[str], str] = str,
    ) -> None:
        self._reader = reader
        self._fetch = fetch
        self._blobs: dict[tuple[str, str], BlobMetadata] = {}
        for blob in reader.footer.of_type(FILE_SKETCHES):
            self._blobs[path_here(blob.properties.get("path", "")), blob.properties.get("deletes", "")] = blob

    def __contains__(self, key: FileKey) -> bool:
        blob = self._blobs.get((key.path, key.deletes))
        if blob is None or key.added > blob.sequence_number:
            return False
        return not key.added_by or blob.properties.get("added-by") == str(key.added_by)

    def columns(self, key: FileKey) -> tuple[ColumnKey, ...]:
        """The columns that are kept of a file; empty where it is unknown."""
        return tuple(self.image_sizes(key))

    def image_sizes(self, key: FileKey) -> dict[ColumnKey, int]:
        """Bytes of the image of each column that is kept of a file, before compression."""
        return dict(_layout(self._blob(key))) if key in self else {}

    def stored_bytes(self, key: FileKey) -> int:
        """Bytes that the sketches of a file, which is in here, take in this one."""
        return self._blob(key).length

    @property
    def all_stored_bytes(self) -> int:
        """Bytes that the sketches of all files in here take."""
        return sum(blob.length for blob in self._blobs.values())

    def _blob(self, key: FileKey) -> BlobMetadata:
        return self._blobs[key.path, key.deletes]

    def field_ids(self) -> frozenset[int]:
        """Field ids of the columns that have a sketch in any file."""
        return frozenset(i for blob in self._blobs.values() for i in blob.fields)

    def fetch(self, keys: Iterable[FileKey]) -> None:
        """Read ahead the sketches of these files, all of which are in here. Raises what the store raises."""
        if self._fetch is not None:
            self._fetch([(self._blob(key).offset, self._blob(key).length) for key in keys])

    def in_order(self, keys: Iterable[FileKey]) -> list[list[FileKey]]:
        """The files, all of which are in here, in the order of their sketches, in groups of some megabytes."""
        groups: list[list[FileKey]] = []
        size = _FETCHED
        for key in sorted(keys, key=lambda key: self._blob(key).offset):
            if size >= _FETCHED:
                groups.append([])
                size = 0
            groups[-1].append(key)
            size += self._blob(key).length
        return groups

    def read(self, key: FileKey) -> FileSketches:
        """The sketches of one file. Raises PuffinError, KeyError for a file that is not in here."""
        blob = self._blob(key)
        data = memoryview(self._reader.read_blob(blob))
        columns, offset = {}, 0
        for column, length in _layout(blob):
            columns[column] = decode(data[offset : offset + length])
            offset += length
        if offset != len(data):
            raise BadBlobError(f"{FILE_SKETCHES} at {blob.offset}: {offset} bytes are listed, {len(data)} are there")
        return FileSketches(key, columns)


def _layout(blob: BlobMetadata) -> Iterator[tuple[ColumnKey, int]]:
    try:
        rows = json.loads(blob.properties["columns"])
        for field_id, type_, length in rows:
            yield (int(field_id), str(type_)), int(length)
    except (KeyError, TypeError, ValueError) as error:
        raise BadBlobError(f"{FILE_SKETCHES} at {blob.offset}: bad property `columns`: {error}") from error


def within_budget(
    files: Sequence[LiveFile], sizes: Mapping[str, int], entries: Mapping[str, int], budget_bytes: int
) -> tuple[LiveFile, ...]:
    """The files whose sketches are kept: files of most rows come first.

    `sizes`: bytes of each file's sketches, `entries`: and of their entry in the footer, by path. Whatever the budget,
    the footer stays as small as readers take it.
    """
    kept, spent, listed = [], 0, 0
    for file in sorted(files, key=lambda f: (-f.record_count, f.path)):
        size, entry = sizes[file.path], entries[file.path]
        if spent + size + entry <= budget_bytes and listed + entry <= MAX_FOOTER:
            spent, listed = spent + size + entry, listed + entry
            kept.append(file)
    return tuple(sorted(kept, key=lambda f: f.path))


def column_bytes(column: ColumnKey) -> int:
    """Bytes that a column takes in the footer for each file, at most: JSON in JSON."""
    return _BESIDE_IDS + 2 * len(str(column[0])) + len(json.dumps(json.dumps(column[1])))


def entry_bytes(key: FileKey, columns: int) -> int:
    """Bytes of a file's entry in the footer, at most. `columns`: those of its columns."""
    return _BESIDE_COLUMNS + len(json.dumps(key.path, ensure_ascii=False).encode()) + columns


def image_bytes(sketches: Iterable[ThetaSketch]) -> int:
    """Bytes of the sketches in the file, before compression."""
    return sum(24 + 8 * len(sketch.hashes) for sketch in sketches)


def write_file_sketches(
    sink: ByteSink,
    files: Iterable[FileSketches],
    *,
    snapshot_id: SnapshotId,
    sequence_number: int,
    build_id: str,
    counts: Sequence[DistinctCount],
) -> FileInfo:
    """Stream the Puffin file of one version into `sink`. `counts`: NDVs for planners, in its public footer."""
    writer = PuffinWriter(sink)
    for file in files:
        columns = sorted(file.columns.items())
        images = [encode(sketch) for _, sketch in columns]
        layout = [[i, type_, len(image)] for ((i, type_), _), image in zip(columns, images, strict=True)]
        added_by = {"added-by": str(file.key.added_by)} if file.key.added_by else {}
        writer.add_blob(
            FILE_SKETCHES,
            fields=[i for (i, _), _ in columns],
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            data=b"".join(images),
            codec="zstd",
            properties={"path": file.key.path, "deletes": file.key.deletes, "columns": json.dumps(layout), **added_by},
        )
    return writer.finish({"created-by": CREATED_BY, "icepuffin.build-id": build_id}, counts)
