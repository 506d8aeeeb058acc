"""Opening an index at a snapshot: which version answers, and what that means for the answer."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy.typing as npt
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import process_cache
from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.live_files import live_files, require_positional_deletes
from icepuffin.ops.catalog.snapshots import (
    SnapshotName,
    is_head_of_main,
    require_table,
    resolve_snapshot,
    schema_at,
    table_name,
)
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import require_type
from icepuffin.ops.index.ddl import defined_names, load_definition
from icepuffin.ops.index.definition import DefinitionError, IndexDefinition, resolve_field
from icepuffin.ops.index.version_reader import OpenVersion, open_versions, shared_rows
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.distributed import IN_PROCESS_MB, DistributedVersion, choose_tier
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.reader import IndexReader, Reopen
from icepuffin.ops.search.result import OpeningCost, SearchResult, StalePolicy
from icepuffin.ops.search.shards import LoadedVersion, load_version
from icepuffin.ops.search.target import SearchTarget, VersionChoice, is_own
from icepuffin.ops.search.worker import SearchJob
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.runner import TaskRunner
from icepuffin.ops.threads import thread_count
from icepuffin.puffin.errors import PuffinError

_VERSIONS_LOOKED_AT = 16
"""For a snapshot without one: those made for the snapshots nearest to it in the table's history"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search may run."""

    threads: int
    """Of this process"""
    runner: TaskRunner | None
    in_process_mb: int


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
        Such as `SparkRunner(session)`: its tasks search an index that is too large for this process.
    in_process_mb : int
        Size of an index, in MB, over which the runner searches it.

    Returns
    -------
    IndexReader
        Immutable and safe for threads. Keep it: opening reads the shards, searching does not.

    Raises
    ------
    UnknownSnapshotError
        The snapshot is not in the table's metadata.
    DefinitionError
        There is no such index, or there are several and none was named.
    EqualityDeletesError
        The snapshot has equality deletes, which are not supported.
    IndexUnavailableError
        With the policy `fail`: the snapshot has no version that can be read.

    Examples
    --------
    >>> reader = icepuffin.open_index(table)
    >>> reader
    IndexReader('demo.packages', index 'embedding', snapshot ..., 6,000 rows, 384 dimensions, cosine, exact-version)
    """
    begun = time.perf_counter()
    require_table(table, "open_index")
    require_type(index, str | IndexDefinition | None, "index is a name", "leave it out where the table has one index")
    if stale not in tuple(StalePolicy):
        raise QueryError(f"stale is '{stale}'; it is one of {', '.join(StalePolicy)}")
    stale = StalePolicy(stale)
    workers = thread_count(threads)
    target = _target(table, index or _only_index(table), snapshot, storage)
    source = _source(table, target, stale, Place(workers, runner, in_process_mb))
    milliseconds = round((time.perf_counter() - begun) * 1000, 3)
    opened = OpeningCost(milliseconds, source.loaded.index_bytes if source.loaded else 0)

    def again(newer: Table) -> IndexReader:
        return open_index(
            newer, index, snapshot=snapshot, storage=storage, stale=stale, threads=threads, runner=runner,
            in_process_mb=in_process_mb,
        )  # fmt: skip

    reopen = _reopen(table, target, snapshot, again)
    return IndexReader(target, source, stale=stale, threads=workers, opening=opened, reopen=reopen)


def open_exact(
    table: Table,
    column: str,
    metric: Metric | str,
    *,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
) -> IndexReader:
    """Open a column at a snapshot, to be searched by comparing every live row. Needs no index.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    column : str
        A column of lists of float or double.
    metric : {"l2", "cosine", "ip"}
        What distances are.
    snapshot, storage : optional
        As for `open_index`.

    Returns
    -------
    IndexReader
        Its answers are exact; each search reads the column.

    Raises
    ------
    UnknownSnapshotError, DefinitionError, EqualityDeletesError
        As for `open_index`.

    Examples
    --------
    >>> exact = icepuffin.open_exact(table, "embedding", "cosine")
    >>> exact.search(query, k=3, columns=["name"]).coverage
    <Coverage.EXACT_SCAN: 'exact-scan'>
    """
    require_table(table, "open_exact")
    label = metric.label if isinstance(metric, Metric) else metric
    definition = IndexDefinition(name="none", column=column, metric=label)
    target = _target(table, definition, snapshot, storage)
    source = VersionChoice(None, None, "an exact search was asked for", ())

    def again(newer: Table) -> IndexReader:
        return open_exact(newer, column, metric, snapshot=snapshot, storage=storage)

    return IndexReader(
        target, source, stale=StalePolicy.EXACT, threads=1, reopen=_reopen(table, target, snapshot, again)
    )


def exact_search(
    table: Table,
    column: str,
    metric: Metric | str,
    queries: npt.ArrayLike,
    k: int = 10,
    *,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
    columns: Sequence[str] | None = None,
    where: str | BooleanExpression | None = None,
) -> SearchResult:
    """The true k nearest rows (that satisfy `where`), by `open_exact`."""
    reader = open_exact(table, column, metric, snapshot=snapshot, storage=storage)
    return reader.search(queries, k, columns=columns, where=where)


def _only_index(table: Table) -> str:
    """The table's index, where it has one. Raises DefinitionError."""
    names = defined_names(table)
    if len(names) == 1:
        return names[0]
    if not names:
        raise DefinitionError(
            f"{table_name(table)} has no index; make one with icepuffin.refresh(table, IndexDefinition(...)), "
            "or search without one by icepuffin.open_exact"
        )
    raise DefinitionError(f"{table_name(table)} has several indexes, name one: {', '.join(names)}")


def _reopen(
    table: Table, target: SearchTarget, snapshot: SnapshotName, again: Callable[[Table], IndexReader]
) -> Reopen | None:
    """Opens what is newer in the catalog; None where `snapshot` is an id or a time, which never move."""
    if not is_head_of_main(snapshot) and snapshot not in table.metadata.refs:
        return None
    catalog, identifier, name = table.catalog, table.name(), target.definition.name

    def state(of: Table) -> tuple[object, ...]:
        bound = tuple(version.index_snapshot_id for version in index_versions(of, name))
        at = resolve_snapshot(of, snapshot).snapshot_id
        return of.metadata.table_uuid, at, schema_at(of, snapshot).schema_id, bound

    opened = [state(table)]

    def reopen(current: IndexReader) -> IndexReader:
        newer = catalog.load_table(identifier)
        if (now := state(newer)) == opened[0]:
            return current
        reader = again(newer)
        opened[0] = now
        return reader

    return reopen


def _target(
    table: Table, index: str | IndexDefinition, snapshot: SnapshotName, storage: StorageConfig | None
) -> SearchTarget:
    at = resolve_snapshot(table, snapshot)
    live = live_files(table, at.snapshot_id)
    require_positional_deletes(live)
    schema = schema_at(table, snapshot)
    definition = index if isinstance(index, IndexDefinition) else load_definition(table, index)
    field_id = resolve_field(definition, schema, table_name(table))
    return SearchTarget(table, live, schema, definition, field_id, storage or storage_of(table))


def _answers(version: OpenVersion, target: SearchTarget) -> bool:
    """Whether its distances are those asked for. How the graph was built does not matter to a reader."""
    made_for = version.definition
    return made_for.field_id == target.field_id and made_for.metric_value is target.definition.metric_value


def _source(table: Table, target: SearchTarget, stale: StalePolicy, place: Place) -> VersionChoice:
    """What the policy allows: the snapshot's own version, one that shares rows with it, or none."""
    here = target.live.snapshot_id
    at = target.live.sequence_number
    known = index_versions(table, target.definition.name)
    own, unreadable = open_versions((item for item in reversed(known) if is_own(item, here)), target.storage)
    source = _load_first([item for item in own if _answers(item, target)], unreadable, target, stale, place)
    if source.loaded is not None:
        return source
    if stale is StalePolicy.FAIL:
        reason = f": {source.warnings[0]}" if source.warnings else ""
        raise IndexUnavailableError(
            f"{table_name(table)}: index {target.definition.name} has no version of snapshot {here}{reason}; "
            "refresh it, or allow another path"
        )
    if not known:
        return replace(source, why="the index has no version yet")
    if stale is StalePolicy.EXACT:
        return replace(source, why="the snapshot has no version of its own, and the policy is to scan then")
    nearest = sorted(known, key=lambda item: abs(item.base_sequence_number - at))
    others, unreadable = open_versions(
        [item for item in nearest if not is_own(item, here)][:_VERSIONS_LOOKED_AT], target.storage
    )
    shared = [(shared_rows(item, target.live), item) for item in others if _answers(item, target)]
    usable = [item for rows, item in sorted(shared, key=lambda pair: -pair[0]) if rows]
    return _load_first(usable, (*source.warnings, *unreadable), target, stale, place)


def _load_first(
    usable: list[OpenVersion], warnings: tuple[str, ...], target: SearchTarget, stale: StalePolicy, place: Place
) -> VersionChoice:
    """The first version whose shards can be read; where none can, every row is to be compared."""
    for opened in usable:
        try:
            loaded, tier_why = _load(opened, target, place, complete=stale is not StalePolicy.NEAREST_ONLY)
        except (PuffinError, StorageError) as error:
            warnings = (*warnings, f"{opened.version.puffin_path} cannot be read: {error}")
            continue
        return VersionChoice(opened, loaded, _why(opened, target.live), warnings, tier_why)
    why = "no version can be read" if warnings else "no version shares a row with the snapshot"
    return VersionChoice(None, None, why, warnings)


def _load(
    opened: OpenVersion, target: SearchTarget, place: Place, *, complete: bool
) -> tuple[LoadedVersion | DistributedVersion, str]:
    """The version where it is to be searched, and why there."""
    pin = SearchJob(
        target.live, target.schema, target.field_id, target.definition.metric_value, target.storage, opened,
        cache=process_cache().settings,
    )  # fmt: skip
    why = choose_tier(opened, pin, place.runner, place.in_process_mb)
    if why.remote and place.runner is not None:
        return DistributedVersion.open(pin, place.runner, complete=complete), why.why
    loaded = load_version(
        opened,
        target.live,
        target.storage,
        complete=complete,
        threads=place.threads,
        column_is_double=pin.column_is_double,
    )
    return loaded, why.why


def _why(opened: OpenVersion, live: LiveFiles) -> str:
    if is_own(opened.version, live.snapshot_id):
        return "the snapshot has a version of its own"
    base = opened.version.base_snapshot_id
    return f"the snapshot has no readable version of its own; that of {base} shares most rows with it"
