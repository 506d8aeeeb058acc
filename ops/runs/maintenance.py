"""Runs that expire the versions of one table by policy, and delete its unreferenced files."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from pyiceberg.table import Table

from icepuffin.ops.binding.bindings import keep_packs, make_lasting
from icepuffin.ops.binding.bound_versions import TagTakenError
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.expiration import expire_packs, unnamed_packs
from icepuffin.ops.binding.files_folder import folder_of
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import faults_of
from icepuffin.ops.index.definitions.ddl import defined_names
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.upkeep.retention_plan import (
    ExpiredVersion,
    carry_out_retention,
    plan_retention,
    retention_of_dropped,
)
from icepuffin.ops.model import MAX_GRACE_HOURS, StorageConfig
from icepuffin.ops.recall.recall_reports import RecallReports
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.table.blob_kind import SKETCHES_TAG, BlobKind, index_tag
from icepuffin.ops.table.snapshots import require_all_snapshots, table_name


def gc(
    table: Table,
    *,
    versions: str = "all",
    last: int | None = None,
    days: float | None = None,
    grace_hours: float = 24.0,
    dry_run: bool = False,
    storage: StorageConfig | None = None,
    recall_reports: str | None = None,
) -> GcReport:
    """Expire versions that are not to be kept, and delete files of icepuffin that nothing references.

    Versions that stay, the newest of each index among them, and everything that icepuffin did not write are never
    touched. No settings file is read: what is kept is what is said here. Look first, with `dry_run`.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    versions : {"all", "tagged", "newest"}
        Snapshots whose versions stay beside the newest: all that the table has, those that a branch or tag of yours
        points at, or none.
    last : int, optional
        Number of versions that stay, by the newest snapshots; tagged ones are not counted. Default: no limit.
    days : float, optional
        Days after which a version expires; those of tagged snapshots stay. Default: no limit.
    grace_hours : float
        Hours for which what is not needed any more stays all the same, for readers that have it open.
    dry_run : bool
        Only say what would be expired and deleted.
    storage : StorageConfig, optional
        As for `refresh`.
    recall_reports : str, optional
        Folder of `open_index`, whose reports about expired versions go, too.

    Returns
    -------
    GcReport
        `retired` versions and why, `deleted` paths, `bytes_freed`, `kept_young` files, and `refused`: reasons why
        something is left for the next time.

    Raises
    ------
    TableFaultError
        The metadata does not name all snapshots, so that nobody knows what is needed, or has something that nothing
        here is made for.
    StorageError
        The store does not answer, or refuses.
    ValueError
        `versions`, `last`, `days` or `grace_hours` is out of range.

    Examples
    --------
    >>> icepuffin.gc(table, versions="newest", dry_run=True).deleted
    ()
    """
    require_table(table, "gc")
    if versions not in (scopes := [scope.value for scope in RetentionScope if scope is not RetentionScope.NONE]):
        raise ValueError(f"versions is {versions!r}; it is one of {', '.join(scopes)}")
    if (last is not None and last < 1) or (days is not None and not days > 0):
        raise ValueError(f"last is {last!r} and days is {days!r}; they are numbers above 0, or left out")
    if not 0 <= grace_hours <= MAX_GRACE_HOURS:
        raise ValueError(f"grace_hours is {grace_hours!r}; it is a number of hours from 0 to {MAX_GRACE_HOURS}")
    with faults_of(table_name(table)):
        return collect_table_garbage(
            table,
            storage=storage or storage_of(table),
            retentions={},
            default=RetentionPolicy(RetentionScope(versions), last, days),
            grace_hours=grace_hours,
            dry_run=dry_run,
            recall_reports=recall_reports,
        )


def collect_table_garbage(
    table: Table,
    *,
    storage: StorageConfig,
    retentions: Mapping[str, RetentionPolicy],
    default: RetentionPolicy,
    grace_hours: float,
    dry_run: bool = False,
    recall_reports: str | None = None,
) -> GcReport:
    """Expire versions by policy, pin those of tagged snapshots, and delete icepuffin's files that nothing references.

    `retentions`: policy per index; `default` for all others and for the file sketches. Tags and snapshots that the
    catalog does not let be changed now are left for the next time; the report says which. In the folder
    `recall_reports` the reports about versions that have expired go, too.

    Raises TableFaultError, and what the catalog and the store raise.
    """
    reload_table(table)
    require_all_snapshots(table)
    grace = timedelta(hours=grace_hours)
    folder = f"{table.metadata.location.rstrip('/')}/{folder_of(table)}"
    now_ms = open_storage(folder, storage).now_ms(folder)
    defined = defined_names(table)
    policies = {name: retentions.get(name, default) for name in defined} | dict(retention_of_dropped(table, defined))
    refusals: list[str] = []
    if not dry_run:
        for tag in (*(index_tag(name) for name in defined), SKETCHES_TAG):
            with _collecting_refusals(refusals):
                make_lasting(table, tag)
        with _collecting_refusals(refusals):
            keep_packs(table)
    plans = {
        index_tag(name): plan_retention(table, BlobKind.INDEX, name, policy, grace=grace, now_ms=now_ms)
        for name, policy in policies.items()
    }
    sketches = plan_retention(table, BlobKind.SKETCHES, BlobKind.SKETCHES, default, grace=grace, now_ms=now_ms)
    plans[SKETCHES_TAG] = replace(sketches, pin=())  # only a cache: pinning it would pin data files
    expired: list[ExpiredVersion] = []
    pinned: list[str] = []
    for tag, plan in plans.items():
        with _collecting_refusals(refusals):
            expired += plan.expire if dry_run else carry_out_retention(table, tag, plan)
            pinned += (f"{tag}-{version.base_snapshot_id}" for version in plan.pin)
    expiring = {version.index_snapshot_id for version in expired} if dry_run else set()
    if dry_run:
        expiring |= unnamed_packs(table, expiring).keys()
    else:
        with _collecting_refusals(refusals):
            expire_packs(table)
    report = collect_garbage(table, storage=storage, grace=grace, dry_run=dry_run, expiring=expiring)
    if recall_reports is not None:
        try:
            report = _with_recall_reports(report, table, recall_reports, storage, grace, expiring)
        except StorageError as error:
            refusals.append(f"reports of live recall: {error}")
    later = sum(plan.postponed for plan in plans.values())
    return replace(report, retired=tuple(expired), retired_later=later, pinned=tuple(pinned), refused=tuple(refusals))


def _with_recall_reports(
    report: GcReport, table: Table, folder: str, storage: StorageConfig, grace: timedelta, expiring: Collection[int]
) -> GcReport:
    """Delete the reports of live recall about versions that the table has no more, and count them to the report."""
    reports = RecallReports(folder, storage, table.metadata.table_uuid)
    old = reports.now_ms() - int(grace.total_seconds() * 1000)
    versions = {snapshot.snapshot_id for snapshot in table.metadata.snapshots} - {*expiring}
    doomed = sorted(reports.of_other_versions(versions, older_than_ms=old), key=lambda stored: stored.path)
    if not report.dry_run:
        reports.delete(*(stored.path for stored in doomed))
    return replace(
        report,
        deleted=(*report.deleted, *(stored.path for stored in doomed)),
        bytes_freed=report.bytes_freed + sum(stored.size for stored in doomed),
    )


@contextmanager
def _collecting_refusals(refusals: list[str]) -> Iterator[None]:
    """Add to `refusals` why a step could not be done; the others do not depend on it."""
    try:
        yield
    except (BindingError, TagTakenError) as error:
        refusals.append(str(error))
