"""SQL texts -> statements. Queries are parsed by sqlglot (Spark's dialect), the four statements on indexes here."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlglot
from pyiceberg.expressions import BooleanExpression
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ann_kernels.metric import Metric
from ops.sql.conditions import to_filter
from ops.sql.errors import NotIndexableError, SqlError
from ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    Foreign,
    Nearest,
    Output,
    RefreshIndex,
    ShowIndexes,
    Statement,
)
from ops.sql.values import Node, Values, name_parameters

DISTANCES = {
    "l2_distance": (Metric.L2, False),
    "cosine_distance": (Metric.COSINE, False),
    "inner_product": (Metric.INNER_PRODUCT, True),
}
"""Function -> (metric, whether larger is nearer)"""
_NAME = r"(?P<name>[\w.]+)"
_TABLE = r"(?P<table>[\w.]+)"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?P<rest>.+)", re.IGNORECASE | re.DOTALL)
_CREATE = re.compile(
    rf"\s*CREATE\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s+USING\s+(?P<kind>\w+)\s*\(\s*(?P<column>\w+)\s*\)"
    r"(?:\s*WITH\s*\((?P<options>.*)\))?\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_REFRESH = re.compile(rf"\s*REFRESH\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_DROP = re.compile(rf"\s*DROP\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_SHOW = re.compile(rf"\s*SHOW\s+INDEXES\s+(?:ON|FROM|IN)\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_OPTION = re.compile(r"\s*'?(?P<key>[\w.]+)'?\s*=\s*(?P<value>'[^']*'|[^\s,]+)\s*")


def parse(text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None) -> Statement:
    """Raises SqlError for a text that is no SQL, or a statement on indexes that is incomplete."""
    if found := _EXPLAIN.fullmatch(text):
        return Explain(parse(found["rest"], parameters))
    if found := _CREATE.fullmatch(text):
        if found["kind"].lower() != "diskann":
            raise SqlError(f"USING {found['kind']}: the only kind of index is diskann")
        return CreateIndex(found["table"], found["name"], found["column"], _options(found["options"] or ""))
    for pattern, kind in ((_REFRESH, RefreshIndex), (_DROP, DropIndex)):
        if found := pattern.fullmatch(text):
            return kind(found["table"], found["name"])
    if found := _SHOW.fullmatch(text):
        return ShowIndexes(found["table"])
    if re.match(r"\s*(CREATE|REFRESH|DROP)\s+INDEX\b", text, re.IGNORECASE):
        raise SqlError(
            "write CREATE INDEX name ON ns.t USING diskann (column) [WITH (metric = 'l2', ...)], "
            "REFRESH INDEX name ON ns.t or DROP INDEX name ON ns.t"
        )
    try:
        named, given = name_parameters(text, parameters)
        query = sqlglot.parse_one(named, dialect="spark")
    except SqlglotError as error:
        line = str(error).splitlines()[0]
        raise SqlError(f"the statement cannot be read: {_plain(line)}") from error
    try:
        return _nearest(query, Values(given))
    except NotIndexableError as error:
        return Foreign(text, str(error))


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(str.strip, text.split(",")):
        option = _OPTION.fullmatch(part)
        if option is None:
            raise SqlError(f"WITH ({part.strip()}): write knob = value")
        found[option["key"].lower()] = option["value"].strip("'")
    return found


def _nearest(query: Node, values: Values) -> Nearest:
    if not isinstance(query, exp.Select):
        raise NotIndexableError("it is no SELECT")
    for part, name in (("joins", "a join"), ("group", "GROUP BY"), ("having", "HAVING"), ("offset", "OFFSET")):
        if query.args.get(part):
            raise NotIndexableError(f"it has {name}")
    if query.args.get("distinct"):
        raise NotIndexableError("it has DISTINCT")
    source = query.args.get("from_") or query.args.get("from")
    if source is None or not isinstance(source.this, exp.Table):
        raise NotIndexableError("it does not read one table")
    aliases = {item.alias: item.this for item in query.expressions if isinstance(item, exp.Alias)}
    function, metric, larger_is_nearer = _ordering(query, aliases)
    column, vector = _compared(function, values)
    where: BooleanExpression | None = None
    if condition := query.args.get("where"):
        where = to_filter(condition.this, values)
    limit = query.args.get("limit")
    if limit is None:
        raise NotIndexableError("it has no LIMIT: an index finds the k nearest")
    return Nearest(
        table=exp.table_name(source.this).replace('"', ""),
        snapshot=_snapshot(source.this, values),
        vector_column=column,
        metric=metric,
        query=vector,
        limit=_positive(values.of(limit.expression)),
        outputs=_outputs(query, function),
        where=where,
        negated=larger_is_nearer,
    )


def _ordering(query: Node, aliases: Mapping[str, Node]) -> tuple[Node, Metric, bool]:
    order = query.args.get("order")
    if order is None or len(order.expressions) != 1:
        raise NotIndexableError("it is not ordered by one distance")
    ordered = order.expressions[0]
    key = ordered.this
    if isinstance(key, exp.Column) and key.name in aliases:
        key = aliases[key.name]
    name = _function_name(key)
    if name not in DISTANCES:
        raise NotIndexableError(f"it is ordered by {key.sql()}, not by one of {', '.join(DISTANCES)}")
    metric, larger_is_nearer = DISTANCES[name]
    if bool(ordered.args.get("desc")) != larger_is_nearer:
        direction = "DESC" if larger_is_nearer else "ASC"
        raise NotIndexableError(f"the nearest come first only with ORDER BY {name}(...) {direction}")
    return key, metric, larger_is_nearer


def _function_name(node: Node) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _compared(function: Node, values: Values) -> tuple[str, tuple[float, ...]]:
    arguments = function.expressions or [function.this, function.expression]
    columns = [item for item in arguments if isinstance(item, exp.Column)]
    others = [item for item in arguments if not isinstance(item, exp.Column)]
    if len(columns) != 1 or len(others) != 1:
        raise NotIndexableError(f"{function.sql()} does not compare one column with one vector")
    return columns[0].name, values.vector(others[0])


def _outputs(query: Node, function: Node) -> tuple[Output, ...] | None:
    if len(query.expressions) == 1 and isinstance(query.expressions[0], exp.Star):
        return None
    outputs = []
    for item in query.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if inner == function:
            outputs.append(Output(None, item.alias or "distance"))
        elif isinstance(inner, exp.Column) and not isinstance(inner.this, exp.Star):
            outputs.append(Output(inner.name, item.alias or inner.name))
        else:
            raise NotIndexableError(f"it selects {item.sql()}: select columns and the distance, and compute outside")
    return tuple(outputs)


def _snapshot(table: Node, values: Values) -> int | str | None:
    version = table.args.get("version")
    if version is None:
        return None
    at = values.of(version.expression)
    return at if isinstance(at, int) else str(at)


def _positive(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise SqlError(f"LIMIT {value}: ask for at least one row")
    return value
