"""A condition as text: what messages show, where PyIceberg would show the classes of an expression."""

from pyiceberg.expressions import (
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.search.errors import FilterError

_OPERATORS: dict[type, str] = {
    EqualTo: "=",
    NotEqualTo: "!=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StartsWith: "starts with",
    NotStartsWith: "does not start with",
    In: "in",
    NotIn: "not in",
    IsNull: "is null",
    NotNull: "is not null",
    IsNaN: "is NaN",
    NotNaN: "is not NaN",
}
_SHOWN_VALUES = 5
TOO_DEEP = "the condition is nested too deeply: from Python join all parts at once, as in Or(*parts), not one by one"
"""Message on an expression that Python's stack does not hold"""


def condition_text(where: str | BooleanExpression) -> str:
    """The condition in quotes, where it is a text; else the expression as SQL would write it.

    >>> from pyiceberg.expressions import And, EqualTo, In
    >>> condition_text(And(EqualTo("section", "web"), In("id", [1, 2])))
    "(section = 'web' and id in (1, 2))"
    """
    return repr(where) if isinstance(where, str) else visit(where, _InWords())


def condition_key(where: object) -> str:
    """A text by which a condition is recognized when it comes again. Raises FilterError for one that is too deep."""
    try:
        return repr(where)
    except RecursionError:
        raise FilterError(TOO_DEEP) from None  # whose trace has thousands of lines


class _InWords(BooleanExpressionVisitor[str]):
    def visit_true(self) -> str:
        return "true"

    def visit_false(self) -> str:
        return "false"

    def visit_not(self, child_result: str) -> str:
        return f"not ({child_result})"

    def visit_and(self, left_result: str, right_result: str) -> str:
        return f"({left_result} and {right_result})"

    def visit_or(self, left_result: str, right_result: str) -> str:
        return f"({left_result} or {right_result})"

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> str:
        if isinstance(predicate, ArrayContains):
            value = None if predicate.value is None else predicate.value.value
            call = f"array_contains({getattr(predicate.term, 'name', predicate.term)}, {value!r})"
            return f"not ({call})" if predicate.negated else call
        comparison = f"{getattr(predicate.term, 'name', predicate.term)} {_OPERATORS[type(predicate)]}"
        if isinstance(predicate, LiteralPredicate):
            return f"{comparison} {predicate.literal.value!r}"
        if isinstance(predicate, SetPredicate):
            values = sorted(repr(literal.value) for literal in predicate.literals)
            more = [f"{len(values) - _SHOWN_VALUES:,} more"] if len(values) > _SHOWN_VALUES else []
            return f"{comparison} ({', '.join([*values[:_SHOWN_VALUES], *more])})"
        return comparison

    def visit_bound_predicate(self, predicate: BoundPredicate) -> str:
        return str(predicate)
