"""What rooms hand to each other: small frozen values, picklable, safe to log."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """Where the deletion vector starts in its Puffin file; None for other kinds."""
    content_length: int | None = None


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file that is live in a snapshot, with the deletes that apply to it there."""

    path: str
    """Full location, as the manifest has it."""
    size: int
    record_count: int
    """Rows in the file, deleted ones included."""
    sequence_number: int
    file_format: str
    spec_id: int = 0
    deletes: tuple[DeleteFile, ...] = ()
    name_mapping: str | None = None
    """The table's `schema.name-mapping.default`, JSON: what columns are called in files that have no field ids."""

    @property
    def has_equality_deletes(self) -> bool:
        return any(delete.kind is DeleteKind.EQUALITY for delete in self.deletes)


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The live set of one snapshot, ordered by path."""

    table: str
    table_uuid: str
    location: str
    snapshot_id: int
    sequence_number: int
    schema_id: int
    files: tuple[LiveFile, ...]

    def by_path(self) -> dict[str, LiveFile]:
        return {file.path: file for file in self.files}

    @property
    def record_count(self) -> int:
        return sum(file.record_count for file in self.files)


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes of one stored object."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object, as a listing tells it."""

    path: str
    size: int
    modified_ms: int
    """Milliseconds since the epoch."""


@dataclass(frozen=True)
class StorageConfig:
    """How a store is reached: PyIceberg's FileIO properties (`s3.endpoint`, ...). Values never show in repr."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
