"""Opening an index at a snapshot: which version answers, and what that means for the answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy.typing as npt
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import process_cache
from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.live_files import live_files, require_positional_deletes
from icepuffin.ops.catalog.snapshots import resolve_snapshot, schema_at, table_name
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.ddl import load_definition
from icepuffin.ops.index.definition import IndexDefinition, resolve_field
from icepuffin.ops.index.version_reader import OpenVersion, open_versions, shared_rows
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.distributed import IN_PROCESS_MB, DistributedVersion, choose_tier
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import OpeningCost, SearchResult, StalePolicy
from icepuffin.ops.search.shards import LoadedVersion, load
from icepuffin.ops.search.target import SearchTarget, VersionChoice, is_own
from icepuffin.ops.search.worker import SearchJob
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.runner import TaskRunner
from icepuffin.puffin.errors import PuffinError

_VERSIONS_LOOKED_AT = 16
"""For a snapshot without one: those made for the snapshots nearest to it in the table's history"""

SnapshotName = int | str | datetime | None
"""Snapshot id, tag, branch or time; None is the head of main"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search may run."""

    threads: int
    """Of this process"""
    runner: TaskRunner | None
    in_process_mb: int


def open_index(
    table: Table,
    index: str | IndexDefinition,
    *,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
    stale: StalePolicy | str = StalePolicy.COMPLETE,
    threads: int = 2,
    runner: TaskRunner | None = None,
    in_process_mb: int = IN_PROCESS_MB,
) -> IndexReader:
    """Open an index at a snapshot. `storage`: how its files are reached, default what its catalog says and vends.

    With a `runner`, such as `SparkRunner(session)`, an index of more than `in_process_mb` that is not in this process's
    memory is searched by its tasks.

    Where the snapshot has no version, or one that cannot be read, `stale` says what happens. Raises
    UnknownSnapshotError, DefinitionError, EqualityDeletesError, IndexUnavailableError (policy `fail`).
    """
    begun = time.perf_counter()
    if stale not in tuple(StalePolicy):
        raise QueryError(f"stale is '{stale}'; it is one of {', '.join(StalePolicy)}")
    stale = StalePolicy(stale)
    target = _target(table, index, snapshot, storage)
    source = _source(table, target, stale, Place(threads, runner, in_process_mb))
    milliseconds = round((time.perf_counter() - begun) * 1000, 3)
    opened = OpeningCost(milliseconds, source.loaded.index_bytes if source.loaded else 0)
    return IndexReader(target, source, stale=stale, threads=threads, opening=opened)


def open_exact(
    table: Table,
    column: str,
    metric: Metric | str,
    *,
    snapshot: SnapshotName = None,
    storage: StorageConfig | None = None,
) -> IndexReader:
    """Open a column at a snapshot, to be searched by comparing every live row. Needs no index.

    `metric`: l2, cosine or ip. Raises UnknownSnapshotError, DefinitionError, EqualityDeletesError.
    """
    label = metric.label if isinstance(metric, Metric) else metric
    definition = IndexDefinition(name="none", column=column, metric=label)
    target = _target(table, definition, snapshot, storage)
    source = VersionChoice(None, None, "an exact search was asked for", ())
    return IndexReader(target, source, stale=StalePolicy.EXACT, threads=1)


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
        return DistributedVersion.open(pin, place.runner, complete=complete), why.text
    loaded = load(
        opened,
        target.live,
        target.storage,
        complete=complete,
        threads=place.threads,
        column_is_double=pin.column_is_double,
    )
    return loaded, why.text


def _why(opened: OpenVersion, live: LiveFiles) -> str:
    if is_own(opened.version, live.snapshot_id):
        return "the snapshot has a version of its own"
    base = opened.version.base_snapshot_id
    return f"the snapshot has no readable version of its own; that of {base} shares most rows with it"
