"""Plan of a snapshot's sketches: columns, build ids, and the files to read."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.binding.bound_versions import own_tag_target
from icepuffin.ops.binding.manifest_lists import require_committable
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import LiveFiles, SnapshotId
from icepuffin.ops.storage import Storage
from icepuffin.ops.table.blob_kind import SKETCHES_TAG, BlobKind, side_tag
from icepuffin.ops.table.live_files import live_files, require_resolvable_deletes, require_same_deletes
from icepuffin.ops.table.snapshots import find_snapshot, require_data_snapshot, table_name
from icepuffin.ops.theta.ancestry import Extension, choose_extensions, fields_sketched_before
from icepuffin.ops.theta.build_id import build_ids, is_outdated, sealed_as
from icepuffin.ops.theta.columns import SketchedColumn, choose_columns, mapped_names
from icepuffin.ops.theta.earlier_sketches import EarlierSketches, open_earlier_sketches
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.file_sketches import FileKey, file_key
from icepuffin.ops.theta.sketch_packs import are_few
from icepuffin.ops.theta.statistics_slot import counted_for, left_to_later, listed_thetas
from icepuffin.ops.theta.theta_bounds import has_only_gained_files


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """The sketches that a snapshot is to have, and the earlier ones that can serve."""

    table: Table
    snapshot: Snapshot
    live: LiveFiles
    keys: Mapping[str, FileKey]
    columns: tuple[SketchedColumn, ...]
    build_ids: Mapping[int, str]
    """Build id of each column's sketch, by field id"""
    earlier: EarlierSketches
    schema: Schema
    """Schema of the snapshot"""

    @property
    def version_id(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.build_ids.items())).encode()).hexdigest()[:32]


def data_snapshot(table: Table, snapshot_id: SnapshotId) -> Snapshot:
    """The snapshot. Raises UnknownSnapshotError, also for one that icepuffin made itself."""
    require_data_snapshot(table, snapshot_id)
    return find_snapshot(table, snapshot_id)


def plan_sketches(table: Table, snapshot: Snapshot, store: Storage, requested: Collection[str] | None) -> SketchPlan:
    """The plan of a snapshot's sketches, but for those that a later release has made. Reads metadata.

    Raises EqualityDeletesError, TableFaultError, UnsketchableColumnError, UnsupportedFormatError, and
    TagTakenError where the tag of the file sketches is somebody else's.
    """
    require_committable(table)
    for tag in (SKETCHES_TAG, f"{SKETCHES_TAG}-{snapshot.snapshot_id}", side_tag(BlobKind.SKETCHES)):
        own_tag_target(table, tag)
    live = live_files(table, SnapshotId(snapshot.snapshot_id))
    require_resolvable_deletes(live)
    require_same_deletes(live)
    keys = {file.path: file_key(file, live.location) for file in live.files}
    earlier = open_earlier_sketches(table, store, snapshot)
    schema = table.schemas().get(live.schema_id, table.schema())
    before = fields_sketched_before(table, snapshot) | earlier.field_ids()
    try:
        columns = choose_columns(schema, table.schema(), sketched_before=before, names=requested)
    except UnsketchableColumnError as error:
        raise UnsketchableColumnError(f"{table_name(table)}, statistics.ndv: {error}") from None
    later = left_to_later(find_statistics(table, SnapshotId(snapshot.snapshot_id)), snapshot)
    names = mapped_names(table)
    columns = tuple(replace(c, names=names.get(c.field_id)) for c in columns if c.field_id not in later)
    seals = build_ids(live.table_uuid, {c.field_id: c.counted_as for c in columns}, keys.values())
    return SketchPlan(table, snapshot, live, keys, columns, seals, earlier, schema)


def is_current(plan: SketchPlan, store: Storage) -> bool:
    """Whether the slot already lists these sketches, and its file exists."""
    statistics = find_statistics(plan.table, SnapshotId(plan.snapshot.snapshot_id))
    listed = listed_thetas(statistics)
    current = plan.table.schema().field_ids
    return (
        statistics is not None
        and all(i in current and not is_outdated(blob.properties) for i, blob in listed.items())
        and all(i in listed and sealed_as(listed[i].properties) == seal for i, seal in plan.build_ids.items())
        # an engine may carry blobs over to another snapshot, where no planner may use them
        and all(counted_for(listed[i], plan.snapshot) for i in plan.build_ids)
        and store.exists(statistics.statistics_path)
    )


@dataclass(frozen=True, slots=True)
class MissingSketches:
    """Columns of files that neither a file sketch nor an ancestor's sketch covers, and, where file sketches are to be
    kept, of the few that only an ancestor's covers.
    """

    columns: Mapping[str, tuple[SketchedColumn, ...]]
    """Columns to read of each data file, by its path; one tuple for all files that lack the same ones"""
    extensions: Mapping[int, Extension]
    """Sketch of an ancestor that covers files whose sketches are not read, by field id"""
    are_kept: bool
    """Whether a version of the file sketches is to keep those that are made; not where they are few, and the last one
    has all others
    """
    note: str

    def is_covered(self, path: str, field_id: int) -> bool:
        """Whether an ancestor's sketch counts a file."""
        return field_id in self.extensions and path in self.extensions[field_id].covered


def find_missing(plan: SketchPlan, store: Storage, covered_fields: Mapping[str, Collection[int]]) -> MissingSketches:
    """The sketches to make. `covered_fields`: field ids of the columns with a file sketch, by path of a data file."""
    missing_paths = {
        c.field_id: frozenset(p for p, fields in covered_fields.items() if c.field_id not in fields)
        for c in plan.columns
    }
    extensions, note = choose_extensions(plan.table, store, plan.snapshot, plan.keys, missing_paths)
    to_read: dict[str, list[int]] = {}
    unkept: dict[str, list[int]] = {}
    for column in plan.columns:
        extension = extensions.get(column.field_id)
        covered = extension.covered if extension else frozenset()
        for path in missing_paths[column.field_id]:
            (unkept if path in covered else to_read).setdefault(path, []).append(column.field_id)
    rows = {file.path: file.record_count for file in plan.live.files}

    def values(*columns: Mapping[str, Collection[int]]) -> list[int]:
        return [sum(len(each.get(path, ())) for each in columns) * rows[path] for path in set().union(*columns)]

    are_kept = bool(to_read) and not (are_few(values(to_read, unkept)) and _keeps_the_rest(plan))
    if are_kept and are_few(values(unkept)):
        for path, fields in unkept.items():
            to_read.setdefault(path, []).extend(fields)
    shared = {ids: tuple(c for c in plan.columns if c.field_id in ids) for ids in set(map(frozenset, to_read.values()))}
    columns = {path: shared[frozenset(ids)] for path, ids in to_read.items()}
    return MissingSketches(columns, extensions, are_kept, note)


def _keeps_the_rest(plan: SketchPlan) -> bool:
    """Whether the newest version of the file sketches can stay: it has these columns, its packs have their tags, and
    files were only added since its snapshot, so that it keeps no data file alive that the table has left.
    """
    version = plan.earlier.nearest
    return (
        version is not None
        and SKETCHES_TAG in version.tags
        and version.fields >= plan.build_ids.keys()
        and all(pack.is_kept for pack in version.packs)
        and has_only_gained_files(plan.table, version.base_snapshot_id, plan.snapshot)
    )
