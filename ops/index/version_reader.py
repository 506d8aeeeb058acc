"""Opening what is bound: the routing blob of an index version, and where its shards lie."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from icepuffin.ops.catalog.bound_versions import DerivedVersion
from icepuffin.ops.index.definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import NotAnIndexError
from icepuffin.ops.model import LiveFiles, ObjectRange, StorageConfig
from icepuffin.ops.storage import StorageError, open_storage, relative_to
from icepuffin.ops.tasks.file_balls import Ball
from icepuffin.puffin import BlobMetadata, PuffinReader
from icepuffin.puffin.blobs import centroid as centroid_blob
from icepuffin.puffin.blobs import routing as routing_blob
from icepuffin.puffin.blobs.centroid import CentroidIndex
from icepuffin.puffin.blobs.routing import Routing
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.types import CENTROID_V1, ROUTING_V1, SHARD_V1, canonical_type

RECALL_CURVE = "ann.recall_curve"
ROUTING_CURVE = "ann.routing_curve"
"""Properties of shard blobs and of the routing blob: recall curves for choosing search parameters, see
`icepuffin.ops.recall_curve`
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """An index version whose routing has been read."""

    version: DerivedVersion
    routing: Routing
    definition: IndexDefinition
    shards: tuple[ObjectRange, ...]
    centroid: BlobMetadata
    file_size: int
    curves: tuple[str, ...]
    """Of each shard, recall over the width of the search; see `icepuffin.ops.recall_curve`"""
    routing_curve: str

    @property
    def sequence_number(self) -> int:
        """Of the snapshot that it was made for."""
        return self.centroid.sequence_number


def open_version(version: DerivedVersion, storage: StorageConfig) -> OpenVersion:
    """Read footer and routing blob. Raises NotAnIndexError where the file is gone, foreign or broken, or where another
    release made it in a way that this one does not know.
    """
    path = version.puffin_path
    try:
        source = open_storage(path, storage).source(path)
        reader = PuffinReader(source)
        by_type: dict[str, list[BlobMetadata]] = {}
        for blob in reader.footer.blobs:
            by_type.setdefault(canonical_type(blob.type), []).append(blob)
        routing = routing_blob.decode(reader.read_blob(by_type[ROUTING_V1][0]), file_size=source.size())
        blobs = by_type.get(SHARD_V1, [])
        shards = tuple(ObjectRange(path, blob.offset, blob.length) for blob in blobs)
        curves = tuple(blob.properties.get(RECALL_CURVE, "") for blob in blobs)
        routing_curve = by_type[ROUTING_V1][0].properties.get(ROUTING_CURVE, "")
        centroid, file_size = by_type[CENTROID_V1][0], source.size()
        definition = IndexDefinition.from_json(routing.definition)
    except (StorageError, PuffinError, DefinitionError, KeyError) as error:
        raise NotAnIndexError(f"{path} is not a readable index version: {error}") from error
    if [part.length for part in shards] != [entry.length for entry in routing.shards]:
        raise NotAnIndexError(f"{path}: its {len(shards)} shards are not the {len(routing.shards)} of its routing blob")
    return OpenVersion(version, routing, definition, shards, centroid, file_size, curves, routing_curve)


def read_centroids(version: OpenVersion, storage: StorageConfig) -> CentroidIndex:
    """The balls around the version's files. Raises StorageError, PuffinError."""
    path = version.version.puffin_path
    reader = PuffinReader(open_storage(path, storage).source(path))
    return centroid_blob.decode(reader.read_blob(version.centroid))


def balls_by_slot(version: OpenVersion, storage: StorageConfig) -> dict[int, list[Ball]]:
    """The balls around each of the files that are live in the version's snapshot."""
    index = read_centroids(version, storage)
    slots = covered_paths(version)
    found: dict[int, list[Ball]] = {slot: [] for slot in slots.values()}
    of_file = [found.get(slots.get(path, -1), []) for path in index.files]
    for number, center, radius in zip(index.file_ordinals, index.centroids, index.max_distances, strict=True):
        of_file[number].append((center, float(radius)))
    return found


def covered_paths(version: OpenVersion) -> dict[str, int]:
    """Relative path -> slot, of the files that are live in the version's snapshot."""
    return {file.path: slot for slot, file in enumerate(version.routing.files) if file.present}


def same_files(version: OpenVersion, live: LiveFiles) -> dict[str, int]:
    """Relative path -> file number, of the files of a snapshot that are live in the version's, too.

    A file that was added after that is another one, whatever its path: imported files come again under their names. In
    format v1, which does not tell, it is one with another number of rows.
    """
    covered = covered_paths(version)
    paths = (
        (relative_to(file.path, live.location), number)
        for number, file in enumerate(live.files)
        if file.file_sequence_number <= version.sequence_number
    )
    rows = {path: version.routing.files[slot].rows for path, slot in covered.items()}
    return {path: number for path, number in paths if rows.get(path) == live.files[number].record_count}


def shared_rows(version: OpenVersion, live: LiveFiles) -> int:
    """Rows of `live`'s files that the version covers."""
    return sum(live.files[number].record_count for number in same_files(version, live).values())


def covers_all_older_files(version: OpenVersion, live: LiveFiles) -> bool:
    """Whether no version of an older snapshot can share more files: it covers all that were there in its time."""
    same = frozenset(same_files(version, live).values())
    older = (number for number, file in enumerate(live.files) if file.sequence_number <= version.sequence_number)
    return all(number in same for number in older)


def open_versions(
    versions: Iterable[DerivedVersion], storage: StorageConfig
) -> tuple[list[OpenVersion], tuple[str, ...]]:
    """The versions that can be read, and one line on each that cannot: its reader decides what that means."""
    found: list[OpenVersion] = []
    unreadable: list[str] = []
    for version in versions:
        try:
            found.append(open_version(version, storage))
        except NotAnIndexError as error:
            _log.warning("the version of snapshot %s cannot be used: %s", version.base_snapshot_id, error)
            unreadable.append(str(error))
    return found, tuple(unreadable)
