"""The statistics slot of a data snapshot: one file per snapshot, the last writer wins, no compare-and-swap."""

from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

from icepuffin.ops.binding.commit import COMMIT_ATTEMPTS, CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import statistics_by_id
from icepuffin.ops.table.snapshots import find_snapshot, table_name


class StatisticsError(IcepuffinError):
    """Raised when the statistics slot of a snapshot cannot be set."""


def find_statistics(table: Table, snapshot_id: SnapshotId) -> StatisticsFile | None:
    """The entry of a snapshot, whoever registered it; None where there is none."""
    return statistics_by_id(table.metadata).get(snapshot_id)


def register_statistics(
    table: Table,
    snapshot_id: SnapshotId,
    *,
    path: str,
    file_size: int,
    footer_size: int,
    blobs: list[BlobMetadata],
    over: str | None,
) -> bool:
    """Put a file into the slot of a data snapshot in place of the file `over`, and check that it is there.

    False where the slot holds another file, written before our commit or right after it: read that one first. A writer
    during the commit itself is overwritten, as the slot has no compare-and-swap.
    Raises UnknownSnapshotError where the snapshot expired, StatisticsError where the catalog does not take it, or where
    the slot holds another file and an answer was lost: the commit may land yet, so the file must stay.
    """
    entry = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=path,
        file_size_in_bytes=file_size,
        file_footer_size_in_bytes=footer_size,
        blob_metadata=blobs,
    )
    unanswered = False
    for attempt in commit_attempts(table, COMMIT_ATTEMPTS):
        reload_table(table, patient=attempt.number > 0)
        path_now = _registered_path(table, snapshot_id)
        if path_now == path:
            return True
        if not attempt.may_commit:
            break
        if path_now != over:
            return _overtaken(table, snapshot_id, unanswered=unanswered)
        outcome = attempt_commit(table, (SetStatisticsUpdate(statistics=entry),), (), attempt.number)
        unanswered |= outcome is CommitOutcome.UNKNOWN  # it may land yet, and the file must be there then
        if outcome is CommitOutcome.DONE:
            reload_table(table, patient=True)
            path_now = _registered_path(table, snapshot_id)
            if path_now == path:
                return True
            if path_now == over:
                raise StatisticsError(
                    f"{table_name(table)}: catalog {table.catalog.name!r} accepted statistics of {snapshot_id} and did "
                    "not keep them; use another catalog, or set theta_sketches = false for the table"
                )
            return _overtaken(table, snapshot_id, unanswered=unanswered)
    raise StatisticsError(
        f"{table_name(table)}: statistics of {snapshot_id} not set in {attempt.number} attempts; try again"
    )


def _overtaken(table: Table, snapshot_id: SnapshotId, *, unanswered: bool) -> bool:
    """False. Raises StatisticsError where a commit of ours may land yet."""
    if unanswered:
        raise StatisticsError(
            f"{table_name(table)}: the catalog's answer was lost, and somebody else wrote statistics of {snapshot_id} "
            "meanwhile, which are kept; run it again"
        )
    return False


def _registered_path(table: Table, snapshot_id: SnapshotId) -> str | None:
    """The file in the slot. Raises UnknownSnapshotError."""
    find_snapshot(table, snapshot_id)
    entry = find_statistics(table, snapshot_id)
    return entry.statistics_path if entry else None
