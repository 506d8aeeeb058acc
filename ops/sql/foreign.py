"""Statements that no index answers, as Spark takes them: distance functions written out, parameters as constants."""

from typing import Any

import numpy as np
import sqlglot
from sqlglot import exp

from ops.sql.clauses import DISTANCES, function_name
from ops.sql.errors import SqlError
from ops.sql.statements import Foreign
from ops.sql.values import Node, Values

_DOT = "aggregate(zip_with(:a, :b, (x, y) -> CAST(x AS DOUBLE) * CAST(y AS DOUBLE)), 0D, (s, v) -> s + v)"
_GAP = "aggregate(zip_with(:a, :b, (x, y) -> power(CAST(x AS DOUBLE) - CAST(y AS DOUBLE), 2)), 0D, (s, v) -> s + v)"
_FORMULAS = {
    "l2_distance": f"sqrt({_GAP})",
    "inner_product": _DOT,
    "cosine_distance": f"1 - try_divide({_DOT}, sqrt({_DOT.replace(':b', ':a')}) * sqrt({_DOT.replace(':a', ':b')}))",
}


def for_spark(statement: Foreign) -> str:
    """A text without distances and parameters is passed on to the letter. Raises SqlError for a missing parameter."""
    query, values = statement.query, Values(statement.parameters)
    if query is None or not any(isinstance(node, exp.Placeholder) or _is_distance(node) for node in query.walk()):
        return statement.text

    def constant(node: Node) -> Node:
        return exp.convert(_plain(values.of(node))) if isinstance(node, exp.Placeholder) else node

    return str(query.copy().transform(constant).transform(_written_out).sql(dialect="spark"))


def _is_distance(node: Node) -> bool:
    return function_name(node) in DISTANCES


def _written_out(node: Node) -> Node:
    if not _is_distance(node):
        return node
    arguments = node.expressions or [node.this, node.expression]
    if len(arguments) != 2:
        raise SqlError(f"{node.sql(dialect='spark')}: a distance is of two vectors")
    left, right = arguments
    formula = sqlglot.parse_one(_FORMULAS[function_name(node)], dialect="spark")
    values = {"a": left, "b": right}
    filled = formula.transform(lambda part: values[part.name].copy() if isinstance(part, exp.Placeholder) else part)
    return exp.paren(filled)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
