"""A bound on what a run reads for sketches, from the table's metadata alone: summaries and statistics."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import once_per_metadata
from icepuffin.ops.table.snapshots import ancestors_from, commits_since
from icepuffin.ops.table.summaries import snapshot_count
from icepuffin.ops.theta.ancestry import MAX_ANCESTORS
from icepuffin.ops.theta.build_id import is_ours
from icepuffin.ops.theta.file_sketches import PART_ROWS
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.sketch_packs import FEW_FILES
from icepuffin.ops.theta.statistics_slot import listed_thetas, others_of

_REMOVALS = ("added-delete-files", "removed-delete-files", "deleted-data-files")
"""Summary keys of changes by which older files may be read again"""


def parts_to_sketch(table: Table, snapshot: Snapshot, requested: RequestedStatistics) -> int:
    """Parts of data files that a run reads for sketches of the snapshot, at most: a task reads each as a whole.

    Those of files that were added since the nearest ancestor with sketches of ours, and of the few that no version
    keeps sketches of, if nothing else has changed since and the ancestor has all NDVs that are `requested`: where they
    are not named, of all columns with any in the table; and other statistics, if any are named. Otherwise those of all
    files.
    """
    ours = _own_fields(table.metadata)
    lineage = islice(ancestors_from(table, snapshot.snapshot_id), MAX_ANCESTORS + 1)
    sketched, since = commits_since(lineage, lambda ancestor: ancestor.snapshot_id in ours)
    if (
        sketched
        and _chosen_fields(table, ours, requested.ndv) <= ours[sketched.snapshot_id]
        and (
            requested.number_of_others(1) == 0
            or others_of(find_statistics(table, SnapshotId(sketched.snapshot_id)), sketched)
        )
        and _adds_up(sketched, snapshot, since)
    ):
        files, rows = (sum(snapshot_count(it, f"added-{of}") for it in since) for of in ("data-files", "records"))
        files += min(FEW_FILES, snapshot_count(sketched, "total-data-files"))  # of less than a part each
    else:
        files, rows = (snapshot_count(snapshot, f"total-{of}") for of in ("data-files", "records"))
    return files + rows // PART_ROWS


def has_only_gained_files(table: Table, since_id: SnapshotId, now: Snapshot) -> bool:
    """Whether the commits since a snapshot have added files and done nothing else, by their summaries. Not where it is
    no ancestor of `now`, or none of the nearest, or a snapshot between them has expired.
    """
    lineage = islice(ancestors_from(table, now.snapshot_id), MAX_ANCESTORS + 1)
    first, since = commits_since(lineage, lambda ancestor: ancestor.snapshot_id == since_id)
    return first is not None and _adds_up(first, now, since)


@once_per_metadata
def _own_fields(metadata: TableMetadata) -> Mapping[int, frozenset[int]]:
    """Field ids of the columns of which a snapshot lists a sketch of ours, by the ids of snapshots that have any."""
    by_id = {
        statistics.snapshot_id: frozenset(
            field_id
            for field_id, blob in listed_thetas(statistics).items()
            if is_ours(blob.properties) and blob.snapshot_id == statistics.snapshot_id
        )
        for statistics in metadata.statistics
    }
    return {snapshot_id: fields for snapshot_id, fields in by_id.items() if fields}


def _chosen_fields(table: Table, ours: Mapping[int, frozenset[int]], columns: Collection[str] | None) -> frozenset[int]:
    """Field ids of the columns that are to have a sketch."""
    names = {field.field_id: field.name for field in table.schema().fields}
    if columns is None:
        return frozenset().union(*ours.values()) & names.keys()
    return frozenset(field_id for field_id, name in names.items() if name in columns)


def _adds_up(sketched: Snapshot, now: Snapshot, since: Sequence[Snapshot]) -> bool:
    """Whether the commits since have added files and done nothing else, by their summaries."""
    added = sum(snapshot_count(it, "added-data-files") for it in since)
    return (
        sketched.schema_id == now.schema_id
        and not any(snapshot_count(it, key) for it in since for key in _REMOVALS)
        and snapshot_count(now, "total-data-files") - snapshot_count(sketched, "total-data-files") == added
    )
