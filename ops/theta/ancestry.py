"""Sketches of a snapshot's ancestors: the columns that have one, and the sketches that can be extended."""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage import ObjectMissingError, Storage
from icepuffin.ops.table.snapshots import ancestors_from, table_name
from icepuffin.ops.tasks.sketches.images import Sketch
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, fields_of, kind_of
from icepuffin.ops.theta.build_id import build_ids, is_ours, sealed_as
from icepuffin.ops.theta.file_sketches import FileKey
from icepuffin.ops.theta.statistics_slot import (
    counted_for,
    is_copy,
    listed_thetas,
    others_of,
    read_others,
    read_sketches,
)
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)

MAX_ANCESTORS = 100
"""Number of ancestors whose statistics are read"""
_MAX_TRIED = 4
"""Number of ancestors whose files are read in search of one since which files were only added"""


@dataclass(frozen=True, slots=True)
class Extension:
    """A sketch of ours of one statistic of an ancestor, to be united with those of the files that were added since."""

    sketch: Sketch
    covered: frozenset[str]
    """Paths of the ancestor's live files, all of which are live in the snapshot with the same deletes."""


def nearest_ancestors(table: Table, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot's ancestors whose statistics are read, nearest first, as far as they have not expired."""
    return islice(ancestors_from(table, snapshot.parent_snapshot_id), MAX_ANCESTORS)


def sketched_entries(table: Table, snapshot: Snapshot) -> Iterator[tuple[Snapshot, StatisticsFile]]:
    """The snapshot and its ancestors whose entries list sketches, whoever made them, each with its entry."""
    for candidate in (snapshot, *nearest_ancestors(table, snapshot)):
        statistics = find_statistics(table, SnapshotId(candidate.snapshot_id))
        if statistics is not None and listed_thetas(statistics):
            yield candidate, statistics


def fields_sketched_before(table: Table, snapshot: Snapshot) -> frozenset[int]:
    """Field ids of the columns that have a sketch of ours at the snapshot, or any in the nearest ancestor with one."""
    here = frozenset[int]()
    for candidate, statistics in sketched_entries(table, snapshot):
        listed = listed_thetas(statistics)
        if candidate is not snapshot:
            return here | listed.keys()
        here = frozenset(i for i, blob in listed.items() if sealed_as(blob.properties) and counted_for(blob, snapshot))
    return here


def others_before(table: Table, store: Storage, snapshot: Snapshot) -> list[tuple[Kind, tuple[int, ...]]]:
    """Kind and field ids of the statistics other than NDVs of the snapshot, or else of its nearest ancestor with
    sketches of ours. Reads the footer of that file, if it has any; a file that is lost or damaged is passed over.
    """
    for candidate, statistics in sketched_entries(table, snapshot):
        ours = [is_ours(blob.properties) for blob in listed_thetas(statistics).values()]
        if any(ours) and not is_copy(statistics):
            try:
                others = read_others(store, statistics) if others_of(statistics, candidate) else ()
            except (ObjectMissingError, PuffinError) as error:
                _log.warning("%s: which statistics to keep up: %s", table_name(table), error)
                continue
            return [(kind_of(key), tuple(fields_of(key))) for key in others]
    return []


def choose_extensions(
    table: Table,
    store: Storage,
    snapshot: Snapshot,
    keys: Mapping[str, FileKey],
    missing: Mapping[StatisticKey, frozenset[str]],
) -> tuple[dict[StatisticKey, Extension], str]:
    """(extension by statistic, note): sketches of the nearest ancestor that has any, which save reading those of its
    files, and for statistics whose sketches are `missing` for files of older ancestors those that cover some of them.

    An ancestor's sketch can be extended if its build id proves that it counts exactly the live rows of the files that
    were not added since, with the same column type: then files were only added since, and no list of the ancestor's
    files need be read. Those of other engines cannot: what they count is unknown.

    missing: paths of files without a sketch, by statistic.
    """
    extensions: dict[StatisticKey, Extension] = {}
    notes: list[str] = []
    tried = 0
    since = {snapshot.snapshot_id}
    for ancestor in nearest_ancestors(table, snapshot):
        here = ancestor.sequence_number or 0
        needed = {i for i, paths in missing.items() if any(keys[path].added <= here for path in paths)}
        unextended = (needed if tried else missing.keys()) - extensions.keys()
        statistics = find_statistics(table, SnapshotId(ancestor.snapshot_id))
        if not unextended or tried == _MAX_TRIED:
            break
        if statistics is not None and _may_extend(statistics, ancestor, unextended):
            tried += 1
            files = {path: key for path, key in keys.items() if key.added <= here and key.added_by not in since}
            try:
                seals = build_ids(str(table.metadata.table_uuid), unextended, files.values())
                sketches = read_sketches(store, statistics, seals)
            except (IcepuffinError, PuffinError) as error:
                notes.append(f"the sketches of ancestor {ancestor.snapshot_id} could not be read: {error}")
                _log.warning("%s: %s", table_name(table), notes[-1])
            else:
                covered = frozenset(files)
                extensions |= {key: Extension(sketch, covered) for key, sketch in sketches.items()}
        since.add(ancestor.snapshot_id)
    return extensions, "; ".join(notes)


def _may_extend(statistics: StatisticsFile, ancestor: Snapshot, wanted: Collection[StatisticKey]) -> bool:
    """Whether an ancestor's entry lists sketches of ours of the wanted statistics, whatever they count."""
    listed = listed_thetas(statistics)
    ours = {i for i, blob in listed.items() if counted_for(blob, ancestor) and is_ours(blob.properties)}
    has_others = others_of(statistics, ancestor) != ""
    return any(key[0] in ours if kind_of(key) is Kind.NDV else has_others for key in wanted)
