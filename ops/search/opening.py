"""Opening an index at a snapshot: which version answers, and what that means for the answer."""

import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from shlex import quote

from pyiceberg.exceptions import AuthorizationExpiredError, ForbiddenError, NoSuchTableError, UnauthorizedError
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import process_cache
from icepuffin.ops.catalog.read_restrictions import pyiceberg_table, requested_restrictions
from icepuffin.ops.catalog.restricted_tables import ReadRestrictions, RestrictedTableError, restriction_error
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import require_type
from icepuffin.ops.index.definitions.ddl import load_definition, only_index
from icepuffin.ops.index.definitions.definition_columns import resolve_column, resolve_field
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition, metric_fault
from icepuffin.ops.index.errors import EarlierLayoutError, LaterReleaseError, NotAnIndexError
from icepuffin.ops.index.planning.changes import files_mapped_since
from icepuffin.ops.index.planning.current_versions import distances_text
from icepuffin.ops.index.planning.version_plan import nearest_first
from icepuffin.ops.index.versions.tuning_record import PREFIX as TUNING
from icepuffin.ops.index.versions.version_reader import (
    OpenVersion,
    covered_paths,
    open_versions,
    same_files,
    shared_rows,
    without_files,
)
from icepuffin.ops.model import IN_PROCESS_MB, LiveFiles, StorageConfig
from icepuffin.ops.process.threads import thread_count
from icepuffin.ops.recall.recall_reports import RecallReporter, RecallReports
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.ops.rows.vector_column import VectorSchema, element_type_of, holds_doubles
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.exact.file_scans import TaskChoice
from icepuffin.ops.search.following_reader import Withdraw
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion, choose_runner
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion, load_balls, load_version
from icepuffin.ops.search.indexed.worker import SearchJob
from icepuffin.ops.search.measured.live_recall import RecallSampler
from icepuffin.ops.search.reader import IndexReader, Reopen
from icepuffin.ops.search.result import OpeningCost, StalePolicy
from icepuffin.ops.search.target import Restriction, SearchTarget, VersionChoice, is_own
from icepuffin.ops.shards.shard_keys import in_compact_layout
from icepuffin.ops.storage import StorageError
from icepuffin.ops.table.live_files import live_files, require_resolvable_deletes
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.ops.table.snapshots import (
    SnapshotName,
    ancestor_ids,
    is_head_of_main,
    resolve_snapshot,
    schema_at,
    table_name,
)
from icepuffin.ops.tasks.task_runner import TaskRunner
from icepuffin.puffin.errors import PuffinError

_BALLS = "the index has no graphs"
_NOT_GIVEN = (AuthorizationExpiredError, ForbiddenError, NoSuchTableError, UnauthorizedError)
"""What a catalog answers where its user may not read a table; some hide a table of others, as if there were none"""


def open_index(
    table: Table,
    index: str | IndexDefinition | None = None,
    *,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
    stale: StalePolicy | str = StalePolicy.COMPLETE,
    threads: int | None = None,
    runner: TaskRunner | None = None,
    in_process_mb: int = IN_PROCESS_MB,
    recall_sample: float = 0.0,
    recall_reports: str | None = None,
) -> IndexReader:
    """Open an index of a table at a snapshot, for searching.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    index : str, optional
        Name of the index. Default: the only one that the table has.
    snapshot : int, str or datetime, optional
        Snapshot id, branch, tag or time (UTC where it has no zone). Default: the head of `main`.
    storage : StorageConfig, optional
        How files are reached. Default: what the catalog says and vends.
    stale : {"complete", "exact", "nearest-only", "fail"}
        What to do where the snapshot has no version that can be read: search the nearest version and scan what it
        lacks; scan every row; search the nearest version alone, with a warning; or raise.
    threads : int, optional
        Threads of this process. Default: one per core.
    runner : TaskRunner, optional
        Such as `SparkRunner(session)`: its tasks search an index that is too large for this process, and read data
        files where there is much to compare.
    in_process_mb : int
        Size of an index, and of the vectors of data files to compare, in MiB, over which the runner is used.
    recall_sample : float
        Share of the queries that are answered exactly, too, in the background: `IndexReader.stats` has their recall.
        Default: none.
    recall_reports : str, optional
        Folder to which that recall is reported, once a minute at most, for `icepuffin stats` and for Dagster's check
        `live_recall`. It is reached as the table's files are. Default: nothing is reported.

    Returns
    -------
    IndexReader
        Immutable and safe for threads. Keep it: opening reads the shards, searching does not. Of an index of more than
        256 MiB each shard is read by the first search that needs it.

    Raises
    ------
    RestrictedTableError
        The catalog restricts what its user may read, in a way that a reader cannot enforce.
    UnknownSnapshotError
        The snapshot is not in the table's metadata.
    DefinitionError
        There is no such index, or there are several and none was named.
    EqualityDeletesError
        The snapshot has equality deletes that cannot be resolved.
    IndexUnavailableError
        With the policy `fail`: the snapshot has no version that can be read. With any: the index has versions of a
        layout that was given up alone; the message has the command that builds it anew.
    QueryError
        `stale` or `recall_sample` is out of range, or `recall_reports` is given without a `recall_sample`.
    StorageError
        `recall_reports` is of a store that is not supported.
    ValueError
        `threads` is under 1.

    Examples
    --------
    >>> reader = icepuffin.open_index(table)
    >>> reader
    IndexReader('demo.packages', index 'embedding', snapshot ..., 6,000 rows, 384 dimensions, cosine, exact-version)
    """
    sampler, own_threads = RecallSampler(recall_sample), thread_count(threads)
    if recall_reports is not None:
        require_type(recall_reports, str, "recall_reports is the location of a folder", "write s3://bucket/recall")
        if not sampler.share:
            raise QueryError("recall_reports needs queries that are measured: set recall_sample too, such as 0.01")
    raw = pyiceberg_table(table, "open_index")
    restrictions = requested_restrictions(raw)
    require_type(index, str | IndexDefinition | None, "index is a name", "leave it out where the table has one index")
    _require_storage(storage)
    if stale not in tuple(StalePolicy):
        raise QueryError(f"stale is '{stale}'; it is one of {', '.join(StalePolicy)}")
    opening = _IndexOpening(
        only_index(raw) if index is None else index,
        snapshot,
        storage,
        StalePolicy(stale),
        own_threads,
        TaskChoice(runner, in_process_mb),
        sampler,
    )
    reader = opening.reader(raw, restrictions)
    if recall_reports is not None and reader.definition is not None:
        reports = RecallReports(recall_reports, storage or storage_of(table), table.metadata.table_uuid)
        sampler.report_to(RecallReporter(reports, reader.definition.name))
    return reader


@dataclass(frozen=True, slots=True)
class _IndexOpening:
    """How an index is opened, in whatever state its table is; see `open_index`."""

    index: str | IndexDefinition
    snapshot: SnapshotName
    storage: StorageConfig | None
    stale: StalePolicy
    threads: int
    """Threads of this process"""
    tasks: TaskChoice
    """Runner of tasks, and the size of an index above which they search it"""
    sampler: RecallSampler
    on_demand: bool = True
    """Whether shards of a large index may be loaded by the searches that need them"""

    def reader(self, table: Table, restrictions: ReadRestrictions | None) -> IndexReader:
        """The reader of the table as it is."""
        begun = time.perf_counter()
        frozen, index = _frozen(table), self.index
        definition = index if isinstance(index, IndexDefinition) else load_definition(frozen, index)
        live, schema = _snapshot(frozen, self.snapshot)
        field_id = resolve_field(definition, schema, table_name(frozen))
        schema = VectorSchema.with_element_type(schema, field_id, definition.element_type)
        restriction = Restriction.from_catalog(restrictions, table_name(frozen), schema, field_id)
        if restriction is not None and (self.tasks.runner is not None or self.sampler.share):
            raise restriction.refusal("It is enforced in this process: open the index without runner and recall_sample")
        storage = self.storage or storage_of(frozen)
        target = SearchTarget(frozen, live, schema, field_id, definition.metric, definition, storage, restriction)
        choice = _choose_version(target, definition, self)
        milliseconds = round((time.perf_counter() - begun) * 1000, 3)
        again = replace(self, on_demand=False).reader  # all shards of a newer state are loaded before it is used
        return IndexReader(
            target,
            choice,
            stale=self.stale,
            threads=self.threads,
            tasks=self.tasks,
            opening=OpeningCost(milliseconds, choice.loaded.index_bytes if choice.loaded else 0),
            reopen=_reopen(frozen, restrictions, self.snapshot, index, again),
            reload=partial(again, copy(frozen), restrictions) if self.on_demand else None,
            sampler=self.sampler,
        )


def open_exact(
    table: Table,
    column: str,
    metric: Metric | str,
    *,
    element_type: str = OF_COLUMN,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
) -> IndexReader:
    """Open a column at a snapshot, to be searched by comparing every live row. Needs no index.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    column : str
        A column of lists of numbers, or of bytes.
    metric : {"l2", "cosine", "ip", "hamming"}
        What distances are.
    element_type : {"column", "f32", "f16", "i8", "u8", "bit"}, optional
        What the bytes are, as for an index. Default: the column is of lists.
    snapshot, storage : optional
        As for `open_index`.

    Returns
    -------
    IndexReader
        Its answers are exact; each search reads the column.

    Raises
    ------
    RestrictedTableError, UnknownSnapshotError, DefinitionError, EqualityDeletesError
        As for `open_index`.

    Examples
    --------
    >>> exact = icepuffin.open_exact(table, "embedding", "cosine")
    >>> exact.search(query, k=3, columns=["name"]).coverage
    <Coverage.EXACT_SCAN: 'exact-scan'>
    """
    raw = pyiceberg_table(table, "open_exact")
    restrictions = requested_restrictions(raw)
    return _open_exact(raw, restrictions, column, metric, element_type=element_type, snapshot=snapshot, storage=storage)


def _open_exact(
    table: Table,
    restrictions: ReadRestrictions | None,
    column: str,
    metric: Metric | str,
    *,
    element_type: str,
    snapshot: SnapshotName,
    storage: StorageConfig | None,
) -> IndexReader:
    """See `open_exact`."""
    _require_storage(storage)
    metric = metric if isinstance(metric, Metric) else _parsed_metric(metric)
    if fault := metric_fault(metric, element_type):
        raise DefinitionError(fault)
    frozen = _frozen(table)
    live, schema = _snapshot(frozen, snapshot)
    field_id = resolve_column(column, schema, table_name(frozen), element_type)
    schema = VectorSchema.with_element_type(schema, field_id, element_type)
    restriction = Restriction.from_catalog(restrictions, table_name(frozen), schema, field_id)
    target = SearchTarget(frozen, live, schema, field_id, metric, None, storage or storage_of(frozen), restriction)
    choice = VersionChoice(None, None, "an exact search was requested", ())

    def again(newer: Table, restrictions: ReadRestrictions | None) -> IndexReader:
        return _open_exact(
            newer, restrictions, column, metric, element_type=element_type, snapshot=snapshot, storage=storage
        )

    reopen = _reopen(frozen, restrictions, snapshot, None, again)
    return IndexReader(target, choice, stale=StalePolicy.EXACT, threads=1, reopen=reopen)


def _frozen(table: Table) -> Table:
    """A copy whose metadata stays as it is when somebody reloads the table: all of a reader comes from one state."""
    return copy(table)


def _require_storage(storage: object) -> None:
    """Raises TypeError for a dictionary of properties, which local files would not notice."""
    require_type(storage, StorageConfig | None, "storage is a StorageConfig", "write icepuffin.StorageConfig({...})")


def _parsed_metric(name: str) -> Metric:
    """Raises DefinitionError."""
    try:
        return Metric.parse(str(name))
    except KernelError as error:
        raise DefinitionError(str(error)) from None


def _state(table: Table, snapshot: SnapshotName, index: str | IndexDefinition | None) -> tuple[object, ...]:
    """What a reader of the table depends on: two that were opened in equal states are alike.

    Raises UnknownSnapshotError; DefinitionError where the table has no such index.
    """
    definition = load_definition(table, index) if isinstance(index, str) else index
    versions = index_versions(table, definition.name) if definition else ()
    data = resolve_snapshot(table, snapshot)
    schema = schema_at(table, snapshot, data)
    files = tuple(
        (version.index_snapshot_id, version.puffin_path, *(pack.path for pack in version.packs)) for version in versions
    )
    where = table.metadata.location, table.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
    tuning = table.properties.get(TUNING + definition.name) if definition else None
    return table.metadata.table_uuid, where, data.snapshot_id, schema.schema_id, definition, files, tuning


def _reopen(
    frozen: Table,
    restrictions: ReadRestrictions | None,
    snapshot: SnapshotName,
    index: str | IndexDefinition | None,
    again: Callable[[Table, ReadRestrictions | None], IndexReader],
) -> Reopen | None:
    """Opens what is newer in the catalog than `frozen`; None where `snapshot` is an id or a time, which never move."""
    if not is_head_of_main(snapshot) and snapshot not in frozen.metadata.refs:
        return None

    def reopen(current: IndexReader, withdraw: Withdraw) -> IndexReader:
        try:
            newer = frozen.catalog.load_table(frozen.name())
        except _NOT_GIVEN as error:
            raise RestrictedTableError(
                f"{table_name(frozen)}: the catalog no longer gives this table to its user ({type(error).__name__}), "
                "so nothing of it is shown. Have its owner grant it again; close the reader if it was dropped"
            ) from error
        allowed = requested_restrictions(newer)
        if allowed is not None and allowed != restrictions:  # the reader in use shows what may be hidden by now
            why = "That has changed, and a reader is being opened under it"
            withdraw(restriction_error(table_name(newer), allowed.what, why))
            try:
                return again(newer, allowed)
            except RestrictedTableError:
                raise
            except Exception as error:
                why = f"That has changed, and no reader could be opened under it: {error}"
                raise restriction_error(table_name(newer), allowed.what, why) from error
        if allowed != restrictions or _state(newer, snapshot, index) != _state(frozen, snapshot, index):
            return again(newer, allowed)
        if not current.has_unreadable_versions:
            return current
        other = again(newer, allowed)  # a version that could not be read may be by now
        return current if other.version == current.version else other

    return reopen


def _snapshot(table: Table, snapshot: SnapshotName) -> tuple[LiveFiles, Schema]:
    """The live files and the schema of a snapshot. Raises UnknownSnapshotError, EqualityDeletesError."""
    data = resolve_snapshot(table, snapshot)
    live = live_files(table, data.snapshot_id)
    require_resolvable_deletes(live)
    return live, schema_at(table, snapshot, data)


def _choose_version(target: SearchTarget, definition: IndexDefinition, opening: _IndexOpening) -> VersionChoice:
    """The version that the policy allows: the snapshot's own, one that shares rows with the snapshot, or none."""
    live = target.live
    versions = index_versions(target.table, definition.name)
    exact = (version for version in reversed(versions) if is_own(version, live.snapshot_id))
    opened, broken = open_versions(target.table, exact, target.storage)
    built_as = replace(definition, field_id=target.field_id).graph_identity()
    fitting = [version for version in opened if _fits(version, target)]
    fitting.sort(key=lambda version: version.definition.graph_identity() != built_as)  # else the newest first
    choice = _load_first(fitting, tuple(map(str, broken)), target, opening)
    if choice.loaded is not None:
        of_releases = {str(error) for error in broken if isinstance(error, EarlierLayoutError | LaterReleaseError)}
        return replace(choice, warnings=tuple(line for line in choice.warnings if line not in of_releases))
    if opening.stale is StalePolicy.FAIL:
        reason = f": {choice.warnings[0]}" if choice.warnings else ""
        raise IndexUnavailableError(
            f"{live.table}: index {definition.name} has no version of snapshot {live.snapshot_id}{reason}; "
            "refresh it, or allow another path"
        )
    if not versions:
        return replace(choice, why="the index has no version yet")
    if opening.stale is StalePolicy.EXACT:
        _require_current(broken, target, definition)
        return replace(choice, why="the snapshot has no version of its own, and the policy is to scan then")
    others = nearest_first(
        [version for version in versions if not is_own(version, live.snapshot_id)],
        live.snapshot_id,
        live.sequence_number,
        distances_text(definition, target.field_id),
        ancestor_ids(target.table, live.snapshot_id),
    )
    opened, others_broken = open_versions(target.table, others, target.storage)
    shared = [(shared_rows(version, live), version) for version in opened if _fits(version, target)]
    shared.sort(key=lambda pair: pair[0], reverse=True)
    usable = [version for (_, most), version in shared if most]
    choice = _load_first(usable, (*choice.warnings, *map(str, others_broken)), target, opening)
    if choice.loaded is None:
        _require_current((*broken, *others_broken), target, definition)
    return choice


def _require_current(broken: Iterable[NotAnIndexError], target: SearchTarget, definition: IndexDefinition) -> None:
    """Raises IndexUnavailableError where the index has a version that only a refresh makes readable, and no other:
    without it every search would compare all rows.
    """
    earlier = next((error for error in broken if isinstance(error, EarlierLayoutError)), None)
    if earlier is not None:
        table, snapshot_id = target.live.table, target.live.snapshot_id
        raise IndexUnavailableError(
            f"{table}: {earlier}: icepuffin refresh {quote(table)} --index {definition.name} --snapshot {snapshot_id}"
        ) from earlier


def _fits(version: OpenVersion, target: SearchTarget) -> bool:
    """Whether its distances are those of the target: column, metric, and what the column's bytes are. How a graph was
    built does not matter to a reader, but that there is one does where the index has none: its answers are to be exact.
    """
    definition = version.definition
    same_elements = definition.element_type == element_type_of(target.schema, target.field_id)
    by_scan = target.definition is not None and not target.definition.has_graphs
    same_distances = definition.field_id == target.field_id and definition.metric is target.metric
    return same_distances and same_elements and not (by_scan and definition.has_graphs)


def _load_first(
    usable: Sequence[OpenVersion], warnings: tuple[str, ...], target: SearchTarget, opening: _IndexOpening
) -> VersionChoice:
    """The first version whose shards can be read; where none can, every row is compared."""
    for version in usable:
        try:
            renamed = files_mapped_since(target.table, version, target.live, target.schema, target.storage)
            opened = without_files(version, renamed)
            loaded, tier_why = _load(opened, target, opening)
        except (PuffinError, StorageError) as error:
            warnings = (*warnings, f"{version.bound.puffin_path} cannot be read: {error}")
            continue
        if not is_own(version.bound, target.live.snapshot_id):
            has_graphs = opened.definition.has_graphs
            if not (loaded.live_rows().any() if has_graphs else _keeps_files(opened, target.live)):
                continue  # as after another model has come: its vectors are others
        return VersionChoice(opened, loaded, _why(opened, target.live), warnings, tier_why)
    why = "no version can be read" if warnings else "no version shares a row with the snapshot"
    return VersionChoice(None, None, why, warnings)


def _keeps_files(version: OpenVersion, live: LiveFiles) -> bool:
    """Whether some file has the rows for which a version has balls. Under other deletes all of them may be gone."""
    slots, files = covered_paths(version), version.routing.files
    return any(
        files[slots[path]].live_rows and fingerprint(live.files[number]) == files[slots[path]].delete_fingerprint
        for path, number in same_files(version, live).items()
    )


def _load(
    opened: OpenVersion, target: SearchTarget, opening: _IndexOpening
) -> tuple[LoadedVersion | DistributedVersion, str]:
    """The version, loaded in its tier, and the reason for this tier."""
    cache = process_cache().settings
    if not opened.definition.has_graphs:
        column_is_double = holds_doubles(target.schema, target.field_id)
        return load_balls(opened, target.live, column_is_double=column_is_double), _BALLS
    job = SearchJob(target.live, target.schema, target.field_id, target.metric, target.storage, opened, cache=cache)
    runner, why = choose_runner(opened, job, opening.tasks.runner, opening.tasks.in_process_mb)
    complete = opening.stale is not StalePolicy.NEAREST_ONLY
    if runner is not None:
        return DistributedVersion.open(job, runner, complete=complete), why
    loaded = load_version(
        opened,
        target.live,
        target.storage,
        complete=complete,
        threads=opening.threads,
        column_is_double=job.column_is_double,
        on_demand=opening.on_demand,
    )
    return loaded, f"{why}, in the compact layout" if in_compact_layout(opened) else why


def _why(opened: OpenVersion, live: LiveFiles) -> str:
    if is_own(opened.bound, live.snapshot_id):
        return "the snapshot has a version of its own"
    base = opened.bound.base_snapshot_id
    return f"the snapshot has no readable version of its own; that of {base} shares most rows with it"
