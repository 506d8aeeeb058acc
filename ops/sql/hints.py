"""Hints to a search, in the grammar of Spark's: `SELECT /*+ INDEX(name), SEARCH_LIST(200), RERANK */`."""

from decimal import Decimal
from typing import Any

from sqlglot import exp

from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.statements import SearchHints
from icepuffin.ops.sql.tokens import hints_of
from icepuffin.ops.sql.values import Node, Values, shown

_FLAGS = ("rerank", "certified")
_SHARES = ("target_recall", "recall_share")


def search_hints(query: Node, values: Values) -> SearchHints:
    """The hints to the search of a query. Raises SqlError for one that cannot be read, or is given twice."""
    options: dict[str, Any] = {}
    for name, node in hints_of(query):
        if name in options:
            raise SqlError(f"the hint {name.upper()} is given twice")
        options[name] = _option(name, node, values)
    return SearchHints(**options)


def _option(name: str, node: Node, values: Values) -> Any:
    arguments = node.expressions
    if name in _FLAGS and not arguments:
        return True
    if len(arguments) != 1:
        raise SqlError(f"{shown(node)}: write {name.upper()}(...), with one value")
    if name == "index":
        return _index_name(arguments[0])
    try:
        value = values.evaluate(arguments[0])
    except NotIndexableError as error:
        raise SqlError(f"{shown(node)}: {error}") from None
    kinds: tuple[type, ...]
    if name in _FLAGS:
        kinds, takes = (bool,), "true or false"
    elif name in _SHARES:
        kinds, takes = (int, float, Decimal), "a number, such as 0.99"
    else:
        kinds, takes = (int,), "a whole number"
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SqlError(f"{shown(node)}: {name.upper()} takes {takes}")
    return float(value) if name in _SHARES else value


def _index_name(node: Node) -> str:
    """A name or a text; names of indexes may hold dots."""
    if isinstance(node, exp.Column):
        return ".".join(part.name for part in node.parts)
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.this)
    raise SqlError(f"INDEX({shown(node)}): give the name of an index")
