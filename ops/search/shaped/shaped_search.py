"""Searches for other rows than the k nearest: with a limit per group, or unlike each other, or both.

A limit takes the rows of a walk by distance that passes over those of full groups. The beam of a graph in this process
does so itself, up to some width; other sources are asked for some times as many rows. A second search is for many more.
Else full groups are left out, and each further search ends the walk, fills a group, or has seen every row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from pyiceberg.types import ListType

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ops.filters.attribute_conditions import Attributes
from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.index.definitions.definition_columns import resolve_columns
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.candidates import DistanceReader, Hits
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.arguments import Condition, require_at_least_one
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.pipeline import Answer, RowsRequest, SearchPipeline
from icepuffin.ops.search.result import SearchCosts
from icepuffin.ops.search.shaped.diversity import CANDIDATES, FEWEST, diversified
from icepuffin.ops.search.shaped.group_column import GroupColumn, NoValues
from icepuffin.ops.search.source_answer import SourceAnswer, joined
from icepuffin.ops.search.target import SearchTarget
from icepuffin.ops.search.tuning import Grouped

_BY_GROUPS, _BY_DISTANCE = (2, 32), (4, 16)
"""Rows that a search is for, and those of a second one, per row that is wanted: where the walk passes over full groups,
and where others search or a condition has to match"""
_FURTHER, _TIMES_WIDER = 2, 4
"""Rows of a search without full groups per row that is wanted, and times as many of a further one"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer is beside near."""

    field_id: int | None
    """Field id of the column by which rows are grouped; None without a limit"""
    limit: int
    diversity: float

    @classmethod
    def from_arguments(
        cls, per_group: Mapping[str, int] | None, diversity: float, target: SearchTarget, *, certified: bool
    ) -> "Shape | None":
        """None where the k nearest rows are asked for. Raises QueryError, UnknownColumnError, RestrictedTableError."""
        if not isinstance(diversity, int | float | np.number) or isinstance(diversity, bool) or not 0 <= diversity <= 1:
            raise QueryError(f"diversity is {diversity!r}; it is a number from 0, the nearest rows, to 1")
        if per_group is None and not diversity:
            return None
        if certified:
            raise QueryError(
                "certified proves the k nearest rows, and per_group and diversity ask for others: leave it out; "
                "icepuffin.open_exact compares every row"
            )
        if per_group is None:
            return cls(None, 0, float(diversity))
        if not isinstance(per_group, Mapping) or len(per_group) != 1:
            raise QueryError(f"per_group is {per_group!r}; it is one column and its limit, such as {{'seller': 2}}")
        ((name, limit),) = per_group.items()
        require_at_least_one(per_group=0 if limit is None else limit)
        return cls(_group_field(name, target), int(limit), float(diversity))


def _group_field(name: str, target: SearchTarget) -> int:
    """The field id of the column that per_group names."""
    (field_id,) = target.returned([name])
    schema, index = target.schema, target.definition
    kind = schema.find_type(field_id)
    if isinstance(kind, ListType) or not kind.is_primitive or str(kind) == "unknown":
        raise QueryError(f"per_group names {name!r}, which is {kind}: a row has one group, so name a column of values")
    if index is not None and field_id not in resolve_columns(index, "filters", schema, target.live.table):
        raise QueryError(
            f"per_group names {name!r}, whose values index {index.name!r} does not keep; its filters are "
            f"{', '.join(index.filters) or 'none'}: create the index with filters=[{name!r}] and refresh it, or "
            "use icepuffin.open_exact, which compares every row"
        )
    return field_id


class ShapedSearch:
    """Searches of one reader. Thread-safe. `version`: the one that answers in this process; None where none does."""

    def __init__(
        self, target: SearchTarget, pipeline: SearchPipeline, rows: RowReader, version: LoadedVersion | None
    ) -> None:
        self._target = target
        self._pipeline = pipeline
        self._rows = rows
        self._version = version
        self._lock = ProcessLock()
        self._columns: dict[int, GroupColumn] = {}

    def nearest(
        self,
        queries: F64,
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        costs: SearchCosts,
        shape: Shape | None,
    ) -> Answer:
        """k rows of each query (that match), the nearest without a shape. Raises IndexUnavailableError."""
        if shape is None:
            return self._pipeline.nearest(queries, request, where, costs)
        k = request.k
        if shape.diversity:
            request = self._for(request, max(CANDIDATES * k, FEWEST))
        if shape.field_id is None:
            answer = self._pipeline.find(queries, request, where, costs)
        else:
            answer = self._grouped(queries, request, where, costs, self._column(shape.field_id), shape.limit)
        answer.certificate = None
        if shape.diversity:
            meter = Meter()
            distances = DistanceReader(queries, self._rows, self._target.field_id, self._target.metric, meter)
            answer.rows = diversified(answer, k, shape.diversity, distances, self._version)
            costs.add_bytes(diversity=meter.bytes)
            costs.clock.lap("diversity")
        return self._pipeline.answer(answer, costs)

    def _for(self, request: RowsRequest, k: int, grouped: Grouped | None = None) -> RowsRequest:
        """The same for k rows, or as many as there may be."""
        return replace(request, k=max(1, min(k, self._target.live.record_count)), grouped=grouped)

    def _step(self, number: int, request: RowsRequest, where: Any, column: GroupColumn, limit: int) -> RowsRequest:
        """The same for some times as many rows: for a first or a second search."""
        if where is not None or self._version is None or self._target.restriction is not None:
            return self._for(request, _BY_DISTANCE[number] * request.k)
        times = _BY_GROUPS[number]
        of_group = times * min(limit, request.k)
        return self._for(request, times * request.k, lambda shard, more: column.searcher(shard, more * of_group))

    def _column(self, field_id: int) -> GroupColumn:
        """The groups by a column: made once, and again where the values were read again after an error of the store."""
        conditions, target = self._pipeline.conditions, self._target
        values = conditions.attributes
        with self._lock:
            kept = self._columns.get(field_id)
            if values is None or not values.has(field_id):
                values = Attributes(NoValues(len(target.live.files)), target.live, target.schema, target.storage)
            elif kept is not None and kept.source is not values.column(field_id):
                kept = None
            if kept is None:
                kept = self._columns[field_id] = GroupColumn(field_id, values, target, conditions.answering)
            return kept

    def _grouped(
        self,
        queries: F64,
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        costs: SearchCosts,
        column: GroupColumn,
        limit: int,
    ) -> SourceAnswer:
        """The k nearest rows of each query (that match), of each group up to the limit."""
        costs.clock.lap("groups")
        first = self._pipeline.find(queries, self._step(0, request, where, column, limit), where, costs)
        parts, hits, rows = [(np.arange(len(queries)), first)], first.hits, []
        bounds = np.searchsorted(hits.queries, np.arange(len(queries) + 1)).tolist()
        for number, (start, end) in enumerate(pairwise(bounds)):
            walk = _GroupWalk(column, limit, request.k, hits.take(np.arange(start, end)))
            if walk.lacking:
                condition = where[number] if isinstance(where, list) else where
                for answer in self._further(walk, queries[number : number + 1], request, condition, costs):
                    walk.add(replace(answer.hits, queries=np.full(len(answer.hits.files), number)))
                    parts.append((np.array([number]), answer))
            rows.append(walk.rows)
        matching_rows, whole = first.matching_rows, joined(parts, len(queries)) if parts[1:] else first
        whole.rows, whole.matching_rows = rows[0] if len(rows) == 1 else Hits.ranked(rows, None), matching_rows
        costs.clock.lap("groups")
        return whole

    def _further(
        self, walk: "_GroupWalk", query: F64, request: RowsRequest, where: Condition | None, costs: SearchCosts
    ) -> Iterator[SourceAnswer]:
        """Answers to one query, each of which is added to its walk, until this has k rows, or all that there are."""
        matches = self._pipeline.conditions.matches(where, costs.clock)
        if 2 * walk.column.size(walk.full) < self._target.live.record_count:  # else the other rows are few
            wider = self._step(1, request, where, walk.column, walk.limit)
            yield self._pipeline.among(query, wider, matches, costs)
        full, k = None, 0
        while walk.lacking:
            if full != walk.full:
                full, k = walk.full, 0
                others = walk.column.without(full, matches, condition_key(where))
                costs.clock.lap("groups")
            open_rows = len(walk.rows.files) - walk.limit * len(full)
            if max(open_rows, k) >= others.count:
                return  # all were found, or all that the index finds
            k = min(max(_TIMES_WIDER * k, _FURTHER * (open_rows + walk.lacking)), others.count)
            yield self._pipeline.among(query, self._for(request, k), others, costs)


class _GroupWalk:
    """The rows that were found for one query, and the k nearest of these, of each group up to the limit."""

    def __init__(self, column: GroupColumn, limit: int, k: int, found: Hits) -> None:
        self.column = column
        self.limit = limit
        self._k = k
        self._choose(found)

    def add(self, found: Hits) -> None:
        """Add rows of a further search."""
        self._choose(Hits.ranked([self.found, found], None).distinct())

    def _choose(self, found: Hits) -> None:
        groups = self.column.of_rows(found.files, found.positions)
        chosen = np.flatnonzero(first_of_groups(groups, self.limit))[: self._k]
        self.found, self._groups = found, groups[chosen]
        self.rows = replace(found.take(chosen), ranks=np.arange(1, len(chosen) + 1))
        self.lacking = self._k - len(chosen)

    @property
    def full(self) -> tuple[int, ...]:
        """Groups of which the limit was found."""
        values, counts = np.unique(self._groups, return_counts=True)
        return tuple(values[counts == self.limit].tolist())


def first_of_groups(groups: I64, limit: int) -> Bool:
    """bool[n]: whether each row, int64[n] by its group, is one of the first `limit` of its group."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    chosen = np.empty(len(groups), np.bool_)
    chosen[order] = np.arange(len(groups)) - np.searchsorted(in_order, in_order) < limit
    return chosen
