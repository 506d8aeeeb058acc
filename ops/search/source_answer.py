"""Answers of sources: rows for some queries, and the work of finding them. Several are merged, or joined."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import ShardId
from icepuffin.ops.rows.candidates import Candidates, Hits, merge
from icepuffin.ops.search.exact.scan import SkippedRows
from icepuffin.ops.search.indexed.cold_shards import ColdReads
from icepuffin.ops.search.result import Certificate, Pruning, ShardWork
from icepuffin.ops.search.tuning import SearchParameters

_SHOWN_WAYS = 3


@dataclass(slots=True, eq=False)
class SourceAnswer:
    """Rows for some queries, of one source or of several together, and the work of finding them.

    Each step of a search completes the answer that it has from the step before.
    """

    rows: Candidates | Hits
    """The k nearest; where `approximate` or `rounded_directions`, all that may be among them; or all rows within
    thresholds"""
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
    approximate: bool = False
    """Whether distances are of codes or of rounded vectors, and rows have to be ranked by the table's vectors"""
    unranked: Candidates | None = None
    """Candidates as an index ranks them, where `rows` are those by exact distances"""
    rounded_directions: bool = False
    """Whether distances are of directions rounded to f32, so that data files decide where this leaves doubt"""
    cold: ColdReads | None = None
    """What was read of shards that were searched through their cells; None where there are none"""
    tail: str = ""
    """Location of the freshness tail, in words"""
    pruning: Pruning | None = None
    certificate: Certificate | None = None
    tier: str = ""
    """Tier as `Profile.tier` has it; empty for that of the reader"""
    where: str = ""
    """Location of the vectors that were compared, in words; empty for that of the reader"""
    skipped: SkippedRows | None = None
    """Rows without a distance, of those that a task has scanned"""
    warnings: tuple[str, ...] = ()

    @property
    def candidates(self) -> Candidates:
        """The rows of a search for the nearest, before they are settled."""
        if isinstance(self.rows, Hits):
            raise TypeError("rows of an answer, one after the other, are candidates no more")
        return self.rows

    @property
    def distances(self) -> int:
        """Distances computed, but for those of rows that were scanned."""
        return self.compared + sum(shard.distances for shard in self.work)

    @property
    def hits(self) -> Hits:
        """The rows, one after the other."""
        return self.rows if isinstance(self.rows, Hits) else Hits.from_candidates(self.rows)

    def of_queries(self, numbers: I64) -> "SourceAnswer":
        """The same, for queries that have some numbers int64[n], ascending, among others."""
        hits = self.hits
        self.rows = replace(hits, queries=numbers[hits.queries])
        return self


VersionSearch = Callable[[F64, int, SearchParameters, Matches | None], SourceAnswer]
"""Function from queries, k, parameters and matches to the candidates of an index version"""


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
    first.rows, first.rounded_directions = rows, is_rounded
    first.scanned = sum(answer.scanned for answer in answers)
    first.tail = shown_ways([answer.tail for answer in answers])
    first.warnings = tuple(dict.fromkeys([warning for answer in answers for warning in answer.warnings]))
    return first


def joined(parts: Sequence[tuple[I64, SourceAnswer]], queries: int) -> SourceAnswer:
    """One answer to so many queries, from those to some of them: each part has the numbers int64[n], ascending, of its
    queries. Numbers are sums.
    """
    answers = [answer for _, answer in parts]
    hits = [answer.of_queries(numbers).hits for numbers, answer in parts]
    names = ("queries", "ranks", "files", "positions", "distances")
    every = Hits(*(np.concatenate([getattr(part, name) for part in hits]) for name in names))
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
        certificate=_certificate([(numbers, answer.certificate) for numbers, answer in parts], queries),
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
    for numbers, certificate in parts:
        if certificate is not None:
            last[numbers], pruned_from[numbers] = certificate.last, certificate.pruned_from
            for path, margin in certificate.ruled_out.items():
                ruled_out[path] = min(margin, ruled_out.get(path, np.inf))
    return Certificate(tuple(last.tolist()), tuple(pruned_from.tolist()), ruled_out)


def work_by_shard(work: Sequence[ShardWork]) -> tuple[ShardWork, ...]:
    """The work of each shard, summed over blocks of queries; by shard id."""
    total: dict[ShardId, ShardWork] = {}
    for shard in work:
        before = total.get(shard.shard_id)
        total[shard.shard_id] = shard if before is None else ShardWork(
            shard.shard_id, shard.nodes, before.queries + shard.queries, before.expanded + shard.expanded,
            before.distances + shard.distances,
        )  # fmt: skip
    return tuple(total[shard_id] for shard_id in sorted(total))
