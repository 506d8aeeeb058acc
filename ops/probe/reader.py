"""Opening an index of a table at a snapshot, and searching it. See docs/concepts.md, "Search"."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from ann_kernels.distance import prepare
from ann_kernels.errors import KernelError
from ann_kernels.metric import Metric
from ops.catalog.bind import versions
from ops.catalog.live import live_files, require_positional_deletes
from ops.catalog.snapshots import resolve_snapshot, table_name
from ops.index.definition import DefinitionError, IndexDefinition, resolve_field
from ops.index.upkeep import list_definitions
from ops.index.versions import OpenVersion, readable, shared_rows
from ops.model import LiveFiles, StorageConfig
from ops.probe.candidates import Candidates, fetch_rows, merge, rerank
from ops.probe.errors import IndexUnavailableError, QueryError, UnknownColumnError
from ops.probe.loaded import LoadedVersion, load, search
from ops.probe.result import Coverage, Profile, SearchResult, StalePolicy
from ops.probe.scan import scan

_VERSIONS_LOOKED_AT = 16


class IndexReader:
    """One index of one table at one snapshot. Immutable, thread-safe; made by `open_index`."""

    def __init__(
        self,
        table: str,
        live: LiveFiles,
        schema: Schema,
        definition: IndexDefinition,
        field_id: int,
        opened: OpenVersion | None,
        loaded: LoadedVersion | None,
        why: str,
        *,
        storage: StorageConfig,
        stale: StalePolicy,
        threads: int,
    ) -> None:
        self.table = table
        self.definition = definition
        self.snapshot_id = live.snapshot_id
        self._live = live
        self._schema = schema
        self._field_id = field_id
        self._opened = opened
        self._loaded = loaded
        self._why = why
        self._storage = storage
        self._stale = stale
        self._threads = threads
        covered = loaded.covered if loaded else frozenset()
        self._tail = tuple(number for number in range(len(live.files)) if number not in covered)
        self.coverage = self._decide_coverage()

    def _decide_coverage(self) -> Coverage:
        if self._opened is None:
            return Coverage.EXACT_SCAN
        if self._opened.version.base_snapshot_id == self.snapshot_id and not self._tail:
            return Coverage.EXACT_VERSION
        if self._stale is StalePolicy.NEAREST_ONLY:
            return Coverage.NEAREST_VERSION_ONLY
        return Coverage.NEAREST_VERSION_AND_TAIL

    def search(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        *,
        search_list: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> SearchResult:
        """The k nearest rows of each query, as of the snapshot.

        `queries` [Q, D] or [D], any float type. `search_list`: how wide the beam is; default the index's own.
        `columns`: what to return of each row; default all but nested ones.
        Raises QueryError, UnknownColumnError, and DataFileError where a data file is gone.
        """
        clock: dict[str, float] = {}
        begun = time.perf_counter()
        metric = self.definition.metric_value
        ready = _prepared(queries, metric, self._loaded.dims if self._loaded else None, k)
        field_ids = _fields(self._schema, columns, self.table)
        k = min(k, max(1, self._live.record_count))
        found, expanded, computed = self._search_index(ready, k, search_list)
        clock["index"] = _since(begun)
        begun = time.perf_counter()
        scanned = 0
        if self.coverage is not Coverage.NEAREST_VERSION_ONLY and self._tail:
            tail, scanned = scan(ready, k, self._live, self._tail, self._schema, self._field_id, metric, self._storage)
            found = merge([found, tail], k)
        clock["scan"] = _since(begun)
        begun = time.perf_counter()
        rows = fetch_rows(found, self._live, self._schema, field_ids, self._storage)
        clock["rows"] = _since(begun)
        version = self._opened.version if self._opened else None
        return SearchResult(
            rows=rows,
            coverage=self.coverage,
            snapshot_id=self.snapshot_id,
            index_snapshot_id=version.derived_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            profile=Profile(
                why=self._why,
                shards=len(self._loaded.shards) if self._loaded else 0,
                nodes_expanded=expanded,
                distances=computed,
                tail_rows=scanned,
                milliseconds=clock,
            ),
            warnings=self._warnings(),
        )

    def _search_index(
        self, ready: npt.NDArray[np.float32], k: int, search_list: int | None
    ) -> tuple[Candidates, int, int]:
        if self._loaded is None:
            return Candidates.none(len(ready), k), 0, 0
        skip = frozenset() if self.coverage is Coverage.NEAREST_VERSION_ONLY else frozenset(self._tail)
        found, expanded, computed = search(
            self._loaded,
            ready,
            k,
            search_list=search_list or self._loaded.search_list,
            threads=self._threads,
            skip=skip,
        )
        if any(shard.lean for shard in self._loaded.shards):
            found = rerank(found, ready, self._live, self._schema, self._field_id, self._loaded.metric, self._storage)
        return merge([found], k), expanded, computed

    def _warnings(self) -> tuple[str, ...]:
        if self.coverage is not Coverage.NEAREST_VERSION_ONLY or not self._tail:
            return ()
        rows = sum(self._live.files[number].record_count for number in self._tail)
        return (f"up to {rows:,} rows of snapshot {self.snapshot_id} are not in the index that answered",)


def open_index(
    table: Table,
    index: str | IndexDefinition,
    *,
    snapshot: int | str | datetime | None = None,
    storage: StorageConfig,
    stale: StalePolicy = StalePolicy.COMPLETE,
    threads: int = 2,
) -> IndexReader:
    """Open an index at a snapshot (id, tag, branch, time; default: the head of main).

    Where the snapshot has no version, `stale` says what happens. Raises UnknownSnapshotError, DefinitionError,
    EqualityDeletesError, IndexUnavailableError (policy `fail`).
    """
    at = resolve_snapshot(table, snapshot)
    live = live_files(table, at.snapshot_id)
    require_positional_deletes(live)
    schema = table.schemas()[live.schema_id]
    known = versions(table, "ann", index if isinstance(index, str) else index.name)
    ordered = sorted(known, key=lambda item: (item.base_snapshot_id != at.snapshot_id, -item.sequence_number))
    definition = index if isinstance(index, IndexDefinition) else _definition(table, index)
    field_id = resolve_field(definition, schema, table_name(table))
    candidates = readable(ordered[:_VERSIONS_LOOKED_AT], storage, replace(definition, field_id=field_id))
    opened, why = _choose(candidates, live, stale, table_name(table), definition.name)
    loaded = load(opened, live, storage, threads=threads) if opened else None
    return IndexReader(
        table_name(table),
        live,
        schema,
        definition,
        field_id,
        opened,
        loaded,
        why,
        storage=storage,
        stale=stale,
        threads=threads,
    )


def _definition(table: Table, name: str) -> IndexDefinition:
    found = next((item for item in list_definitions(table) if item.name == name), None)
    if found is None:
        raise DefinitionError(f"{table_name(table)} has no index {name!r}: create it, or pass its definition")
    return found


def _choose(
    candidates: list[OpenVersion], live: LiveFiles, stale: StalePolicy, table: str, index: str
) -> tuple[OpenVersion | None, str]:
    own = next((item for item in candidates if item.version.base_snapshot_id == live.snapshot_id), None)
    if own is not None:
        return own, "the snapshot has a version of its own"
    if stale is StalePolicy.FAIL:
        raise IndexUnavailableError(
            f"{table}: index {index} has no version of snapshot {live.snapshot_id}; refresh it, or allow another path"
        )
    nearest = max(candidates, key=lambda item: shared_rows(item, live), default=None)
    if nearest is None or not shared_rows(nearest, live):
        return None, "no version shares a row with the snapshot"
    if stale is StalePolicy.EXACT:
        return None, "the snapshot has no version of its own, and the policy is to scan then"
    base = nearest.version.base_snapshot_id
    return nearest, f"the snapshot has no version of its own; that of {base} shares most rows with it"


def exact_search(
    table: Table,
    column: str,
    metric: Metric,
    queries: npt.ArrayLike,
    k: int = 10,
    *,
    snapshot: int | str | datetime | None = None,
    storage: StorageConfig,
    columns: Sequence[str] | None = None,
) -> SearchResult:
    """The true k nearest rows, by comparing every live row of the snapshot. Needs no index."""
    at = resolve_snapshot(table, snapshot)
    live = live_files(table, at.snapshot_id)
    require_positional_deletes(live)
    schema = table.schemas()[live.schema_id]
    definition = IndexDefinition(name="none", column=column, metric=metric.label)
    field_id = resolve_field(definition, schema, table_name(table))
    reader = IndexReader(
        table_name(table),
        live,
        schema,
        definition,
        field_id,
        None,
        None,
        "an exact search was asked for",
        storage=storage,
        stale=StalePolicy.EXACT,
        threads=1,
    )
    return reader.search(queries, k, columns=columns)


def _prepared(queries: npt.ArrayLike, metric: Metric, dims: int | None, k: int) -> npt.NDArray[np.float32]:
    if k < 1:
        raise QueryError(f"k is {k}; ask for at least 1 row")
    array: npt.NDArray[Any] = np.atleast_2d(np.asarray(queries))
    if array.dtype.kind not in "fiu":
        raise QueryError(f"queries are {array.dtype}, not numbers")
    try:
        ready = prepare(array, metric)
    except KernelError as error:
        raise QueryError(f"the query cannot be asked: {error}") from error
    if dims is not None and ready.shape[1] != dims:
        raise QueryError(f"the query has {ready.shape[1]} dimensions, the index has {dims}")
    return ready


def _fields(schema: Schema, columns: Sequence[str] | None, table: str) -> list[int]:
    if columns is None:
        return [field.field_id for field in schema.fields if field.field_type.is_primitive]
    by_name = {field.name: field.field_id for field in schema.fields}
    if unknown := [name for name in columns if name not in by_name]:
        raise UnknownColumnError(f"{table} has no column {unknown[0]!r} in this snapshot; it has {', '.join(by_name)}")
    return [by_name[name] for name in columns]


def _since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1000, 3)
