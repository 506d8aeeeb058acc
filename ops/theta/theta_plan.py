"""Plan of a snapshot's sketches: columns, build ids, and the files to read."""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ops.binding.bound_versions import own_tag_target
from icepuffin.ops.binding.manifest_lists import require_committable
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import LiveFiles, SnapshotId
from icepuffin.ops.storage import ObjectMissingError, Storage
from icepuffin.ops.table.blob_kind import SKETCHES_TAG, BlobKind, side_tag
from icepuffin.ops.table.live_files import live_files, require_resolvable_deletes, require_same_deletes
from icepuffin.ops.table.manifests import EntryObserver
from icepuffin.ops.table.snapshots import find_snapshot, require_data_snapshot, table_name
from icepuffin.ops.tasks.sketches.statistic import (
    COUNTS_OF_DISTINCT,
    Kind,
    Statistic,
    StatisticKey,
    kind_of,
)
from icepuffin.ops.theta.ancestry import Extension, choose_extensions, fields_sketched_before, others_before
from icepuffin.ops.theta.build_id import build_ids, is_later_others, is_outdated, others_id, sealed_as
from icepuffin.ops.theta.columns import choose_statistics, mapped_names, with_mapped_names
from icepuffin.ops.theta.earlier_sketches import EarlierSketches, open_earlier_sketches
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.file_sketches import FileKey, file_key
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.sketch_packs import are_few
from icepuffin.ops.theta.statistics_slot import counted_for, left_to_later, listed_thetas, others_of, read_others
from icepuffin.ops.theta.theta_bounds import has_only_gained_files
from icepuffin.puffin.errors import PuffinError


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """The sketches that a snapshot is to have, and the earlier ones that can serve."""

    table: Table
    snapshot: Snapshot
    live: LiveFiles
    keys: Mapping[str, FileKey]
    statistics: tuple[Statistic, ...]
    build_ids: Mapping[StatisticKey, str]
    """Build id of each statistic's sketch"""
    earlier: EarlierSketches
    schema: Schema
    """Schema of the snapshot"""
    note: str
    """Statistics that are left out, in words; empty where none are"""

    @property
    def version_id(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.build_ids.items())).encode()).hexdigest()[:32]

    @property
    def counted(self) -> frozenset[int]:
        """Field ids of the columns that have an NDV."""
        return frozenset(key[0] for key in self.build_ids if kind_of(key) is Kind.NDV)

    @property
    def others(self) -> frozenset[StatisticKey]:
        """The statistics that are no NDVs."""
        return frozenset(statistic.key for statistic in self.statistics if statistic.kind is not Kind.NDV)

    @property
    def others_in_words(self) -> str:
        """Number of them by kind."""
        counts = Counter(statistic.kind for statistic in self.statistics)
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if kind is not Kind.NDV)


def data_snapshot(table: Table, snapshot_id: SnapshotId) -> Snapshot:
    """The snapshot. Raises UnknownSnapshotError, also for one that icepuffin made itself."""
    require_data_snapshot(table, snapshot_id)
    return find_snapshot(table, snapshot_id)


def plan_sketches(
    table: Table,
    snapshot: Snapshot,
    store: Storage,
    requested: RequestedStatistics,
    observe: EntryObserver | None = None,
) -> SketchPlan:
    """The plan of a snapshot's sketches, but for those that a later release has made. Reads metadata.

    Raises EqualityDeletesError, TableFaultError, UnsketchableColumnError, UnsupportedFormatError, and
    TagTakenError where the tag of the file sketches is somebody else's.
    """
    require_committable(table)
    for tag in (SKETCHES_TAG, f"{SKETCHES_TAG}-{snapshot.snapshot_id}", side_tag(BlobKind.SKETCHES)):
        own_tag_target(table, tag)
    live = live_files(table, SnapshotId(snapshot.snapshot_id), observe=observe)
    require_resolvable_deletes(live)
    require_same_deletes(live)
    keys = {file.path: file_key(file, live.location) for file in live.files}
    earlier = open_earlier_sketches(table, store, snapshot)
    schema = table.schemas().get(live.schema_id, table.schema())
    statistics, note = _choose(table, store, snapshot, schema, requested, earlier), ""
    if len(keys) < len(live.files):  # each file is read and kept once
        left_out = {it.name for it in statistics if it.kind not in COUNTS_OF_DISTINCT}
        statistics = tuple(it for it in statistics if it.kind in COUNTS_OF_DISTINCT)
        if left_out:
            note = f"a data file is listed twice: {', '.join(sorted(left_out))} have NDVs and joint counts alone"
    seals = build_ids(live.table_uuid, (statistic.key for statistic in statistics), keys.values())
    return SketchPlan(table, snapshot, live, keys, statistics, seals, earlier, schema, note)


def _choose(
    table: Table,
    store: Storage,
    snapshot: Snapshot,
    schema: Schema,
    requested: RequestedStatistics,
    earlier: EarlierSketches,
) -> tuple[Statistic, ...]:
    """The statistics of the snapshot, without those that a later release has made."""
    slot = find_statistics(table, SnapshotId(snapshot.snapshot_id))
    later = left_to_later(slot, snapshot)
    fields = fields_sketched_before(table, snapshot) | earlier.field_ids()
    before: list[tuple[Kind, tuple[int, ...]]] = [(Kind.NDV, (field_id,)) for field_id in fields]
    with_others = not later and not is_later_others(others_of(slot, snapshot))
    if with_others and requested.keeps_any:
        before += others_before(table, store, snapshot)
    try:
        chosen = list(choose_statistics(schema, table.schema(), requested, before))
    except UnsketchableColumnError as error:
        raise UnsketchableColumnError(f"{table_name(table)}, {error}") from None
    ndvs = [it for it in chosen if it[0] is Kind.NDV and it[1][0].field_id not in later]
    ndvs.sort(key=lambda it: it[1][0].field_id)
    # an NDV's entry says that there are others in its file
    others = [it for it in chosen if it[0] is not Kind.NDV] if with_others and ndvs else []
    names = mapped_names(table)
    statistics = (with_mapped_names(kind, columns, names) for kind, columns in (*ndvs, *others))
    return tuple({statistic.key: statistic for statistic in statistics}.values())


def is_current(plan: SketchPlan, store: Storage) -> bool:
    """Whether the slot already lists these sketches, and its file exists."""
    statistics = find_statistics(plan.table, SnapshotId(plan.snapshot.snapshot_id))
    listed = listed_thetas(statistics)
    current = plan.table.schema().field_ids
    expected = {key[0]: seal for key, seal in plan.build_ids.items() if kind_of(key) is Kind.NDV}
    others = others_of(statistics, plan.snapshot)
    return (
        statistics is not None
        and all(i in current and not is_outdated(blob.properties) for i, blob in listed.items())
        and all(i in listed and sealed_as(listed[i].properties) == seal for i, seal in expected.items())
        # an engine may carry blobs over to another snapshot, where no planner may use them
        and all(counted_for(listed[i], plan.snapshot) for i in expected)
        and (is_later_others(others) or others == others_id(plan.build_ids))
        and (_has_others(plan, store, statistics) if plan.others else store.exists(statistics.statistics_path))
    )


def _has_others(plan: SketchPlan, store: Storage, statistics: StatisticsFile) -> bool:
    """Whether a file has all statistics other than NDVs: an engine that wrote it anew may have kept the entry alone."""
    try:
        others = read_others(store, statistics)
    except (ObjectMissingError, PuffinError):
        return False
    return {key: other.build_id for key, other in others.items()} == {key: plan.build_ids[key] for key in plan.others}


@dataclass(frozen=True, slots=True)
class MissingSketches:
    """Statistics of files that neither a file sketch nor an ancestor's sketch covers, and, where file sketches are to
    be kept, of the few that only an ancestor's covers.
    """

    statistics: Mapping[str, tuple[Statistic, ...]]
    """Statistics to make of each data file, by its path; one tuple for all files that lack the same ones"""
    extensions: Mapping[StatisticKey, Extension]
    """Sketch of an ancestor that covers files whose sketches are not read"""
    are_kept: bool
    """Whether a version of the file sketches is to keep those that are made; not where they are few, and the last one
    has all others
    """
    note: str

    def is_covered(self, path: str, statistic: StatisticKey) -> bool:
        """Whether an ancestor's sketch counts a file."""
        return statistic in self.extensions and path in self.extensions[statistic].covered


def find_missing(plan: SketchPlan, store: Storage, covered: Mapping[str, Collection[StatisticKey]]) -> MissingSketches:
    """The sketches to make. `covered`: statistics that have a file sketch, by path of a data file."""
    missing_paths = {
        key: frozenset(path for path, statistics in covered.items() if key not in statistics) for key in plan.build_ids
    }
    extensions, note = choose_extensions(plan.table, store, plan.snapshot, plan.keys, missing_paths)
    to_read: dict[str, list[StatisticKey]] = {}
    unkept: dict[str, list[StatisticKey]] = {}
    for key, paths in missing_paths.items():
        by_ancestor = extensions[key].covered if key in extensions else frozenset[str]()
        for path in paths:
            (unkept if path in by_ancestor else to_read).setdefault(path, []).append(key)
    rows = {file.path: file.record_count for file in plan.live.files}

    def values(*statistics: Mapping[str, Collection[StatisticKey]]) -> list[int]:
        return [sum(len(each.get(path, ())) for each in statistics) * rows[path] for path in set().union(*statistics)]

    are_kept = bool(to_read) and not (are_few(values(to_read, unkept)) and _keeps_the_rest(plan))
    if are_kept and are_few(values(unkept)):
        for path, keys in unkept.items():
            to_read.setdefault(path, []).extend(keys)
        twice = {key for keys in unkept.values() for key in keys if kind_of(key) not in COUNTS_OF_DISTINCT}
        extensions = {key: extension for key, extension in extensions.items() if key not in twice}
    distinct = set(map(frozenset, to_read.values()))
    shared = {keys: tuple(it for it in plan.statistics if it.key in keys) for keys in distinct}
    statistics = {path: shared[frozenset(keys)] for path, keys in to_read.items()}
    return MissingSketches(statistics, extensions, are_kept, note)


def _keeps_the_rest(plan: SketchPlan) -> bool:
    """Whether the newest version of the file sketches can stay: it has these columns, its packs have their tags, and
    files were only added since its snapshot, so that it keeps no data file alive that the table has left.
    """
    version = plan.earlier.nearest
    return (
        version is not None
        and SKETCHES_TAG in version.tags
        and version.fields >= plan.counted
        and (not plan.others or plan.earlier.nearest_has(plan.others))
        and all(pack.is_kept for pack in version.packs)
        and has_only_gained_files(plan.table, version.base_snapshot_id, plan.snapshot)
    )
