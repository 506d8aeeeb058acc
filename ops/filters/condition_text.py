"""A condition as text: what messages show, where PyIceberg would show the classes of an expression."""

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)

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
    return repr(where) if isinstance(where, str) else _in_words(where)


def condition_key(where: object) -> str:
    """A text by which a condition is recognized when it comes again. Raises FilterError for one that is too deep."""
    try:
        return repr(where)
    except RecursionError:
        raise FilterError(TOO_DEEP) from None  # whose trace has thousands of lines


def _in_words(part: BooleanExpression) -> str:
    match part:
        case AlwaysTrue() | AlwaysFalse():
            return "true" if isinstance(part, AlwaysTrue) else "false"
        case Not():
            return f"not ({_in_words(part.child)})"
        case And() | Or():
            return f"({_in_words(part.left)} {'and' if isinstance(part, And) else 'or'} {_in_words(part.right)})"
        case ArrayContains():
            value = None if part.value is None else part.value.value
            call = f"array_contains({getattr(part.term, 'name', part.term)}, {value!r})"
            return f"not ({call})" if part.negated else call
        case UnboundPredicate():
            comparison = f"{getattr(part.term, 'name', part.term)} {_OPERATORS[type(part)]}"
            return f"{comparison} {shown}" if (shown := _shown_values(part)) else comparison
    return str(part)


def _shown_values(predicate: UnboundPredicate) -> str:
    """The literals of a comparison; empty where it has none."""
    if isinstance(predicate, LiteralPredicate):
        return repr(predicate.literal.value)
    if not isinstance(predicate, SetPredicate):
        return ""
    values = sorted(repr(literal.value) for literal in predicate.literals)
    more = [f"{len(values) - _SHOWN_VALUES:,} more"] if len(values) > _SHOWN_VALUES else []
    return f"({', '.join([*values[:_SHOWN_VALUES], *more])})"
