"""Values that several packages share: small, frozen, picklable, safe to log."""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NewType

from icepuffin.ops.errors import require_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

CREATED_BY = f"icepuffin version {version('icepuffin')}"
"""Value of Puffin's property `created-by`: the application and its version"""
SnapshotId = NewType("SnapshotId", int)
"""Iceberg's id of a snapshot"""
NO_SNAPSHOT = SnapshotId(0)
"""An id that no snapshot has"""
ShardId = NewType("ShardId", int)
"""Index of a shard in an index version, from 0; `ann.shard_id` in its file"""
FileSlot = NewType("FileSlot", int)
"""Number of a data file within an index version: its index in the routing blob's file table"""
FileNumber = NewType("FileNumber", int)
"""Number of a live data file within a snapshot: its index in `LiveFiles.files`"""
MIB = 1 << 20
IN_PROCESS_MB = 100
"""Size of an index file up to which it is searched in this process, where Spark could search it"""
DRIVER_ONLY_ROWS = 200_000
"""Rows of a snapshot from which Spark builds its index versions, where there is Spark"""
MAX_GRACE_HOURS = 876_600
"""The longest grace period of garbage collection, a century: a time cannot be moved by far more"""


class DeleteKind(enum.Enum):
    """How an Iceberg delete file names the rows it removes."""

    POSITION = "position"
    DELETION_VECTOR = "deletion-vector"
    EQUALITY = "equality"


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """One delete file, or one deletion vector inside a Puffin file, that applies to a data file."""

    path: str
    kind: DeleteKind
    record_count: int
    sequence_number: int
    size: int
    content_offset: int | None = None
    """Offset of the deletion vector in its Puffin file; None for other kinds"""
    content_length: int | None = None
    keys: "Schema | None" = field(default=None, compare=False)
    """Columns that an equality delete compares; None for other kinds, and where `unreadable` says why"""
    unreadable: str = field(default="", compare=False)
    """What stands in the way of resolving an equality delete; empty where nothing does"""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file that is live in a snapshot, with the deletes that apply to it there."""

    path: str
    """Full location, as in the manifest"""
    size: int
    record_count: int
    """Rows in the file, deleted ones included"""
    sequence_number: int
    file_format: str
    spec_id: int = 0
    deletes: Collection[DeleteFile] = ()
    name_mapping: str | None = None
    """The table's `schema.name-mapping.default`, JSON: names of columns in files that have no field ids"""
    file_sequence_number: int = 0
    """Sequence number of the commit that added the file; `sequence_number` may be that of the files it rewrote"""
    added_by: SnapshotId = NO_SNAPSHOT
    """Id of the snapshot that added the file. It tells apart files of one path without sequence numbers (format v1)"""
    first_row_id: int | None = None
    """`_row_id` of its first row in format v3, unless the file has the column; None where rows have no ids"""
    has_row_ids: bool = False
    """Whether the file has a column `_row_id`, by the manifest"""
    constants: tuple[tuple[int, Any], ...] = ()
    """(field id, value or None) of its identity partitions: values of columns that the file lacks. Dates and times are
    numbers, as in manifests"""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The live set of one snapshot, ordered by path."""

    table: str
    table_uuid: str
    location: str
    snapshot_id: SnapshotId
    sequence_number: int
    schema_id: int
    files: tuple[LiveFile, ...]

    @property
    def numbers(self) -> tuple[FileNumber, ...]:
        """File numbers, in the order of `files`."""
        return tuple(map(FileNumber, range(len(self.files))))

    def by_path(self) -> dict[str, LiveFile]:
        return {file.path: file for file in self.files}

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)

    def record_count_of(self, numbers: Iterable[FileNumber]) -> int:
        """Rows of some files, deleted ones included."""
        return sum(self.files[number].record_count for number in numbers)


class Action(enum.StrEnum):
    """What a run on an index does for a snapshot. Reports and summaries of snapshots hold the values."""

    BUILT = "built"
    REFRESHED = "refreshed"
    REUSED = "reused"
    """No new version: one of this snapshot and definition exists."""
    RETAGGED = "retagged"
    """A move of the tag alone, to a version that exists, as after a rollback."""
    EMPTY = "empty"
    """No version, as the snapshot has no rows to index: a search of it returns nothing."""


class How(enum.StrEnum):
    """How a shard of a version comes about. Reports and markers hold the values."""

    BUILT = "built"
    """A new shard: a graph over new rows"""
    REBUILT = "rebuilt"
    """A new graph over the base version's live rows and the new ones"""
    INSERTED = "inserted"
    """New rows inserted into the base version's graph"""
    REMAPPED = "remapped"
    """The base version's bytes with new addresses: its rows have moved to other files"""
    MASKED = "masked"
    """The base version's bytes with new tombstones"""
    COPIED = "copied"
    """The base version's bytes and tombstones"""
    REUSED = "reused"
    """A shard of a version that is itself reused"""

    @property
    def keeps_bytes(self) -> bool:
        """Whether the shard's blob is the base version's, as it was."""
        return self in (How.COPIED, How.MASKED, How.REMAPPED)

    @property
    def makes_graph(self) -> bool:
        """Whether a graph is built from nothing."""
        return self in (How.BUILT, How.REBUILT)

    @property
    def rewrites_nodes(self) -> bool:
        """Whether the base version's nodes are decoded and encoded again."""
        return self in (How.REBUILT, How.INSERTED)


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes of one stored object."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class StoredAddresses:
    """Where the addresses blob of a shard lies."""

    blob: ObjectRange
    sha256: bytes


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Where the vectors of nodes that follow each other lie, in one piece."""

    location: ObjectRange
    count: int
    """Number of vectors"""
    sha256: bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector."""
        return self.location.length // self.count

    def part(self, start: int, count: int) -> ObjectRange:
        """Where the vectors `start` to `start + count` lie."""
        return ObjectRange(self.location.path, self.location.offset + start * self.row_bytes, count * self.row_bytes)


@dataclass(frozen=True, slots=True)
class StoredShard:
    """Where a shard lies."""

    blob: ObjectRange
    addresses: StoredAddresses | None = None
    """Addresses in place of those in the shard's blob; None where those hold"""
    runs: tuple[StoredRun, ...] = ()
    """Vectors of the nodes, in order, where they lie apart from the blob; else empty"""

    @property
    def path(self) -> str:
        """Path of the file that the shard's blob lies in."""
        return self.blob.path

    @property
    def length(self) -> int:
        """Bytes of all that belongs to it."""
        addresses = self.addresses.blob.length if self.addresses else 0
        return self.blob.length + addresses + self.vector_bytes

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors that lie apart from the blob."""
        return sum(run.location.length for run in self.runs)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object in a listing."""

    path: str
    size: int
    modified_ms: int
    """Time of the last change, milliseconds since the epoch"""


@dataclass(frozen=True, slots=True)
class Grant:
    """Settings that a catalog vends for the files under a prefix: keys, most of which expire."""

    prefix: str
    """Prefix of locations; empty for all"""
    properties: Mapping[str, str] = field(repr=False)
    """Settings under PyIceberg's names. Values are never shown"""


@dataclass(frozen=True, slots=True)
class VendedGrants:
    """Grants that a catalog vends for one table's files, and the function that renews them."""

    catalog: str
    table: str
    who: str
    """Fingerprint of the user, the catalog and the table, which stays the same while keys change"""
    grants: tuple[Grant, ...]
    renew: Callable[[], tuple[Grant, ...]] = field(repr=False)
    """Function that requests new grants from the catalog; picklable. Raises IcepuffinError, without secrets"""


@dataclass(frozen=True, eq=False)
class StorageConfig:
    """How files are reached: PyIceberg's FileIO properties (`s3.endpoint`, ...), and what a catalog vends besides.

    Seldom needed: by default the catalog's own properties are used, and the keys that it vends. Values never show in
    `repr`. Tasks get it pickled, and renew by themselves what expires. Two are equal where the same files are reached
    by the same user, whatever keys are vended at the time.

    Parameters
    ----------
    properties : mapping of str to str
        Properties of PyIceberg's FileIO. Default: none.
    vended : VendedGrants, optional
        Keys that a catalog vends for one table, and how to renew them. Only a catalog makes them.

    Examples
    --------
    >>> storage = icepuffin.StorageConfig({"s3.endpoint": "http://localhost:9000", "s3.access-key-id": "reader"})
    >>> icepuffin.open_index(table, storage=storage).coverage
    <Coverage.EXACT_VERSION: 'exact-version'>
    """

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    vended: VendedGrants | None = None

    def __post_init__(self) -> None:
        require_type(
            self.properties, Mapping, "StorageConfig takes a mapping of properties", 'write {"s3.endpoint": "..."}'
        )

    def _identity(self) -> tuple[frozenset[tuple[str, str]], str]:
        return frozenset(self.properties.items()), self.vended.who if self.vended else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageConfig) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())
