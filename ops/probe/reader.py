"""Searching one index of one table at one snapshot. See docs/concepts.md, "Search"."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from ops.cache import process_cache
from ops.catalog.snapshots import table_name
from ops.catalog.versions import DerivedVersion
from ops.probe.candidates import Candidates, Hits, fetch, merge, rerank
from ops.probe.distributed import RemoteVersion
from ops.probe.errors import IndexUnavailableError
from ops.probe.filtered import search_matches
from ops.probe.filters import MatchCache, Matches, find_matches
from ops.probe.knobs import Asked, Knobs, settle
from ops.probe.loaded import Indexed, LoadedVersion, search
from ops.probe.pinned import Ask, Pin
from ops.probe.question import Clock, at_least_one, checked_distance, field_ids, prepared
from ops.probe.reach import Reach
from ops.probe.result import Coverage, Opened, Profile, SearchResult, StalePolicy
from ops.probe.rows import Meter, RowReader
from ops.probe.scan import Skipped, VectorSource, scan
from ops.probe.target import Source, Target, is_own
from ops.probe.within import Threshold, hits_within, rows_of

_SETTLED = 256
_APPROXIMATE = "distances are of what the index holds in place of the table's vectors, which were not asked for"


class IndexReader:
    """One index of one table at one snapshot. Immutable, thread-safe; made by `open_index`."""

    def __init__(
        self, target: Target, source: Source, *, stale: StalePolicy, threads: int, opened: Opened | None = None
    ) -> None:
        self.table = table_name(target.table)
        self.definition = target.definition
        self.snapshot_id = target.live.snapshot_id
        self._target = target
        self._live = target.live
        self._row_count = max(1, target.live.record_count)
        self._schema = target.schema
        self._rows = RowReader(target.live, target.schema, target.storage)
        self._vectors = VectorSource(
            target.live,
            target.schema,
            target.field_id,
            target.definition.metric_value,
            target.storage,
            source.loaded.dims if source.loaded else None,
        )
        self._conditions = MatchCache()
        self._settled: dict[tuple[int, Asked, bool], tuple[Knobs | None, tuple[str, ...]]] = {}
        self._reach = Reach(target, source)
        self._source = source
        self._opened = source.opened
        self._loaded = source.loaded
        self._cost = opened
        self._stale = stale
        self._threads = threads
        covered = source.loaded.covered if source.loaded else frozenset()
        self._tail = tuple(number for number in range(len(self._live.files)) if number not in covered)
        self.coverage = self._decide_coverage()

    @property
    def why(self) -> str:
        """Why this version answers, or none."""
        return self._source.why

    @property
    def version(self) -> DerivedVersion | None:
        """The index version that answers."""
        return self._opened.version if self._opened else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What every answer of this reader warns of."""
        return self._warnings()

    @property
    def tier(self) -> str:
        """Where the index is searched: `in-process`, or `distributed`."""
        return "distributed" if isinstance(self._loaded, RemoteVersion) else "in-process"

    def _decide_coverage(self) -> Coverage:
        if self._opened is None:
            return Coverage.EXACT_SCAN
        if is_own(self._opened.version, self.snapshot_id) and not self._tail:
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
        shards: int | None = None,
        oversample: int | None = None,
        target_recall: float | None = None,
        rerank: bool | None = None,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
    ) -> SearchResult:
        """The k nearest rows of each query, as of the snapshot.

        `queries` [Q, D] or [D], any float type, or an Arrow column of lists. `search_list`: how wide the beam is,
        default the index's own. `shards`: probe only those whose centroids are nearest to the query, default all.
        `rerank`: rank candidates by the table's own vectors, `oversample` of them a row, where shards do not hold these
        as they are; default only where shards hold no vectors at all. Otherwise distances are those of the index.
        `target_recall`: choose knobs that are not given from the curve that was measured with the index.
        `columns`: what to return of each row; default all but nested ones. `where`: an Iceberg row filter, such as
        "section = 'database'"; only rows for which it is true are found.
        Raises QueryError, UnknownColumnError, FilterError, DataFileError where a data file is gone, and, where the
        policy is `fail`, IndexUnavailableError for a shard that tasks cannot read any more.
        """
        clock = Clock()
        at_least_one(k=k, search_list=search_list, shards=shards, oversample=oversample)
        asked = Asked(search_list, shards, oversample, target_recall, rerank)
        ready = prepared(queries, self._vectors.metric, self._loaded.dims if self._loaded else None)
        returned = field_ids(self._schema, columns, self.table)
        k = min(k, self._row_count)
        matches = self._matches(where, clock)
        knobs, unmet = self._settle(k, asked, filtered=matches is not None)
        read = {"index": Meter(), "rows": Meter()}
        try:
            indexed = self._search_index(ready, k, knobs, matches, read["index"])
        except IndexUnavailableError as error:
            return self._exactly(error).search(ready, k, columns=columns, where=where)
        clock.lap("index")
        parts, scanned, skipped = [indexed.candidates], 0, Skipped()
        if self.tail:
            of_tail, scanned = self._scan_tail(ready, k, matches, skipped)
            parts.append(of_tail)
        found = merge(parts, k)
        clock.lap("scan")
        rows = fetch(Hits.of(found), self._rows, returned, read["rows"])
        clock.lap("rows")
        profile = Profile(
            why=self._source.why,
            strategy=indexed.strategy,
            shards=len(self._loaded.shards) if self._loaded else 0,
            nodes_expanded=indexed.expanded,
            distances=indexed.computed,
            tail_rows=scanned,
            milliseconds=clock.laps,
            matching_rows=matches.count if matches else None,
            knobs=knobs,
            work=indexed.work,
            tier=self.tier,
            tier_why=self._source.tier_why,
            bytes_read={
                **{stage: meter.bytes for stage, meter in read.items()},
                "scan": 4 * scanned * ready.shape[1],
            },
        )
        return self._result(rows, profile, (*self._warnings(), *unmet, *skipped.warnings))

    def within(
        self,
        queries: npt.ArrayLike,
        distance: float,
        *,
        inclusive: bool = False,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
    ) -> SearchResult:
        """Every row nearer than `distance`, nearest first: exact, whatever the graph's recall.

        `distance` as the metric reports it; `inclusive` takes rows at that very distance too. `limit`: only so many,
        the nearest ones, of each query. Files out of reach by the centroid index are not looked at, which inner
        product does not allow; `profile.pruning` tells. Vectors are those of the index where it holds them unrounded,
        else the data files are read. Raises what `search` raises.
        """
        clock = Clock()
        at_least_one(limit=limit)
        threshold = Threshold(checked_distance(distance), inclusive, self._vectors.metric)
        ready = prepared(queries, threshold.metric, self._loaded.dims if self._loaded else None)
        returned = field_ids(self._schema, columns, self.table)
        matches = self._matches(where, clock)
        near, pruning, unread = self._reach.files(ready, threshold)
        clock.lap("prune")
        held = isinstance(self._loaded, LoadedVersion) and self._loaded.exact
        covered = self._loaded.covered if self._loaded else frozenset[int]()
        tail = frozenset[int]() if self.coverage is Coverage.NEAREST_VERSION_ONLY else frozenset(self._tail)
        read = sorted(number for number in (tail if held else tail | covered) if near[number])
        inner = rows_of(self._loaded, near, matches) if held and isinstance(self._loaded, LoadedVersion) else ()
        skipped = Skipped()
        outer = self._vectors.rows(read, ready.shape[1], matches, skipped)
        hits, compared = hits_within(ready, threshold, chain(inner, outer), limit)
        clock.lap("compare")
        meter = Meter()
        rows = fetch(hits, self._rows, returned, meter)
        clock.lap("rows")
        profile = Profile(
            why=self._source.why,
            strategy="threshold",
            shards=len(self._loaded.shards) if held and self._loaded else 0,
            nodes_expanded=0,
            distances=compared * len(ready),
            tail_rows=sum(self._live.files[number].record_count for number in read),
            milliseconds=clock.laps,
            matching_rows=matches.count if matches else None,
            pruning=pruning,
            tier_why="the index is in this process's memory" if held else "the data files in reach are read here",
            bytes_read={"compare": 4 * compared * ready.shape[1], "rows": meter.bytes},
        )
        return self._result(rows, profile, (*self._warnings(), *unread, *skipped.warnings))

    def some_vectors(self, count: int) -> npt.NDArray[np.float32]:
        """f32[n, D], n <= count: vectors of rows of the snapshot, prepared for the metric; for trying things out."""
        parts: list[npt.NDArray[np.float32]] = []
        for number in range(len(self._live.files)):
            for rows in self._vectors.rows([number], self._loaded.dims if self._loaded else None, None):
                parts.append(rows.vectors[: count - sum(len(part) for part in parts)])
                if sum(len(part) for part in parts) >= count:
                    return np.concatenate(parts)
        return np.concatenate(parts) if parts else np.empty((0, self._loaded.dims if self._loaded else 0), np.float32)

    def _result(self, rows: pa.Table, profile: Profile, warnings: tuple[str, ...]) -> SearchResult:
        version = self._opened.version if self._opened else None
        return SearchResult(
            rows=rows,
            coverage=self.coverage,
            snapshot_id=self.snapshot_id,
            index_snapshot_id=version.derived_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            profile=profile,
            warnings=warnings,
            opened=self._cost,
        )

    def pin(self) -> Pin:
        """What this reader searches, to be searched elsewhere: snapshot and version stay what they are."""
        loaded, target = self._loaded, self._target
        return Pin(
            self._live,
            self._schema,
            target.field_id,
            self._vectors.metric,
            target.storage,
            self._opened,
            None if loaded is None or self.coverage is Coverage.NEAREST_VERSION_ONLY else loaded.covered,
            cache=process_cache().settings,
        )

    def ask(self, k: int, asked: Asked, where: str | BooleanExpression | None) -> tuple[Ask, tuple[str, ...]]:
        """A question to ask of a pin, and what could not be done as it was asked. Raises QueryError, FilterError."""
        at_least_one(k=k, search_list=asked.search_list, shards=asked.shards, oversample=asked.oversample)
        k = min(k, self._row_count)
        matches = self._matches(where, Clock())
        knobs, unmet = self._settle(k, asked, filtered=matches is not None)
        return Ask(k, knobs, matches), unmet

    @property
    def tail(self) -> tuple[int, ...]:
        """Numbers of the live files that every search scans."""
        return () if self.coverage is Coverage.NEAREST_VERSION_ONLY else self._tail

    def _matches(self, where: str | BooleanExpression | None, clock: Clock) -> Matches | None:
        if where is None:
            return None
        found = self._conditions.get(where, partial(self._find_matches, where))
        clock.lap("filter")
        return found

    def _settle(self, k: int, asked: Asked, *, filtered: bool) -> tuple[Knobs | None, tuple[str, ...]]:
        """Once for equal wishes: they come with every query of an application."""
        if self._loaded is None:
            return None, ()
        key = (k, asked, filtered)
        if found := self._settled.get(key):
            return found
        version = self._loaded
        rerank = not version.exact and (version.lean if asked.rerank is None else asked.rerank)
        knobs, unmet = settle(version.advice, version.search_list, k, asked, filtered=filtered, rerank=rerank)
        found = knobs, (*unmet, _APPROXIMATE) if version.lean and not rerank else unmet
        if len(self._settled) >= _SETTLED:
            self._settled.clear()  # other threads may be here, too: what they return they hold themselves
        self._settled[key] = found
        return found

    def _search_index(
        self, ready: npt.NDArray[np.float32], k: int, knobs: Knobs | None, matches: Matches | None, meter: Meter
    ) -> Indexed:
        if self._loaded is None or knobs is None:
            return Indexed(Candidates.none(len(ready), k), 0, 0, "scan")
        if isinstance(self._loaded, RemoteVersion):
            found = self._loaded.search(ready, k, knobs, matches)
        else:
            found = self._search_here(self._loaded, ready, k, knobs, matches)
        if found.approximate and knobs.rerank:
            best = rerank(found.candidates, ready, self._rows, self._target.field_id, self._loaded.metric, meter)
            found = replace(found, candidates=best)
        return found

    def _search_here(
        self, version: LoadedVersion, ready: npt.NDArray[np.float32], k: int, knobs: Knobs, matches: Matches | None
    ) -> Indexed:
        ask = partial(search, probed=version.advice.probed(ready, knobs))
        if matches is not None:
            ask = partial(search_matches, matches=matches)
        return ask(
            version,
            queries=ready,
            k=k,
            search_list=knobs.search_list,
            threads=self._threads,
            oversample=knobs.oversample,
        )

    def _find_matches(self, where: str | BooleanExpression) -> Matches:
        return find_matches(self._target.table, self._live, self._schema, where, self._target.storage)

    def _scan_tail(
        self, ready: npt.NDArray[np.float32], k: int, matches: Matches | None, skipped: Skipped
    ) -> tuple[Candidates, int]:
        if isinstance(self._loaded, RemoteVersion):
            return self._loaded.scan(ready, k, self._tail, matches, skipped)
        return scan(ready, k, self._vectors, self._tail, matches=matches, skipped=skipped)

    def _exactly(self, error: IndexUnavailableError) -> "IndexReader":
        """What answers for shards that tasks cannot read any more: every row, and a warning."""
        if self._stale is StalePolicy.FAIL:
            raise error
        source = Source(None, None, "the version that was opened cannot be read any more", (str(error),))
        return IndexReader(self._target, source, stale=StalePolicy.EXACT, threads=self._threads, opened=self._cost)

    def _warnings(self) -> tuple[str, ...]:
        if self.coverage is not Coverage.NEAREST_VERSION_ONLY or not self._tail:
            return self._source.warnings
        rows = sum(self._live.files[number].record_count for number in self._tail)
        missing = f"up to {rows:,} rows of snapshot {self.snapshot_id} are not in the index that answered"
        return (missing, *self._source.warnings)
