"""Statements that no index answers, as Spark takes them: distance functions written out, parameters as constants."""

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from ops.catalog.snapshots import with_zone
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

_TRAVEL = re.compile(r"\b(TIMESTAMP|SYSTEM_TIME)\s+AS\s+OF\b", re.IGNORECASE)
_WAYS = [
    [*travel, *literal]
    for travel in (["TIMESTAMP", "AS", "OF"], ["SYSTEM_TIME", "AS", "OF"])
    for literal in ([], ["TIMESTAMP"], ["CAST", "("])
]
"""What stands before the text of a time"""


def for_spark(statement: Foreign) -> str:
    """A text without distances and parameters is passed on to the letter, but for times to travel to: without a zone
    they are UTC here, and Spark would read them by its session's. Raises SqlError for a missing parameter.
    """
    query, values = statement.query, Values(statement.parameters)
    if query is None or not any(isinstance(node, exp.Placeholder) or _is_distance(node) for node in query.walk()):
        return _travelling_in_utc(statement.text)

    def constant(node: Node) -> Node:
        return exp.convert(_plain(values.of(node))) if isinstance(node, exp.Placeholder) else node

    return _travelling_in_utc(query.copy().transform(constant).transform(_written_out).sql(dialect="spark"))


def _travelling_in_utc(text: str) -> str:
    """The text with a zone at each `TIMESTAMP AS OF '...'` that has none."""
    tokens = [] if _TRAVEL.search(text) is None else sqlglot.tokenize(text, read="spark")
    words = [token.text.upper() for token in tokens]
    for at in range(len(tokens) - 1, 2, -1):
        before = words[max(0, at - 5) : at]
        if tokens[at].token_type is TokenType.STRING and any(before[-len(way) :] == way for way in _WAYS):
            with suppress(ValueError):  # no time: Spark will say so
                time = with_zone(datetime.fromisoformat(tokens[at].text)).isoformat()
                text = f"{text[: tokens[at].start]}'{time}'{text[tokens[at].end + 1 :]}"
    return text


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
