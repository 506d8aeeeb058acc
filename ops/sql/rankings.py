"""What a function ranks rows by: a vector, `match(column, 'words')`, or `hybrid` of both."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from icepuffin.ops.sql.clauses import DISTANCES, RANKINGS, function_name
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.tokens import HYBRID, MATCH
from icepuffin.ops.sql.values import Node, Values, shown
from icepuffin.ops.text.word_condition import HasWord


def ranking_of(function: Node, values: Values) -> dict[str, Any]:
    """The fields of `Nearest` that say what rows are ranked by. Raises SqlError, NotIndexableError."""
    name = function_name(function)
    if name == MATCH:
        return {"words": match_of(function, values)}
    if name == HYBRID:
        return _fused(function, values)
    metric, negated = DISTANCES[name]
    column, vector = _compared(function, values)
    return {"vector_column": column, "metric": metric, "query": vector, "negated": negated}


def match_of(function: Node, values: Values) -> HasWord:
    """Raises SqlError where it is not of columns and a text."""
    *columns, text = function.expressions or (None,)
    if not columns or not all(isinstance(column, exp.Column) for column in columns):
        raise SqlError(f"{shown(function)}: write columns, then a text, as in match(title, body, 'words')")
    words = values.evaluate(text)
    if not isinstance(words, str):
        raise SqlError(f"{shown(function)}: match takes words to search for, and no {type(words).__name__}")
    return HasWord(columns=tuple(dict.fromkeys(str(column.name) for column in columns)), text=words)


def _fused(function: Node, values: Values) -> dict[str, Any]:
    arguments = [argument.unnest() for argument in function.expressions]
    names = [function_name(argument) for argument in arguments[:2]]
    if len(arguments) not in (2, 3) or names[0] not in DISTANCES or names[1] != MATCH:
        raise SqlError(
            f"{shown(function)}: write a distance, a match, and a text weight if you like, as in "
            "hybrid(cosine_distance(embedding, :q), match(body, 'words'), 0.3)"
        )
    ranking = {**ranking_of(arguments[0], values), **ranking_of(arguments[1], values), "negated": True}
    if len(arguments) < 3:
        return ranking
    weight = values.evaluate(arguments[2])
    if isinstance(weight, bool) or not isinstance(weight, int | float | Decimal) or not 0 <= weight <= 1:
        raise SqlError(f"{shown(function)}: the text weight is {weight!r}; it is a number from 0 to 1")
    return {**ranking, "text_weight": float(weight)}


def _compared(function: Node, values: Values) -> tuple[str, tuple[float, ...] | bytes]:
    arguments = function.expressions or [function.this, function.expression]
    columns = [item for item in arguments if isinstance(item, exp.Column)]
    others = [item for item in arguments if not isinstance(item, exp.Column)]
    if len(columns) != 1 or len(others) != 1:
        raise NotIndexableError(f"{shown(function)} does not compare one column with one vector")
    return columns[0].name, values.vector(others[0])


def split_matches(conjuncts: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """(conditions on words, other conditions) of those that AND joins. Raises NotIndexableError for one on a score."""
    matches = [conjunct for conjunct in conjuncts if function_name(conjunct) == MATCH]
    others = [conjunct for conjunct in conjuncts if function_name(conjunct) != MATCH]
    for conjunct in others:
        if any(function_name(part) in (MATCH, HYBRID) for part in conjunct.walk()):
            raise NotIndexableError(
                f"{shown(conjunct)[:200]}: in WHERE match(...) stands by itself, joined to the rest by AND; a "
                "condition on a score stands around the subquery that finds the rows"
            )
    return matches, others


def require_one_ranking(query: Node, function: Node, having: Sequence[Node]) -> None:
    """Raises NotIndexableError where a query has a distance or `match` other than what rows are ranked by. `having`:
    conditions of WHERE on words.
    """
    whole = [function, *having]
    for node in query.walk(prune=lambda part: part == function or any(part is condition for condition in having)):
        if function_name(node) not in RANKINGS or any(node is part or node == function for part in whole):
            continue
        if {function_name(node), function_name(function)} <= DISTANCES.keys():
            raise NotIndexableError(f"it compares with more than one vector: {shown(function)} and {shown(node)}"[:300])
        raise NotIndexableError(
            f"{shown(node)[:100]} stands beside {shown(function)[:100]}, which rows are ranked by: give one of them"
        )
