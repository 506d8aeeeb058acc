"""Opening index versions: their routing blobs, and where their shards lie."""

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import BoundPack, DerivedVersion
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition, LaterDefinitionError
from icepuffin.ops.index.errors import EarlierLayoutError, LaterReleaseError, NotAnIndexError
from icepuffin.ops.index.versions.version_format import given_up, made_later
from icepuffin.ops.model import (
    FileNumber,
    FileSlot,
    LiveFiles,
    ObjectRange,
    SnapshotId,
    StorageConfig,
    StoredAddresses,
    StoredRun,
    StoredShard,
)
from icepuffin.ops.recall.shard_recall import AcrossShards, ShardRecall
from icepuffin.ops.storage import ObjectMissingError, RefusedError, StorageError, open_storage, path_mover, relative_to
from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.table.live_files import ManifestError, live_files
from icepuffin.ops.tasks.file_balls import Ball
from icepuffin.puffin import BlobMetadata, PuffinReader
from icepuffin.puffin.blobs import attributes_blob as attribute_blob
from icepuffin.puffin.blobs import centroid_blob, routing_blob
from icepuffin.puffin.blobs import included_columns_blob as included_blob
from icepuffin.puffin.blobs.attributes_blob import AttributeBlob
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob, IncludedEntry, WordsBlob
from icepuffin.puffin.blobs.routing_blob import Routing, ShardEntry, VectorRun
from icepuffin.puffin.errors import BadBlobError, LaterFormatError
from icepuffin.puffin.puffin_reader import TAIL_READ
from icepuffin.puffin.types import MAGIC, BlobType, canonical_type

RECALL_CURVE = "ann.recall_curve"
SAMPLE_CURVE = "ann.routing_curve"
ROUTING_CURVE = "ann.routing_curves"
ACROSS_SHARDS = "ann.recall_across"
"""Properties of shard blobs and of the routing blob: recall curves for choosing search parameters, see
`icepuffin.ops.recall.curves`. Of the last two one was measured in a sample of the rows, and one in the table
"""
RECALL_CURVES = "ann.recall_curves"
"""Property of the routing blob, where shards lie in packs: JSON list of all shards' recall curves"""
SHARD_RECALL = "ann.shard_{}.recall"
"""Property of the routing blob, by shard id: its recall when last measured; see `icepuffin.ops.recall.shard_recall`"""
COLUMN_NAMES = "ann.column_names"
"""Property of the routing blob: JSON list of the names by which the vector column was found in files without field ids.
Absent where the table had no name mapping.
"""
BYTES_BY_PACK = "bytes_by_pack"
"""Property of the blob of an included column: JSON, the bytes of its values by the number of the pack, 0 for the own
file
"""
ANALYZER = "analyzer"
"""Property of the blob of a column of texts: identity of the analyzer that made its words"""
_REQUESTS_AT_ONCE = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """An index version whose routing has been read."""

    bound: DerivedVersion
    """The version as the table's metadata names it"""
    routing: Routing
    definition: IndexDefinition
    shards: tuple[StoredShard, ...]
    centroid: BlobMetadata
    file_size: int
    curves: tuple[str, ...]
    """Recall curves, by shard; see `icepuffin.ops.recall.curves`"""
    recalls: tuple[ShardRecall, ...]
    """Recall as it was last measured, by shard"""
    sample_curve: str
    """Routing curve, measured in a sample of the rows"""
    routing_curve: str
    """Routing curve, measured in the table; empty where every query probes all shards"""
    across: AcrossShards
    """What searches of all shards find"""
    column_names: frozenset[str] | None = None
    """Names that the table's name mapping had for the vector column; None where it had none, or this is not recorded"""
    attributes: Mapping[int, BlobMetadata] = field(default_factory=dict, repr=False)
    """Blobs of the columns for conditions, by field id"""
    included: Mapping[int, BlobMetadata] = field(default_factory=dict, repr=False)
    """Blobs with the locations of the values of included columns, by field id"""
    texts: Mapping[int, BlobMetadata] = field(default_factory=dict, repr=False)
    """Blobs with the locations of the words of columns of texts, by field id"""
    added_by: Mapping[str, SnapshotId] = field(default_factory=dict, repr=False)
    """Snapshot that added each file, by relative path, for a snapshot without a sequence number (format v1)"""

    included_bytes: int = 0
    """Bytes of the values of included columns and of words in the version's own file"""

    @property
    def bytes_total(self) -> int:
        """Bytes of the file, and of the shards and values that lie in packs."""
        return self.file_size + sum(self.bytes_by_pack.values())

    @property
    def bytes_searched(self) -> int:
        """Bytes that searches by vectors may read: values of included columns are read for answers alone."""
        return self.file_size - self.included_bytes + self._shard_bytes_by_pack.total()

    @property
    def bytes_by_pack(self) -> dict[int, int]:
        """Bytes in use of each pack, by its number."""
        size = self._shard_bytes_by_pack
        for blob in (*self.included.values(), *self.texts.values()):
            size.update(_bytes_by_pack(blob.properties.get(BYTES_BY_PACK, "")))
        del size[0]
        return dict(size)

    @property
    def _shard_bytes_by_pack(self) -> Counter[int]:
        """Bytes of shards and of their vectors in each pack, by its number."""
        size = Counter[int]()
        for entry in self.routing.shards:
            size.update(entry.bytes_by_pack)
        del size[0]
        return size

    @property
    def sequence_number(self) -> int:
        """Sequence number of the data snapshot."""
        return self.centroid.sequence_number


def _bytes_by_pack(text: str) -> dict[int, int]:
    """The property of the blob of an included column. It is for people: what is none of ours counts as nothing."""
    try:
        return {int(pack): int(size) for pack, size in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def open_version(version: DerivedVersion, storage: StorageConfig) -> OpenVersion:
    """Read the footer and the routing blob of a version.

    Raises NotAnIndexError where the file is gone, foreign or broken, its EarlierLayoutError where a refresh is to make
    it anew, and its LaterReleaseError where a later release wrote it.
    """
    path = version.puffin_path
    if fault := given_up(version.build_id):
        raise EarlierLayoutError(f"{path}: {fault}; a refresh builds index {version.name} anew")
    if fault := made_later(version.build_id):
        raise LaterReleaseError(f"{path}: {fault}")
    try:
        source = _source(version, storage)
        reader = PuffinReader(source)
        by_type: dict[str, list[BlobMetadata]] = {}
        for blob in reader.footer.blobs:
            by_type.setdefault(canonical_type(blob.type), []).append(blob)
        if missing := [kind for kind in (BlobType.ROUTING, BlobType.CENTROID) if kind not in by_type]:
            raise NotAnIndexError(f"{path} is not a readable index version: it has no blob {missing[0]}")
        routing = read_routing(reader, by_type[BlobType.ROUTING][0], source.size(), version)
        blobs = by_type.get(BlobType.SHARD, [])
        shards = stored_shards(path, reader.footer.blobs, routing, version.packs, source.size())
        routing_properties = by_type[BlobType.ROUTING][0].properties
        curves = tuple(blob.properties.get(RECALL_CURVE, "") for blob in blobs)
        if routing.packs:
            curves = tuple(map(str, json.loads(routing_properties.get(RECALL_CURVES, "[]")))) or ("",) * len(shards)
        recalls = _shard_recalls(routing, routing_properties)
        sample_curve = routing_properties.get(SAMPLE_CURVE, "")
        routing_curve = routing_properties.get(ROUTING_CURVE, "")
        names = routing_properties.get(COLUMN_NAMES)
        column_names = None if names is None else frozenset(map(str, json.loads(names)))
        columns = (*by_type.get(BlobType.ATTRIBUTES, []), *by_type.get(BlobType.TOKENS, []))
        attributes = {blob.fields[0]: blob for blob in columns if blob.fields}
        of_values = (BlobType.INCLUDED_VALUES, BlobType.WORDS)
        included_bytes = sum(blob.length for kind in of_values for blob in by_type.get(kind, []))
        included, texts = (
            {blob.fields[0]: blob for blob in by_type.get(kind, []) if blob.fields}
            for kind in (BlobType.INCLUDED, BlobType.TEXT)
        )
        centroid, file_size = by_type[BlobType.CENTROID][0], source.size()
        definition = IndexDefinition.from_json(routing.definition)
        stamps = {(blob.snapshot_id, blob.sequence_number) for kind in BlobType for blob in by_type.get(kind, [])}
    except (StorageError, DefinitionError, KeyError, TypeError, ValueError, RecursionError) as error:
        is_later = isinstance(error, LaterFormatError | LaterDefinitionError)
        what = LaterReleaseError if is_later else NotAnIndexError
        raise what(f"{path} is not a readable index version: {error}") from error
    if stamps != {(routing.base_snapshot_id, centroid.sequence_number)}:  # a footer has no checksum
        raise NotAnIndexError(f"{path}: its blobs name several snapshots, or another than its routing blob")
    if len(curves) != len(shards):
        raise NotAnIndexError(f"{path}: it has {len(curves)} recall curves for {len(shards)} shards")
    return OpenVersion(
        version,
        routing,
        definition,
        shards,
        centroid,
        file_size,
        curves,
        recalls,
        sample_curve,
        routing_curve,
        AcrossShards.parse(routing_properties.get(ACROSS_SHARDS, "")),
        column_names,
        attributes,
        included,
        texts,
        included_bytes=included_bytes,
    )


def _source(version: DerivedVersion, storage: StorageConfig) -> ObjectSource:
    """A version's own file; its size is requested while its ends are read, so opening takes the time of one request."""
    path, expected = version.puffin_path, version.file_size
    store = open_storage(path, storage)
    with ThreadPoolExecutor(1) as pool:
        requested = pool.submit(store.size, path)
        source = ObjectSource(store, path, size=expected)
        if expected:
            tail = min(TAIL_READ, expected)
            try:
                source.fetch([(0, len(MAGIC)), (expected - tail, tail)])
            except StorageError:
                if requested.result() == expected:  # else it is the entry that is wrong
                    raise
        size = requested.result()
    return source if size == expected else ObjectSource(store, path, size=size)


def _shard_recalls(routing: Routing, properties: Mapping[str, str]) -> tuple[ShardRecall, ...]:
    """Recall of each shard, by the properties of the routing blob."""
    return tuple(
        ShardRecall.parse(
            properties.get(SHARD_RECALL.format(shard_id), ""),
            written=entry.recall,
            live_rows=entry.live_rows,
            tombstones=len(entry.tombstones),
        )
        for shard_id, entry in enumerate(routing.shards)
    )


def lost_packs(version: DerivedVersion, storage: StorageConfig) -> tuple[str, ...]:
    """One line on each pack of a version that the store lacks, or has with another length. Reads none of them.

    Raises StorageError where the store does not answer.
    """

    def fault(pack: BoundPack) -> str:
        try:
            size = open_storage(pack.path, storage).size(pack.path)
        except ObjectMissingError:
            return f"pack {pack.path} is missing"
        return "" if size == pack.size else f"pack {pack.path} has {size:,} bytes, it was written with {pack.size:,}"

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        return tuple(filter(None, pool.map(fault, (pack for pack in version.packs if pack.path))))


def read_routing(reader: PuffinReader, blob: BlobMetadata, file_size: int, version: DerivedVersion) -> Routing:
    """Read the routing blob of a version whose own file has `file_size` bytes, its paths as they are relative to the
    table's location today. Raises StorageError, PuffinError.
    """
    routing = decode_routing(reader, blob, file_size, version.packs)
    path_here = path_mover(version.puffin_path, version.table_location)
    if path_here is str:
        return routing
    return replace(routing, files=tuple(replace(file, path=path_here(file.path)) for file in routing.files))


def decode_routing(
    reader: PuffinReader, blob: BlobMetadata, file_size: int, packs: Sequence[BoundPack | NewPack]
) -> Routing:
    """Read the routing blob as it is in the file. Raises StorageError, PuffinError."""
    size = file_size + sum(pack.size for pack in packs)
    return routing_blob.decode(reader.read_blob(blob), file_size=size)


def centroids_here(index: CentroidIndex, version: DerivedVersion) -> CentroidIndex:
    """The balls of a version, the paths of files as they are relative to the table's location today."""
    return replace(index, files=tuple(map(path_mover(version.puffin_path, version.table_location), index.files)))


def stored_shards(
    path: str, blobs: Sequence[BlobMetadata], routing: Routing, packs: Sequence[BoundPack | NewPack], file_size: int
) -> tuple[StoredShard, ...]:
    """Where the shards lie, by id.

    blobs: the blobs of the version's own file, of `file_size` bytes. packs: its packs, in the order of their numbers.
    Raises NotAnIndexError where they do not fit the routing blob.
    """
    in_file = _own_blobs(path, blobs, BlobType.SHARD, [entry.length for entry in routing.shards if not entry.pack])
    entries = [entry.addresses for entry in routing.shards if entry.addresses is not None]
    moved = _own_blobs(path, blobs, BlobType.ADDRESSES, [entry.length for entry in entries])
    if routing.packs > len(packs):
        raise NotAnIndexError(f"{path} needs {routing.packs} packs, the index snapshot names {len(packs)}")
    sizes = {0: file_size} | {number: pack.size for number, pack in enumerate(packs, 1)}
    paths = {0: path} | {number: pack.path for number, pack in enumerate(packs, 1)}

    def located(number: int, part: ShardEntry | VectorRun) -> ObjectRange:
        """Where a shard, or some of its vectors, lie in a file of known name and size. Raises NotAnIndexError."""
        if not paths[part.pack]:
            raise NotAnIndexError(f"{path}: the pack of shard {number} is gone, since its snapshot has expired")
        if part.offset + part.length > sizes[part.pack]:
            raise NotAnIndexError(f"{path}: shard {number} does not lie within {paths[part.pack]}")
        return ObjectRange(paths[part.pack], part.offset, part.length)

    shards = []
    for number, entry in enumerate(routing.shards):
        blob = located(number, entry) if entry.pack else next(in_file)
        addresses = None if entry.addresses is None else StoredAddresses(next(moved), entry.addresses.sha256)
        runs = tuple(StoredRun(located(number, run), run.count, run.sha256) for run in entry.runs)
        shards.append(StoredShard(blob, addresses, runs))
    return tuple(shards)


def _own_blobs(
    path: str, blobs: Sequence[BlobMetadata], blob_type: BlobType, lengths: Sequence[int]
) -> Iterator[ObjectRange]:
    """Where the blobs of one type lie in the version's own file. Raises NotAnIndexError unless they are so long."""
    ranges = [ObjectRange(path, blob.offset, blob.length) for blob in blobs if canonical_type(blob.type) == blob_type]
    if [part.length for part in ranges] != list(lengths):
        raise NotAnIndexError(
            f"{path}: its {len(ranges)} blobs {blob_type} are not the {len(lengths)} of its routing blob"
        )
    return iter(ranges)


def read_centroids(version: OpenVersion, storage: StorageConfig) -> CentroidIndex:
    """Read the balls around the version's files. Raises StorageError, PuffinError."""
    path = version.bound.puffin_path
    reader = PuffinReader(open_storage(path, storage).source(path))
    return centroids_here(centroid_blob.decode(reader.read_blob(version.centroid)), version.bound)


def read_attribute_blob(version: OpenVersion, field_id: int, storage: StorageConfig) -> AttributeBlob:
    """Read the values of one column for conditions. Raises StorageError, PuffinError."""
    path = version.bound.puffin_path
    reader = PuffinReader(open_storage(path, storage).source(path))
    blob = attribute_blob.decode(reader.read_blob(version.attributes[field_id]))
    files = version.routing.files
    of_lists = version.attributes[field_id].type == BlobType.TOKENS
    if (blob.field_id, blob.of_lists) != (field_id, of_lists) or any(
        entry.slot >= len(files) or files[entry.slot].rows != entry.rows for entry in blob.entries
    ):
        raise BadBlobError(f"{path}: the values of column {field_id} are not of the files of its routing blob")
    return blob


def read_included_blob(
    version: OpenVersion, field_id: int, storage: StorageConfig, *, of_words: bool = False
) -> IncludedBlob:
    """Read the locations of the values of one included column, or of the words of one of texts.

    Raises StorageError, PuffinError.
    """
    path = version.bound.puffin_path
    reader = PuffinReader(open_storage(path, storage).source(path))
    blobs = version.texts if of_words else version.included
    return included_of(reader, blobs[field_id], version.bound, version.routing, version.file_size)


def included_of(
    reader: PuffinReader, blob: BlobMetadata, version: DerivedVersion, routing: Routing, file_size: int
) -> IncludedBlob:
    """The locations in a blob of an included column, or of one of texts: each within the version's own file, or one of
    its packs.

    Raises StorageError, PuffinError.
    """
    column = included_blob.decode(reader.read_blob(blob))
    sizes = [file_size, *(pack.size for pack in version.packs)]
    is_other = (blob.fields, isinstance(column, WordsBlob)) != ((column.field_id,), blob.type == BlobType.TEXT)
    are_outside = is_other or any(
        entry.slot >= len(routing.files)
        or routing.files[entry.slot].rows != entry.rows
        or entry.pack >= len(sizes)
        or entry.offset + entry.length > sizes[entry.pack]
        for entry in column.entries
    )
    # no two files share bytes: else small ones might take any memory
    if are_outside or any(length > sizes[pack] for pack, length in column.bytes_by_pack.items()):
        raise BadBlobError(
            f"{version.puffin_path}: the values of column {column.field_id} are not of the files of its routing blob"
        )
    return column


def location_of(version: DerivedVersion, entry: IncludedEntry) -> ObjectRange:
    """Where the values of an entry lie. The path is empty where their pack is gone, since its snapshot has expired."""
    path = version.packs[entry.pack - 1].path if entry.pack else version.puffin_path
    return ObjectRange(path, entry.offset, entry.length)


def balls_by_slot(version: OpenVersion, storage: StorageConfig) -> dict[FileSlot, list[Ball]]:
    """Balls around each file that is live in the version's snapshot, by file slot."""
    return balls_of(read_centroids(version, storage), covered_paths(version))


def balls_of(index: CentroidIndex, slots: Mapping[str, FileSlot]) -> dict[FileSlot, list[Ball]]:
    """Balls around each file of `slots`, by file slot: relative paths are given, and may be others than the index's."""
    balls: dict[FileSlot, list[Ball]] = {slot: [] for slot in slots.values()}
    of_file = [balls.get(slots.get(path, FileSlot(-1)), []) for path in index.files]
    for number, center, radius in zip(index.file_ordinals, index.centroids, index.max_distances, strict=True):
        of_file[number].append((center, float(radius)))
    return balls


def covered_paths(version: OpenVersion) -> dict[str, FileSlot]:
    """File slots of the files that are live in the version's snapshot, by relative path."""
    return {file.path: FileSlot(slot) for slot, file in enumerate(version.routing.files) if file.present}


def same_files(version: OpenVersion, live: LiveFiles) -> dict[str, FileNumber]:
    """File numbers of the files of a snapshot that are live in the version's, too, by relative path.

    A file that was added later is another file, whatever its path: imported files come again under their names. Where
    sequence numbers do not tell, in format v1, a file that another snapshot added is another file.
    """
    covered = covered_paths(version)
    rows = {path: version.routing.files[slot].rows for path, slot in covered.items()}
    same = {}
    for number, file in enumerate(live.files):
        path = relative_to(file.path, live.location)
        later = file.file_sequence_number > version.sequence_number
        unlike = not version.sequence_number and version.added_by.get(path) != file.added_by
        if not later and not unlike and rows.get(path) == file.record_count:
            same[path] = FileNumber(number)
    return same


def without_files(version: OpenVersion, paths: Collection[str]) -> OpenVersion:
    """The version as if some files, by relative path, were not live in its snapshot: none of their rows is answered."""
    if not paths:
        return version
    files = tuple(replace(file, present=file.present and file.path not in paths) for file in version.routing.files)
    return replace(version, routing=replace(version.routing, files=files))


def shared_rows(version: OpenVersion, live: LiveFiles) -> tuple[int, int]:
    """Number of rows with a vector in the files of `live` that the version covers: at least, and at most.

    What deletes name counts as gone at least, and in each of the files that a delete file is about. Of equality deletes
    that is a row for each key, which is an estimate.
    """
    covered, least, most = covered_paths(version), 0, 0
    named: dict[int, int] = {}  # rows by the tuple of deletes, which files share
    for path, number in same_files(version, live).items():
        file, rows = live.files[number], version.routing.files[covered[path]].live_rows
        if id(file.deletes) not in named:
            named[id(file.deletes)] = sum(delete.record_count for delete in file.deletes)
        least, most = least + max(0, min(rows, file.record_count - named[id(file.deletes)])), most + rows
    return least, most


def covers_all_older_files(version: OpenVersion, live: LiveFiles) -> bool:
    """Whether the version covers all files that are as old as its snapshot: then no older version shares more files."""
    same = frozenset(same_files(version, live).values())
    older = (number for number, file in enumerate(live.files) if file.sequence_number <= version.sequence_number)
    return all(number in same for number in older)


def open_versions(
    table: Table, versions: Iterable[DerivedVersion], storage: StorageConfig, *, skip_unanswered: bool = True
) -> tuple[list[OpenVersion], tuple[NotAnIndexError, ...]]:
    """(versions that can be read, the error of each that cannot). Callers decide what an unreadable version means.

    In format v1 the manifests of their snapshots are read, too. Without `skip_unanswered` it raises StorageError where
    the store does not answer: the version may be whole.
    """
    opened: list[OpenVersion] = []
    unreadable: list[NotAnIndexError] = []
    for version in versions:
        try:
            opened.append(with_origins(table, open_version(version, storage)))
        except NotAnIndexError as error:
            if not skip_unanswered and (unanswered := _unanswered(error)) is not None:
                raise unanswered from error
            _log.warning("the version of snapshot %s cannot be used: %s", version.base_snapshot_id, error)
            # anew: a traceback's frames would hold what the caller opens, files too, until Python looks for cycles
            unreadable.append(type(error)(*error.args))
    return opened, tuple(unreadable)


def _unanswered(error: NotAnIndexError) -> StorageError | None:
    """The cause of an error, where it is that the store does not answer."""
    cause = error.__cause__
    is_lasting = isinstance(cause, ObjectMissingError | RefusedError)
    return cause if isinstance(cause, StorageError) and not is_lasting else None


def with_origins(table: Table, version: OpenVersion) -> OpenVersion:
    """The version with `added_by`, where it needs that. The index snapshot has the files of the data snapshot, and
    outlives it. Raises NotAnIndexError where its manifests cannot be read.
    """
    if version.sequence_number:
        return version
    try:
        then = live_files(table, version.bound.index_snapshot_id)
    except ManifestError as error:
        raise NotAnIndexError(
            f"{version.bound.puffin_path}: the manifests of its index snapshot cannot be read: {error.__cause__}"
        ) from error
    return replace(version, added_by={relative_to(file.path, then.location): file.added_by for file in then.files})
