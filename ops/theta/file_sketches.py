"""Sketches per data file, kept in a Puffin file of our own, so that only the new files of a snapshot are read.

The file is bound to the table like an index version (tag `theta_sketches`), and so are the packs that several versions
share (see `packs`). Two blobs in each, with `snapshot-id` and `sequence-number` of the base:

* type `icepuffin-theta-files-v4`: the theta images of each data file's columns, one zstd frame after the other
* type `icepuffin-theta-directory-v1`, zstd: what each frame holds, of which data file with which deletes

It is a cache: losing it costs time, never correctness. It is keyed by path, deletes, column type and mapped names, so a
file whose rows changed through a delete, or a column that was promoted or is mapped anew, is sketched anew. So is a
file that was added after the base's sequence number, or by another snapshot where it has none, whatever its path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icepuffin.ops.model import CREATED_BY, NO_SNAPSHOT, DeleteFile, LiveFile, SnapshotId
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.ops.table.shared_deletes import values_of
from icepuffin.puffin import DistinctCount, PuffinReader, PuffinWriter, codec
from icepuffin.puffin.blobs import sketch_directory_blob
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.blobs.theta_blob import ThetaSketch, decode, encode
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.puffin_writer import ByteSink, FileInfo

FILE_SKETCHES = "icepuffin-theta-files-v4"
SKETCH_DIRECTORY = "icepuffin-theta-directory-v1"

BUDGET_BYTES = 256 << 20
"""Budget of the file sketches of a snapshot, in bytes, with their entries in directories; beyond it those of the
shortest files are left out
"""

PART_ROWS = 1 << 20
"""Rows per part of a file, about, into which a longer file is cut at row groups, so that several cores read one file"""

_BESIDE_PATH = 100
"""Bytes of a file's entry in the directory beside path and columns: numbers, lengths, and the fingerprint"""
_PER_COLUMN = 8
"""Bytes of each of its columns there"""

MAX_DIRECTORY_BYTES = sketch_directory_blob.MAX_BYTES - (1 << 20)
"""Bytes of entries in a directory, at most: what is left is for the names of columns"""

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
    added = max((file.file_sequence_number, *values_of(file.deletes, _sequence_number)))
    added_by = NO_SNAPSHOT if file.file_sequence_number else file.added_by
    return FileKey(relative_to(file.path, location), deletes, added, added_by)


def _sequence_number(delete: DeleteFile) -> int:
    return delete.sequence_number


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the images of one data file lie."""

    offset: int
    """Bytes of the Puffin file before them"""
    entry: DirectoryEntry


class FileSketchesReader:
    """One version's Puffin file. Footer and directory are read at once, sketches on demand.

    `fetch`, if there is one, is called with the (offset, length) of sketches that are about to be read. `path_here`
    gives a path in the file as relative to the table's location today. Raises what PuffinReader raises, and
    BadBlobError.
    """

    def __init__(
        self,
        reader: PuffinReader,
        fetch: Callable[[Sequence[tuple[int, int]]], None] | None = None,
        path_here: Callable[[str], str] = str,
    ) -> None:
        self._reader = reader
        self._fetch = fetch
        self._files: dict[tuple[str, str], _Stored] = {}
        self._columns: tuple[ColumnKey, ...] = ()
        directories, images = (reader.footer.of_type(kind) for kind in (SKETCH_DIRECTORY, FILE_SKETCHES))
        if not directories and not images:
            return
        if len(directories) != 1 or len(images) != 1:
            raise BadBlobError(
                f"a file of sketches has {len(images)} {FILE_SKETCHES} and {len(directories)} directories"
            )
        directory = sketch_directory_blob.decode(reader.read_blob(directories[0]))
        (self._images,), self._columns = images, directory.columns
        position = 0
        for entry in directory.files:
            self._files[path_here(entry.path), entry.deletes] = _Stored(position, entry)
            position += entry.stored_length
        if position != self._images.length:
            raise BadBlobError(f"{FILE_SKETCHES} of {self._images.length} bytes: its directory lists {position}")

    def __contains__(self, key: FileKey) -> bool:
        stored = self._files.get((key.path, key.deletes))
        if stored is None or key.added > self._images.sequence_number:
            return False
        return not key.added_by or stored.entry.added_by == key.added_by

    def columns(self, key: FileKey) -> tuple[ColumnKey, ...]:
        """The columns that are kept of a file; empty where it is unknown."""
        return tuple(self.image_sizes(key))

    def image_sizes(self, key: FileKey) -> dict[ColumnKey, int]:
        """Bytes of the image of each column that is kept of a file, before compression."""
        if key not in self:
            return {}
        return {self._columns[number]: length for number, length in self._stored(key).entry.images}

    def stored_bytes(self, key: FileKey) -> int:
        """Bytes that the sketches of a file, which is in here, take in this one."""
        return self._stored(key).entry.stored_length

    @property
    def all_stored_bytes(self) -> int:
        """Bytes that the sketches of all files in here take."""
        return sum(stored.entry.stored_length for stored in self._files.values())

    def _stored(self, key: FileKey) -> _Stored:
        return self._files[key.path, key.deletes]

    def fetch(self, keys: Iterable[FileKey]) -> None:
        """Read ahead the sketches of these files, all of which are in here. Raises what the store raises."""
        if self._fetch is not None:
            stored = [self._stored(key) for key in keys]
            self._fetch([(self._images.offset + one.offset, one.entry.stored_length) for one in stored])

    def in_order(self, keys: Iterable[FileKey]) -> list[list[FileKey]]:
        """The files, all of which are in here, in the order of their sketches, in groups of some megabytes."""
        groups: list[list[FileKey]] = []
        size = _FETCHED
        for key in sorted(keys, key=lambda key: self._stored(key).offset):
            if size >= _FETCHED:
                groups.append([])
                size = 0
            groups[-1].append(key)
            size += self.stored_bytes(key)
        return groups

    def read(self, key: FileKey) -> FileSketches:
        """The sketches of one file. Raises PuffinError, KeyError for a file that is not in here."""
        stored = self._stored(key)
        entry, where = stored.entry, f"{FILE_SKETCHES}, {key.path}"
        data = self._reader.read_blob_range(self._images, stored.offset, entry.stored_length)
        if entry.stored_length != entry.raw_length:
            data = codec.decompress(data, "zstd", where=where, max_bytes=entry.raw_length)
        columns, offset, view = {}, 0, memoryview(data)
        for number, length in entry.images:
            columns[self._columns[number]] = decode(view[offset : offset + length])
            offset += length
        return FileSketches(key, columns)


def within_budget(
    files: Sequence[LiveFile], sizes: Mapping[str, int], entries: Mapping[str, int], budget_bytes: int
) -> tuple[LiveFile, ...]:
    """The files whose sketches are kept: files of most rows come first.

    `sizes`: bytes of each file's sketches, `entries`: and of their entry in the directory, by path. Whatever the
    budget, the directory stays as small as readers take it.
    """
    kept, spent, listed = [], 0, 0
    for file in sorted(files, key=lambda f: (-f.record_count, f.path)):
        size, entry = sizes[file.path], entries[file.path]
        if spent + size + entry <= budget_bytes and listed + entry <= MAX_DIRECTORY_BYTES:
            spent, listed = spent + size + entry, listed + entry
            kept.append(file)
    return tuple(sorted(kept, key=lambda f: f.path))


def entry_bytes(key: FileKey, columns: int) -> int:
    """Bytes of a file's entry in the directory, at most. `columns`: number of its columns."""
    return _BESIDE_PATH + len(key.path.encode()) + _PER_COLUMN * columns


def image_bytes(sketches: Iterable[ThetaSketch]) -> int:
    """Bytes of the sketches in the file, before compression."""
    return sum(24 + 8 * len(sketch.hashes) for sketch in sketches)


def write_file_sketches(
    sink: ByteSink,
    files: Sequence[FileSketches],
    *,
    snapshot_id: SnapshotId,
    sequence_number: int,
    build_id: str,
    counts: Sequence[DistinctCount],
) -> FileInfo:
    """Stream the Puffin file of one version into `sink`. `counts`: NDVs for planners, in its public footer."""
    writer, entries = PuffinWriter(sink), list[DirectoryEntry]()
    columns = sketch_directory_blob.shared_columns([list(file.columns) for file in files])
    numbers = {column: number for number, column in enumerate(columns)}

    def frames() -> Iterator[bytes]:
        for file in files:
            images = [(numbers[column], encode(sketch)) for column, sketch in sorted(file.columns.items())]
            raw = b"".join(image for _, image in images)
            stored, _ = codec.encode(raw, "zstd")
            stored = stored if len(stored) < len(raw) else raw
            layout = sketch_directory_blob.layout_of((number, len(image)) for number, image in images)
            key = file.key
            entries.append(DirectoryEntry(key.path, key.deletes, key.added_by, len(stored), len(raw), layout))
            yield stored

    def add(kind: str, data: bytes | Iterable[bytes], compression: str | None) -> None:
        writer.add_blob(
            kind,
            fields=sorted({field_id for field_id, _ in columns}),
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            data=data,
            codec=compression,
        )

    if files:
        add(FILE_SKETCHES, frames(), None)
        add(SKETCH_DIRECTORY, sketch_directory_blob.encode(SketchDirectory(columns, tuple(entries))), "zstd")
    return writer.finish({"created-by": CREATED_BY, "icepuffin.build-id": build_id}, counts)
