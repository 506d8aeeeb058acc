"""Sketches of a snapshot's ancestors: the columns that have one, and the sketches that can be extended."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage import Storage
from icepuffin.ops.table.live_files import ManifestError, live_files
from icepuffin.ops.table.snapshots import ancestors_from, table_name
from icepuffin.ops.theta.build_id import build_ids, is_ours, sealed_as
from icepuffin.ops.theta.columns import counted_as, mapped_names
from icepuffin.ops.theta.file_sketches import FileKey, file_key
from icepuffin.ops.theta.statistics_slot import counted_for, listed_thetas, read_sketches
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)

MAX_ANCESTORS = 100
"""Number of ancestors whose statistics are read"""
_MAX_FILE_LISTS = 4
"""Number of ancestors whose file lists are read in search of one since which files were only added"""


@dataclass(frozen=True, slots=True)
class Extension:
    """A sketch of ours of one column of an ancestor, to be united with those of the files that were added since."""

    sketch: ThetaSketch
    covered: frozenset[str]
    """Paths of the ancestor's live files, all of which are live in the snapshot with the same deletes."""


def nearest_ancestors(table: Table, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot's ancestors whose statistics are read, nearest first, as far as they have not expired."""
    return islice(ancestors_from(table, snapshot.parent_snapshot_id), MAX_ANCESTORS)


def fields_sketched_before(table: Table, snapshot: Snapshot) -> frozenset[int]:
    """Field ids of the columns that have a sketch of ours at the snapshot, or any in the nearest ancestor with one."""
    listed_here = listed_thetas(find_statistics(table, SnapshotId(snapshot.snapshot_id)))
    here = frozenset(i for i, blob in listed_here.items() if sealed_as(blob.properties) and counted_for(blob, snapshot))
    for ancestor in nearest_ancestors(table, snapshot):
        if listed := listed_thetas(find_statistics(table, SnapshotId(ancestor.snapshot_id))):
            return here | listed.keys()
    return here


def choose_extensions(
    table: Table,
    store: Storage,
    snapshot: Snapshot,
    keys: Mapping[str, FileKey],
    missing: Mapping[int, frozenset[str]],
) -> tuple[dict[int, Extension], str]:
    """(extension by field id, note): sketches of the nearest ancestor that has any, which save reading those of its
    files, and for columns whose sketches are `missing` for files of older ancestors those that cover some of them.

    An ancestor's sketch can be extended if its build id proves that it counts exactly the ancestor's live rows, with
    the same column type, and if files were only added since. Those of other engines cannot: what they count is
    unknown.

    missing: paths of files without a sketch, by field id of each column.
    """
    extensions: dict[int, Extension] = {}
    notes: list[str] = []
    diffs = 0
    for ancestor in nearest_ancestors(table, snapshot):
        here = ancestor.sequence_number or 0
        needed = {i for i, paths in missing.items() if any(keys[path].added <= here for path in paths)}
        unextended = (needed if diffs else missing.keys()) - extensions.keys()
        statistics = find_statistics(table, SnapshotId(ancestor.snapshot_id))
        if not unextended or diffs == _MAX_FILE_LISTS:
            break
        candidates = {i: sealed for i, sealed in _sealed_sketches(table, snapshot, ancestor).items() if i in unextended}
        if statistics is None or not candidates:
            continue
        diffs += 1
        try:
            live = live_files(table, SnapshotId(ancestor.snapshot_id))
        except ManifestError as error:
            notes.append(f"ancestor {ancestor.snapshot_id} could not be read: {error}")
            _log.warning("%s: %s", table_name(table), notes[-1])
            continue
        ancestor_keys = {file.path: file_key(file, live.location) for file in live.files}
        if any(keys.get(path) != key for path, key in ancestor_keys.items()):
            continue
        covered = frozenset(ancestor_keys)
        types = {i: column_type for i, (column_type, _) in candidates.items()}
        expected = build_ids(live.table_uuid, types, ancestor_keys.values())
        proven = {i: seal for i, (_, seal) in candidates.items() if seal == expected[i]}
        try:
            sketches = read_sketches(store, statistics, proven)
        except (IcepuffinError, PuffinError) as error:
            notes.append(f"the sketches of ancestor {ancestor.snapshot_id} could not be read: {error}")
            _log.warning("%s: %s", table_name(table), notes[-1])
            continue
        extensions |= {field_id: Extension(sketch, covered) for field_id, sketch in sketches.items()}
    return extensions, "; ".join(notes)


def _sealed_sketches(table: Table, snapshot: Snapshot, ancestor: Snapshot) -> dict[int, tuple[str, str]]:
    """(type, build id) by field id: of columns whose type is the same, and for which the ancestor lists our sketch."""
    then, now = _types(table, ancestor), _types(table, snapshot)
    return {
        field_id: (then[field_id], sealed_as(blob.properties))
        for field_id, blob in listed_thetas(find_statistics(table, SnapshotId(ancestor.snapshot_id))).items()
        if counted_for(blob, ancestor)
        and is_ours(blob.properties)
        and field_id in then
        and then[field_id] == now.get(field_id)
    }


def _types(table: Table, snapshot: Snapshot) -> dict[int, str]:
    schema = table.schemas().get(snapshot.schema_id if snapshot.schema_id is not None else -1, table.schema())
    names = mapped_names(table)
    return {f.field_id: counted_as(str(f.field_type), names.get(f.field_id)) for f in schema.fields}
