"""NDVs in a table's metadata, with the rule by which one may be used."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K, MAX_THETA, bounds
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import (
    SnapshotName,
    find_snapshot,
    resolve_snapshot,
    schema_at,
    table_name,
)
from icepuffin.ops.theta.ancestry import sketched_entries
from icepuffin.ops.theta.build_id import is_later, is_ours, is_outdated
from icepuffin.ops.theta.statistics_slot import counted_for, listed_thetas
from icepuffin.ops.theta.theta_report import ColumnNdv, ThetaStatistics
from icepuffin.puffin import BlobMetadata as StoredBlob
from icepuffin.puffin import DistinctCount

LONG = 2**63
"""Bound of the numbers that a planner reads"""


def read_ndv(table: Table, snapshot: SnapshotName = None) -> ThetaStatistics:
    """Numbers of distinct values that the table's metadata holds for a snapshot; no file is read.

    They are of the snapshot's own statistics, or else of its nearest ancestor's that has any. An NDV is fresh where
    icepuffin counted it for this very snapshot: its snapshot id and sequence number are the snapshot's, and its build
    id is of a format that is trusted. A planner should use fresh NDVs only. What another engine stamped with a snapshot
    may count other rows (see `icepuffin.ops.theta.build_id`).

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    snapshot : int, str or datetime, optional
        Snapshot id, branch, tag or time. Default: the head of `main`.

    Returns
    -------
    ThetaStatistics
        `entries` has a ColumnNdv (ndv, fresh, why) per column, by the column's name in the snapshot (at the head of
        a branch, as of `main`: its name now).

    Raises
    ------
    UnknownSnapshotError
        The snapshot is not in the table's metadata.

    Examples
    --------
    >>> section = icepuffin.read_ndv(table).entries["section"]
    >>> section.ndv, section.fresh
    (17, True)
    """
    require_table(table, "read_ndv")
    return ndv_at(table, resolve_snapshot(table, snapshot).snapshot_id, schema_at(table, snapshot))


def ndv_at(table: Table, snapshot_id: SnapshotId, schema: Schema) -> ThetaStatistics:
    """`read_ndv` of a snapshot id, with the columns' names in `schema`; those that it lacks are left out."""
    name, data = table_name(table), find_snapshot(table, snapshot_id)
    statistics = nearest_statistics(table, data)
    entries = {}
    for field_id, blob in listed_thetas(statistics).items():
        column = schema.find_column_name(field_id)
        ndv = ndv_property(blob)
        if column is not None and ndv is not None:
            fresh, why = freshness(blob, data)
            entries[column] = ColumnNdv(column, field_id, ndv, fresh, why, is_ours(blob.properties))
    return ThetaStatistics(
        name, SnapshotId(data.snapshot_id), entries, statistics.statistics_path if statistics else None
    )


def counts_for_planners(
    table: Table, snapshot: Snapshot, new: Mapping[int, DistinctCount] = MappingProxyType({})
) -> tuple[DistinctCount, ...]:
    """The NDVs of a snapshot for the public footers of our files: by column those that are `new`, by field id, or else
    what `read_ndv` has, whoever counted it, or else what the table's newest statistics have: a version that is made
    for an older snapshot may be the nearest in time to the head. Those of others' entries whose numbers no footer can
    have are left out.
    """
    current = table.schema().field_ids
    counts = {
        field_id: DistinctCount(field_id, blob.snapshot_id, blob.sequence_number, ndv)
        for statistics in (_newest_statistics(table), nearest_statistics(table, snapshot))
        for field_id, blob in listed_thetas(statistics).items()
        if field_id in current
        and (ndv := ndv_property(blob)) is not None
        and all(-LONG <= number < LONG for number in (ndv, blob.snapshot_id, blob.sequence_number))
    }
    return tuple(count for _, count in sorted({**counts, **new}.items()))


def outdated_statistics(table: Table, snapshot_id: SnapshotId) -> str | None:
    """The file in the snapshot's slot, where a materialisation writes another one; None where it does not, or there is
    none.

    It lists sketches but none of ours: an ANALYZE of another engine replaced them, and the two are merged, or they are
    of a format that was given up, and are counted anew. Or it lists a column that was dropped since, by which Spark's
    optimiser fails.
    """
    statistics = find_statistics(table, snapshot_id)
    listed = listed_thetas(statistics)
    snapshot = snapshots_by_id(table.metadata).get(snapshot_id)
    ours = snapshot is not None and is_sketched(snapshot, statistics)
    if statistics is None or not listed or (ours and listed.keys() <= table.schema().field_ids):
        return None
    return statistics.statistics_path


def is_sketched(snapshot: Snapshot, statistics: StatisticsFile | None) -> bool:
    """Whether the slot lists a sketch of ours, or of a later release, that was counted for the snapshot."""
    return any(
        (is_ours(blob.properties) or is_later(blob.properties)) and counted_for(blob, snapshot)
        for blob in listed_thetas(statistics).values()
    )


def ndv_property(blob: BlobMetadata | StoredBlob) -> int | None:
    """The `ndv` property as a number; None where it is absent or no number (Trino writes whole numbers as text)."""
    try:
        ndv = int(float((blob.properties or {})["ndv"]))
    except (KeyError, ValueError, OverflowError):
        return None
    return ndv if ndv >= 0 else None


def ndv_bounds(ndv: int, rows: int, theta: int | None = None, count: int = DEFAULT_K) -> tuple[int, int]:
    """Between which a number of distinct values lies, at 95 %, and no more than `rows` of the data files, deleted ones
    included (0: not known): by theta and number of hashes of its sketch, or by the estimate; up to 4,096 it is exact.
    """
    if theta is None:
        theta, count = (MAX_THETA, ndv) if ndv <= DEFAULT_K else (int(DEFAULT_K * 2.0**63 / ndv), DEFAULT_K)
    low, high = bounds(theta, count)
    return min(ndv, int(low)), max(ndv, min(math.ceil(high), rows or math.ceil(high)))


def nearest_statistics(table: Table, snapshot: Snapshot) -> StatisticsFile | None:
    """The entry of the snapshot or of its nearest ancestor that lists sketches; None where none does."""
    return next((statistics for _, statistics in sketched_entries(table, snapshot)), None)


def _newest_statistics(table: Table) -> StatisticsFile | None:
    """The entry of the snapshot that was made last, of those that list sketches; None where none does."""
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.metadata.snapshots}
    listing = [entry for entry in table.metadata.statistics if entry.snapshot_id in times and listed_thetas(entry)]
    return max(listing, key=lambda entry: times[entry.snapshot_id], default=None)


def freshness(blob: BlobMetadata, snapshot: Snapshot) -> tuple[bool, str]:
    """(whether a listed sketch is fresh for a snapshot, why)."""
    remedy = "materialise the sketches again"
    if is_outdated(blob.properties):
        return False, f"counted in an earlier format, for snapshot {blob.snapshot_id}; {remedy}"
    if not is_ours(blob.properties) and not is_later(blob.properties):
        return False, f"counted by another engine, for snapshot {blob.snapshot_id} as it says; {remedy}"
    if counted_for(blob, snapshot):
        return True, f"counted for snapshot {snapshot.snapshot_id}"
    return False, (
        f"counted for snapshot {blob.snapshot_id} (sequence number {blob.sequence_number}), "
        f"not for {snapshot.snapshot_id} (sequence number {snapshot.sequence_number}); {remedy}"
    )
