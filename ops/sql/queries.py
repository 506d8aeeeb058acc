"""SELECT statements -> the nearest rows of one table, and what is done with them afterwards.

Subqueries (and WITH) that only project and filter are merged into the outer query. Around a subquery that finds
the nearest rows, the outer query works on its rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from sqlglot import exp

from icepuffin.ops.sql.clauses import (
    DISTANCES,
    RANKINGS,
    count_of,
    function_name,
    orders_of,
    outputs_of,
    require_source,
    resolved,
    snapshot_of,
)
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.hints import search_hints
from icepuffin.ops.sql.postprocessing import PostprocessingStep
from icepuffin.ops.sql.rankings import match_of, ranking_of, require_one_ranking, split_matches
from icepuffin.ops.sql.row_filters import RowFilter, joined, read_filter
from icepuffin.ops.sql.statements import Nearest
from icepuffin.ops.sql.subqueries import absent_of, merged_query, outer_step
from icepuffin.ops.sql.supported_nodes import require_understood
from icepuffin.ops.sql.tokens import HYBRID
from icepuffin.ops.sql.values import DISTANCE, Node, Values, shown

_UPPER = {exp.LT: False, exp.LTE: True}
_LOWER = {exp.GT: False, exp.GTE: True}
_PAGES = (
    "OFFSET would search anew for each page, wider than for the one before, so that pages repeat rows and lose others: "
    "search once for all pages, and cut them from that, as in SELECT ... FROM (SELECT ... ORDER BY distance LIMIT 100) "
    "ORDER BY distance LIMIT 10 OFFSET 20"
)


Names = Mapping[str, "_NamedQuery"]


@dataclass(frozen=True, slots=True)
class _NamedQuery:
    """A query that WITH names."""

    query: Node
    before: Names
    """Queries that it may read: those named before it"""


@dataclass(frozen=True, slots=True)
class _Scope:
    """A SELECT, and what it reads."""

    query: Node
    source: Node
    """The table or subquery that it reads"""
    names: Names
    """Queries that the SELECT may read, by name"""
    within: Names
    """Queries that the subquery may read, by name"""


def read_query(query: Node, values: Values) -> Nearest:
    """Raises NotIndexableError, saying which part no index can answer."""
    if isinstance(query, exp.SetOperation):
        raise NotIndexableError(f"it has {query.key.upper()}")
    if not isinstance(query, exp.Select):
        raise NotIndexableError("it is no SELECT")
    hints = search_hints(query, values)
    for hint in list(query.find_all(exp.Hint)):
        hint.pop()
    unsupported = require_understood(query)
    nearest = _read(query, values, {})
    if unsupported is not None:
        raise unsupported
    if hints.parameters and (nearest.limit is None or not nearest.vector_column):
        name = next(iter(hints.parameters)).upper()
        what = "all rows within a distance are found" if nearest.limit is None else "words are searched for"
        remedy = ", or write a LIMIT" if nearest.limit is None else ""
        raise SqlError(f"{what}, whatever {name} is: leave the hint out{remedy}")
    return replace(nearest, hints=hints)


def _read(query: Node, values: Values, names: Names) -> Nearest:
    scoped = _scope_of(query, names)
    query, source = scoped.query, scoped.source
    if isinstance(source, exp.Table):
        return _direct(query, source, values)
    inner_scope = _scope_of(source.this, scoped.within)
    if not any(inner_scope.query.args.get(part) for part in ("order", "limit", "offset")):
        return _read(merged_query(query, inner_scope.query, source.alias), values, inner_scope.names)
    nearest = _read(source.this, values, scoped.within)
    return replace(nearest, steps=(*nearest.steps, outer_step(query, source.alias, values)))


def _scope_of(query: Node, names: Names) -> _Scope:
    if not isinstance(query, exp.Select):
        raise NotIndexableError(f"it reads {query.key.upper()}, no SELECT")
    names_of_with: set[str] = set()
    for cte in query.args["with_"].expressions if query.args.get("with_") else ():
        name = cte.alias.lower()
        if name in names_of_with:
            raise NotIndexableError(f"WITH names two queries {cte.alias}")
        names_of_with.add(name)
        names = {**names, name: _NamedQuery(cte.this, names)}
    source: Node = query.args["from_"].this if query.args.get("from_") else None
    if isinstance(source, exp.Table) and not source.db and source.name.lower() in names:
        if more := [name for name, value in source.args.items() if value and name not in ("this", "alias")]:
            raise NotIndexableError(f"{shown(source)}: {more[0]} of a query that WITH names")
        named = names[source.name.lower()]
        alias = source.args.get("alias") or exp.to_identifier(source.name)
        return _Scope(query, exp.Subquery(this=named.query, alias=alias), names, named.before)
    is_table = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
    if not is_table and not isinstance(source, exp.Subquery):
        raise NotIndexableError("it does not read one table")
    return _Scope(query, source, names, names)


def _direct(query: Node, table: Node, values: Values) -> Nearest:
    """A query that reads a table: its k nearest rows, or all within a distance."""
    for column in query.find_all(exp.Column):
        require_source(column, table.alias_or_name)
    _write_alike(query)
    ordered = query.args["order"].expressions if query.args.get("order") else ()
    keys = [resolved(term.this, query).unnest() for term in ordered]
    having, conjuncts = split_matches(_conjuncts(query))
    bound = next((limited for conjunct in conjuncts if (limited := _bound(conjunct, values)) is not None), None)
    nearest_first = _nearest_first(query, keys)
    limit, offset = count_of(query, "limit", values), count_of(query, "offset", values) or 0
    if bound is None and (nearest_first is None or limit is None):
        raise NotIndexableError(_why_not(query, keys))
    function = nearest_first or (bound[0] if bound else None)
    require_one_ranking(query, function, having)
    ranking = ranking_of(function, values)
    top = nearest_first is not None and limit is not None
    if top and offset:
        raise NotIndexableError(_PAGES)
    if function_name(function) == HYBRID and len(keys) > 1:
        raise NotIndexableError(f"{HYBRID}(...) is the only key of ORDER BY: order its rows further around a subquery")
    where, rest = _filters(conjuncts, values, function, top=top, bound=bound)
    step = PostprocessingStep(
        outputs=outputs_of(query, function),
        where=rest,
        order=() if top and len(keys) == 1 else orders_of(query, function),
        limit=limit,
        offset=offset,
    )
    return Nearest(
        table=_name(table),
        snapshot=snapshot_of(table, values),
        limit=limit if top else None,
        within=None if bound is None else bound[1],
        inclusive=bool(bound and bound[2]),
        steps=(step,),
        where=where,
        having=tuple(match_of(condition, values) for condition in having),
        ties=top and len(keys) > 1,
        absent=absent_of(query),
        **ranking,
    )


def _write_alike(query: Node) -> None:
    """Write the columns of functions without source and backticks: `t.embedding` and `embedding` are one column."""
    functions = [node for node in query.walk() if function_name(node) in RANKINGS]
    for column in [column for node in functions for column in node.find_all(exp.Column)]:
        column.replace(exp.column(column.name))


def _name(table: Node) -> str:
    parts = [part.name for part in table.parts]
    if any("." in part or "`" in part for part in parts):
        raise NotIndexableError(f"{shown(table)}: a name with a dot in it is not looked up here")
    return ".".join(parts)


def _conjuncts(query: Node) -> list[Node]:
    """The conditions that WHERE joins by AND."""

    def split(node: Node) -> list[Node]:
        node = node.unnest()
        if isinstance(node, exp.And):
            return [*split(node.left), *split(node.right)]
        if isinstance(node, exp.Between) and function_name(node.this.unnest()) in DISTANCES:
            low, high = node.args["low"], node.args["high"]
            return [exp.GTE(this=node.this, expression=low), exp.LTE(this=node.this, expression=high)]
        return [node]

    return split(query.args["where"].this) if query.args.get("where") else []


def _bound(node: Node, values: Values) -> tuple[Node, float, bool] | None:
    """(distance function, limit as a search takes it, inclusive) of `distance < constant`; None for others."""
    if type(node) not in (*_UPPER, *_LOWER):
        return None
    left, right, comparison = node.left.unnest(), node.right.unnest(), type(node)
    if function_name(right) in DISTANCES:
        left, right = right, left
        comparison = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}[comparison]
    if function_name(left) not in DISTANCES:
        return None
    larger = DISTANCES[function_name(left)][1]
    sides = _LOWER if larger else _UPPER
    if comparison not in sides:
        return None
    limit = values.evaluate(right)
    if isinstance(limit, bool) or not isinstance(limit, int | float | Decimal) or math.isnan(limit):
        raise NotIndexableError(f"{shown(node)}: {limit!r} is no distance")
    return left, -float(limit) if larger else float(limit), sides[comparison]


def _filters(
    conjuncts: list[Node], values: Values, function: Node, *, top: bool, bound: tuple[Node, float, bool] | None
) -> tuple[RowFilter | None, RowFilter | None]:
    """(the condition on the rows that are searched, the condition on those found).

    A condition on the distance is one on the rows found. `top`: among the k nearest it can only be an upper bound.
    """
    searched, found = [], []
    for conjunct in conjuncts:
        own_bound = _bound(conjunct, values)
        if own_bound is not None and own_bound == bound and not top:
            continue
        if own_bound is not None or (not top and any(part == function for part in conjunct.walk())):
            of_rows = conjunct.transform(lambda part: exp.column(DISTANCE) if part == function else part)
            found.append(read_filter(of_rows, values))
        else:
            searched.append(read_filter(conjunct, values))
    return joined(searched), joined(found)


def _nearest_first(query: Node, keys: list[Node]) -> Node | None:
    """The function that the query is ordered by before all else, best first."""
    if not keys or function_name(keys[0]) not in RANKINGS:
        return None
    larger = RANKINGS[function_name(keys[0])]
    return keys[0] if bool(query.args["order"].expressions[0].args.get("desc")) == larger else None


def _why_not(query: Node, keys: list[Node]) -> str:
    if not keys:
        return "it is not ordered by one distance, and has no condition distance < number"
    name = function_name(keys[0])
    if name not in RANKINGS:
        return f"it is ordered by {shown(keys[0])}, not by one of {', '.join(RANKINGS)}"
    best = "nearest" if name in DISTANCES else "best"
    if _nearest_first(query, keys) is None:
        return f"the {best} come first only with ORDER BY {name}(...) {'DESC' if RANKINGS[name] else 'ASC'}"
    return f"it has no LIMIT: an index finds the k {best}"
