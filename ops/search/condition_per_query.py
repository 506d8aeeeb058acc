"""A condition per query: the answers to groups of queries, each group under one condition, as one answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.expressions import BooleanExpression

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.messages import plural
from icepuffin.ops.rows.candidates import Hits
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed.version_search import work_by_shard
from icepuffin.ops.search.result import Certificate, Profile, Pruning

Condition = str | BooleanExpression
Conditions = Condition | Sequence[Condition | None] | None
"""A condition of all queries, or one per query"""
_SHOWN_WAYS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The rows for some queries, before their columns are read."""

    hits: Hits
    profile: Profile
    """With the costs that the search counts"""
    warnings: tuple[str, ...]


def conditions_of(where: object, queries: int) -> list[Condition | None] | None:
    """The condition of each of so many queries; None where one condition, or none, is for all queries.

    Raises QueryError where there are more or fewer conditions than queries.
    """
    if where is None or isinstance(where, str | BooleanExpression) or not isinstance(where, Iterable):
        return None
    conditions = list(where)
    if len(conditions) != queries:
        raise QueryError(
            f"where has {plural(len(conditions), 'condition')} for {plural(queries, 'query')}: it takes one condition "
            "for all queries, or one per query, None for a query without one"
        )
    return conditions


@dataclass(frozen=True, slots=True, eq=False)
class TailAnswer:
    """The rows of a freshness tail for some queries, each under a condition of its own."""

    hits: Hits
    matching_rows: int
    """Rows that match among those that the index does not decide, of all queries together"""
    compared: int
    """Rows compared, once per condition"""
    read: int
    """Rows read from data files"""
    condition: str
    """How the conditions were evaluated, in words"""
    tail: str
    """Place of the tail, in words"""
    warnings: tuple[str, ...]

    @classmethod
    def none(cls) -> "TailAnswer":
        return cls(Hits.none(), 0, 0, 0, "", "", ())

    @classmethod
    def of(cls, parts: Sequence[tuple[I64, "TailAnswer"]]) -> "TailAnswer":
        """The answer to all queries, from those to queries under one condition. Each part has the places int64[n],
        ascending, of its queries among all.
        """
        hits = [replace(part.hits, queries=places[part.hits.queries]) for places, part in parts]
        return cls(
            Hits.ranked([Hits.none(), *hits], None),
            sum(part.matching_rows * len(places) for places, part in parts),
            sum(part.compared for _, part in parts),
            sum(part.read for _, part in parts),
            shown_ways(part.condition for _, part in parts),
            shown_ways(part.tail for _, part in parts),
            tuple(dict.fromkeys(warning for _, part in parts for warning in part.warnings)),
        )


def groups_of(conditions: Sequence[Condition | None], places: Sequence[int]) -> list[tuple[Condition | None, I64]]:
    """The distinct conditions of the queries at some places, each with the places int64[n] of its queries. Raises
    FilterError.
    """
    groups: dict[str, tuple[Condition | None, list[int]]] = {}
    for place in places:
        condition = conditions[place]
        groups.setdefault(condition_key(condition), (condition, []))[1].append(place)
    return [(condition, np.array(own, np.int64)) for condition, own in groups.values()]


def summed_over_queries(answer: Answer) -> Answer:
    """An answer to queries under one condition, with the rows that match once per query."""
    profile = answer.profile
    if profile.matching_rows is None:
        return answer
    return replace(answer, profile=replace(profile, matching_rows=profile.matching_rows * profile.queries))


def joined(parts: Sequence[tuple[I64, Answer]], queries: int) -> Answer:
    """One answer to all queries. Each part has the places int64[n], ascending, of its queries among these."""
    hits = [replace(answer.hits, queries=places[answer.hits.queries]) for places, answer in parts]
    names = ("queries", "ranks", "files", "positions", "distances")
    every = Hits(*(np.concatenate([getattr(own, name) for own in hits]) for name in names))
    warnings = dict.fromkeys(warning for _, answer in parts for warning in answer.warnings)
    return Answer(every.take(np.lexsort((every.ranks, every.queries))), _profile(parts, queries), tuple(warnings))


def _profile(parts: Sequence[tuple[I64, Answer]], queries: int) -> Profile:
    """The profile of all parts: numbers are sums, and the costs are those of the whole search already."""
    profiles = [answer.profile for _, answer in parts]
    matching = [profile.matching_rows for profile in profiles if profile.matching_rows is not None]
    certified = [(places, answer.profile.certificate) for places, answer in parts]
    return replace(
        profiles[0],
        strategy=_strategy(profiles),
        nodes_expanded=sum(profile.nodes_expanded for profile in profiles),
        distances=sum(profile.distances for profile in profiles),
        tail_rows=sum(profile.tail_rows for profile in profiles),
        matching_rows=sum(matching) if matching else None,
        condition=shown_ways(profile.condition for profile in profiles),
        tail="; ".join(dict.fromkeys(profile.tail for profile in profiles if profile.tail)),
        pruning=_pruning(profiles),
        certificate=_certificate(certified, queries),
        parameters=next((profile.parameters for profile in profiles if profile.parameters is not None), None),
        work=work_by_shard([shard for profile in profiles for shard in profile.work]),
        queries=queries,
    )


def _strategy(profiles: Sequence[Profile]) -> str:
    """The strategy of all queries; where they have several, each with the number of its queries."""
    counts: dict[str, int] = {}
    for profile in profiles:
        counts[profile.strategy] = counts.get(profile.strategy, 0) + profile.queries
    if len(counts) == 1:
        return profiles[0].strategy
    return ", ".join(f"{strategy} ({count:,} queries)" for strategy, count in counts.items())


def shown_ways(texts: Iterable[str]) -> str:
    """The first few ways of evaluating conditions, each once."""
    ways = list(dict.fromkeys(text for text in texts if text))
    more = [f"{len(ways) - _SHOWN_WAYS:,} more"] if len(ways) > _SHOWN_WAYS else []
    return "; ".join([*ways[:_SHOWN_WAYS], *more])


def _pruning(profiles: Sequence[Profile]) -> Pruning | None:
    prunings = [profile.pruning for profile in profiles if profile.pruning is not None]
    if not prunings:
        return None
    return Pruning(
        sum(pruning.files for pruning in prunings),
        sum(pruning.files_pruned for pruning in prunings),
        sum(pruning.rows for pruning in prunings),
        sum(pruning.rows_pruned for pruning in prunings),
        prunings[0].why,
    )


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
