"""Snapshots as readers of a table mean them: the user's own, without the ones that icepuffin derives."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.catalog.blob_kind import BASE_SNAPSHOT_KEYS
from icepuffin.ops.errors import IcepuffinError, require_type

SnapshotName = int | str | datetime | None
"""Snapshot id, tag, branch or time; None is the head of main"""


class UnknownSnapshotError(IcepuffinError):
    """Raised when a snapshot, ref or time names nothing in the table's metadata (or no longer does)."""

    retryable = False


class PartialMetadataError(IcepuffinError):
    """Raised before anything is deleted where a catalog does not show all snapshots that the table has."""

    retryable = False


class TableUnavailableError(IcepuffinError):
    """Raised when a table is gone from its catalog."""


@dataclass(frozen=True, slots=True)
class DataSnapshot:
    """One snapshot that a user's write made."""

    snapshot_id: int
    sequence_number: int
    parent_id: int | None
    timestamp_ms: int
    operation: str
    schema_id: int


def table_name(table: Table) -> str:
    """`namespace.table`, for messages."""
    return ".".join(table.name())


def require_table(table: object, function: str) -> None:
    """Raises TypeError where `function` was given something else than a PyIceberg table, such as a table's name."""
    remedy = 'load it first, as in catalog.load_table("ns.t")'
    require_type(table, Table, f"{function} takes a PyIceberg table", remedy)


def is_derived(snapshot: Snapshot) -> bool:
    """Whether icepuffin made this snapshot to bind a file to its parent."""
    return base_snapshot_id(snapshot) is not None


def base_snapshot_id(snapshot: Snapshot) -> int | None:
    """The data snapshot that a derived snapshot belongs to; None for the user's own."""
    if snapshot.summary is None:
        return None
    properties = snapshot.summary.additional_properties
    return next((int(properties[key]) for key in BASE_SNAPSHOT_KEYS if key in properties), None)


def data_snapshots(table: Table, ref: str = "main") -> tuple[DataSnapshot, ...]:
    """The user's snapshots that `ref` descends from, oldest first; as far back as metadata reaches.

    Empty for a table that was never written. Raises UnknownSnapshotError for a ref that does not exist.
    """
    head = ref_snapshot_id(table, ref)
    lineage = [as_data_snapshot(table, snapshot) for snapshot in _ancestors(table, head) if not is_derived(snapshot)]
    return tuple(reversed(lineage))


def newest_data_snapshots(table: Table, ref: str, count: int) -> tuple[DataSnapshot, ...]:
    """The last `count` of `data_snapshots`, newest first."""
    mine = (item for item in _ancestors(table, ref_snapshot_id(table, ref)) if not is_derived(item))
    return tuple(as_data_snapshot(table, snapshot) for snapshot in islice(mine, count))


def ref_snapshot_id(table: Table, ref: str) -> int | None:
    """Where a branch or tag points; None for `main` of a table that was never written."""
    found = table.metadata.refs.get(ref)
    if found is not None:
        return found.snapshot_id
    if ref == "main":
        return table.metadata.current_snapshot_id
    refs = ", ".join(sorted(table.metadata.refs)) or "none"
    raise UnknownSnapshotError(
        f"{table_name(table)} has no ref {ref!r}; its branches and tags are {refs}. A snapshot is named by one of "
        "them, by its id, or by a time such as 2026-11-20T08:00"
    )


def head_of(table: Table, ref: str) -> int | None:
    """Where a ref that is watched points; None where it does not exist yet, or nothing was ever written to `main`."""
    return ref_snapshot_id(table, ref) if ref == "main" or ref in table.metadata.refs else None


def hides_snapshots(table: Table) -> bool:
    """Whether the catalog leaves out snapshots that have not expired: the table's history still names them then."""
    shown = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    return any(entry.snapshot_id not in shown for entry in table.metadata.snapshot_log)


def require_all_snapshots(table: Table) -> None:
    """Raises PartialMetadataError: whoever deletes what no snapshot needs has to see all of them."""
    if hides_snapshots(table):
        raise PartialMetadataError(
            f"{table_name(table)}: catalog {table.catalog.name!r} does not show all snapshots that the table's history "
            "names, so nothing is let go of and nothing deleted. Have it answer requests for all snapshots "
            "(`snapshots=all`), or expire snapshots with an engine that cleans the history too"
        )


def find_snapshot(table: Table, snapshot_id: int) -> Snapshot:
    """The snapshot. Raises UnknownSnapshotError where it never was or has expired."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise UnknownSnapshotError(
            f"{table_name(table)} has no snapshot {snapshot_id}: it has expired, or it belongs to another table"
        )
    return snapshot


def as_data_snapshot(table: Table, snapshot: Snapshot) -> DataSnapshot:
    """The parts of a snapshot that this project needs; fields that v1 tables lack are filled in."""
    return DataSnapshot(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number or 0,
        parent_id=snapshot.parent_snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        operation=snapshot.summary.operation.value if snapshot.summary else "unknown",
        schema_id=table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id,
    )


def resolve_snapshot(table: Table, at: int | str | datetime | None = None) -> DataSnapshot:
    """The data snapshot that `at` names: a snapshot id, a ref, a time, or None for the head of main.

    A time means the snapshot that was current then; one without a zone is UTC, wherever it is read. A derived snapshot,
    or a ref on one, means the data snapshot that it belongs to; where that has expired, the derived snapshot itself,
    which has the same rows. Raises UnknownSnapshotError where there is none.
    """
    snapshot_id = _named_snapshot_id(table, at)
    if snapshot_id is None:
        raise UnknownSnapshotError(f"{table_name(table)} has no snapshot yet: nothing was ever written to it")
    snapshot = find_snapshot(table, snapshot_id)
    base = base_snapshot_id(snapshot)
    data = table.metadata.snapshot_by_id(base) if base is not None else None
    return as_data_snapshot(table, data or snapshot)


def is_head_of_main(at: int | str | datetime | None) -> bool:
    """Whether `at` names it whatever is written."""
    return at in (None, "main")


def schema_at(table: Table, at: int | str | datetime | None = None) -> Schema:
    """What columns are called where the table is read at `at`: as in that snapshot; at the head of main as now, since a
    change of the schema makes no snapshot. Raises UnknownSnapshotError.
    """
    if is_head_of_main(at):
        return table.schema()
    return table.schemas()[resolve_snapshot(table, at).schema_id]


def with_zone(at: datetime) -> datetime:
    """The one rule for times that have no zone: they are UTC, whatever the zone of a machine or a session is."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def lineage_ids(table: Table, snapshot_id: int) -> frozenset[int]:
    """The snapshot and what it descends from, as far as metadata reaches; the oldest of them may have expired."""
    lineage = tuple(_ancestors(table, snapshot_id))
    return frozenset(
        {snapshot_id, *(item.parent_snapshot_id for item in lineage if item.parent_snapshot_id is not None)}
    )


def require_data_snapshot(table: Table, snapshot_id: int) -> None:
    """Raises UnknownSnapshotError for a derived snapshot: nothing is derived from those."""
    base = base_snapshot_id(find_snapshot(table, snapshot_id))
    if base is not None:
        raise UnknownSnapshotError(
            f"{table_name(table)}: snapshot {snapshot_id} is icepuffin's own, for data snapshot {base}; name that one, "
            "or another if it has expired: a version of what is gone can be searched, and not made"
        )


def _named_snapshot_id(table: Table, at: object) -> int | None:
    match at:
        case None:
            return ref_snapshot_id(table, "main")
        case int() | np.integer():
            return int(at)
        case datetime():
            return _snapshot_as_of(table, at)
        case str():
            return _named_by_text(table, at)
    raise UnknownSnapshotError(f"{table_name(table)}: {at!r:.60} is no snapshot id, no tag or branch, and no time")


def _named_by_text(table: Table, at: str) -> int | None:
    if at not in table.metadata.refs:
        if at.isdecimal():
            return int(at)
        with suppress(ValueError):
            return _snapshot_as_of(table, datetime.fromisoformat(at))
    return ref_snapshot_id(table, at)


def _snapshot_as_of(table: Table, at: datetime) -> int:
    moment = with_zone(at).timestamp() * 1000
    entries = [entry for entry in table.metadata.snapshot_log if entry.timestamp_ms <= moment]
    if not entries:
        first = min((entry.timestamp_ms for entry in table.metadata.snapshot_log), default=None)
        oldest = f"; the oldest is of {datetime.fromtimestamp(first / 1000, UTC).isoformat()}" if first else ""
        raise UnknownSnapshotError(f"{table_name(table)} has no snapshot as old as {at.isoformat()}{oldest}")
    return entries[-1].snapshot_id


def _ancestors(table: Table, head: int | None) -> Iterator[Snapshot]:
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}  # by_id searches all, each time
    while head is not None and (snapshot := known.get(head)) is not None:
        yield snapshot
        head = snapshot.parent_snapshot_id


def snapshot_rows(table: Table, snapshot_id: int) -> int:
    """Live rows of the snapshot as its summary tells; 0 where there is no such snapshot or it does not say."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.summary is None:
        return 0
    totals = snapshot.summary.additional_properties
    return int(totals.get("total-records", 0)) - int(totals.get("total-position-deletes", 0))
