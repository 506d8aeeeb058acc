"""What sketching a snapshot takes: its columns, what exactly their sketches are of, and the files to read for them."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import BlobMetadata

from icepuffin.ops.catalog.blob_kind import SKETCHES_TAG
from icepuffin.ops.catalog.bound_versions import own_tag_target
from icepuffin.ops.catalog.live_files import live_files, require_positional_deletes
from icepuffin.ops.catalog.manifest_lists import require_committable
from icepuffin.ops.catalog.snapshots import find_snapshot, is_derived, table_name
from icepuffin.ops.catalog.statistics import find_statistics
from icepuffin.ops.model import LiveFiles
from icepuffin.ops.storage import Storage
from icepuffin.ops.theta.ancestry import Extension, choose_extensions, fields_sketched_before
from icepuffin.ops.theta.build_id import build_id, is_outdated, sealed_as
from icepuffin.ops.theta.columns import SketchedColumn, choose_columns, mapped_names
from icepuffin.ops.theta.errors import ThetaError, UnsketchableColumnError
from icepuffin.ops.theta.file_sketches import FileKey, file_key
from icepuffin.ops.theta.kept_sketches import KeptSketches, open_kept
from icepuffin.ops.theta.statistics_slot import counted_for, listed_thetas


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that is known before a row is read."""

    table: Table
    snapshot: Snapshot
    live: LiveFiles
    keys: Mapping[str, FileKey]
    columns: tuple[SketchedColumn, ...]
    build_ids: Mapping[int, str]
    """By field id: what exactly the column's sketch is a sketch of."""
    kept: KeptSketches
    schema: Schema
    """The snapshot's own."""

    @property
    def version_id(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.build_ids.items())).encode()).hexdigest()


def data_snapshot(table: Table, snapshot_id: int) -> Snapshot:
    """Raises UnknownSnapshotError, and ThetaError for one that icepuffin made itself."""
    snapshot = find_snapshot(table, snapshot_id)
    if is_derived(snapshot):
        base = snapshot.parent_snapshot_id
        raise ThetaError(f"{table_name(table)}: snapshot {snapshot_id} holds derived data of {base}; name that")
    return snapshot


def plan_sketches(table: Table, snapshot: Snapshot, store: Storage, wanted: Collection[str] | None) -> Work:
    """The plan of a snapshot's sketches. Reads metadata, and the footers of kept sketches.

    Raises ThetaError, EqualityDeletesError, UnsketchableColumnError, UnsupportedFormatError, and TagTakenError where
    the tag of the kept sketches is somebody else's.
    """
    require_committable(table)
    for tag in (SKETCHES_TAG, f"{SKETCHES_TAG}-{snapshot.snapshot_id}"):
        own_tag_target(table, tag)
    live = live_files(table, snapshot.snapshot_id)
    require_positional_deletes(live)
    keys = {file.path: file_key(file, live.location) for file in live.files}
    kept = open_kept(table, store, snapshot)
    schema = table.schemas().get(live.schema_id, table.schema())
    before = fields_sketched_before(table, snapshot) | kept.field_ids()
    try:
        columns = choose_columns(schema, table.schema(), sketched_before=before, wanted=wanted)
    except UnsketchableColumnError as error:
        raise UnsketchableColumnError(f"{table_name(table)}, theta_columns: {error}") from None
    names = mapped_names(table)
    columns = tuple(replace(c, names=names.get(c.field_id)) for c in columns)
    build_ids = {c.field_id: build_id(live.table_uuid, c.field_id, c.counted_as, keys.values()) for c in columns}
    return Work(table, snapshot, live, keys, columns, build_ids, kept, schema)


def is_current(work: Work, store: Storage) -> bool:
    """Whether the slot already holds these sketches, and the file is there."""
    statistics = find_statistics(work.table, work.snapshot.snapshot_id)
    listed = listed_thetas(statistics)
    current = work.table.schema().field_ids
    return (
        statistics is not None
        and all(i in current and not is_outdated(blob.properties) for i, blob in listed.items())
        and all(i in listed and _is(listed[i], wanted, work.snapshot) for i, wanted in work.build_ids.items())
        and store.exists(statistics.statistics_path)
    )


def _is(blob: BlobMetadata, build_id: str, snapshot: Snapshot) -> bool:
    """Not one that an engine has taken over from a snapshot with the same files: nobody may use that."""
    return sealed_as(blob.properties) == build_id and counted_for(blob, snapshot)


@dataclass(frozen=True, slots=True)
class Unread:
    """What no sketch covers yet."""

    columns: Mapping[str, tuple[SketchedColumn, ...]]
    """By path of a data file: the columns that are to be read of it."""
    extensions: Mapping[int, Extension]
    """By field id: an ancestor's sketch that covers the files which are not to be read."""
    note: str


def find_unread(work: Work, store: Storage, known: Mapping[str, Collection[int]]) -> Unread:
    """`known`: by path, the field ids of columns whose kept sketch serves."""
    missing = {
        c.field_id: frozenset(p for p, fields in known.items() if c.field_id not in fields) for c in work.columns
    }
    extensions, note = choose_extensions(work.table, store, work.snapshot, work.keys, missing)
    columns: dict[str, tuple[SketchedColumn, ...]] = {}
    for column in work.columns:
        extension = extensions.get(column.field_id)
        for path in missing[column.field_id] - (extension.covered if extension else frozenset()):
            columns[path] = (*columns.get(path, ()), column)
    return Unread(columns, extensions, note)
