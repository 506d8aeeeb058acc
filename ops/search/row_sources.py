"""Sources of an answer's rows: the graphs of an index version, and the data files that no graph answers for.

Which ones a reader has is decided when it is opened. Each gets what is asked, and gives rows and the work of finding
them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Candidates, Hits, cut_in_doubt, merge, rerank
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.exact.private_delta import FROM_FILES, PrivateDelta, TailAccess
from icepuffin.ops.search.exact.scan import SkippedRows, VectorSource
from icepuffin.ops.search.indexed.cold_shards import ColdReads
from icepuffin.ops.search.indexed.version_search import IndexAnswer, ShardWork, work_by_shard
from icepuffin.ops.search.result import Certificate, Pruning
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.search.tuning import SearchParameters

_CUT_IN_DOUBT = (
    "candidates were chosen by floats, which cannot tell the rows about as far as the last one apart: nearer ones may "
    "be missing; a larger oversample finds more, within and exact scans find all"
)
_LONGEST_OF_FLOATS = float(np.finfo(np.float32).max)
"""Length that no vector of a version is expected to pass"""
_SHOWN_WAYS = 3

VersionSearch = Callable[[F64, int, SearchParameters, Matches | None], IndexAnswer]
"""Function from queries, k, parameters and matches to the candidates of an index version"""
FileScan = Callable[[F64, int, Sequence[FileNumber], Matches | None, SkippedRows], tuple[Candidates, int]]
"""Function from queries, k, files and matches to (the nearest rows of the files, number of rows compared). It counts
rows without a distance"""


@dataclass(frozen=True, slots=True, eq=False)
class SourceAnswer:
    """Rows for some queries, of one source or of several together, and the work of finding them."""

    rows: Candidates | Hits
    """The k nearest; where `rounded_directions`, all that may be among them; or all rows within thresholds"""
    queries: int
    """Queries that are answered"""
    strategy: str
    """Strategy as `Profile.strategy` has it"""
    work: tuple[ShardWork, ...] = ()
    """Work of each shard that was searched"""
    compared: int = 0
    """Distances computed, but for those of shards and of rows that were scanned"""
    scanned: int = 0
    """Rows of data files that were compared, in memory or not"""
    bytes_read: int = 0
    matching_rows: int | None = None
    """Live rows that satisfy the condition; None without one, and where the source does not count them"""
    condition: str = ""
    """How the condition was evaluated, in words"""
    parameters: SearchParameters | None = None
    """Search parameters of an index"""
    rounded_directions: bool = False
    """Whether distances are of directions rounded to f32, so that data files decide where this leaves doubt"""
    cold: ColdReads | None = None
    """What was read of shards that were searched through their cells; None where there are none"""
    tail: str = ""
    """Place of the freshness tail, in words"""
    pruning: Pruning | None = None
    certificate: Certificate | None = None
    tier: str = ""
    """Tier as `Profile.tier` has it; empty for that of the reader"""
    where: str = ""
    """Place of the vectors that were compared, in words; empty for that of the reader"""
    warnings: tuple[str, ...] = ()

    @property
    def hits(self) -> Hits:
        """The rows, one after the other."""
        return self.rows if isinstance(self.rows, Hits) else Hits.from_candidates(self.rows)

    def of_queries(self, places: I64) -> "SourceAnswer":
        """The same, for queries that are at some places int64[n], ascending, among others."""
        hits = self.hits
        return replace(self, rows=replace(hits, queries=places[hits.queries]))


def merged(answers: Sequence[SourceAnswer], k: int) -> SourceAnswer:
    """The answers of all sources as one, of which the first may be that of an index: with the k nearest rows, or with
    all where the data files are to decide which these are.
    """
    first, *others = answers
    if not others:
        return first
    is_rounded = any(answer.rounded_directions for answer in answers)
    parts = [answer.rows for answer in answers if isinstance(answer.rows, Candidates)]
    rows: Candidates | Hits
    if len(parts) == len(answers):
        rows = merge(parts, sum(part.files.shape[1] for part in parts) if is_rounded else k)
    else:
        rows = Hits.ranked([answer.hits for answer in answers], None if is_rounded else k)
    return replace(
        first,
        rows=rows,
        rounded_directions=is_rounded,
        scanned=sum(answer.scanned for answer in answers),
        tail=shown_ways([answer.tail for answer in answers]),
        warnings=tuple(dict.fromkeys([warning for answer in answers for warning in answer.warnings])),
    )


def joined(parts: Sequence[tuple[I64, SourceAnswer]], queries: int) -> SourceAnswer:
    """One answer to so many queries, from those to some of them: each part has the places int64[n], ascending, of its
    queries. Numbers are sums.
    """
    answers = [answer for _, answer in parts]
    hits = [answer.of_queries(places).hits for places, answer in parts]
    names = ("queries", "ranks", "files", "positions", "distances")
    every = Hits(*(np.concatenate([getattr(own, name) for own in hits]) for name in names))
    matching = [answer.matching_rows for answer in answers if answer.matching_rows is not None]
    prunings = [answer.pruning for answer in answers if answer.pruning is not None]
    return replace(
        answers[0],
        rows=every.take(np.lexsort((every.ranks, every.queries))),
        strategy=_strategy(answers),
        work=work_by_shard([shard for answer in answers for shard in answer.work]),
        queries=queries,
        compared=sum(answer.compared for answer in answers),
        scanned=sum(answer.scanned for answer in answers),
        matching_rows=sum(matching) if matching else None,
        condition=shown_ways(answer.condition for answer in answers),
        parameters=next((answer.parameters for answer in answers if answer.parameters is not None), None),
        tail="; ".join(dict.fromkeys(answer.tail for answer in answers if answer.tail)),
        pruning=Pruning.sum_of(prunings) if prunings else None,
        certificate=_certificate([(places, answer.certificate) for places, answer in parts], queries),
        warnings=tuple(dict.fromkeys(warning for answer in answers for warning in answer.warnings)),
    )


def _strategy(answers: Sequence[SourceAnswer]) -> str:
    """The strategy of all queries; where they have several, each with the number of its queries."""
    counts: dict[str, int] = {}
    for answer in answers:
        counts[answer.strategy] = counts.get(answer.strategy, 0) + answer.queries
    if len(counts) == 1:
        return answers[0].strategy
    return ", ".join(f"{strategy} ({count:,} queries)" for strategy, count in counts.items())


def shown_ways(texts: Iterable[str]) -> str:
    """The first few ways of evaluating conditions, each once."""
    ways = list(dict.fromkeys(text for text in texts if text))
    more = [f"{len(ways) - _SHOWN_WAYS:,} more"] if len(ways) > _SHOWN_WAYS else []
    return "; ".join([*ways[:_SHOWN_WAYS], *more])


def _certificate(parts: Sequence[tuple[I64, Certificate | None]], queries: int) -> Certificate | None:
    """The proof of all queries. One without a part of it was compared with every row."""
    if all(certificate is None for _, certificate in parts):
        return None
    last, pruned_from = np.full(queries, np.inf), np.full(queries, np.inf)
    ruled_out: dict[str, float] = {}
    for places, certificate in parts:
        if certificate is not None:
            last[places], pruned_from[places] = certificate.last, certificate.pruned_from
            for path, margin in certificate.ruled_out.items():
                ruled_out[path] = min(margin, ruled_out.get(path, np.inf))
    return Certificate(tuple(last.tolist()), tuple(pruned_from.tolist()), ruled_out)


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
        self._holds_floats_of_doubles = bool(
            opened and graphs and graphs.column_is_double and opened.definition.vectors == "f32"
        )
        """Whether the version has the vectors of a column of doubles, rounded to f32 and no further"""

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
        in_doubt = (
            self._holds_floats_of_doubles
            and unranked is not None
            and cut_in_doubt(unranked, candidates, queries, k, metric, self._longest_vector)
        )
        return SourceAnswer(
            candidates if answer.rounded_directions else candidates.first(k),
            len(queries),
            answer.strategy,
            answer.work,
            bytes_read=meter.bytes + (answer.cold.bytes if answer.cold else 0),
            matching_rows=answer.matching_rows,
            condition="" if matches is None else matches.how,
            parameters=parameters,
            rounded_directions=answer.rounded_directions,
            cold=answer.cold,
            warnings=(_CUT_IN_DOUBT,) if in_doubt else (),
        )

    @cached_property
    def _longest_vector(self) -> float:
        """The length of the longest vector of the version, where rounding is judged by it: under inner product."""
        if self._version is None or self._target.metric is not Metric.INNER_PRODUCT:
            return 0.0
        # that of a hidden row must not tell
        return _LONGEST_OF_FLOATS if self._target.hides_rows else self._version.longest_vector()


class TailSource:
    """Rows of data files that no shard answers for: in memory, or scanned. `memory`: None where none is kept."""

    def __init__(
        self, vectors: VectorSource, files: Sequence[FileNumber], scan: FileScan, memory: PrivateDelta | None
    ) -> None:
        self._files = files
        self._scan = scan
        self._memory = memory
        self._value_bytes = vectors.value_bytes

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See Source."""
        memory = self._memory
        access = TailAccess(None, FROM_FILES) if memory is None else memory.rows(matches, self._files)
        if access.rows is None:
            skipped = SkippedRows()
            candidates, compared = self._scan(queries, k, self._files, matches, skipped)
            read = compared
        else:
            skipped = access.rows.skipped
            candidates, compared = access.rows.nearest(queries, k, matches)
            read = access.rows.count if access.was_read else 0
        return SourceAnswer(
            candidates,
            len(queries),
            "scan",
            scanned=compared,
            bytes_read=self._value_bytes * read * queries.shape[1],
            condition="" if matches is None else matches.how,
            tail=access.how if self._files else "",
            warnings=skipped.warnings,
        )
