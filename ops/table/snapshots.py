"""Data snapshots of a table: the user's own, without the ones that icepuffin derives."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import numpy as np
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

from icepuffin.ops.errors import ArgumentError, TableFaultError, TableStateError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.blob_types import admit_foreign_blobs
from icepuffin.ops.table.metadata_memo import once_per_metadata, snapshots_by_id
from icepuffin.ops.table.ownership import own_snapshot, own_snapshots
from icepuffin.ops.table.summaries import number_of, snapshot_count

admit_foreign_blobs()  # before a table is loaded
_log = logging.getLogger(__name__)
SnapshotName = int | str | datetime | None
"""Snapshot id, tag, branch or time; None is the head of main"""


class UnknownSnapshotError(ArgumentError):
    """Raised when a snapshot, ref or time names nothing in the table's metadata (or no longer does)."""


class TableUnavailableError(TableStateError):
    """Raised when a table is gone from its catalog."""


@dataclass(frozen=True, slots=True)
class DataSnapshot:
    """One snapshot that a user's write made."""

    snapshot_id: SnapshotId
    sequence_number: int
    timestamp_ms: int
    operation: str
    schema_id: int


def table_name(table: Table) -> str:
    """`namespace.table`, for messages."""
    return ".".join(table.name())


def is_derived(snapshot: Snapshot) -> bool:
    """Whether icepuffin made this snapshot: to bind a file to its base, or to hold a pack."""
    return own_snapshot(snapshot) is not None


def pack_owner(snapshot: Snapshot) -> str | None:
    """The index whose pack a holder snapshot carries, for one of file sketches the name of their kind; None for all
    other snapshots.
    """
    owned = own_snapshot(snapshot)
    return None if owned is None else owned.pack_owner


def base_snapshot_id(snapshot: Snapshot) -> SnapshotId | None:
    """The data snapshot that a derived snapshot belongs to; None for the user's own."""
    owned = own_snapshot(snapshot)
    return None if owned is None else owned.base_id


@once_per_metadata
def derived_ids(metadata: TableMetadata) -> frozenset[SnapshotId]:
    """Ids of all snapshots that `is_derived` is true of."""
    return frozenset(own_snapshots(metadata))


@once_per_metadata
def history_of_data(metadata: TableMetadata) -> frozenset[SnapshotId]:
    """Ids of the snapshots by which the owner's data has its history: parents of data snapshots, and those that `main`
    has pointed at. Derived ones are among them where the owner made a branch on one and wrote to it, or made one the
    current one: with such a one Iceberg's libraries drop what they know of the time before.
    """
    derived = derived_ids(metadata)
    parents = (item.parent_snapshot_id for item in metadata.snapshots if item.snapshot_id not in derived)
    current = (entry.snapshot_id for entry in metadata.snapshot_log)
    return frozenset(SnapshotId(item) for item in (*parents, *current) if item is not None)


def data_snapshots(table: Table, ref: str = "main") -> tuple[DataSnapshot, ...]:
    """The user's snapshots that `ref` descends from, oldest first; as far back as metadata reaches.

    Empty for a table that was never written. Raises UnknownSnapshotError for a ref that does not exist.
    """
    return tuple(reversed(tuple(_newest_first(table, ref))))


def newest_data_snapshots(table: Table, ref: str, count: int) -> tuple[DataSnapshot, ...]:
    """The last `count` of `data_snapshots`, newest first."""
    return tuple(islice(_newest_first(table, ref), count))


def _newest_first(table: Table, ref: str) -> Iterator[DataSnapshot]:
    derived = derived_ids(table.metadata)
    for snapshot in ancestors_from(table, ref_snapshot_id(table, ref)):
        if snapshot.snapshot_id not in derived:
            yield as_data_snapshot(table, snapshot)


def ref_snapshot_id(table: Table, ref: str) -> SnapshotId | None:
    """Id of the snapshot that a branch or tag points at; None for `main` of a table that was never written."""
    target = table.metadata.refs.get(ref)
    if target is not None:
        return SnapshotId(target.snapshot_id)
    if ref == "main":
        current = table.metadata.current_snapshot_id
        return None if current is None else SnapshotId(current)
    refs = ", ".join(sorted(table.metadata.refs)) or "none"
    raise UnknownSnapshotError(
        f"{table_name(table)} has no ref {ref!r}; its branches and tags are {refs}. A snapshot is named by one of "
        "them, by its id, or by a time such as 2026-11-20T08:00"
    )


def head_of(table: Table, ref: str) -> SnapshotId | None:
    """Id of the data snapshot that `ref` points at, by a derived one where the table's owner put it on that; of a
    derived one itself where its data snapshot has expired. None where the ref does not exist, or `main` was never
    written to.
    """
    head = ref_snapshot_id(table, ref) if ref == "main" or ref in table.metadata.refs else None
    snapshots = snapshots_by_id(table.metadata)
    base = base_snapshot_id(snapshots[head]) if head in snapshots else None
    return base if base in snapshots else head


def hides_snapshots(table: Table) -> bool:
    """Whether the catalog leaves out snapshots that have not expired: ones that the table's history still names, or the
    metadata file that the catalog serves. The history is that of `main` alone, and the file is read.
    """
    shown = snapshots_by_id(table.metadata)
    if any(entry.snapshot_id not in shown for entry in table.metadata.snapshot_log):
        return True
    return any(snapshot_id not in shown for snapshot_id in _stored_snapshot_ids(table))


def _stored_snapshot_ids(table: Table) -> tuple[SnapshotId, ...]:
    """Snapshots in the metadata file that a catalog serves. Empty where the file is missing or cannot be read, as the
    catalog is trusted then, and for a metastore, which shows the file itself.
    """
    if isinstance(table.catalog, MetastoreCatalog) or not table.metadata_location:
        return ()
    try:
        stored = FromInputFile.table_metadata(table.io.new_input(table.metadata_location))
    except Exception as error:  # a FileIO raises what its library does, and AccessError
        _log.warning("%s: %s cannot be read: %s", table_name(table), table.metadata_location, error)
        return ()
    return tuple(SnapshotId(snapshot.snapshot_id) for snapshot in stored.snapshots)


def require_all_snapshots(table: Table) -> None:
    """Raises TableFaultError where `hides_snapshots`: to delete files that no snapshot needs, all must be seen."""
    if hides_snapshots(table):
        raise TableFaultError(
            f"{table_name(table)}: catalog {table.catalog.name!r} does not show all snapshots that the table's history "
            "or its metadata file names, so nothing is expired and nothing deleted. Have it answer requests for all "
            "snapshots (`snapshots=all`), or expire snapshots with an engine that cleans the history too"
        )


def find_snapshot(table: Table, snapshot_id: SnapshotId) -> Snapshot:
    """The snapshot. Raises UnknownSnapshotError where it never was or has expired."""
    snapshot = snapshots_by_id(table.metadata).get(snapshot_id)
    if snapshot is None:
        raise UnknownSnapshotError(
            f"{table_name(table)} has no snapshot {snapshot_id}: it has expired, or it belongs to another table"
        )
    return snapshot


def as_data_snapshot(table: Table, snapshot: Snapshot) -> DataSnapshot:
    """The parts of a snapshot that this project needs; fields that v1 tables lack are filled in."""
    return DataSnapshot(
        snapshot_id=SnapshotId(snapshot.snapshot_id),
        sequence_number=snapshot.sequence_number or 0,
        timestamp_ms=snapshot.timestamp_ms,
        operation="unknown" if snapshot.summary is None else snapshot.summary.operation.value,
        schema_id=table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id,
    )


def resolve_snapshot(table: Table, name: SnapshotName = None) -> DataSnapshot:
    """The data snapshot that `name` stands for: a snapshot id, a ref, a time, or None for the head of main.

    A time means the snapshot that was current then; one without a zone is UTC, wherever it is read. A derived snapshot,
    or a ref on one, means the data snapshot that it belongs to; where that has expired, the derived snapshot itself,
    which has the same rows. Raises UnknownSnapshotError where there is none.
    """
    snapshot_id = _named_snapshot_id(table, name)
    if snapshot_id is None:
        raise UnknownSnapshotError(f"{table_name(table)} has no snapshot yet: nothing was ever written to it")
    snapshot = find_snapshot(table, snapshot_id)
    _require_rows(table, snapshot)
    base = base_snapshot_id(snapshot)
    data = snapshots_by_id(table.metadata).get(base) if base is not None else None
    return as_data_snapshot(table, data or snapshot)


def _require_rows(table: Table, snapshot: Snapshot) -> None:
    """Raises UnknownSnapshotError for a snapshot of icepuffin's that belongs to no data snapshot, such as a holder."""
    owned = own_snapshot(snapshot)
    if owned is not None and owned.base_id is None:
        content = "theta sketches" if owned.kind == BlobKind.SKETCHES else f"shards of index {owned.pack_owner}"
        if owned.pack_owner is None:
            content = f"what a later release of icepuffin made, of kind {owned.kind!r:.40},"
        raise UnknownSnapshotError(
            f"{table_name(table)}: snapshot {snapshot.snapshot_id} only holds {content}, and has no rows; name a "
            "snapshot of the table's own"
        )


def is_head_of_main(name: SnapshotName) -> bool:
    """Whether `name` is the head of main at any time."""
    return name in (None, "main")


def schema_at(table: Table, name: SnapshotName = None, resolved: DataSnapshot | None = None) -> Schema:
    """The schema in which a snapshot is read: its own; at the head of a branch, as of main, the table's current one,
    since a change of the schema makes no snapshot. So Iceberg's Java has it (`SnapshotUtil.schemaFor`); PyIceberg
    reads other branches by their snapshots' schemas. `resolved`: what `name` stands for, if that is known. Raises
    UnknownSnapshotError, and as `find_schema`.
    """
    ref = table.metadata.refs.get(name) if isinstance(name, str) else None
    if is_head_of_main(name) or (ref is not None and ref.snapshot_ref_type is SnapshotRefType.BRANCH):
        return table.schema()
    return find_schema(table, (resolved or resolve_snapshot(table, name)).schema_id)


def find_schema(table: Table, schema_id: int) -> Schema:
    """The schema that a snapshot names. Raises TableFaultError where the metadata has none of that id."""
    if schema_id not in (schemas := table.schemas()):
        raise TableFaultError(
            f"{table_name(table)}: a snapshot names schema {schema_id}, which the metadata lacks. Look at what wrote it"
        )
    return schemas[schema_id]


def with_zone(time: datetime) -> datetime:
    """The time with a zone: UTC where it has none, whatever the zone of a machine or a session is."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def ancestor_ids(table: Table, snapshot_id: SnapshotId) -> frozenset[SnapshotId]:
    """Ids of the snapshot and its ancestors, as far as metadata reaches; the oldest may have expired."""
    parents = map(parent_id, ancestors_from(table, snapshot_id))
    return frozenset({snapshot_id, *(parent for parent in parents if parent is not None)})


def require_data_snapshot(table: Table, snapshot_id: SnapshotId) -> None:
    """Raises UnknownSnapshotError for a derived snapshot: no version is made of one."""
    snapshot = find_snapshot(table, snapshot_id)
    base = base_snapshot_id(snapshot)
    _require_rows(table, snapshot)
    if base is not None:
        raise UnknownSnapshotError(
            f"{table_name(table)}: snapshot {snapshot_id} is icepuffin's own, for data snapshot {base}; name that one, "
            "or another if it has expired: a version of what is gone can be searched, and not made"
        )


def _named_snapshot_id(table: Table, name: object) -> SnapshotId | None:
    match name:
        case None:
            return ref_snapshot_id(table, "main")
        case int() | np.integer():
            return SnapshotId(int(name))
        case datetime():
            return _snapshot_as_of(table, name)
        case str():
            return _named_by_text(table, name)
    raise UnknownSnapshotError(f"{table_name(table)}: {name!r:.60} is no snapshot id, no tag or branch, and no time")


def _named_by_text(table: Table, name: str) -> SnapshotId | None:
    if name not in table.metadata.refs:
        if (number := number_of(name)) is not None:
            return SnapshotId(number)
        with suppress(ValueError):
            return _snapshot_as_of(table, datetime.fromisoformat(name))
    return ref_snapshot_id(table, name)


def _snapshot_as_of(table: Table, time: datetime) -> SnapshotId:
    moment, log = with_zone(time).timestamp() * 1000, table.metadata.snapshot_log
    index = max((index for index, entry in enumerate(log) if entry.timestamp_ms <= moment), default=None)
    if index is None:
        oldest = f"; the oldest is of {_utc(min(entry.timestamp_ms for entry in log))}" if log else ""
        raise UnknownSnapshotError(f"{table_name(table)} has no snapshot as old as {time.isoformat()}{oldest}")
    entry = log[index]
    after = next(iter(log[index + 1 :]), None)
    if after is not None and moment >= entry.timestamp_ms + 1 and _may_lack_entries(table, entry, after):
        raise UnknownSnapshotError(
            f"{table_name(table)}: which snapshot was current at {time.isoformat()} is not known, because some of "
            f"{_utc(entry.timestamp_ms)} to {_utc(after.timestamp_ms)} have expired; name one by its id"
        )
    return SnapshotId(entry.snapshot_id)


def _may_lack_entries(table: Table, entry: SnapshotLogEntry, after: SnapshotLogEntry) -> bool:
    """Whether a snapshot that has expired may have been current between two entries of the history.

    PyIceberg takes out the entries of expired snapshots alone, and their ids from their children. Iceberg's other
    libraries take out all older entries, too. Without a parent there are also snapshots that replace a table: nothing
    came between where no sequence number is missing.
    """
    if entry.snapshot_id == after.snapshot_id:
        return True  # a rollback of what has expired
    by_id = snapshots_by_id(table.metadata)
    first, second = by_id.get(entry.snapshot_id), by_id.get(after.snapshot_id)
    if first is None or second is None or second.parent_snapshot_id is not None:
        return False
    if not first.sequence_number or not second.sequence_number:
        return True  # format v1
    shown = {snapshot.sequence_number for snapshot in by_id.values()}
    return any(number not in shown for number in range(first.sequence_number, second.sequence_number))


def _utc(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def ancestors_from(table: Table, head: int | None) -> Iterator[Snapshot]:
    """Snapshot `head` and its ancestors, nearest first, as far as they have not expired.

    A derived snapshot descends from its base, for the history of a branch that the table's owner made on it. Raises
    TableFaultError where a snapshot descends from itself.
    """
    by_id = snapshots_by_id(table.metadata)
    passed: set[int] = set()
    while head is not None and (snapshot := by_id.get(head)) is not None:
        if head in passed:
            raise TableFaultError(
                f"{table_name(table)}: snapshot {head} descends from itself by the parents in the table's metadata, so "
                "the table has no history. Other tables are not affected. Look at what wrote to it last"
            )
        passed.add(head)
        yield snapshot
        head = parent_id(snapshot)


def parent_id(snapshot: Snapshot) -> SnapshotId | None:
    """Id of the snapshot that this one descends from: its parent, or the base of a derived snapshot."""
    parent = snapshot.parent_snapshot_id
    return base_snapshot_id(snapshot) if parent is None else SnapshotId(parent)


def commits_since(
    lineage: Iterable[Snapshot], is_base: Callable[[Snapshot], bool]
) -> tuple[Snapshot | None, list[Snapshot]]:
    """(the first snapshot of a lineage that is a base, the ones before it); None and no others where there is none."""
    since: list[Snapshot] = []
    for snapshot in lineage:
        if is_base(snapshot):
            return snapshot, since
        since.append(snapshot)
    return None, []


def snapshot_rows(table: Table, snapshot_id: SnapshotId) -> int:
    """Rows of the snapshot less its position deletes, by its summary; 0 where there is no such snapshot or number.

    Deletes of rows that were rewritten since count as well, as many engines leave them, and equality deletes do not.
    """
    snapshot = snapshots_by_id(table.metadata).get(snapshot_id)
    deletes = 0 if snapshot is None else snapshot_count(snapshot, "total-position-deletes")
    return max(0, rows_in_files(table, snapshot_id) - deletes)


def rows_in_files(table: Table, snapshot_id: SnapshotId) -> int:
    """Rows of the snapshot's data files by its summary, the deleted ones among them: at least its live rows."""
    snapshot = snapshots_by_id(table.metadata).get(snapshot_id)
    return 0 if snapshot is None else snapshot_count(snapshot, "total-records")
