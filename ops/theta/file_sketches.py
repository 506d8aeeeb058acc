"""Sketches per data file, kept in a Puffin file of our own, so that only the new files of a snapshot are read.

The file is bound to the table like an index version (tag `theta_sketches`), and so are the packs that several versions
share (see `sketch_packs`); docs/formats.md has the layout. Sketches of other kinds than NDVs lie in two more blobs, as
release 0.1.0 takes each image of the first two for a theta sketch.

It is a cache: losing it costs time, never correctness. It is keyed by path, deletes, column type and mapped names, so a
file whose rows changed through a delete, or a column that was promoted or is mapped anew, is sketched anew. So is a
file that was added after the base's sequence number, or by another snapshot where it has none, whatever its path.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from icepuffin.ops.model import CREATED_BY, NO_SNAPSHOT, LiveFile, SnapshotId
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.ops.table.shared_deletes import values_of
from icepuffin.ops.tasks.sketches.images import Sketch, decode, encode, image_size
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, fields_of, kind_of
from icepuffin.puffin import BlobMetadata, DistinctCount, PuffinReader, PuffinWriter, codec
from icepuffin.puffin.blobs import sketch_directory_blob
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.puffin_writer import ByteSink, FileInfo

FILE_SKETCHES = "icepuffin-theta-files-v4"
SKETCH_DIRECTORY = "icepuffin-theta-directory-v1"
OTHER_SKETCHES = "icepuffin-statistics-files-v1"
OTHER_DIRECTORY = "icepuffin-statistics-directory-v1"
_PAIRS = ((FILE_SKETCHES, SKETCH_DIRECTORY), (OTHER_SKETCHES, OTHER_DIRECTORY))

BUDGET_BYTES = 256 << 20
"""Budget of the file sketches of a snapshot, in bytes, with their entries in directories; beyond it those of the
shortest files are left out
"""

PART_ROWS = 1 << 20
"""Rows per part of a file, about, into which a longer file is cut at row groups, so that several cores read one file"""

_BESIDE_PATH = 100
"""Bytes of a file's entry in the directory beside path and columns: numbers, lengths, and the fingerprint"""
_PER_STATISTIC = 8
"""Bytes of each of its statistics there"""

MAX_DIRECTORY_BYTES = sketch_directory_blob.MAX_BYTES - (1 << 20)
"""Bytes of entries in a directory, at most: what is left is for the names of columns"""

_LEVELS = (3, -7)
"""Levels of zstd that are tried: a frame has a checksum, unless it is as long as its content, for which it is taken"""

_FETCHED = 64 << 20
"""Bytes that are fetched at once; a larger blob is fetched alone"""


_sequence_number = attrgetter("sequence_number")


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
    sketches: Mapping[StatisticKey, Sketch]


def file_key(file: LiveFile, location: str) -> FileKey:
    """The key of a live file in a table at `location`."""
    deletes = fingerprint(file).hex() if file.deletes else ""
    added = max((file.file_sequence_number, *values_of(file.deletes, _sequence_number)))
    added_by = NO_SNAPSHOT if file.file_sequence_number else file.added_by
    return FileKey(relative_to(file.path, location), deletes, added, added_by)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the images of one data file lie."""

    images: BlobMetadata
    """The blob"""
    offset: int
    """Bytes of the blob before them"""
    entry: DirectoryEntry
    statistics: tuple[StatisticKey, ...]
    """Statistics by their numbers in the directory"""

    @property
    def span(self) -> tuple[int, int]:
        """(offset in the Puffin file, length)"""
        return self.images.offset + self.offset, self.entry.stored_length


class FileSketchesReader:
    """One version's Puffin file. Footer and directories are read at once, sketches on demand.

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
        self._files: dict[tuple[str, str], list[_Stored]] = {}
        for images, directory in _PAIRS:
            self._open(reader.footer.of_type(images), reader.footer.of_type(directory), path_here)

    def _open(
        self, images: Sequence[BlobMetadata], directories: Sequence[BlobMetadata], path_here: Callable[[str], str]
    ) -> None:
        """Take up what one directory lists."""
        if not directories and not images:
            return
        if len(directories) != 1 or len(images) != 1:
            raise BadBlobError(f"a file of sketches has {len(images)} blobs of them and {len(directories)} directories")
        directory = sketch_directory_blob.decode(self._reader.read_blob(directories[0]))
        position = 0
        for entry in directory.files:
            stored = _Stored(images[0], position, entry, directory.columns)
            self._files.setdefault((path_here(entry.path), entry.deletes), []).append(stored)
            position += entry.stored_length
        if position != images[0].length:
            raise BadBlobError(f"{images[0].type} of {images[0].length} bytes: its directory lists {position}")

    def _stored(self, key: FileKey) -> list[_Stored]:
        """Where sketches of the file lie, of one that is the same."""
        stored = self._files.get((key.path, key.deletes), ())
        return [
            one
            for one in stored
            if key.added <= one.images.sequence_number and key.added_by in (NO_SNAPSHOT, one.entry.added_by)
        ]

    def image_sizes(self, key: FileKey) -> dict[StatisticKey, int]:
        """Bytes of the image of each statistic that is kept of a file, before compression."""
        stored = self._stored(key)
        return {one.statistics[number]: length for one in stored for number, length in one.entry.images}

    def stored_bytes(self, key: FileKey) -> int:
        """Bytes that the sketches of a file take in this one."""
        return sum(one.entry.stored_length for one in self._stored(key))

    @property
    def all_stored_bytes(self) -> int:
        """Bytes that the sketches of all files in here take."""
        return sum(one.entry.stored_length for stored in self._files.values() for one in stored)

    def statistics(self) -> frozenset[StatisticKey]:
        """The statistics of which there are sketches of any file."""
        distinct = {id(one.statistics): one.statistics for stored in self._files.values() for one in stored}
        return frozenset[StatisticKey]().union(*distinct.values())

    def fetch(self, keys: Iterable[FileKey]) -> None:
        """Read ahead the sketches of these files. Raises what the store raises."""
        if self._fetch is not None:
            self._fetch([one.span for key in keys for one in self._stored(key)])

    def in_order(self, keys: Iterable[FileKey]) -> list[list[FileKey]]:
        """The files, all of which are in here, in the order of their sketches, in groups of some megabytes."""
        groups: list[list[FileKey]] = []
        size = _FETCHED
        for key in sorted(keys, key=lambda key: self._stored(key)[0].span):
            if size >= _FETCHED:
                groups.append([])
                size = 0
            groups[-1].append(key)
            size += self.stored_bytes(key)
        return groups

    def read(self, key: FileKey, wanted: Collection[StatisticKey]) -> dict[StatisticKey, Sketch]:
        """The sketches of one file that are `wanted`, of those that are in here. Raises PuffinError."""
        sketches = {}
        for one in self._stored(key):
            layout = [(one.statistics[number], length) for number, length in one.entry.images]
            if any(statistic in wanted for statistic, _ in layout):
                offset, view = 0, memoryview(self._images(key, one))
                for statistic, length in layout:
                    if statistic in wanted:
                        sketches[statistic] = decode(statistic, view[offset : offset + length])
                    offset += length
        return sketches

    def _images(self, key: FileKey, stored: _Stored) -> bytes:
        entry = stored.entry
        data = self._reader.read_blob_range(stored.images, stored.offset, entry.stored_length)
        if entry.stored_length == entry.raw_length:
            return data
        where = f"{stored.images.type}, {key.path}"
        images = codec.decompress(data, "zstd", where=where, max_bytes=entry.raw_length)
        if len(images) != entry.raw_length:
            raise BadBlobError(f"{where}: {len(images)} bytes of images, its directory lists {entry.raw_length}")
        return images


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


def entry_bytes(key: FileKey, statistics: int) -> int:
    """Bytes of a file's entry in the directory, at most. `statistics`: number of its statistics."""
    return _BESIDE_PATH + len(key.path.encode()) + _PER_STATISTIC * statistics


def image_bytes(sketches: Iterable[Sketch]) -> int:
    """Bytes of the sketches in the file, before compression."""
    return sum(map(image_size, sketches))


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
    writer = PuffinWriter(sink)
    add = partial(writer.add_blob, snapshot_id=snapshot_id, sequence_number=sequence_number)
    for images, directory in _PAIRS:
        are_counts = images == FILE_SKETCHES
        chosen = [part for file in files if (part := _only(file, are_counts=are_counts)).sketches]
        keys = tuple(sorted({key for file in chosen for key in file.sketches}))
        fields = sorted({field_id for key in keys for field_id in fields_of(key)})
        entries: list[DirectoryEntry] = []
        if chosen:
            add(images, fields=fields, data=_frames(chosen, keys, entries))
            listed = sketch_directory_blob.encode(SketchDirectory(keys, tuple(entries)))
            add(directory, fields=fields, data=listed, codec="zstd")
    return writer.finish({"created-by": CREATED_BY, "icepuffin.build-id": build_id}, counts)


def _only(file: FileSketches, *, are_counts: bool) -> FileSketches:
    """The NDVs of a file, or the others."""
    sketches = file.sketches.items()
    return FileSketches(file.key, {key: it for key, it in sketches if (kind_of(key) is Kind.NDV) == are_counts})


def _frames(
    files: Sequence[FileSketches], keys: Sequence[StatisticKey], entries: list[DirectoryEntry]
) -> Iterator[bytes]:
    """The images of each file, which are added to `entries`."""
    numbers = {key: number for number, key in enumerate(keys)}
    for file in files:
        images = [(numbers[key], encode(sketch)) for key, sketch in sorted(file.sketches.items())]
        raw = b"".join(image for _, image in images)
        frames = (codec.encode(raw, "zstd", level)[0] for level in _LEVELS)
        stored = next((frame for frame in frames if len(frame) != len(raw)), raw)
        layout = sketch_directory_blob.layout_of((number, len(image)) for number, image in images)
        key = file.key
        entries.append(DirectoryEntry(key.path, key.deletes, key.added_by, len(stored), len(raw), layout))
        yield stored
