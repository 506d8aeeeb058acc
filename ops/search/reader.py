"""Searching one index of one table at one snapshot. See docs/concepts.md, "Search"."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from icepuffin.ops.cache import process_cache
from icepuffin.ops.catalog.bound_versions import DerivedVersion
from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.search.arguments import Clock, at_least_one, checked_distance, field_ids, prepared
from icepuffin.ops.search.candidates import Candidates, Hits, Reading, fetch, merge, rerank
from icepuffin.ops.search.distributed import RemoteVersion
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.matches import MatchCache, Matches, find_matches
from icepuffin.ops.search.range_search import Threshold, settled
from icepuffin.ops.search.result import Coverage, Opened, Profile, SearchResult, StalePolicy
from icepuffin.ops.search.row_reader import Meter, RowReader
from icepuffin.ops.search.scan import Skipped, VectorSource
from icepuffin.ops.search.shards import Indexed
from icepuffin.ops.search.target import Scope, Source, Target
from icepuffin.ops.search.thresholds import Thresholds
from icepuffin.ops.search.tiers import InProcess, Tier
from icepuffin.ops.search.tuning import Asked, Knobs, Tuning
from icepuffin.ops.search.worker import Ask, Pin


class IndexReader:
    """One index of one table at one snapshot. Immutable, thread-safe; made by `open_index`."""

    def __init__(
        self, target: Target, source: Source, *, stale: StalePolicy, threads: int, opened: Opened | None = None
    ) -> None:
        self.table = table_name(target.table)
        self.definition = target.definition
        self.snapshot_id = target.live.snapshot_id
        self._target = target
        self._source = source
        self._stale = stale
        self._threads = threads
        self._cost = opened
        self._scope = Scope.of(target, source, stale)
        self._row_count = max(1, target.live.record_count)
        self._metric = target.definition.metric_value
        self._rows = RowReader(target.live, target.schema, target.storage)
        self._vectors = VectorSource(
            target.live, target.schema, target.field_id, self._metric, target.storage, source.dims
        )
        self._conditions = MatchCache()
        self._tuning = Tuning(source.loaded)
        self._thresholds = Thresholds(target, source, self._vectors, self._scope.tail, self._rows)
        loaded = source.loaded
        self._tier: Tier = (
            loaded if isinstance(loaded, RemoteVersion) else InProcess(loaded, self._vectors, self._threads)
        )

    @property
    def why(self) -> str:
        """Why this version answers, or none."""
        return self._source.why

    @property
    def version(self) -> DerivedVersion | None:
        """The index version that answers."""
        return self._source.opened.version if self._source.opened else None

    @property
    def coverage(self) -> Coverage:
        """How the version that answers covers the snapshot."""
        return self._scope.coverage

    @property
    def tail(self) -> tuple[int, ...]:
        """Numbers of the live files that every search scans."""
        return self._scope.tail

    @property
    def warnings(self) -> tuple[str, ...]:
        """What every answer of this reader warns of."""
        return self._scope.warnings

    @property
    def tier(self) -> str:
        """Where the index is searched: `in-process`, or `distributed`."""
        return self._tier.name

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
        ready = prepared(queries, self._metric, self._source.dims)
        returned = field_ids(self._target.schema, columns, self.table)
        k = min(k, self._row_count)
        matches = self._matches(where, clock)
        knobs, unmet = self._tuning.settle(k, asked, filtered=matches is not None)
        ranking, settling, fetching = Meter(), Meter(), Meter()
        try:
            indexed = self._search_index(ready, k, knobs, matches, ranking)
        except IndexUnavailableError as error:
            return self._exactly(error).search(ready, k, columns=columns, where=where)
        clock.lap("index")
        found, scanned, skipped = indexed.candidates, 0, Skipped()
        wide = found.files.shape[1] + k if indexed.unsettled else k
        if self.tail:
            of_tail, scanned = self._tier.scan(ready, k, self.tail, matches, skipped)
            found = merge([found, of_tail], wide)
        clock.lap("scan")
        hits = Hits.of(found.first(wide))
        if indexed.unsettled:
            reading = Reading(ready, self._rows, self._target.field_id, self._metric, settling)
            hits = settled(hits, Threshold(np.inf, inclusive=True, metric=self._metric), k, reading)
            clock.lap("settle")
        rows = fetch(hits, self._rows, returned, fetching)
        clock.lap("rows")
        profile = Profile(
            why=self.why,
            strategy=indexed.strategy,
            shards=len(self._source.loaded.shards) if self._source.loaded else 0,
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
                "index": ranking.bytes,
                "scan": 4 * scanned * ready.shape[1],
                "rows": fetching.bytes,
                **({"settle": settling.bytes} if indexed.unsettled else {}),
            },
        )
        return self._result(rows, profile, (*unmet, *skipped.warnings))

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
        threshold = Threshold(checked_distance(distance), inclusive, self._metric)
        ready = prepared(queries, self._metric, self._source.dims)
        returned = field_ids(self._target.schema, columns, self.table)
        matches = self._matches(where, clock)
        settling, fetching = Meter(), Meter()
        met = self._thresholds.find(ready, threshold, matches, limit, clock, settling)
        rows = fetch(met.hits, self._rows, returned, fetching)
        clock.lap("rows")
        profile = Profile(
            why=self.why,
            strategy="threshold",
            shards=self._thresholds.shards,
            nodes_expanded=0,
            distances=met.compared * len(ready),
            tail_rows=met.read,
            milliseconds=clock.laps,
            matching_rows=matches.count if matches else None,
            pruning=met.pruning,
            tier_why=self._thresholds.where,
            bytes_read={"compare": 4 * met.compared * ready.shape[1] + settling.bytes, "rows": fetching.bytes},
        )
        return self._result(rows, profile, met.warnings)

    def some_vectors(self, count: int) -> npt.NDArray[np.float32]:
        """f32[n, D], n <= count: vectors of rows of the snapshot, prepared for the metric; for trying things out."""
        return self._vectors.some(count)

    def pin(self) -> Pin:
        """What this reader searches, to be searched elsewhere: snapshot and version stay what they are."""
        target, source = self._target, self._source
        whole = source.loaded is None or self.coverage is Coverage.NEAREST_VERSION_ONLY
        return Pin(
            target.live,
            target.schema,
            target.field_id,
            self._metric,
            target.storage,
            source.opened,
            None if whole else source.covered,
            cache=process_cache().settings,
        )

    def ask(self, k: int, asked: Asked, where: str | BooleanExpression | None) -> tuple[Ask, tuple[str, ...]]:
        """A question to ask of a pin, and what could not be done as it was asked. Raises QueryError, FilterError."""
        at_least_one(k=k, search_list=asked.search_list, shards=asked.shards, oversample=asked.oversample)
        k = min(k, self._row_count)
        matches = self._matches(where, Clock())
        knobs, unmet = self._tuning.settle(k, asked, filtered=matches is not None)
        return Ask(k, knobs, matches), unmet

    def _matches(self, where: str | BooleanExpression | None, clock: Clock) -> Matches | None:
        if where is None:
            return None
        target = self._target
        find = partial(find_matches, target.table, target.live, target.schema, where, target.storage)
        found = self._conditions.get(where, find)
        clock.lap("filter")
        return found

    def _search_index(
        self, ready: npt.NDArray[np.float64], k: int, knobs: Knobs | None, matches: Matches | None, meter: Meter
    ) -> Indexed:
        if knobs is None:
            return Indexed(Candidates.none(len(ready), k), "scan")
        found = self._tier.search(ready, k, knobs, matches)
        if found.approximate and knobs.rerank:
            best = rerank(found.candidates, ready, self._rows, self._target.field_id, self._metric, meter)
            found = replace(found, candidates=best)
        return found

    def _exactly(self, error: IndexUnavailableError) -> "IndexReader":
        """What answers for shards that tasks cannot read any more: every row, and a warning."""
        if self._stale is StalePolicy.FAIL:
            raise error
        source = Source(None, None, "the version that was opened cannot be read any more", (str(error),))
        return IndexReader(self._target, source, stale=StalePolicy.EXACT, threads=self._threads, opened=self._cost)

    def _result(self, rows: pa.Table, profile: Profile, warnings: tuple[str, ...]) -> SearchResult:
        version = self.version
        return SearchResult(
            rows=rows,
            coverage=self.coverage,
            snapshot_id=self.snapshot_id,
            index_snapshot_id=version.index_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            profile=profile,
            warnings=(*self.warnings, *warnings),
            opened=self._cost,
        )
