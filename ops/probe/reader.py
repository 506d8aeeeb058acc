"""Searching one index of one table at one snapshot. See docs/concepts.md, "Search"."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from ann_kernels.distance import prepare
from ann_kernels.errors import KernelError
from ann_kernels.metric import Metric
from ops.catalog.snapshots import table_name
from ops.index.definition import IndexDefinition
from ops.index.versions import OpenVersion
from ops.model import LiveFiles, StorageConfig
from ops.probe.candidates import Candidates, fetch_rows, merge, rerank
from ops.probe.errors import QueryError, UnknownColumnError
from ops.probe.filtered import search_matches
from ops.probe.filters import MatchCache, Matches, find_matches
from ops.probe.loaded import Indexed, LoadedVersion, search
from ops.probe.result import Coverage, Profile, SearchResult, StalePolicy
from ops.probe.rows import RowReader
from ops.probe.scan import scan


@dataclass(frozen=True, slots=True)
class Target:
    """What is searched: one column of a table at one snapshot."""

    table: Table
    live: LiveFiles
    schema: Schema
    definition: IndexDefinition
    field_id: int
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class Source:
    """What answers: an index version in memory, or none, and then every row is compared."""

    opened: OpenVersion | None
    loaded: LoadedVersion | None
    why: str
    """Why this one, in words"""
    warnings: tuple[str, ...]
    """What could not be used"""


class IndexReader:
    """One index of one table at one snapshot. Immutable, thread-safe; made by `open_index`."""

    def __init__(self, target: Target, source: Source, *, stale: StalePolicy, threads: int) -> None:
        self.table = table_name(target.table)
        self.definition = target.definition
        self.snapshot_id = target.live.snapshot_id
        self._target = target
        self._live = target.live
        self._schema = target.schema
        self._rows = RowReader(target.live, target.schema, target.storage)
        self._conditions = MatchCache()
        self._source = source
        self._opened = source.opened
        self._loaded = source.loaded
        self._stale = stale
        self._threads = threads
        covered = source.loaded.covered if source.loaded else frozenset()
        self._tail = tuple(number for number in range(len(self._live.files)) if number not in covered)
        self.coverage = self._decide_coverage()

    @property
    def why(self) -> str:
        """Why this version answers, or none."""
        return self._source.why

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
        where: str | BooleanExpression | None = None,
    ) -> SearchResult:
        """The k nearest rows of each query, as of the snapshot.

        `queries` [Q, D] or [D], any float type. `search_list`: how wide the beam is; default the index's own.
        `columns`: what to return of each row; default all but nested ones. `where`: an Iceberg row filter, such as
        "section = 'database'"; only rows for which it is true are found.
        Raises QueryError, UnknownColumnError, FilterError, and DataFileError where a data file is gone.
        """
        clock = _Clock()
        ready = _prepared(queries, self.definition.metric_value, self._loaded.dims if self._loaded else None, k)
        field_ids = _fields(self._schema, columns, self.table)
        k = min(k, max(1, self._live.record_count))
        matches = None
        if where is not None:
            matches = self._conditions.get(where, partial(self._find_matches, where))
            clock.lap("filter")
        indexed = self._search_index(ready, k, search_list, matches)
        clock.lap("index")
        found, scanned = self._scan_tail(ready, k, matches)
        clock.lap("scan")
        found = merge([indexed.candidates, found], k)
        rows = fetch_rows(found, self._rows, self._schema, field_ids)
        clock.lap("rows")
        version = self._opened.version if self._opened else None
        return SearchResult(
            rows=rows,
            coverage=self.coverage,
            snapshot_id=self.snapshot_id,
            index_snapshot_id=version.derived_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            profile=Profile(
                why=self._source.why,
                strategy=indexed.strategy,
                shards=len(self._loaded.shards) if self._loaded else 0,
                nodes_expanded=indexed.expanded,
                distances=indexed.computed,
                tail_rows=scanned,
                milliseconds=clock.laps,
                matching_rows=matches.count if matches else None,
            ),
            warnings=self._warnings(),
        )

    def _search_index(
        self, ready: npt.NDArray[np.float32], k: int, search_list: int | None, matches: Matches | None
    ) -> Indexed:
        if self._loaded is None:
            return Indexed(Candidates.none(len(ready), k), 0, 0, "scan")
        width = search_list or self._loaded.search_list
        if matches is None:
            found = search(self._loaded, ready, k, search_list=width, threads=self._threads)
        else:
            found = search_matches(self._loaded, matches, ready, k, search_list=width, threads=self._threads)
        if found.approximate:
            best = rerank(found.candidates, ready, self._rows, self._target.field_id, self._loaded.metric)
            found = replace(found, candidates=best)
        return found

    def _find_matches(self, where: str | BooleanExpression) -> Matches:
        return find_matches(self._target.table, self._live, self._schema, where, self._target.storage)

    def _scan_tail(self, ready: npt.NDArray[np.float32], k: int, matches: Matches | None) -> tuple[Candidates, int]:
        if self.coverage is Coverage.NEAREST_VERSION_ONLY or not self._tail:
            return Candidates.none(len(ready), k), 0
        return scan(
            ready, k, self._live, self._tail, self._schema, self._target.field_id, self.definition.metric_value,
            self._target.storage, matches=matches,
        )  # fmt: skip

    def _warnings(self) -> tuple[str, ...]:
        if self.coverage is not Coverage.NEAREST_VERSION_ONLY or not self._tail:
            return self._source.warnings
        rows = sum(self._live.files[number].record_count for number in self._tail)
        missing = f"up to {rows:,} rows of snapshot {self.snapshot_id} are not in the index that answered"
        return (missing, *self._source.warnings)


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


class _Clock:
    """Milliseconds of each stage."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round((now - self._last) * 1000, 3)
        self._last = now
