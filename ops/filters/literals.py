"""Literals of a condition, fitted to the types of their columns.

A comparison means what it means to Spark: values are compared, and none is rounded. Where the column's type cannot hold
a literal, the nearest values that it can hold replace it: `f < 0.1` of a float column becomes `f <= 0.099999994`, and
`f = 0.1` is never true. (PyIceberg rounds literals. It takes a comparison with a number out of range for true or false,
even of nulls.) NaN is larger than every number, as in SQL engines.
"""

import datetime as dt
import math
import re
import sys
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
)
from pyiceberg.expressions.literals import (
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from icepuffin.ops.filters.list_predicate import ArrayContains, element_of
from icepuffin.ops.table.json_texts import is_text

_DAY = len("2026-01-31")
_MICROS = 86_400_000_000
"""Microseconds per day"""
_ZONE = re.compile(r"[+-]\d\d:\d\d$")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_EXACT_IN_DOUBLE = 2**53
_EXACTLY = Context(prec=2_000)
_UPWARDS = (GreaterThan, GreaterThanOrEqual)
_DOWNWARDS = (LessThan, LessThanOrEqual)
_NUMBERS = (IntegerType, LongType, DecimalType, FloatType, DoubleType)


@dataclass(frozen=True, slots=True)
class _Neighbors:
    """The values of a type next to a literal; the same one twice where the type holds the literal."""

    under: Literal[Any] | None
    """Largest value that is not over the literal; None where there is none"""
    over: Literal[Any] | None
    """Smallest value that is not under the literal; None where there is none"""

    @property
    def exact(self) -> bool:
        return self.under is self.over


def fitted(where: BooleanExpression, schema: Schema, *, on_lists: bool = True) -> BooleanExpression:
    """The condition without NOT, with literals that fit a schema. Raises ValueError for a literal that does not fit.

    `on_lists`: without it, a condition that PyIceberg knows, and that is true wherever this one is.
    """
    return _fitted(rewrite_not(where), schema, on_lists=on_lists)


def _fitted(part: BooleanExpression, schema: Schema, *, on_lists: bool) -> BooleanExpression:
    """A part without NOT, as of `fitted`."""
    if isinstance(part, And | Or):
        sides = (_fitted(side, schema, on_lists=on_lists) for side in (part.left, part.right))
        return And(*sides) if isinstance(part, And) else Or(*sides)
    if isinstance(part, ArrayContains):
        return _fitted_element(part, schema) if on_lists else AlwaysTrue()
    return _fitted_comparison(part, schema) if isinstance(part, LiteralPredicate | SetPredicate) else part


def _fitted_comparison(predicate: LiteralPredicate | SetPredicate, schema: Schema) -> BooleanExpression:
    operator: Any = type(predicate)
    field = predicate.term.bind(schema, case_sensitive=True).ref().field
    begins = isinstance(predicate, StartsWith | NotStartsWith)
    if begins and not isinstance(field.field_type, StringType | BinaryType):
        raise ValueError(f"{field.name} is {field.field_type}: LIKE takes a column of texts or bytes")
    if isinstance(predicate, SetPredicate):
        nearest = [_neighbors(literal, field) for literal in predicate.literals]
        exact = {neighbors.under for neighbors in nearest if neighbors.exact}
        return operator(predicate.term, exact) if exact else _every_or_none(predicate.term, every=operator is NotIn)
    comparison = _comparison(operator, predicate.term, _neighbors(predicate.literal, field))
    if operator in (*_UPWARDS, NotEqualTo) and isinstance(field.field_type, FloatType | DoubleType):
        nan: Any = IsNaN
        return Or(comparison, nan(predicate.term))
    return comparison


def _comparison(operator: Any, term: Any, neighbors: _Neighbors) -> BooleanExpression:
    """The comparison `term operator literal`, by the values that the column may have."""
    if not neighbors.exact and operator in (EqualTo, NotEqualTo):
        return _every_or_none(term, every=operator is NotEqualTo)
    to_the_side: Any = LessThanOrEqual if operator in _DOWNWARDS else GreaterThanOrEqual
    side = neighbors.under if operator in _DOWNWARDS else neighbors.over
    if side is None:
        return _every_or_none(term, every=False)
    comparison: BooleanExpression = (operator if neighbors.exact else to_the_side)(term, side)
    return comparison


def _fitted_element(predicate: ArrayContains, schema: Schema) -> ArrayContains:
    """The predicate with a value that an element may have, or without one. Raises ValueError."""
    field = predicate.term.bind(schema, case_sensitive=True).ref().field
    element, literal = element_of(field), predicate.value
    if literal is None:
        raise ValueError(f"array_contains({field.name}, ...) does not find null")
    if isinstance(literal, StringLiteral) and isinstance(element.field_type, _NUMBERS):
        raise ValueError(  # noqa: TRY004  of the user's condition
            f"{field.name} is {field.field_type}: array_contains takes a number, not a text"
        )
    neighbors = _neighbors(literal, element)
    value = neighbors.under.to(element.field_type) if neighbors.under and neighbors.exact else None
    return ArrayContains(predicate.term, value, negated=predicate.negated)


def _every_or_none(term: Any, *, every: bool) -> BooleanExpression:
    """An expression that is true for every value but null, or for none."""
    not_null: Any = NotNull
    return not_null(term) if every else AlwaysFalse()


def _neighbors(literal: Literal[Any], field: NestedField) -> _Neighbors:
    """Raises ValueError for a literal that cannot be compared with the column's type."""
    own_type = field.field_type
    if isinstance(own_type, _NUMBERS):
        return _number_neighbors(_number(literal, field), own_type)
    if isinstance(own_type, DateType | TimestampType | TimestamptzType):
        return _time_neighbors(literal, field)
    if isinstance(literal, StringLiteral):
        if not is_text(literal.value):
            raise ValueError(f"{literal.value!r} is no text: it has half of a surrogate pair, which UTF-8 cannot write")
        if isinstance(own_type, BinaryType | FixedType):
            raise ValueError(  # noqa: TRY004  of the user's condition
                f"{field.name} is {own_type}, which a text cannot say; from Python give an expression with bytes"
            )
        if isinstance(own_type, BooleanType):
            raise ValueError(f"{field.name} is {own_type}: write true or false")  # noqa: TRY004
        if isinstance(own_type, TimeType) and not _CLOCK.fullmatch(literal.value):
            raise ValueError(f"{field.name} is {own_type}: write '08:30:00', with microseconds at most and no zone")
    elif isinstance(own_type, StringType) or isinstance(literal, BooleanLiteral) is not isinstance(
        own_type, BooleanType
    ):
        raise ValueError(f"{field.name} is {own_type}, which {literal.value!r} is not: compare it with what it can be")
    return _Neighbors(literal, literal)


def _number(literal: Literal[Any], field: NestedField) -> Decimal | float:
    """A float, or an exact number where the digits of a decimal count."""
    own_type, value = field.field_type, literal.value
    floating = isinstance(own_type, FloatType | DoubleType)
    if isinstance(literal, StringLiteral):
        whole = isinstance(own_type, IntegerType | LongType)
        if not (_WHOLE if whole else _NUMBER).fullmatch(value):
            remedy = f": write {field.name} is nan" if value.lower() == "nan" else ""
            raise ValueError(f"{value!r} is no {own_type}, as {field.name} is{remedy}")
        digits = own_type.precision if isinstance(own_type, DecimalType) else 0
        # Spark compares a text with a decimal as doubles; more digits than a double holds need decimals
        value = float(value) if floating or 0 < digits <= sys.float_info.dig else Decimal(value)
    elif isinstance(literal, BooleanLiteral | DateLiteral | TimestampLiteral) or not isinstance(
        value, int | float | Decimal
    ):
        raise ValueError(f"{field.name} is {own_type}, which {value!r} is not: compare it with what it can be")  # noqa: TRY004
    if floating:
        return _as_double(value)
    if isinstance(value, float) and isinstance(own_type, LongType) and _EXACT_IN_DOUBLE <= abs(value) < math.inf:
        raise ValueError(
            f"{field.name} is {own_type}, of which doubles as large as {value!r} tell few apart: give an integer"
        )
    return value if isinstance(value, float) and math.isinf(value) else Decimal(str(value))


def _as_double(value: Decimal | float) -> Decimal | float:
    """The nearest double, as Spark compares numbers with doubles; a Decimal where it is beyond all doubles."""
    try:
        double = float(value)
    except OverflowError:
        return Decimal(value)
    beyond = math.isinf(double) and isinstance(value, Decimal) and value.is_finite()
    return value if beyond else double


def _number_neighbors(value: Decimal | float, own_type: IcebergType) -> _Neighbors:
    if isinstance(own_type, DoubleType | FloatType) and isinstance(value, Decimal):
        return _beyond_all_floats(own_type, positive=value > 0)
    if isinstance(own_type, DoubleType):
        return _both(DoubleLiteral(float(value)))
    if isinstance(own_type, FloatType):
        return _float_neighbors(float(value))
    if isinstance(own_type, DecimalType):
        step = Decimal((0, (1,), -own_type.scale))
        least = Decimal(1 - 10**own_type.precision).scaleb(-own_type.scale, _EXACTLY)
        greatest = least.copy_negate()  # minus would round to 28 digits
    else:
        step, least = Decimal(1), own_type.min  # type: ignore[attr-defined]
        greatest = -least - 1

    def literal(number: Decimal | int) -> Literal[Any]:
        return DecimalLiteral(Decimal(number)) if isinstance(own_type, DecimalType) else LongLiteral(int(number))

    if value > greatest:
        return _Neighbors(literal(greatest), None)
    if value < least:
        return _Neighbors(None, literal(least))
    number = Decimal(value)
    under, over = (
        literal(number.quantize(step, rounding=how, context=_EXACTLY)) for how in (ROUND_FLOOR, ROUND_CEILING)
    )
    return _both(under) if under.value == over.value else _Neighbors(under, over)


def _beyond_all_floats(own_type: FloatType | DoubleType, *, positive: bool) -> _Neighbors:
    """Neighbours of a number that is between infinity and the largest float, or on the other side."""
    is_double = isinstance(own_type, DoubleType)
    literal: Any = DoubleLiteral if is_double else FloatLiteral
    largest = float(np.finfo(np.float64 if is_double else np.float32).max)
    ends = (largest, math.inf) if positive else (-math.inf, -largest)
    return _Neighbors(*map(literal, ends))


def _float_neighbors(value: float) -> _Neighbors:
    with np.errstate(over="ignore"):
        nearest = np.float32(value)
    if float(nearest) == value:
        return _both(FloatLiteral(float(nearest)))
    towards = np.float32(-np.inf if float(nearest) > value else np.inf)
    with np.errstate(over="ignore"):
        other = np.nextafter(nearest, towards)
    under, over = sorted((float(nearest), float(other)))
    return _Neighbors(FloatLiteral(under), FloatLiteral(over))


def _time_neighbors(literal: Literal[Any], field: NestedField) -> _Neighbors:
    """Neighbours among dates and times. A day stands for its first moment where no time zone is involved."""
    own_type = field.field_type
    if isinstance(literal, StringLiteral):
        literal = _read_time(literal.value, field)
    if isinstance(literal, DateLiteral):
        if isinstance(own_type, DateType):
            return _both(literal)
        if isinstance(own_type, TimestampType):
            return _both(TimestampLiteral(literal.value * _MICROS))
    if isinstance(literal, TimestampLiteral):
        if not isinstance(own_type, DateType):
            return _both(literal)
        day, rest = divmod(literal.value, _MICROS)
        return _Neighbors(DateLiteral(day), DateLiteral(day + 1)) if rest else _both(DateLiteral(day))
    remedy = (
        "write it with a zone, such as '2026-11-20T08:00:00+00:00'"
        if isinstance(own_type, TimestamptzType)
        else "a time"
    )
    raise ValueError(f"{field.name} is {own_type}, which {literal.value!r} is not: {remedy}")


def _read_time(text: str, field: NestedField) -> Literal[Any]:
    """A date or time in ISO 8601, with a T or a space between them."""
    own_type = field.field_type
    zoned = bool(_ZONE.search(text)) or text.endswith("Z")
    if not _TIME.fullmatch(text):
        without = "with" if isinstance(own_type, TimestamptzType) else "without"
        raise ValueError(
            f"Invalid {'date' if isinstance(own_type, DateType) else f'timestamp {without} zone'}: {text!r}"
        )
    if zoned is not isinstance(own_type, TimestamptzType):
        remedy = "without a zone" if zoned else "with a zone, such as '2026-11-20T08:00:00+00:00'"
        raise ValueError(f"{field.name} is {own_type}, write it {remedy}")
    if len(text) == _DAY:
        return DateLiteral((dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days)
    moment = dt.datetime.fromisoformat(text)
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC if zoned else None)
    return TimestampLiteral(since // dt.timedelta(microseconds=1))


def _both(literal: Literal[Any]) -> _Neighbors:
    return _Neighbors(literal, literal)
