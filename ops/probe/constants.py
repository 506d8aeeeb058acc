"""Constants of a condition as the types of their columns have them.

PyIceberg rounds some, reads others in one form only, and takes a comparison with a number that is out of a type's range
for true or false, of nulls too. Of floats NaN is larger than every number here, as SQL engines have it.
"""

import math
import re
from decimal import Decimal, DecimalException
from typing import Any

import numpy as np
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
)
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, rewrite_not, visit
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    TimestampType,
    TimestamptzType,
)

_DAY = len("2026-01-31")
_ZONE = re.compile(r"[+-]\d\d:\d\d$")
_UNDER = (LessThan, LessThanOrEqual, NotEqualTo)
"""True of all that is less than the constant"""
_OVER = (GreaterThan, GreaterThanOrEqual, NotEqualTo)


def fitted(where: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The condition with constants that fit a schema. Raises ValueError for one that its column's type cannot hold."""
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
            held = {_fitted(item, field) for item in predicate.literals if not _side(item, field.field_type)}
            return kind(predicate.term, held) if held else _all_or_none(predicate.term, field, every=kind is NotIn)
        side = _side(predicate.literal, field.field_type)
        if side:
            return _all_or_none(predicate.term, field, every=kind in (_UNDER if side > 0 else _OVER))
        made: BooleanExpression = kind(predicate.term, _fitted(predicate.literal, field))
        if kind in _OVER and isinstance(field.field_type, FloatType | DoubleType):
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


def _all_or_none(term: Any, field: NestedField, *, every: bool) -> BooleanExpression:
    """True of every number, or of none, and unknown of a null."""
    kind: Any = GreaterThanOrEqual if every else LessThan
    made: BooleanExpression = kind(term, _literal(_least(field.field_type), field.field_type))
    return made


def _side(constant: Literal[Any], kind: IcebergType) -> int:
    """1 of a number over all that the type holds, -1 of one under them, 0 of others."""
    if not isinstance(kind, IntegerType | LongType | DecimalType) or isinstance(constant.value, bool):
        return 0
    try:
        number, least = Decimal(str(constant.value)), Decimal(_least(kind))
    except DecimalException:
        return 0
    greatest = -least if isinstance(kind, DecimalType) else -least - 1
    return 0 if number.is_nan() else int(number > greatest) - int(number < least)


def _least(kind: IcebergType) -> int | Decimal:
    """The least number that the type holds."""
    if isinstance(kind, DecimalType):
        return Decimal(1 - 10**kind.precision).scaleb(-kind.scale)
    return kind.min if isinstance(kind, IntegerType | LongType) else 0


def _literal(value: Any, kind: IcebergType) -> Literal[Any]:
    match kind:
        case FloatType():
            return FloatLiteral(float(np.float32(value)))  # 0.1 is 0.10000000149 there
        case DoubleType():
            return DoubleLiteral(float(value))
        case DecimalType():
            return DecimalLiteral(value)
    return LongLiteral(int(value))


def _fitted(constant: Literal[Any], field: NestedField) -> Literal[Any]:
    """Raises ValueError for a constant that the type cannot hold."""
    kind, value = field.field_type, constant.value
    said = isinstance(constant, StringLiteral)
    number = said or isinstance(value, float | Decimal)
    if isinstance(kind, IntegerType | LongType) and number:
        return _literal(_exactly(value, field, Decimal(1)), kind)
    if isinstance(kind, DecimalType) and number:
        return _literal(_exactly(value, field, Decimal((0, (1,), -kind.scale))), kind)
    if isinstance(kind, FloatType | DoubleType) and (number or isinstance(constant, LongLiteral)):
        return _literal(_float(value, field), kind)
    if isinstance(kind, TimestampType | TimestamptzType) and said:
        whole = _iso(value, zoned=isinstance(kind, TimestamptzType))
        if isinstance(kind, TimestamptzType) and not _ZONE.search(whole):
            raise ValueError(f"{field.name} is {kind}, write it with a zone, such as '2026-11-20T08:00:00+00:00'")
        return StringLiteral(whole)
    if isinstance(kind, BinaryType | FixedType) and said:
        raise ValueError(f"{field.name} is {kind}, which a text cannot say; from Python give an expression with bytes")
    return constant


def _exactly(value: str | float | Decimal, field: NestedField, step: Decimal) -> Decimal:
    """The number, a multiple of `step`."""
    try:
        exact = Decimal(str(value))
        rounded = exact.quantize(step)
    except DecimalException as error:
        raise ValueError(f"{value!r} is no {field.field_type}, as {field.name} is") from error
    if rounded != exact:
        raise ValueError(f"{field.name} is {field.field_type}, which {value} is not: compare it with what it can be")
    return rounded


def _float(value: str | float | Decimal, field: NestedField) -> float:
    """The number, which the type may round."""
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{value!r} is no {field.field_type}, as {field.name} is") from error
    if math.isnan(number):
        raise ValueError(f"nothing is compared with NaN: write {field.name} is nan")
    if isinstance(field.field_type, FloatType) and math.isfinite(number) and abs(number) > FloatType.max:
        raise ValueError(f"{field.name} is {field.field_type}, which {value} is not: compare it with what it can be")
    return number


def _iso(text: str, *, zoned: bool) -> str:
    """A time as ISO 8601 has it; a day is its first moment, where no zone can be meant."""
    whole = text if len(text) > _DAY or zoned else f"{text}T00:00:00"
    whole = whole.replace(" ", "T", 1)
    return f"{whole[:-1]}+00:00" if zoned and whole.endswith("Z") else whole
