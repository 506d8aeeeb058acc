"""Searching one index of one table at one snapshot. See docs/concepts.md, "Search"."""

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import NoReturn, cast

import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.cache import process_cache
from icepuffin.ops.filters.matches import Matches, find_matches
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber
from icepuffin.ops.presentation import Presentation
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.rows.candidates import fetch
from icepuffin.ops.rows.included_values import IncludedColumns
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.arguments import (
    Condition,
    Conditions,
    checked_distance,
    conditions_of,
    prepare_queries,
    require_at_least_one,
)
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.exact.file_scans import TaskChoice
from icepuffin.ops.search.exact.scan import RangeThresholds, VectorSource
from icepuffin.ops.search.exact.tail_cache import TailCacheState
from icepuffin.ops.search.following_reader import FollowingReader, Withdraw
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.indexed.worker import SearchJob, SearchRequest
from icepuffin.ops.search.measured.live_recall import LiveRecall, RecallSampler
from icepuffin.ops.search.measured.recall_trial import RecallTrial
from icepuffin.ops.search.near_pairs import NearPairs, PairSearch
from icepuffin.ops.search.pipeline import Answer, RowsRequest, SearchPipeline
from icepuffin.ops.search.result import Coverage, OpeningCost, SearchCosts, SearchResult, StalePolicy
from icepuffin.ops.search.shaped.pages import pages_of
from icepuffin.ops.search.shaped.shaped_search import Shape, ShapedSearch
from icepuffin.ops.search.target import SearchTarget, SnapshotCoverage, VersionChoice
from icepuffin.ops.search.text_search import TextSearch, texts_of
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.table.live_files import rows_by_position
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.text.word_condition import HasWord

_log = logging.getLogger(__name__)
Reopen = Callable[["IndexReader", Withdraw], "IndexReader"]
"""Function from a reader to the one for the table's newest metadata: the same one where nothing is newer."""


class IndexReader(Presentation):
    """One index of one table at one snapshot, open for searching. Made by `open_index` or `open_exact`.

    It never changes and is safe for threads: a service keeps one, or one that `follow` gives. It cannot be pickled:
    each process opens its own.

    `table`, `snapshot_id`, `definition`, `metric`, `dims` and `row_count` say what is open. `coverage`, `version`,
    `why`, `tier` and `warnings` say how it answers.

    Examples
    --------
    >>> reader.table, reader.metric, reader.dims, reader.row_count
    ('demo.packages', <Metric.COSINE: 'cosine'>, 384, 6000)
    """

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        *,
        stale: StalePolicy,
        threads: int,
        tasks: TaskChoice | None = None,
        opening: OpeningCost | None = None,
        reopen: Reopen | None = None,
        reload: Callable[[], "IndexReader"] | None = None,
        sampler: RecallSampler | None = None,
    ) -> None:
        self.table = table_name(target.table)
        self.definition = target.definition
        self.snapshot_id = target.live.snapshot_id
        self._target = target
        self._choice = choice
        self._stale = stale
        self._threads = threads
        self._tasks = tasks or TaskChoice()
        self._opening = opening
        self._coverage = SnapshotCoverage.from_choice(target, choice, stale)
        self._reopen = reopen
        self._reload = reload
        self._reloading = ProcessLock()
        self._reloaded: IndexReader | None = None
        self._max_k = max(1, target.live.record_count)  # deleted rows included: a bound, not `row_count`
        self._metric = target.metric
        self._dims = choice.dims  # once: it counts the rows of every shard
        opened = choice.opened
        included = None
        if opened and opened.included:
            included = IncludedColumns(opened, target.live, target.visible, target.storage)
        self._rows = RowReader(target.live, target.visible, target.storage, included=included)
        self._vectors = VectorSource(
            target.live, target.schema, target.field_id, self._metric, target.storage, self._dims
        )
        self._pipeline = SearchPipeline(
            target,
            choice,
            self._coverage,
            self._vectors,
            self._rows,
            threads=threads,
            tasks=self._tasks,
            having=_having(self),
            sampler=sampler,
        )
        self._shaped = ShapedSearch(target, self._pipeline, self._rows, choice.here)

    def headline(self) -> str:
        index = f"index {self.definition.name!r}" if self.definition and self._choice.loaded else "no index"
        dims = "" if self.dims is None else f"{plural(self.dims, 'dimension')}, "
        rows = "the rows that the catalog allows" if self._target.hides_rows else plural(self.row_count, "row")
        shape = f"{rows}, {dims}{self.metric}"
        return f"{self.table!r}, {index}, snapshot {self.snapshot_id}, {shape}, {self.coverage}"

    def fields(self) -> dict[str, str]:
        fields = {
            "answers": f"{self.coverage}: {self.why}",
            "where": self.tier,
            "version": f"made for snapshot {self.version.base_snapshot_id}" if self.version else "",
            "scanned": f"the rows of {plural(len(self.scanned), 'file')}" if self.scanned else "",
            "warning": "\n".join(self.warnings),
        }
        return {name: text for name, text in fields.items() if text}

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an IndexReader cannot be pickled: open one in each process, or send queries to it by icepuffin.knn_join"
        )

    @property
    def dims(self) -> int | None:
        """Dimensions of the vectors; None where no index tells, which is before the first scan."""
        return self._dims

    @property
    def metric(self) -> Metric:
        """What distances are: `l2`, `cosine`, `ip` or `hamming`."""
        return self._metric

    @property
    def row_count(self) -> int:
        """Rows of the snapshot's data files less the position deletes that apply to them; of a restricted table those
        that the reader may see, which are counted by reading.
        """
        return self._row_count

    @cached_property
    def _row_count(self) -> int:
        target = self._target
        if target.restriction is None or target.restriction.row_filter is None:
            return rows_by_position(target.live)
        of_snapshot = target.table, target.live, target.schema, target.restriction.row_filter, target.storage
        return find_matches(*of_snapshot).count  # also of files that the index lacks, whatever answers may have

    @property
    def why(self) -> str:
        """Why this index version answers, or none does."""
        return self._choice.why

    @property
    def version(self) -> DerivedVersion | None:
        """The index version that answers."""
        return self._choice.opened.bound if self._choice.opened else None

    @property
    def has_unreadable_versions(self) -> bool:
        """Whether there are index versions that could not be read when this reader was opened."""
        return bool(self._choice.warnings)

    @property
    def coverage(self) -> Coverage:
        """How the index version covers the snapshot."""
        return self._coverage.coverage

    @property
    def tail(self) -> tuple[FileNumber, ...]:
        """File numbers of the freshness tail, whose rows every search compares."""
        return self._coverage.tail

    @property
    def kept_tail(self) -> TailCacheState:
        """What this reader keeps of the freshness tail in memory, and why."""
        if self._pipeline.delta is not None:
            return self._pipeline.delta.state
        return TailCacheState(0, 0, "there is no tail" if not self.tail else "each search reads it from the data files")

    @property
    def scanned(self) -> tuple[FileNumber, ...]:
        """File numbers of all files that no shard answers for: the freshness tail, or every file without graphs."""
        covered = self._choice.covered if self._choice.is_of_balls else ()
        return tuple(sorted({*self.tail, *covered}))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that every answer of this reader has."""
        return self._coverage.warnings

    @property
    def tier(self) -> str:
        """Where the index is searched: `in-process`, or `distributed`."""
        return self._pipeline.tier

    def search(
        self,
        queries: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        text: str | Sequence[str] | None = None,
        text_weight: float | None = None,
        text_columns: Sequence[str] | None = None,
        search_list: int | None = None,
        shards: int | None = None,
        oversample: int | None = None,
        target_recall: float | None = None,
        recall_share: float | None = None,
        rerank: bool | None = None,
        certified: bool = False,
        columns: Sequence[str] | None = None,
        where: Conditions = None,
        per_group: Mapping[str, int] | None = None,
        diversity: float = 0.0,
    ) -> SearchResult:
        """The k nearest rows of each query, as of the snapshot: by vectors, by words, or by both.

        Parameters
        ----------
        queries : array_like, optional
            One vector [D], or several [Q, D], of any float type; or an Arrow column of lists.
        k : int
            Rows per query.
        text : str or sequence of str, optional
            Words to search for in the columns of `text` of the index, a text per query: the rows with the largest BM25
            scores, with counts of exactly the rows of the snapshot. With vectors: both lists, fused.
        text_weight : float, optional
            Share of the words in a fused score, from 0 to 1. Default: by the ranks in both lists.
        text_columns : sequence of str, optional
            Columns of `text` of the index whose words count. Default: all of them.
        search_list : int, optional
            Width of the beam (L): larger is slower and finds more. Default: the index's own.
        shards : int, optional
            Search only so many shards, those whose centroids are nearest to the query. Default: all.
        oversample : int, optional
            Candidates per row that are re-ranked by exact distance, where the index is not exact.
        target_recall : float, optional
            Choose the parameters that are not given: by what `tune` measured with your own queries, else from the
            recall curve that was measured with the index.
        recall_share : float, optional
            Share of the queries that are to reach `target_recall`, such as 0.95, at most 0.99: by the queries that
            `tune` measured. Default: that is their mean.
        rerank : bool, optional
            Rank candidates by the table's own vectors, where shards do not hold these as they are. Default: only where
            shards hold no vectors at all; otherwise distances are those of the index.
        certified : bool
            Prove the answer: compare exactly every row of the data files that the centroid index cannot rule out by
            the distance of the k-th row that was found. `profile.certificate` has the proof. Not for inner product.
        columns : sequence of str, optional
            Columns to return of each row. Default: all but nested ones.
        where : str or pyiceberg.expressions.BooleanExpression, or a sequence of these, optional
            Iceberg row filter, such as `"section = 'database'"`: only rows for which it is true are found. A sequence
            has one filter per query, None for a query without one: the same rows as by one call per query, and faster.
        per_group : mapping of str to int, optional
            One column and a limit, such as `{"seller": 2}`: the k nearest of the rows that stay where, of all rows with
            the same value of the column, only so many nearest ones count. Nulls have one value. The column is one of
            the index's `filters`; of a reader by `open_exact` any column of plain values. Not with `certified`.
        diversity : float
            0 for the nearest rows. Over that, and at most 1: choose k of the max(5 k, 50) nearest (of those that
            `per_group` leaves) by maximal marginal relevance (Carbonell and Goldstein, 1998). The first is the nearest;
            each further one has the least (1 - diversity) x distance from the query - diversity x distance from the
            nearest row chosen before it. Both distances are the metric's. Ranks are in the order of choice, and the
            distances of the answer are those from the query. Not with `certified`.

        Returns
        -------
        SearchResult
            Rows by query, then rank, with distances in float64; `coverage` says how the snapshot was covered. With
            `text` they have a `score` instead; fused ones also the distance, the text's score, and both ranks.

        Raises
        ------
        QueryError
            A query is not a vector of the index's dimensions, or an argument is out of range.
        UnknownColumnError
            The snapshot has no column of that name.
        RestrictedTableError
            The catalog masks a column that is named, or hides rows that an argument would tell of.
        FilterError
            The condition cannot be evaluated.
        DataFileError
            A data file is gone or damaged.
        IndexUnavailableError
            With the policy `fail`: a shard cannot be read any more.

        Examples
        --------
        >>> reader.search(query, k=3, columns=["name"], where="section = 'web'")
        SearchResult(3 rows, snapshot ..., exact-version)
        """
        costs = SearchCosts()
        require_at_least_one(k=k, search_list=search_list, shards=shards, oversample=oversample)
        options = SearchOptions(search_list, shards, oversample, target_recall, rerank, recall_share)
        if self._target.hides_rows and target_recall is not None:
            self._require_unrestricted("target_recall goes by the recall of all rows: set search_list and oversample")
        if self._target.hides_rows and rerank is False:
            self._require_unrestricted("Rows are ranked by the table's vectors: codes were fitted to hidden ones, too")
        if certified and self._choice.loaded is not None:
            self._require_certifiable()
        vectors = None
        if queries is not None:
            vectors = prepare_queries(queries, self._metric, self._dims, self._vectors.element_type)
        elif text is None:
            raise QueryError("give a vector, a text, or both")
        count = None if vectors is None else len(vectors)
        texts = texts_of(text, text_weight, text_columns, count)
        if texts is not None and certified:
            raise QueryError("certified proves the nearest vectors, not what words find: leave one out")
        shape = Shape.from_arguments(per_group, diversity, self._target, certified=certified)
        if texts is not None and (per_group or diversity):
            raise QueryError(
                "per_group and diversity are of the nearest vectors, not of what words find: leave text out"
            )
        conditions = conditions_of(where, len(texts or ()) if count is None else count)
        asked = cast("Condition | None", where) if conditions is None else conditions or None
        returned = self._target.returned(columns)
        # an exact scan needs no proof, and a pruned one has it
        request = RowsRequest(min(k, self._max_k), options, certified and self._choice.graphs is not None)
        scored: dict[str, pa.Array] | None = None
        try:
            if texts is not None:
                answer, scored = self._words.best(vectors, texts, request, asked, costs, text_weight, text_columns)
            elif vectors is not None:
                answer = self._shaped.nearest(vectors, request, asked, costs, shape)
        except IndexUnavailableError as error:
            search = partial(self._without_index(error).search, text=text, text_weight=text_weight)
            search = partial(search, text_columns=text_columns, certified=certified, columns=columns, where=asked)
            return search(vectors, k, **asdict(options), per_group=per_group, diversity=diversity)
        return self._result(answer, returned, costs, scored)

    def pages(
        self,
        query: npt.ArrayLike,
        size: int = 100,
        *,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
    ) -> Iterator[SearchResult]:
        """All rows (that match) in the order of their distance from one query, page by page.

        No row comes twice, and each comes in the end: later pages compare every row, as `within` does. In earlier ones
        a graph may miss a row, which comes out of order then. Without graphs, the pages are one search for all rows.
        Memory: 40 bytes per row given so far, and per row of the last search, which may find four times as many.

        Parameters
        ----------
        query : array_like
            One vector, as for `search`.
        size : int
            Rows per page; the last page may have fewer.
        columns, where : optional
            As for `search`, with one condition.

        Returns
        -------
        iterator of SearchResult
            Pages that are searched for when they are asked for. Ranks go on from page to page.

        Raises
        ------
        QueryError, UnknownColumnError, RestrictedTableError, FilterError, DataFileError, IndexUnavailableError
            As for `search`.

        Examples
        --------
        >>> pages = reader.pages(query, size=4, columns=["name"])
        >>> [row["rank"] for row in next(pages)], [row["rank"] for row in next(pages)]
        ([1, 2, 3, 4], [5, 6, 7, 8])
        """
        require_at_least_one(size=0 if size is None else size)
        vectors = prepare_queries(query, self._metric, self._dims, self._vectors.element_type)
        if len(vectors) != 1 or conditions_of(where, 1) is not None:
            raise QueryError("pages are of one query and one condition: call pages for each")
        returned = self._target.returned(columns)
        every = RangeThresholds.from_distance(math.inf, 1, self._metric, inclusive=True)
        reader = self

        def find(k: int, is_exact: bool, costs: SearchCosts) -> Answer:
            nonlocal reader
            try:
                if is_exact:
                    return reader._pipeline.within(vectors, every, where, k, costs)
                return reader._pipeline.nearest(vectors, RowsRequest(k, SearchOptions(), False), where, costs)
            except IndexUnavailableError as error:
                reader = reader._without_index(error)
                return find(k, is_exact, costs)

        pages = pages_of(find, size, self._max_k)
        return (reader._result(answer, returned, costs) for answer, costs in pages)

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
        """Every row nearer than `distance`, nearest first: exact, whatever the recall of the graph (range search).

        Data files out of reach by the centroid index are not read, except under inner product; `profile.pruning`
        counts them. Vectors are those of the index where it holds them unrounded, else those of the data files.

        Parameters
        ----------
        queries : array_like
            As for `search`.
        distance : float
            Limit, as the metric reports distances.
        inclusive : bool
            Whether rows at that very distance are taken, too.
        limit : int, optional
            Most rows per query, the nearest ones. Default: all.
        columns, where : optional
            As for `search`.

        Returns
        -------
        SearchResult
            Rows by query, then rank.

        Raises
        ------
        QueryError, UnknownColumnError, RestrictedTableError, FilterError, DataFileError
            As for `search`.

        Examples
        --------
        >>> all(row["distance"] < 0.4 for row in reader.within(query, 0.4, columns=["name"]))
        True
        """
        costs = SearchCosts()
        require_at_least_one(limit=limit)
        checked = checked_distance(distance)
        vectors = prepare_queries(queries, self._metric, self._dims, self._vectors.element_type)
        thresholds = RangeThresholds.from_distance(checked, len(vectors), self._metric, inclusive=inclusive)
        returned = self._target.returned(columns)
        try:
            answer = self._pipeline.within(vectors, thresholds, where, limit, costs)
        except IndexUnavailableError as error:
            other = self._without_index(error)
            return other.within(queries, distance, inclusive=inclusive, limit=limit, columns=columns, where=where)
        return self._result(answer, returned, costs)

    def pairs(
        self, within: float, *, columns: Sequence[str] | None = None, sample: int = 500, limit: int = 1_000_000
    ) -> NearPairs:
        """Pairs of rows nearer to each other than `within`, such as near duplicates, by the graphs of the index.

        Each row is searched for by its own vector, wider where all that is found is near. What a graph misses is
        counted: some rows are compared exactly with all others. Without graphs the pairs are complete.

        Parameters
        ----------
        within : float
            Limit, as the metric reports distances. Not for inner product.
        columns : sequence of str, optional
            Columns to return of both rows. Default: all but nested ones.
        sample : int
            Rows, about, that are compared exactly with all others.
        limit : int
            Most pairs.

        Returns
        -------
        NearPairs
            `rows`: distance, then the columns of both rows as `left_*` and `right_*`; `recall` and its 95 % `interval`:
            the share of all pairs that was found.

        Raises
        ------
        QueryError
            There are more pairs than `limit`, or the metric is inner product.
        UnknownColumnError, RestrictedTableError, DataFileError
            As for `search`.

        Examples
        --------
        >>> reader.pairs(0.2, columns=["name"]).rows.column_names
        ['distance', 'left_name', 'right_name']
        """
        require_at_least_one(sample=sample, limit=limit)
        limit_distance, returned = checked_distance(within), self._target.returned(columns)
        search = PairSearch(self._pipeline, self._vectors, self._rows, self._answering, self._max_k)
        return search.find(limit_distance, limit, sample, returned)

    def follow(self, interval: float = 30.0) -> "FollowingReader[IndexReader]":
        """Follow the table: a reader for services that moves to newer snapshots and index versions by itself.

        A newer version is opened beside this one and takes its place when it is ready; a search never sees half of it.

        Parameters
        ----------
        interval : float
            Seconds between two questions to the catalog.

        Returns
        -------
        FollowingReader
            It has `search` and `within` of this reader; close it, or use it in a `with` statement.

        Raises
        ------
        QueryError
            The reader was opened at a snapshot id or a time, which never move.

        Examples
        --------
        >>> with reader.follow(interval=30) as following:
        ...     len(following.search(query, k=3))
        3
        """
        if self._reopen is None:
            raise QueryError(
                f"{self.table}: snapshot {self.snapshot_id} was named by its id or a time and stays what it is; "
                "open the reader without a snapshot, or at a branch or tag, to follow it"
            )
        return FollowingReader(self, IndexReader._newest, IndexReader._rehearse, interval=interval)

    def stats(self) -> LiveRecall:
        """The recall of the queries that were answered, by a sample, as of now.

        A reader that was opened with `recall_sample` draws that share of its queries. They are answered exactly, too,
        in a thread that takes 1 % of a core on average: by comparing every vector that the index holds. What the budget
        does not admit is left out, and the sample is smaller. Rows that the index lacks are compared exactly in any
        case, and do not count.

        Returns
        -------
        LiveRecall
            Of the version that answers: `queries`, `recall` and its 95 % interval `low` to `high`; `left_out`,
            `waiting` and `seconds` say what the sample lacks and costs, `why` the reason where there is none.

        Examples
        --------
        >>> reader.stats().queries, reader.stats().why
        (0, 'open the reader with recall_sample, such as 0.01, to measure that share of its queries')
        """
        return self._pipeline.live_recall()

    def recall_trial(self) -> RecallTrial:
        """What measures the recall of the version that answers. Raises QueryError where no graph is searched,
        and RestrictedTableError.
        """
        self._require_unrestricted("recall is measured over all rows")
        trial = self._pipeline.recall_trial()
        if trial is None:
            raise QueryError(f"{self.table}: every row is compared, which needs no tuning: {self.why}")
        return trial

    def search_job(self) -> SearchJob:
        """This reader's snapshot and version, to be searched in other processes: both stay what they are. Raises
        RestrictedTableError.
        """
        self._require_unrestricted("other processes would search all of it")
        target, choice = self._target, self._choice
        opened = None if choice.dims is None else choice.opened  # not one without live rows, which no search reads
        unrestricted = choice.loaded is None or self.coverage is Coverage.NEAREST_VERSION_ONLY
        return SearchJob(
            target.live,
            target.schema,
            target.field_id,
            self._metric,
            target.storage,
            opened,
            None if unrestricted else choice.covered,
            live_rows=None if choice.loaded is None else choice.loaded.live_rows(),
            cache=process_cache().settings,
        )

    def search_request(
        self, k: int, options: SearchOptions, where: str | BooleanExpression | None
    ) -> tuple[SearchRequest, tuple[str, ...]]:
        """A request for `search_job`, and warnings of options that could not be followed.

        Raises QueryError, FilterError, RestrictedTableError.
        """
        self._require_unrestricted("other processes would search all of it")
        require_at_least_one(k=k, search_list=options.search_list, shards=options.shards, oversample=options.oversample)
        k = min(k, self._max_k)
        matches = self._pipeline.conditions.matches(where, StageClock())
        parameters, warnings = self._pipeline.parameters.choose(k, options, filtered=matches is not None)
        return SearchRequest(k, parameters, matches), warnings

    def _newest(self, withdraw: Withdraw) -> "IndexReader":
        """The reader that a fresh look at the catalog leads to, of what this very reader was opened by."""
        newest = self._reopen(self._reloaded or self, withdraw) if self._reopen else self
        if newest is not self:
            target = newest._target  # noqa: SLF001  a reader as this one
            kept = self._rows.kept_for(target.live, target.visible, target.storage)
            newest._rows.take_over(kept)  # noqa: SLF001
        return newest

    def _rehearse(self, searches: Iterable[Callable[["IndexReader"], object]]) -> None:
        """Search as others did, so that what the first search of a kind works out is there for the next."""
        if self._choice.here is None:
            return  # little is kept there: each search reads data files, or runs tasks
        if self._target.restriction is not None:
            return  # the reader that answers until then may show what this one hides
        sampler = self._pipeline.sampler
        with sampler.paused() if sampler is not None else nullcontext():
            for search in searches:
                try:
                    search(self)
                except Exception as error:  # whoever searches so again gets it
                    _log.info("a search that was repeated on the newer snapshot failed: %s", error)

    def _require_unrestricted(self, why: str) -> None:
        """Raises RestrictedTableError where the catalog restricts what may be read."""
        if self._target.restriction is not None:
            raise self._target.restriction.refusal(why)

    def _require_certifiable(self) -> None:
        """Raises QueryError where no answer of this reader can be proven to be the nearest rows, and
        RestrictedTableError where the proof would tell how far hidden rows are.
        """
        if self._target.restriction is not None and self._target.hides_rows:
            raise self._target.restriction.refusal(
                "A proof tells how far rows are that were ruled out, hidden ones among them; within is exact by itself"
            )
        if self.coverage is Coverage.NEAREST_VERSION_ONLY:
            raise QueryError("certified needs the rows that the index lacks: open the reader with stale='complete'")
        if self._metric is Metric.INNER_PRODUCT:
            raise QueryError(
                "certified cannot rule out a file under inner product, which obeys no triangle inequality: "
                "icepuffin.open_exact compares every row"
            )

    def _without_index(self, error: IndexUnavailableError) -> "IndexReader":
        """A reader that does without what cannot be read, and warns.

        Where a shard of this process could not be read, it is what opening the index with all shards leads to: another
        version may serve. It is made once, and serves whenever the shard is needed. Where tasks could not read one,
        every row is compared.
        """
        if isinstance(self._choice.loaded, LoadedVersion) and self._reload is not None:
            with self._reloading:
                if self._reloaded is None:
                    self._reloaded = self._reload()
                return self._reloaded
        if self._stale is StalePolicy.FAIL:
            raise error
        choice = VersionChoice(None, None, "the version that was opened cannot be read any more", (str(error),))
        return IndexReader(
            self._target,
            choice,
            stale=StalePolicy.EXACT,
            threads=self._threads,
            tasks=self._tasks,
            opening=self._opening,
        )

    @cached_property
    def _words(self) -> TextSearch:
        return TextSearch(self._target, self._choice, self._pipeline, self._answering)

    @property
    def _answering(self) -> tuple[FileNumber, ...]:
        """Numbers of the files with rows that may be in an answer."""
        is_partial = self.coverage is Coverage.NEAREST_VERSION_ONLY
        return tuple(sorted(self._choice.covered)) if is_partial else self._target.live.numbers

    def _result(
        self,
        answer: Answer,
        returned: Sequence[int],
        costs: SearchCosts,
        scored: Mapping[str, pa.Array] | None = None,
    ) -> SearchResult:
        """The answer with the columns of its rows, and what it may say of itself. `scored`: of `TextSearch.best`."""
        meter, version, restriction = Meter(), self.version, self._target.restriction
        rows = fetch(answer.hits, self._rows, returned, meter, scored)
        costs.clock.lap("rows")
        costs.add_bytes(rows=meter.bytes)
        if meter.included.rows:
            costs.add_bytes(included=meter.included.bytes)
        name_of = self._target.schema.find_column_name
        costs.included_rows.update({str(name_of(field_id)): count for field_id, count in meter.included.rows.items()})
        costs.milliseconds.update(costs.clock.milliseconds)
        return SearchResult(
            rows=rows,
            coverage=self.coverage,
            snapshot_id=self.snapshot_id,
            index_snapshot_id=version.index_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            profile=answer.profile if restriction is None else restriction.allowed_profile(answer.profile),
            warnings=(*self.warnings, *answer.warnings, *meter.included.faults),
            opening=None if self._target.hides_rows else self._opening,
        )


def _having(reader: IndexReader) -> Callable[[HasWord], Matches]:
    """What finds rows by a reader's words. It does not keep the reader, whose files are closed when nobody has it."""
    owner = weakref.ref(reader)

    def having(condition: HasWord) -> Matches:
        searched = owner()
        if searched is None:
            raise ReferenceError("the reader is gone while it searches")
        return searched._words.having(condition)  # noqa: SLF001  of this module

    return having
