"""The way of a search: what is asked goes to each source of rows, and their answers are merged, settled and proven.

Sources are the graphs of an index version, and the data files that no graph answers for. They are chosen when a reader
is opened, by the version that answers and what it lacks of the snapshot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.attribute_conditions import Attributes
from icepuffin.ops.filters.attribute_matches import AttributeMatches, find_matches_by_attributes
from icepuffin.ops.filters.attribute_values import TailValues, VersionValues
from icepuffin.ops.filters.matches import MatchCache, Matches, find_matches, in_all
from icepuffin.ops.index.versions.tuning_record import usable_record
from icepuffin.ops.index.versions.version_reader import same_files
from icepuffin.ops.model import FileNumber, SnapshotId
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.rows.candidates import Hits, cut_in_doubt, rerank
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.arguments import Condition, groups_of
from icepuffin.ops.search.exact.file_scans import IN_PROCESS, FileScans, TaskChoice
from icepuffin.ops.search.exact.scan import FileScan, RangeThresholds, VectorSource, scan
from icepuffin.ops.search.exact.tail_cache import SourceWithTail, TailCache, TailSource
from icepuffin.ops.search.indexed.conjunctions import ConjunctionSearch, Lists
from icepuffin.ops.search.indexed.version_search import exact_distances, search_version
from icepuffin.ops.search.measured.live_recall import LiveRecall, RecallSampler
from icepuffin.ops.search.measured.recall_trial import RecallTrial
from icepuffin.ops.search.range_search import RangeSearch
from icepuffin.ops.search.result import Coverage, Profile, SearchCosts
from icepuffin.ops.search.source_answer import SourceAnswer, VersionSearch, joined, merged, shown_ways
from icepuffin.ops.search.target import SearchTarget, SnapshotCoverage, VersionChoice
from icepuffin.ops.search.tuning import Grouped, ParameterChooser, SearchOptions, SearchParameters
from icepuffin.ops.text.word_condition import HasWord, parted

_NOT_SAMPLED = "open the reader with recall_sample, such as 0.01, to measure that share of its queries"
_NO_GRAPHS = "the index has no graphs: search parameters have no effect"

_CUT_IN_DOUBT = (
    "candidates were chosen by floats, which cannot tell the rows about as far as the last one apart: nearer ones may "
    "be missing; a larger oversample finds more, within and exact scans find all"
)
_LONGEST_OF_FLOATS = float(np.finfo(np.float32).max)
"""Length that no vector of a version is expected to pass"""


class Source(Protocol):
    """Finds the k nearest rows (that match) of those that it has. `queries` f64[Q, D] prepared. Thread-safe."""

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """`parameters`: None where no graph is searched. Raises IndexUnavailableError, DataFileError."""


class IndexSource:
    """Rows that an index version covers, by its graphs: in this process, or where tasks run."""

    def __init__(self, target: SearchTarget, choice: VersionChoice, search: VersionSearch, rows: RowReader) -> None:
        self._target = target
        self._version = choice.graphs
        self._rows = rows
        self._search = search
        opened, graphs = choice.opened, choice.graphs
        self._is_of_doubles = graphs is not None and graphs.column_is_double
        self._holds_floats = opened is not None and opened.definition.vectors == "f32"
        """Whether the version has the column's vectors, or those rounded to f32 and no further"""

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See Source. Candidates are ranked by the table's vectors where the parameters demand it."""
        if parameters is None:
            raise ValueError("a version is searched with parameters")
        answer, meter, metric = self._search(queries, k, parameters, matches), Meter(), self._target.metric
        candidates, unranked = answer.candidates, answer.unranked
        if answer.approximate and parameters.rerank:
            unranked = candidates
            candidates = rerank(candidates, queries, self._rows, self._target.field_id, metric, meter)
        if self._is_of_doubles and unranked is not None:
            # distances by codes say nothing of floats: the farthest candidate stands for the place of the cut
            cut = unranked if self._holds_floats else candidates
            if cut_in_doubt(cut, candidates, queries, k, metric, self._longest_vector):
                answer.warnings = (_CUT_IN_DOUBT,)
        answer.rows = candidates if answer.rounded_directions else candidates.first(k)
        answer.bytes_read = meter.bytes + (answer.cold.bytes if answer.cold else 0)
        answer.condition = "" if matches is None else matches.how
        answer.parameters = parameters
        return answer

    @cached_property
    def _longest_vector(self) -> float:
        """The length of the longest vector of the version, where rounding is judged by it: under inner product."""
        if self._version is None or self._target.metric is not Metric.INNER_PRODUCT:
            return 0.0
        # that of a hidden row must not tell
        return _LONGEST_OF_FLOATS if self._target.hides_rows else self._version.longest_vector()


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The rows that a search is for."""

    k: int
    options: SearchOptions
    to_certify: bool
    grouped: Grouped | None = None
    """See SearchParameters: where this process searches, without a condition"""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The rows for some queries, before their columns are read."""

    hits: Hits
    profile: Profile
    """With the costs that the search counts"""
    warnings: tuple[str, ...]


class ConditionMatcher:
    """Finds the live rows of a snapshot that satisfy conditions, of those that may be in an answer. Thread-safe.

    `files` reads data files, `having` words; `keeps_tail`: whether values of rows that the version lacks are kept.
    """

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        files: FileScans,
        having: Callable[[HasWord], Matches],
        *,
        keeps_tail: bool,
        is_complete: bool,
    ) -> None:
        self._target = target
        self._having = having
        self._files = files
        self.cache = MatchCache()
        opened, source = choice.opened, (target.live, target.schema, target.storage)
        self.answering = None if opened is None or is_complete else frozenset(same_files(opened, target.live).values())
        """Files with rows that may be in an answer; None where all have some"""
        self.values = VersionValues(opened, *source) if opened and opened.attributes else None
        self.attributes = Attributes(self.values, *source) if self.values else None
        self._tail_values = TailValues(self.values, *source) if self.values and keeps_tail else None

    def matches(self, where: Condition | None, clock: StageClock) -> Matches | None:
        """The live rows that satisfy the condition, and that the reader may see, of those that may be in an answer;
        None where that is all. Raises FilterError, and RestrictedTableError as of `Restriction.narrowed`.
        """
        words, rest = parted(where)
        if words and where is not None:
            others = self.matches(rest, clock)
            found = self.cache.get(where, lambda: in_all([*map(self._having, words), *([others] if others else [])]))
            clock.lap("filter")
            return found
        target = self._target
        condition = where if target.restriction is None else target.restriction.narrowed(where)
        if condition is None:
            return None
        of_snapshot = target.table, target.live, target.schema, condition, target.storage
        find = partial(find_matches, *of_snapshot, self._files.matches)
        if self.attributes is not None:
            find = partial(
                find_matches_by_attributes, *of_snapshot, self.attributes, self._files.matches, self._tail_values
            )
        matches = self.cache.get(condition, partial(find, files=self.answering))
        clock.lap("filter")
        return matches


class SearchPipeline:
    """Finds the nearest rows of queries at one snapshot, or those within a distance. Thread-safe.

    Parameters
    ----------
    target, choice, coverage
        The snapshot, the version that answers, and what this lacks of the snapshot.
    vectors, rows
        Vectors and rows of the data files.
    tasks : TaskChoice
        When tasks read data files.
    having
        Finds the rows that satisfy a condition on words.
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
        having: Callable[[HasWord], Matches],
        sampler: RecallSampler | None,
    ) -> None:
        self._target = target
        self._choice = choice
        self._vectors = vectors
        self._rows = rows
        self._threads = threads
        self.sampler = sampler
        opened, graphs, here, remote = choice.opened, choice.graphs, choice.here, choice.remote
        is_complete = coverage.coverage is not Coverage.NEAREST_VERSION_ONLY
        self.tier = IN_PROCESS if remote is None else remote.name
        self.delta: TailCache | None = None
        """The freshness tail in memory; None where tasks scan it, or most of a search reads data files in any case, or
        rows are hidden: it would count them, and name those without a distance
        """
        if coverage.tail and here is not None and not target.hides_rows:
            self.delta = TailCache(vectors, coverage.tail, here.dims, threads=threads)
        files = FileScans(vectors if self.delta is None else SourceWithTail.from_source(vectors, self.delta), tasks)
        self._ranges = RangeSearch(target, choice, vectors, coverage.tail, rows, files, is_complete=is_complete)
        self._scan: FileScan = partial(scan, vectors) if remote is None else remote.scan
        self._search: VersionSearch | None = None if remote is None else remote.search
        if here is not None:
            self._search = partial(search_version, here, threads=threads)
        self._sources: dict[str, Source] = {}
        """What searches for the nearest rows ask, by stage"""
        if self._search is not None:
            self._sources["index"] = IndexSource(target, choice, self._search, rows)
        if choice.is_of_balls:
            self._sources["scan"] = self._ranges
        elif coverage.tail or graphs is None:
            self._sources["scan"] = TailSource(vectors, coverage.tail, self._scan, self.delta)
        self.conditions = ConditionMatcher(
            target, choice, files, having, keeps_tail=self.delta is not None, is_complete=is_complete
        )
        self._is_complete = is_complete
        record, unfit = usable_record(target.table, opened.definition.name, opened) if opened else (None, "")
        self.parameters = ParameterChooser(
            graphs, record, unfit, reranks=target.hides_rows, no_effect=_NO_GRAPHS if choice.is_of_balls else ""
        )
        self._why_no_recall = _why_no_recall(choice, is_complete=is_complete)

    def nearest(
        self,
        queries: F64,
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        costs: SearchCosts,
    ) -> Answer:
        """The answer of `find`, with its profile. Raises IndexUnavailableError."""
        return self.answer(self.find(queries, request, where, costs), costs)

    def find(
        self,
        queries: F64,
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        costs: SearchCosts,
    ) -> SourceAnswer:
        """The k nearest rows of each query (that match). `where`: a condition of all queries, or a list of one per
        query: conjunctions of look-ups are answered all at once, the others by distinct condition.

        Raises IndexUnavailableError.
        """
        if not isinstance(where, list):
            return self._under_one(queries, request, where, costs)
        parts: list[tuple[I64, SourceAnswer]] = []
        others = list(range(len(queries)))
        if self.conjunctions is not None and not request.to_certify:
            lists = list(map(self.conjunctions.lists_of, where))
            costs.clock.lap("filter")
            numbers = np.array([number for number, found in enumerate(lists) if found is not None], np.int64)
            if len(numbers):
                answer, left_out = self._under_look_ups(
                    self.conjunctions, queries[numbers], request, [found for found in lists if found is not None],
                    [where[number] for number in numbers.tolist()], costs,
                )  # fmt: skip
                parts.append((numbers, answer))
                others = sorted({*others}.difference(numbers.tolist()).union(numbers[left_out].tolist()))
        for condition, numbers in groups_of(where, others):
            answer = self._under_one(queries[numbers], request, condition, costs)
            if answer.matching_rows is not None:
                answer.matching_rows *= len(numbers)
            parts.append((numbers, answer))
        return joined(parts, len(queries))

    def _under_one(
        self, queries: F64, request: RowsRequest, where: Condition | None, costs: SearchCosts
    ) -> SourceAnswer:
        """The k nearest rows of each query (that match)."""
        matches = self.conditions.matches(where, costs.clock)
        return self.among(queries, request, matches, costs, [where] * len(queries))

    def among(
        self,
        queries: F64,
        request: RowsRequest,
        matches: Matches | None,
        costs: SearchCosts,
        conditions: Sequence[Condition | None] = (),
    ) -> SourceAnswer:
        """The k nearest rows of each query (among `matches`). `conditions`: those of the queries, where recall may be
        measured.
        """
        k = request.k
        parameters, warnings = self.parameters.choose(k, request.options, filtered=matches is not None)
        searched = replace(parameters, grouped=request.grouped) if request.grouped and parameters else parameters
        answers, bytes_read = [], {"index": 0, "scan": 0}
        for stage in bytes_read:
            if source := self._sources.get(stage):
                answers.append(answer := source.nearest(queries, k, matches, searched))
                bytes_read[stage] = answer.bytes_read
            costs.clock.lap(stage)
        if conditions and not request.grouped and self.sampler is not None and self.sampler.share:
            self._sample_recall(queries, k, answers[0].hits, conditions)
        costs.add_bytes(**bytes_read)
        answer = self._settled(answers, queries, k, costs)
        answer.parameters = answer.parameters and parameters
        if matches is not None and answer.matching_rows is None:
            answer.matching_rows = matches.count
        if request.to_certify:
            self._certify(answer, queries, k, matches, costs)
        answer.warnings = (*warnings, *(matches.warnings if matches else ()), *answer.warnings)
        return answer

    def _under_look_ups(
        self,
        conjunctions: ConjunctionSearch,
        queries: F64,
        request: RowsRequest,
        lists: Sequence[tuple[Lists, ...]],
        conditions: Sequence[Condition | None],
        costs: SearchCosts,
    ) -> tuple[SourceAnswer, I64]:
        """(the k nearest rows of each query under its conjunction, queries int64[n] without an answer)."""
        k, clock = request.k, costs.clock
        parameters, warnings = self.parameters.choose(k, request.options, filtered=True)
        if parameters is None:
            raise ValueError("there is no version to search")
        of_index, left_out = conjunctions.search(queries, lists, k, parameters)
        clock.lap("index")
        answered = np.setdiff1d(np.arange(len(queries)), left_out)  # the others are answered elsewhere
        self._sample_recall(queries, k, of_index.hits, conditions, answered)
        matching_rows, of_tail = of_index.matching_rows or 0, []
        if tail := self._sources.get("scan"):
            for where, numbers in groups_of(conditions, answered.tolist()):
                matches = self.conditions.matches(where, clock)
                if not isinstance(matches, AttributeMatches):
                    raise TypeError("look-ups are answered by the values of the version")
                of_tail.append(tail.nearest(queries[numbers], k, matches, None).of_queries(numbers))
                matching_rows += matches.others.count * len(numbers)
            clock.lap("scan")
        costs.add_bytes(index=0, scan=sum(answer.bytes_read for answer in of_tail))
        of_index.matching_rows = matching_rows
        of_index.condition = shown_ways(answer.condition for answer in of_tail) or of_index.condition
        answer = self._settled([of_index, *of_tail], queries, k, costs)
        answer.warnings = (*warnings, *answer.warnings)
        return answer, left_out

    def within(
        self, queries: F64, thresholds: RangeThresholds, where: Condition | None, limit: int | None, costs: SearchCosts
    ) -> Answer:
        """Every row (that matches) within the thresholds, nearest first; the first `limit` per query.

        Raises IndexUnavailableError.
        """
        matches = self.conditions.matches(where, costs.clock)
        answer = self._ranges.within(queries, thresholds, matches, limit, costs.clock)
        costs.add_bytes(compare=answer.bytes_read)
        if matches is not None:
            answer.matching_rows = matches.count
            answer.warnings = (*matches.warnings, *answer.warnings)
        answer.tail = "" if self.delta is None else self.delta.state.why
        whole = self.answer(answer, costs)
        return replace(whole, profile=replace(whole.profile, shards=self._ranges.shards, live_recall=None))

    def _settled(self, answers: Sequence[SourceAnswer], queries: F64, k: int, costs: SearchCosts) -> SourceAnswer:
        """The k nearest rows of those of all sources. Data files decide where directions are rounded."""
        answer = merged(answers, k)
        if answer.rounded_directions:
            costs.add_bytes(settle=self._ranges.settle(answer, queries, k))
            costs.clock.lap("settle")
        return answer

    def _certify(self, answer: SourceAnswer, queries: F64, k: int, matches: Matches | None, costs: SearchCosts) -> None:
        """Put the k nearest rows, with their proof, in place of rows that may lack some of them."""
        proof = self._ranges.certify(queries, answer.hits, k, matches, costs.clock)
        costs.add_bytes(compare=proof.bytes_read)
        answer.rows, answer.pruning, answer.certificate = proof.rows, proof.pruning, proof.certificate
        answer.strategy += f" + {proof.strategy}"
        answer.compared += proof.compared
        answer.scanned += proof.scanned
        answer.tier = answer.tier if proof.tier == IN_PROCESS else proof.tier
        answer.where = f"{answer.where or self._choice.tier_why}; of the proof: {proof.where}"
        answer.warnings = proof.warnings

    def answer(self, answer: SourceAnswer, costs: SearchCosts) -> Answer:
        """The answer of all sources with the profile of the search."""
        choice, work = self._choice, answer.work
        profile = Profile(
            why=choice.why,
            strategy=answer.strategy,
            shards=len(choice.loaded.shards) if choice.loaded else 0,
            nodes_expanded=sum(shard.expanded for shard in work),
            distances=answer.distances,
            tail_rows=answer.scanned,
            milliseconds=costs.milliseconds,
            matching_rows=answer.matching_rows,
            condition=answer.condition,
            tail=answer.tail,
            pruning=answer.pruning,
            certificate=answer.certificate,
            parameters=answer.parameters,
            work=work,
            cold=answer.cold,
            queries=answer.queries,
            live_recall=self.live_recall() if self.sampler is not None and self.sampler.share else None,
            tier=answer.tier or self.tier,
            tier_why=answer.where or choice.tier_why,
            bytes_read=costs.bytes_read,
            included_rows=costs.included_rows,
        )
        return Answer(answer.hits, profile, answer.warnings)

    def live_recall(self) -> LiveRecall:
        """The recall of the queries that were answered, by a sample, as of now."""
        sampler, opened = self.sampler or RecallSampler(0.0), self._choice.opened
        version = opened.bound.index_snapshot_id if opened else SnapshotId(0)
        return sampler.recall(version, self._why_no_recall or ("" if sampler.share else _NOT_SAMPLED))

    def recall_trial(self) -> RecallTrial | None:
        """What measures the recall of the version that answers; None where no graph is searched."""
        opened, graphs = self._choice.opened, self._choice.graphs
        if opened is None or graphs is None or self._search is None:
            return None
        return RecallTrial(self._search, self._scan, self._vectors, opened, graphs, tuple(sorted(graphs.covered)))

    def _sample_recall(
        self, queries: F64, k: int, hits: Hits, conditions: Sequence[Condition | None], answered: I64 | None = None
    ) -> None:
        """Draw some of the queries, of those that are `answered`, and have them answered exactly, too."""
        sampler, opened, here = self.sampler, self._choice.opened, self._choice.here
        if sampler is None or not sampler.share or self._why_no_recall or opened is None or here is None:
            return
        distances = hits.first_distances(len(queries), k)

        def exact(query: F64, where: Condition | None) -> F64:
            return exact_distances(here, query, k, self.conditions.matches(where, StageClock()))

        for number in range(len(queries)) if answered is None else answered.tolist():
            if sampler.draws():
                # copies: a query that waits does not keep its whole batch
                measure = partial(exact, queries[number : number + 1].copy(), conditions[number])
                sampler.add(opened.bound.index_snapshot_id, distances[number].copy(), measure)

    @cached_property
    def conjunctions(self) -> ConjunctionSearch | None:
        """What answers many queries at once, each under look-ups of its own; None where the version is not for it, or
        the catalog restricts what may be read: it makes its matches by itself.
        """
        if self._target.restriction is not None:
            return None
        values = self.conditions.values
        lacking = values.lacking if values is not None and self._is_complete else frozenset[FileNumber]()
        return ConjunctionSearch.open(self.conditions.attributes, self._choice.here, lacking, self._threads)


def _why_no_recall(choice: VersionChoice, *, is_complete: bool) -> str:
    """Why the recall of queries cannot be measured; empty where it can."""
    if choice.loaded is None:
        return "every row is compared: answers are exact"
    if choice.is_of_balls:
        if is_complete:
            return "every row of the files in reach is compared: answers are exact"
        return "every row of the index in reach is compared: answers lack nothing but the rows that it lacks"
    if choice.here is None:
        return "tasks search the index, which is not in this process"
    return "" if choice.here.exact else "the index does not hold the table's vectors as they are"
