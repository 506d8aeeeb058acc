"""What a snapshot's ancestors say of distinct values: which columns have a sketch, which sketches can be extended."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ops.catalog.live import live_files
from ops.catalog.snapshots import table_name
from ops.catalog.statistics import find
from ops.errors import IcepuffinError
from ops.storage import Storage
from ops.tasks.theta_columns import kind_of
from ops.theta.file_sketches import FileKey, file_key
from ops.theta.slot import BUILD_PROPERTY, counted_for, listed_thetas, read_sketches
from puffin.blobs.theta import ThetaSketch
from puffin.errors import PuffinError

logger = logging.getLogger(__name__)

_FARTHEST = 100
"""How many ancestors are asked for statistics."""
_MOST_DIFFS = 4
"""How many ancestors' file lists are read to find one that was only added to."""
_HASHED_DIFFERENTLY = frozenset({"uuid", "decimal"})
"""Types of which not every engine hashes the bytes that the spec names: Spark hashes a uuid's text, Bodo a decimal at
full width. United with ours, a value that both have seen would count twice."""


@dataclass(frozen=True, slots=True)
class Extension:
    """An ancestor's sketch of one column, by whatever engine, that only needs the added files."""

    sketch: ThetaSketch
    covered: frozenset[str]
    """Paths of the ancestor's live files, all of which are live in the snapshot with the same deletes."""


def ancestors(table: Table, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot's parents, nearest first, as far as they have not expired."""
    for _ in range(_FARTHEST):
        parent_id = snapshot.parent_snapshot_id
        parent = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
        if parent is None:
            return
        yield parent
        snapshot = parent


def fields_sketched_before(table: Table, snapshot: Snapshot) -> frozenset[int]:
    """Field ids of the columns that have a sketch in the nearest ancestor with any."""
    for ancestor in ancestors(table, snapshot):
        if listed := listed_thetas(find(table, ancestor.snapshot_id)):
            return frozenset(listed)
    return frozenset()


def choose_extensions(
    table: Table,
    store: Storage,
    snapshot: Snapshot,
    keys: Mapping[str, FileKey],
    missing: Mapping[int, frozenset[str]],
) -> tuple[dict[int, Extension], str]:
    """(extension by field id, note) for columns whose sketches are `missing` for some live files.

    An ancestor's sketch serves if it is fresh there, of the same column type, and only files were added since.
    """
    found: dict[int, Extension] = {}
    notes: list[str] = []
    diffs = 0
    for ancestor in ancestors(table, snapshot):
        wanted = {i for i, paths in missing.items() if paths} - found.keys()
        statistics = find(table, ancestor.snapshot_id)
        usable = _usable(table, snapshot, ancestor) & wanted if statistics else set()
        if not wanted or diffs == _MOST_DIFFS:
            break
        if statistics is None or not usable:
            continue
        diffs += 1
        live = live_files(table, ancestor.snapshot_id)
        covered = frozenset(file.path for file in live.files)
        if any(keys.get(file.path) != file_key(file, live.location) for file in live.files):
            continue
        try:
            sketches = read_sketches(store, statistics, usable)
        except (IcepuffinError, PuffinError) as error:
            notes.append(f"the sketches of ancestor {ancestor.snapshot_id} could not be read: {error}")
            logger.warning("%s: %s", table_name(table), notes[-1])
            continue
        for field_id, sketch in sketches.items():
            if covered & missing[field_id]:
                found[field_id] = Extension(sketch, covered)
    return found, "; ".join(notes)


def _usable(table: Table, snapshot: Snapshot, ancestor: Snapshot) -> set[int]:
    """Columns whose sketch was counted for the ancestor itself, of values that are still hashed the same."""
    then, now = _types(table, ancestor), _types(table, snapshot)
    return {
        field_id
        for field_id, blob in listed_thetas(find(table, ancestor.snapshot_id)).items()
        if counted_for(blob, ancestor)
        and field_id in then
        and then[field_id] == now.get(field_id)
        and (BUILD_PROPERTY in (blob.properties or {}) or kind_of(then[field_id]) not in _HASHED_DIFFERENTLY)
    }


def _types(table: Table, snapshot: Snapshot) -> dict[int, str]:
    schema = table.schemas().get(snapshot.schema_id if snapshot.schema_id is not None else -1, table.schema())
    return {field.field_id: str(field.field_type) for field in schema.fields}
