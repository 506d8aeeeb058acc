"""The k nearest rows of the queries of one reader: by the index, in the rows that it lacks, and under conditions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.expressions import BooleanExpression

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.attribute_conditions import Attributes
from icepuffin.ops.filters.attribute_matches import AttributeMatches, find_matches_by_attributes
from icepuffin.ops.filters.attribute_values import VersionValues
from icepuffin.ops.filters.matches import MatchCache, Matches, find_matches
from icepuffin.ops.filters.tail_values import TailValues
from icepuffin.ops.index.versions.tuning_record import usable_record
from icepuffin.ops.index.versions.version_reader import same_files
from icepuffin.ops.model import FileNumber, SnapshotId
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.rows.candidates import Candidates, DistanceReader, Hits, cut_in_doubt, merge, rerank
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.arguments import RangeThresholds
from icepuffin.ops.search.condition_per_query import (
    Answer,
    Condition,
    TailAnswer,
    groups_of,
    joined,
    summed_over_queries,
)
from icepuffin.ops.search.exact.file_scans import FileScans, TaskChoice
from icepuffin.ops.search.exact.private_delta import FROM_FILES, PrivateDelta, SourceWithDelta, TailAccess
from icepuffin.ops.search.exact.scan import SkippedRows, VectorSource
from icepuffin.ops.search.indexed.conjunctions import ConjunctionSearch, Lists
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.indexed.tiers import InProcessTier, Tier
from icepuffin.ops.search.indexed.version_search import COMPARED, IndexAnswer, exact_distances
from icepuffin.ops.search.measured.live_recall import LiveRecall, RecallSampler
from icepuffin.ops.search.range_search import RangeSearch, resolve_rounding
from icepuffin.ops.search.result import Coverage, Profile, SearchCosts
from icepuffin.ops.search.target import SearchTarget, SnapshotCoverage, VersionChoice
from icepuffin.ops.search.tuning import ParameterChooser, SearchOptions, SearchParameters

_CUT_IN_DOUBT = (
    "candidates were chosen by floats, which cannot tell the rows about as far as the last one apart: nearer ones may "
    "be missing; a larger oversample finds more, within and exact scans find all"
)
_LONGEST_OF_FLOATS = float(np.finfo(np.float32).max)
"""Length that no vector of a version is expected to pass"""
_NO_GRAPHS = "the index has no graphs: search parameters have no effect"


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The rows that a search is for."""

    k: int
    options: SearchOptions
    to_certify: bool


class NearestSearch:
    """Finds the k nearest rows of queries at one snapshot, by one index version or none. Thread-safe.

    Parameters
    ----------
    target, choice, coverage
        The snapshot, the version that answers, and what this lacks of the snapshot.
    vectors, rows
        Vectors and rows of the data files.
    tasks : TaskChoice
        When tasks read data files.
    sampler : RecallSampler, optional
        What measures the recall of some of the queries.
    """

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        coverage: SnapshotCoverage,
        vectors: VectorSource,
        rows: RowReader,
        *,
        threads: int,
        tasks: TaskChoice,
        sampler: RecallSampler | None,
    ) -> None:
        self._target = target
        self._choice = choice
        self._coverage = coverage
        self._vectors = vectors
        self._rows = rows
        self._threads = threads
        self._metric = target.metric
        self.sampler = sampler
        self.match_cache = MatchCache()
        opened, loaded = choice.opened, choice.loaded
        self.is_pruned_scan = opened is not None and not opened.definition.has_graphs
        """Whether files are ruled out by their balls, and all rows of the others are compared"""
        source = target.live, target.schema, target.storage
        self._answering = None
        """Files with rows that may be in an answer; None where all have some"""
        if opened is not None and coverage.coverage is Coverage.NEAREST_VERSION_ONLY:
            self._answering = frozenset(same_files(opened, target.live).values())
        self._values = VersionValues(opened, *source) if opened and opened.attributes else None
        self._attributes = Attributes(self._values, *source) if self._values else None
        record, unfit = usable_record(target.table, opened.definition.name, opened) if opened else (None, "")
        self._parameters = ParameterChooser(None if self.is_pruned_scan else loaded, record, unfit)
        self.delta = self._private_delta()
        """The freshness tail in memory; None where none is kept"""
        self._tail_values = TailValues(self._values, *source) if self._values and self.delta else None
        scanned = SourceWithDelta.of(vectors, self.delta) if self.delta else vectors
        self._file_scans = FileScans(scanned, tasks)
        self.range_search = RangeSearch(target, choice, vectors, coverage.tail, rows, self._file_scans)
        self.tier: Tier = loaded if isinstance(loaded, DistributedVersion) else InProcessTier(loaded, vectors, threads)

    def matches(self, where: str | BooleanExpression | None, clock: StageClock) -> Matches | None:
        """The live rows that satisfy the condition, and that the reader may see, of those that may be in an answer;
        None where that is all. Raises FilterError, and RestrictedTableError as of `Restriction.narrowed`.
        """
        target = self._target
        condition = where if target.restriction is None else target.restriction.narrowed(where)
        if condition is None:
            return None
        of_snapshot = target.table, target.live, target.schema, condition, target.storage
        find = partial(find_matches, *of_snapshot, self._file_scans.matches)
        if self._attributes is not None:
            find = partial(
                find_matches_by_attributes, *of_snapshot, self._attributes, self._file_scans.matches, self._tail_values
            )
        matches = self.match_cache.get(condition, partial(find, files=self._answering))
        clock.lap("filter")
        return matches

    def parameters_of(
        self, k: int, options: SearchOptions, matches: Matches | None
    ) -> tuple[SearchParameters | None, tuple[str, ...]]:
        """The search parameters (None where no graph is searched), and warnings of options that were not followed."""
        if self.is_pruned_scan:
            return None, () if options == SearchOptions() else (_NO_GRAPHS,)
        if self._target.hides_rows and self._choice.loaded is not None:
            options = replace(options, rerank=True)  # what stands for a vector in the index was fitted to hidden ones
        return self._parameters.choose(k, options, filtered=matches is not None)

    def nearest(
        self,
        vectors: npt.NDArray[np.float64],
        request: RowsRequest,
        where: Condition | None,
        clock: StageClock,
        costs: SearchCosts,
    ) -> Answer:
        """The k nearest rows of each query (that match). Raises IndexUnavailableError."""
        k = request.k
        matches = self.matches(where, clock)
        parameters, warnings = self.parameters_of(k, request.options, matches)
        rerank_meter, settle_meter = Meter(), Meter()
        answer, doubts = self._search_index(vectors, k, parameters, matches, rerank_meter)
        clock.lap("index")
        if self.sampler is not None and self.sampler.share:
            self._sample_recall(self.sampler, vectors, k, answer.candidates.distances, [where] * len(vectors))
        candidates, skipped, nearest, tail = answer.candidates, SkippedRows(), None, ""
        scanned = read = 0
        width = candidates.files.shape[1] + k if answer.rounded_directions else k
        if self.is_pruned_scan:
            nearest = self.range_search.nearest(vectors, k, matches, skipped)
            candidates, scanned, read = nearest.candidates, nearest.compared, nearest.compared
        elif self._coverage.tail:
            tail_candidates, scanned, read, tail = self._scan_tail(vectors, k, matches, skipped)
            candidates = merge([candidates, tail_candidates], width)
        clock.lap("scan")
        hits = Hits.of(candidates.first(width))
        if answer.rounded_directions:
            hits = self._settled(vectors, hits, k, settle_meter)
            clock.lap("settle")
        certified_hits = self.range_search.certify(vectors, hits, k, matches, clock) if request.to_certify else None
        hits = certified_hits.hits if certified_hits else hits
        costs.add_bytes(
            index=rerank_meter.bytes + (answer.cold.bytes if answer.cold else 0),
            scan=self._scanned_bytes(read, vectors.shape[1]),
        )
        if answer.rounded_directions:
            costs.add_bytes(settle=settle_meter.bytes)
        profile = self._profile(
            len(vectors),
            costs,
            strategy=answer.strategy,
            nodes_expanded=answer.expanded,
            distances=answer.computed,
            tail_rows=scanned,
            matching_rows=_matching_rows(answer, matches),
            condition=matches.how if matches else "",
            tail=tail,
            parameters=parameters,
            work=answer.work,
            cold=answer.cold,
        )
        doubts = (*doubts, *skipped.warnings)
        if certified_hits is not None:
            costs.add_bytes(compare=certified_hits.bytes_read)
            profile, doubts = certified_hits.profile(profile), certified_hits.warnings
        if nearest is not None:
            complete = self._coverage.coverage is not Coverage.NEAREST_VERSION_ONLY
            profile, doubts = nearest.profile(profile, complete=complete), (*nearest.warnings, *doubts)
        return Answer(hits, profile, (*warnings, *doubts))

    def nearest_per_condition(
        self,
        vectors: npt.NDArray[np.float64],
        request: RowsRequest,
        conditions: Sequence[Condition | None],
        clock: StageClock,
        costs: SearchCosts,
    ) -> Answer:
        """The k nearest rows of each query that match a condition of its own: conjunctions of look-ups all at once, the
        others by distinct condition. Raises IndexUnavailableError.
        """
        parts: list[tuple[I64, Answer]] = []
        others = list(range(len(vectors)))
        if self.conjunctions is not None and not request.to_certify:
            lists = list(map(self.conjunctions.lists_of, conditions))
            clock.lap("filter")
            places = np.array([place for place, own in enumerate(lists) if own is not None], np.int64)
            if len(places):
                answer, left_out = self._nearest_of_conjunctions(
                    self.conjunctions, vectors[places], request, [own for own in lists if own is not None],
                    [conditions[place] for place in places.tolist()], clock, costs,
                )  # fmt: skip
                parts.append((places, answer))
                others = sorted({*others}.difference(places.tolist()).union(places[left_out].tolist()))
        for where, own_places in groups_of(conditions, others):
            answer = self.nearest(vectors[own_places], request, where, clock, costs)
            parts.append((own_places, summed_over_queries(answer)))
        return joined(parts, len(vectors))

    def _nearest_of_conjunctions(
        self,
        conjunctions: ConjunctionSearch,
        vectors: npt.NDArray[np.float64],
        request: RowsRequest,
        lists: Sequence[tuple[Lists, ...]],
        conditions: Sequence[Condition | None],
        clock: StageClock,
        costs: SearchCosts,
    ) -> tuple[Answer, I64]:
        """(the k nearest rows of each query under its conjunction, queries int64[n] without an answer)."""
        k, meter = request.k, Meter()
        parameters, warnings = self._parameters.choose(k, request.options, filtered=True)
        if parameters is None:
            raise ValueError("there is no version to search")
        by_lists = conjunctions.search(vectors, lists, k, parameters)
        clock.lap("index")
        hits = by_lists.hits
        answered = np.setdiff1d(np.arange(len(vectors)), by_lists.left_out)  # the others are answered elsewhere
        if self.sampler is not None and self.sampler.share:
            distances = hits.first_distances(len(vectors), k)[answered]
            own = [conditions[place] for place in answered.tolist()]
            self._sample_recall(self.sampler, vectors[answered], k, distances, own)
        tail = TailAnswer.none()
        if self._coverage.tail:
            groups = groups_of(conditions, answered.tolist())
            tail = TailAnswer.of([(own, self._tail_under(vectors[own], k, where, clock)) for where, own in groups])
            hits = Hits.ranked([hits, tail.hits], None if by_lists.rounded_directions else k)
            clock.lap("scan")
        if by_lists.rounded_directions:
            hits = self._settled(vectors, hits, k, meter)
            clock.lap("settle")
        costs.add_bytes(index=0, scan=self._scanned_bytes(tail.read, vectors.shape[1]))
        if by_lists.rounded_directions:
            costs.add_bytes(settle=meter.bytes)
        profile = self._profile(
            len(answered),
            costs,
            strategy=COMPARED,
            nodes_expanded=0,
            distances=sum(shard.distances for shard in by_lists.work),
            tail_rows=tail.compared,
            matching_rows=by_lists.matching_rows + tail.matching_rows,
            condition=tail.condition or by_lists.how,
            tail=tail.tail,
            parameters=parameters,
            work=by_lists.work,
        )
        return Answer(hits, profile, (*warnings, *tail.warnings)), by_lists.left_out

    def _tail_under(
        self, vectors: npt.NDArray[np.float64], k: int, where: Condition | None, clock: StageClock
    ) -> TailAnswer:
        """The k nearest rows of the tail that match one condition, which is of look-ups in columns of the index."""
        matches, skipped = self.matches(where, clock), SkippedRows()
        if matches is None or self._values is None:
            raise ValueError("there is no condition, or no value that would decide it")
        candidates, compared, read, how = self._scan_tail(vectors, k, matches, skipped)
        # by the data files alone where all is false by the column's type
        others = matches.others if isinstance(matches, AttributeMatches) else matches.in_files(self._values.lacking)
        return TailAnswer(Hits.of(candidates), others.count, compared, read, matches.how, how, skipped.warnings)

    def _scan_tail(
        self, vectors: npt.NDArray[np.float64], k: int, matches: Matches | None, skipped: SkippedRows
    ) -> tuple[Candidates, int, int, str]:
        """(the k nearest rows of the tail (that match), rows compared, those read from data files, how, in words)."""
        access = self.delta.rows(matches, self._coverage.tail) if self.delta else TailAccess(None, FROM_FILES)
        if access.rows is None:
            candidates, compared = self.tier.scan(vectors, k, self._coverage.tail, matches, skipped)
            return candidates, compared, compared, access.how
        candidates, compared = access.rows.nearest(vectors, k, matches)
        skipped.add(access.rows.skipped.count, access.rows.skipped.first)
        return candidates, compared, access.rows.count if access.was_read else 0, access.how

    def _search_index(
        self,
        vectors: npt.NDArray[np.float64],
        k: int,
        parameters: SearchParameters | None,
        matches: Matches | None,
        meter: Meter,
    ) -> tuple[IndexAnswer, tuple[str, ...]]:
        """The candidates of the index, reranked where the parameters demand it, and warnings of rows that this missed.

        `meter` counts what reranking reads.
        """
        warnings: tuple[str, ...] = ()
        if parameters is None:
            return IndexAnswer(Candidates.none(len(vectors), k), "scan"), warnings
        answer = self.tier.search(vectors, k, parameters, matches)
        if answer.approximate and parameters.rerank:
            best = rerank(answer.candidates, vectors, self._rows, self._target.field_id, self._metric, meter)
            answer = replace(answer, candidates=best, unranked=answer.candidates)
        rounded = answer.unranked if self._holds_floats_of_doubles else None
        if rounded is not None and cut_in_doubt(
            rounded, answer.candidates, vectors, k, self._metric, self._longest_vector
        ):
            warnings = (_CUT_IN_DOUBT,)
        return answer, warnings

    def _settled(self, vectors: npt.NDArray[np.float64], hits: Hits, k: int, meter: Meter) -> Hits:
        """The k nearest of hits that are ranked by rounded directions: data files decide where these leave doubt."""
        distances = DistanceReader(vectors, self._rows, self._target.field_id, self._metric, meter)
        return resolve_rounding(hits, RangeThresholds.none(len(vectors), self._metric), k, distances)

    def live_recall(self) -> LiveRecall:
        """The recall of the queries that were answered, by a sample, as of now."""
        sampler, opened = self.sampler or RecallSampler(0.0), self._choice.opened
        version = opened.bound.index_snapshot_id if opened else SnapshotId(0)
        return sampler.recall(version, self.why_no_recall(sampler.share))

    def _profile(self, queries: int, costs: SearchCosts, **of_search: Any) -> Profile:
        """The profile of a search of so many queries: what is its own, and what is the same for every search."""
        return Profile(
            why=self._choice.why,
            shards=len(self._choice.loaded.shards) if self._choice.loaded else 0,
            milliseconds=costs.milliseconds,
            queries=queries,
            live_recall=self.live_recall() if self.sampler is not None and self.sampler.share else None,
            tier=self.tier.name,
            tier_why=self._choice.tier_why,
            bytes_read=costs.bytes_read,
            included_rows=costs.included_rows,
            **of_search,
        )

    def _scanned_bytes(self, rows: int, dims: int) -> int:
        """Bytes of the vectors of rows that were read from data files."""
        return self._vectors.value_bytes * rows * dims if rows else 0

    def why_no_recall(self, share: float) -> str:
        """Why the recall of queries is not measured; empty where it is."""
        loaded = self._choice.loaded
        if loaded is None:
            return "every row is compared: answers are exact"
        if self.is_pruned_scan:
            if self._coverage.coverage is Coverage.NEAREST_VERSION_ONLY:
                return "every row of the index in reach is compared: answers lack nothing but the rows that it lacks"
            return "every row of the files in reach is compared: answers are exact"
        if not isinstance(loaded, LoadedVersion):
            return "tasks search the index, which is not in this process"
        if loaded.lean or not loaded.exact:
            return "the index does not hold the table's vectors as they are"
        return "" if share else "open the reader with recall_sample, such as 0.01, to measure that share of its queries"

    def _sample_recall(
        self,
        sampler: RecallSampler,
        vectors: npt.NDArray[np.float64],
        k: int,
        distances: F64,
        conditions: Sequence[Condition | None],
    ) -> None:
        """Draw some of the queries, and have them answered exactly, too. `distances`: of their rows, ascending."""
        loaded, opened = self._choice.loaded, self._choice.opened
        if not isinstance(loaded, LoadedVersion) or opened is None or self.why_no_recall(sampler.share):
            return
        for place in range(len(vectors)):
            if sampler.draws():
                # copies: a query that waits does not keep its whole batch
                exact = partial(self._exact_distances, loaded, vectors[place : place + 1].copy(), k, conditions[place])
                sampler.add(opened.bound.index_snapshot_id, distances[place, :k].copy(), exact)

    def _exact_distances(
        self, loaded: LoadedVersion, query: npt.NDArray[np.float64], k: int, where: Condition | None
    ) -> F64:
        """`exact_distances` under a condition."""
        return exact_distances(loaded, query, k, self.matches(where, StageClock()))

    @cached_property
    def _longest_vector(self) -> float:
        """The length of the longest vector of the version, where rounding is judged by it: under inner product."""
        loaded = self._choice.loaded
        if loaded is None or self._metric is not Metric.INNER_PRODUCT:
            return 0.0
        # that of a hidden row must not tell
        return _LONGEST_OF_FLOATS if self._target.hides_rows else loaded.longest_vector()

    def _private_delta(self) -> PrivateDelta | None:
        """The freshness tail in memory; None where tasks scan it, or most of a search reads data files in any case, or
        rows are hidden: it would count them, and name those without a distance.
        """
        loaded = self._choice.loaded
        if (
            not self._coverage.tail
            or self._target.hides_rows
            or self.is_pruned_scan
            or not isinstance(loaded, LoadedVersion)
        ):
            return None
        return PrivateDelta(self._vectors, self._coverage.tail, loaded.dims, threads=self._threads)

    @cached_property
    def conjunctions(self) -> ConjunctionSearch | None:
        """What answers many queries at once, each under look-ups of its own; None where the version is not for it, or
        the catalog restricts what may be read: it makes its matches by itself.
        """
        if self._target.restriction is not None:
            return None
        loaded = None if self.is_pruned_scan else self._choice.loaded
        is_complete = self._values is not None and self._coverage.coverage is not Coverage.NEAREST_VERSION_ONLY
        lacking = self._values.lacking if self._values is not None and is_complete else frozenset[FileNumber]()
        return ConjunctionSearch.of(self._attributes, loaded, lacking, self._threads)

    @property
    def _holds_floats_of_doubles(self) -> bool:
        """Whether the version has the vectors of a column of doubles, rounded to f32 and no further."""
        opened, loaded = self._choice.opened, self._choice.loaded
        return bool(opened and loaded and loaded.column_is_double and opened.definition.vectors == "f32")


def _matching_rows(answer: IndexAnswer, matches: Matches | None) -> int | None:
    """The number of live rows that satisfy the condition; None without one."""
    if matches is None:
        return None
    return matches.count if answer.matching_rows is None else answer.matching_rows
