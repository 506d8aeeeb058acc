"""The statistics slot of a data snapshot: one file a snapshot, the last writer wins, no compare-and-swap."""

from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

from icepuffin.ops.catalog.commit import CommitOutcome, attempt_commit, refresh
from icepuffin.ops.catalog.snapshots import find_snapshot, table_name
from icepuffin.ops.errors import IcepuffinError

_ATTEMPTS = 12


class StatisticsError(IcepuffinError):
    """Raised when the statistics slot of a snapshot cannot be set."""


def find(table: Table, snapshot_id: int) -> StatisticsFile | None:
    """What is registered for a snapshot, by whomever."""
    return next((entry for entry in table.metadata.statistics if entry.snapshot_id == snapshot_id), None)


def register(
    table: Table,
    snapshot_id: int,
    *,
    path: str,
    file_size: int,
    footer_size: int,
    blobs: list[BlobMetadata],
    over: str | None,
) -> bool:
    """Put a file into the slot of a data snapshot in place of the file `over`, and look whether it is there.

    False where the slot holds something else by now, written before our commit or right after it: look at that first. A
    writer who comes in the very commit is overwritten all the same, as the slot has no compare-and-swap.
    Raises UnknownSnapshotError where the snapshot expired, StatisticsError where the catalog does not take it.
    """
    entry = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=path,
        file_size_in_bytes=file_size,
        file_footer_size_in_bytes=footer_size,
        blob_metadata=blobs,
    )
    unanswered = False
    for attempt in range(_ATTEMPTS):
        refresh(table, patient=attempt > 0)
        held = _held(table, snapshot_id)
        if held == path:
            return True
        if held != over and not unanswered:
            return False
        outcome = attempt_commit(table, (SetStatisticsUpdate(statistics=entry),), (), attempt)
        unanswered |= outcome is CommitOutcome.UNKNOWN  # it may land yet, and the file must be there then
        if outcome is CommitOutcome.DONE:
            refresh(table, patient=True)
            held = _held(table, snapshot_id)
            if held == path:
                return True
            if held == over:
                raise StatisticsError(
                    f"{table_name(table)}: catalog {table.catalog.name!r} accepted statistics of {snapshot_id} and did "
                    "not keep them; use another catalog, or set theta_sketches = false for the table"
                )
            if not unanswered:
                return False
    raise StatisticsError(
        f"{table_name(table)}: statistics of {snapshot_id} not set in {_ATTEMPTS} attempts; try again"
    )


def _held(table: Table, snapshot_id: int) -> str | None:
    """The file in the slot. Raises UnknownSnapshotError."""
    find_snapshot(table, snapshot_id)
    current = find(table, snapshot_id)
    return current.statistics_path if current else None
