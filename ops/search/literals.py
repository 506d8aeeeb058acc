"""Constants of a condition as the types of their columns have them.

A comparison means what it means to Spark: values are compared, none of them rounded. Where the column's type does not
hold the constant, the nearest values that it does hold stand for it: `f < 0.1` of a float column is `f <= 0.099999994`,
and `f = 0.1` is true of nothing. (PyIceberg rounds, and takes a comparison with a number out of range for true or
false, of nulls too.) Of floats NaN is larger than every number, as SQL engines have it.
"""

import datetime as dt
import math
import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
    SetPredicate,
    UnboundPredicate,
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
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, rewrite_not, visit
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
)

_DAY = len("2026-01-31")
_MICROS = 86_400_000_000
"""Of a day"""
_ZONE = re.compile(r"[+-]\d\d:\d\d$")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
_EXACT_IN_DOUBLE = 2**53
_DIGITS_IN_DOUBLE = 15
_EXACTLY = Context(prec=2_000)
_UPWARDS = (GreaterThan, GreaterThanOrEqual)
_DOWNWARDS = (LessThan, LessThanOrEqual)


@dataclass(frozen=True, slots=True)
class _Near:
    """The neighbours of a constant among the values of a type; the same one twice where the type holds it."""

    under: Literal[Any] | None
    """None: every value of the type is over it"""
    over: Literal[Any] | None
    """None: every value of the type is under it"""

    @property
    def exact(self) -> bool:
        return self.under is self.over


def fitted(where: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The condition with constants that fit a schema, without NOT. Raises ValueError for one that does not fit."""
    return visit(rewrite_not(where), _Fitted(schema))


class _Fitted(BooleanExpressionVisitor[BooleanExpression]):
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        if not isinstance(predicate, LiteralPredicate | SetPredicate):
            return predicate
        kind: Any = type(predicate)
        field = predicate.term.bind(self._schema, case_sensitive=True).ref().field
        if isinstance(predicate, SetPredicate):
            nearest = [_near(item, field) for item in predicate.literals]
            held = {near.under for near in nearest if near.exact}
            return kind(predicate.term, held) if held else _every_or_none(predicate.term, every=kind is NotIn)
        made = _compared(kind, predicate.term, _near(predicate.literal, field))
        if kind in (*_UPWARDS, NotEqualTo) and isinstance(field.field_type, FloatType | DoubleType):
            nan: Any = IsNaN
            return Or(made, nan(predicate.term))
        return made

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        return predicate

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)


def _compared(kind: Any, term: Any, near: _Near) -> BooleanExpression:
    """`column kind constant`, by the values that the column may have."""
    if not near.exact and kind in (EqualTo, NotEqualTo):
        return _every_or_none(term, every=kind is NotEqualTo)
    to_the_side: Any = LessThanOrEqual if kind in _DOWNWARDS else GreaterThanOrEqual
    side = near.under if kind in _DOWNWARDS else near.over
    if side is None:
        return _every_or_none(term, every=False)
    made: BooleanExpression = (kind if near.exact else to_the_side)(term, side)
    return made


def _every_or_none(term: Any, *, every: bool) -> BooleanExpression:
    """True of every value but null, or of none."""
    there: Any = NotNull
    return there(term) if every else AlwaysFalse()


def _near(constant: Literal[Any], field: NestedField) -> _Near:
    """Raises ValueError for a constant that is not compared with the column's type."""
    kind = field.field_type
    if isinstance(kind, IntegerType | LongType | DecimalType | FloatType | DoubleType):
        return _near_number(_number(constant, field), kind)
    if isinstance(kind, DateType | TimestampType | TimestamptzType):
        return _near_time(constant, field)
    if isinstance(constant, StringLiteral):
        if isinstance(kind, BinaryType | FixedType):
            raise ValueError(  # noqa: TRY004  of the user's condition
                f"{field.name} is {kind}, which a text cannot say; from Python give an expression with bytes"
            )
        if isinstance(kind, BooleanType):
            raise ValueError(f"{field.name} is {kind}: write true or false")  # noqa: TRY004
    elif isinstance(kind, StringType) or isinstance(constant, BooleanLiteral) is not isinstance(kind, BooleanType):
        raise ValueError(f"{field.name} is {kind}, which {constant.value!r} is not: compare it with what it can be")
    return _Near(constant, constant)


def _number(constant: Literal[Any], field: NestedField) -> Decimal | float:
    """A float, which has no digits of a decimal, or an exact number."""
    kind, value = field.field_type, constant.value
    floating = isinstance(kind, FloatType | DoubleType)
    if isinstance(constant, StringLiteral):
        whole = isinstance(kind, IntegerType | LongType)
        if not (_WHOLE if whole else _NUMBER).fullmatch(value):
            raise ValueError(f"{value!r} is no {kind}, as {field.name} is" + _about_nan(value, field))
        digits = kind.precision if isinstance(kind, DecimalType) else 0
        # a text beside a decimal is a double to Spark: to tell more digits apart than that holds, decimals are needed
        value = float(value) if floating or 0 < digits <= _DIGITS_IN_DOUBLE else Decimal(value)
    elif isinstance(constant, BooleanLiteral | DateLiteral | TimestampLiteral) or not isinstance(
        value, int | float | Decimal
    ):
        raise ValueError(f"{field.name} is {kind}, which {value!r} is not: compare it with what it can be")  # noqa: TRY004
    if math.isnan(value):
        raise ValueError(f"nothing is compared with NaN{_about_nan('nan', field)}")
    if floating:
        return _as_float(value)
    if isinstance(value, float) and isinstance(kind, LongType) and _EXACT_IN_DOUBLE <= abs(value) < math.inf:
        raise ValueError(
            f"{field.name} is {kind}, of which doubles as large as {value!r} tell few apart: give an integer"
        )
    return value if isinstance(value, float) and math.isinf(value) else Decimal(str(value))


def _as_float(value: Decimal | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _about_nan(value: str, field: NestedField) -> str:
    return f": write {field.name} is nan" if value.lower() == "nan" else ""


def _near_number(value: Decimal | float, kind: IcebergType) -> _Near:
    if isinstance(kind, DoubleType):
        return _both(DoubleLiteral(float(value)))
    if isinstance(kind, FloatType):
        return _near_float(float(value))
    step = Decimal((0, (1,), -kind.scale)) if isinstance(kind, DecimalType) else Decimal(1)
    least = Decimal(1 - 10**kind.precision).scaleb(-kind.scale, _EXACTLY) if isinstance(kind, DecimalType) else kind.min  # type: ignore[attr-defined]
    greatest = -least if isinstance(kind, DecimalType) else -least - 1

    def literal(number: Decimal | int) -> Literal[Any]:
        return DecimalLiteral(Decimal(number)) if isinstance(kind, DecimalType) else LongLiteral(int(number))

    if value > greatest:
        return _Near(literal(greatest), None)
    if value < least:
        return _Near(None, literal(least))
    number = Decimal(value)
    under, over = (
        literal(number.quantize(step, rounding=how, context=_EXACTLY)) for how in (ROUND_FLOOR, ROUND_CEILING)
    )
    return _both(under) if under.value == over.value else _Near(under, over)


def _near_float(value: float) -> _Near:
    with np.errstate(over="ignore"):
        nearest = np.float32(value)
    if float(nearest) == value:
        return _both(FloatLiteral(float(nearest)))
    towards = np.float32(-np.inf if float(nearest) > value else np.inf)
    with np.errstate(over="ignore"):
        other = np.nextafter(nearest, towards)
    under, over = sorted((float(nearest), float(other)))
    return _Near(FloatLiteral(under), FloatLiteral(over))


def _near_time(constant: Literal[Any], field: NestedField) -> _Near:
    """Of dates and times: a day is its first moment, where no zone can be meant."""
    kind = field.field_type
    if isinstance(constant, StringLiteral):
        constant = _read_time(constant.value, field)
    if isinstance(constant, DateLiteral):
        if isinstance(kind, DateType):
            return _both(constant)
        if isinstance(kind, TimestampType):
            return _both(TimestampLiteral(constant.value * _MICROS))
    if isinstance(constant, TimestampLiteral):
        if not isinstance(kind, DateType):
            return _both(constant)
        day, rest = divmod(constant.value, _MICROS)
        return _Near(DateLiteral(day), DateLiteral(day + 1)) if rest else _both(DateLiteral(day))
    said = (
        "write it with a zone, such as '2026-11-20T08:00:00+00:00'" if isinstance(kind, TimestamptzType) else "a time"
    )
    raise ValueError(f"{field.name} is {kind}, which {constant.value!r} is not: {said}")


def _read_time(text: str, field: NestedField) -> Literal[Any]:
    """As ISO 8601 has it, with a blank for the T if need be."""
    kind = field.field_type
    zoned = bool(_ZONE.search(text)) or text.endswith("Z")
    if not _TIME.fullmatch(text):
        without = "with" if isinstance(kind, TimestamptzType) else "without"
        raise ValueError(f"Invalid {'date' if isinstance(kind, DateType) else f'timestamp {without} zone'}: {text!r}")
    if zoned is not isinstance(kind, TimestamptzType):
        said = "without a zone" if zoned else "with a zone, such as '2026-11-20T08:00:00+00:00'"
        raise ValueError(f"{field.name} is {kind}, write it {said}")
    if len(text) == _DAY:
        return DateLiteral((dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days)
    moment = dt.datetime.fromisoformat(text)
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC if zoned else None)
    return TimestampLiteral(since // dt.timedelta(microseconds=1))


def _both(literal: Literal[Any]) -> _Near:
    return _Near(literal, literal)
