"""What the clauses of a SELECT mean, over a table or over the nearest rows."""

from datetime import date, datetime
from typing import Any

from sqlglot import exp

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.postprocessing import STAR, Order, Output
from icepuffin.ops.sql.tokens import HYBRID, MATCH
from icepuffin.ops.sql.values import DISTANCE, Node, Values, shown

DISTANCES = {
    "l2_distance": (Metric.L2, False),
    "cosine_distance": (Metric.COSINE, False),
    "inner_product": (Metric.INNER_PRODUCT, True),
    "hamming_distance": (Metric.HAMMING, False),
}
"""Function -> (metric, whether larger is nearer)"""
RANKINGS = {**{name: larger for name, (_, larger) in DISTANCES.items()}, MATCH: True, HYBRID: False}
"""Function that rows are ranked by -> whether larger is better"""
_MAX_ROWS = 2**31 - 1
RESOLVED = "resolved"
"""Mark of a key of ORDER BY whose names are no outputs any more"""


def function_name(node: Node) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def name_of(projection: Node) -> str:
    """The name that Spark gives an output, to be read by; empty for a computed one without AS.

    A cast of a column has the column's name, and a text its own.
    """
    if isinstance(projection, exp.Alias):
        return str(projection.alias)
    node = projection.unnest()
    node = node.this.unnest() if isinstance(node, exp.Cast) and isinstance(node.this.unnest(), exp.Column) else node
    is_text = isinstance(node, exp.Literal) and node.is_string
    return str(node.name) if isinstance(node, exp.Column) or is_text else ""


def require_source(column: Node, alias: str) -> None:
    if (column.table and column.table != alias) or column.args.get("db"):
        raise NotIndexableError(f"{shown(column)} is no column of {alias or 'what it reads'}")


def is_number_of_output(node: Node) -> bool:
    """Whether a key of ORDER BY is the number of an output."""
    return isinstance(node, exp.Literal) and not node.is_string and bool(node.this.isdecimal())


def resolved(node: Node, query: Node) -> Node:
    """The expression that a key of ORDER BY means: the key is the number of an output, or an expression of outputs.

    One that a merged query has from another is returned as it is: its columns are those of the source.
    """
    if node.meta.get(RESOLVED):
        return node
    node = node.unnest()
    if is_number_of_output(node):
        outputs = query.expressions
        if any(is_star(item) for item in outputs) or not 1 <= int(node.this) <= len(outputs):
            raise NotIndexableError(
                f"ORDER BY {node.this}: it is to be the number of one of the columns that SELECT names"
            )
        return outputs[int(node.this) - 1].unalias()
    if isinstance(node, exp.Column):
        return _output(node, query)
    return node.copy().transform(lambda part: _output(part, query).copy() if isinstance(part, exp.Column) else part)


def _output(column: Node, query: Node) -> Node:
    """The expression of the output with that name; the column itself where there is none."""
    name = column.name.lower()
    named = [] if column.table else [item for item in query.expressions if name_of(item).lower() == name]
    # of several, Spark takes a column of the source that has the name, unless all are one column
    if len(named) > 1 and (len({shown(item) for item in named}) > 1 or isinstance(named[0], exp.Alias)):
        raise NotIndexableError(f"ORDER BY {column.name}: several columns have that name")
    return named[0].unalias() if named else column


def names_beside_star(query: Node) -> frozenset[str]:
    """Names, in lower case, that SELECT gives beside `*`: a column of such a name would be ambiguous."""
    if not any(is_star(item) for item in query.expressions):
        return frozenset()
    return frozenset(name_of(item).lower() for item in query.expressions if not is_star(item))


def outputs_of(query: Node, function: Node | None) -> tuple[Output, ...] | None:
    if len(query.expressions) == 1 and is_star(query.expressions[0]):
        return None
    return tuple(_output_of(item, function) for item in query.expressions)


def is_star(node: Node) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def _output_of(projection: Node, function: Node | None) -> Output:
    inner = projection.unalias().unnest()
    if is_star(inner):
        return STAR
    column = _column_of(inner, function)
    if column is None:
        raise NotIndexableError(f"{shown(inner)} is not computed here: SELECT takes columns and the distance")
    name = {MATCH: "score", HYBRID: "hybrid"}.get(function_name(inner), "distance") if column == DISTANCE else column
    return Output(column, projection.alias or name)


def _column_of(node: Node, function: Node | None) -> str | None:
    """The column of the rows that an expression is, `DISTANCE` for the distance; None for other expressions."""
    if function is not None and node == function:
        return DISTANCE
    return str(node.name) if isinstance(node, exp.Column) else None


def orders_of(query: Node, function: Node | None) -> tuple[Order, ...]:
    orders = []
    for term in query.args["order"].expressions if query.args.get("order") else ():
        descending = bool(term.args.get("desc"))
        key = resolved(term.this, query).unnest()
        column = _column_of(key, function)
        if column is None:
            raise NotIndexableError(f"ORDER BY {shown(key)} is not computed here: give columns, or the distance")
        orders.append(Order(column, descending, bool(term.args.get("nulls_first", not descending))))
    return tuple(orders)


def count_of(query: Node, part: str, values: Values) -> int | None:
    clause = query.args.get(part)
    if clause is None:
        return None
    options = clause.args.get("limit_options")
    if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
        raise SqlError(f"FETCH FIRST ... {shown(options)}: give a number of rows")
    count = clause.args.get("count") or clause.args.get("expression")
    if count is None:
        raise SqlError(f"{shown(clause).strip()}: give a number of rows")
    value: Any = values.evaluate(count)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ROWS:
        raise SqlError(f"{part.upper()} {value}: it is a number of rows, up to {_MAX_ROWS}")
    return value


def snapshot_of(table: Node, values: Values) -> int | str | datetime | None:
    version = table.args.get("version")
    if version is None:
        return None
    if version.args.get("kind") != "AS OF":
        raise NotIndexableError(f"{shown(version)}: only one snapshot is read, AS OF")
    snapshot = values.evaluate(version.expression)
    if version.this == "TIMESTAMP":
        if isinstance(snapshot, datetime):
            return snapshot
        try:
            return datetime.fromisoformat(str(snapshot) if isinstance(snapshot, date) else snapshot)
        except (TypeError, ValueError) as error:
            raise SqlError(f"TIMESTAMP AS OF {snapshot!r}: it is a time, such as '2026-11-20 08:00:00'") from error
    return snapshot if isinstance(snapshot, int) else str(snapshot)
