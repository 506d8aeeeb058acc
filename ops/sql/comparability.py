"""Types that a filter compares as Spark 4.1 does under ANSI; others are for Spark.

A search compares values, whatever their types are. Spark first gives both sides one type, and there may be none, or one
that changes values. So a comparison is refused here (NotIndexableError) unless both ways have the same outcome.
"""

import datetime as dt
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from typing import Any
from uuid import UUID

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
    ListType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icepuffin.ops.sql.errors import NotIndexableError

_MAX_DIGITS = 38
_DIGITS: dict[IcebergType, int] = {IntegerType(): 10, LongType(): 20}
_FLOATS = (FloatType(), DoubleType())
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|[+-]?inf(inity)?", re.IGNORECASE)
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
CLOCK = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?")
INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)"
    r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
)
_FORMS: dict[IcebergType, re.Pattern[str]] = {DateType(): DAY, TimestampType(): CLOCK, TimestamptzType(): INSTANT}
"""Texts that are read as a date or a time, by the type of what they are compared with"""


class Operation(Enum):
    """What a condition does with the values of one column."""

    COMPARE = auto()
    """Compare them with each constant by itself"""
    LIST = auto()
    """Look for them among constants of one common type (IN)"""
    ELEMENT = auto()
    """Look for a constant among their elements"""
    PREFIX = auto()
    """Compare the begin of texts"""
    TRUTH = auto()
    """Take them for truth values"""
    NAN = auto()
    """Ask whether they are NaN"""
    NULL = auto()
    """Ask whether they are null"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operation on one column."""

    column: str
    operation: Operation
    constants: tuple[Any, ...] = ()

    def require_as_in_spark(self, column_type: IcebergType) -> None:
        """Raises NotIndexableError where Spark would not compare values of this type as a search does."""
        if self.operation is Operation.NULL:
            return
        if self.operation is Operation.ELEMENT:
            if not isinstance(column_type, ListType):
                raise NotIndexableError(f"array_contains({self.column}, ...) takes a column of lists, and a constant")
            own_type = comparable_type(column_type.element_type)
            if isinstance(self.constants[0], str) is not (own_type == StringType()):
                raise NotIndexableError(f"array_contains({self.column}, ...): the elements are {own_type}")
        else:
            own_type = comparable_type(column_type)
        required = {
            Operation.PREFIX: ((StringType(),), "text"),
            Operation.TRUTH: ((BooleanType(),), "condition"),
            Operation.NAN: (_FLOATS, "float"),
        }.get(self.operation)
        if required is not None and own_type not in required[0]:
            raise NotIndexableError(f"{self.column} is {column_type}, no {required[1]}")
        if self.operation is Operation.LIST:
            _require_list(own_type, self.constants)
        elif self.operation in (Operation.COMPARE, Operation.ELEMENT):
            for constant in self.constants:
                _require_pair(own_type, constant)


def comparable_type(column_type: IcebergType) -> IcebergType:
    """The type that Spark has for a column's. Raises NotIndexableError for one that is not compared here."""
    if isinstance(column_type, UUIDType | TimeType):
        return StringType()
    if isinstance(column_type, FixedType):
        return BinaryType()
    plain = (BooleanType(), *_DIGITS, *_FLOATS, StringType(), BinaryType(), *_FORMS)
    if column_type not in plain and not isinstance(column_type, DecimalType):
        raise NotIndexableError(f"values of type {column_type} are not compared here")
    return column_type


def _require_pair(own_type: IcebergType, constant: Any) -> None:
    if isinstance(constant, str):
        _require_text(own_type, [constant])
        return
    is_exact = isinstance(constant, int | Decimal)
    if own_type in _DIGITS and is_exact and not -(2**63) <= constant < 2**63:
        raise NotIndexableError(f"{constant} is beyond all integers: compare it with what one can be")
    _common([own_type, _type_of(constant)])


def _require_list(own_type: IcebergType, constants: Iterable[Any]) -> None:
    constants = tuple(constants)
    texts = [constant for constant in constants if isinstance(constant, str)]
    types = [own_type, *(_type_of(constant) for constant in constants if not isinstance(constant, str))]
    common = _common(types)
    if texts and len(set(types)) > 1 and not all(kind in _DIGITS for kind in types):
        raise NotIndexableError("IN: texts beside several types are not compared here")
    _require_text(common, texts)


def _require_text(own_type: IcebergType, texts: Iterable[str]) -> None:
    """A text is read as a value of the other side's type, beside a decimal as a double."""
    for text in texts:
        if own_type in (BooleanType(), BinaryType()):
            raise NotIndexableError(f"a text is not compared with {own_type} here")
        if isinstance(own_type, DecimalType):
            _wider(own_type, DoubleType())
        if own_type != StringType() and not _is_read(own_type, text):
            raise NotIndexableError(f"{text!r} is not read as {own_type} here")


def _is_read(own_type: IcebergType, text: str) -> bool:
    """Whether a text is a number, date or time of a type, written as Spark and Python read it alike."""
    if own_type in _DIGITS:
        return bool(_WHOLE.fullmatch(text)) and -(2**63) <= int(text) < 2**63
    if own_type not in _FORMS:
        return bool(_NUMBER.fullmatch(text))
    try:
        return bool(_FORMS[own_type].fullmatch(text) and dt.datetime.fromisoformat(text))
    except ValueError:  # such as the 30th of February
        return False


def _type_of(constant: Any) -> IcebergType:  # noqa: PLR0911  one per kind of value
    """The type that Spark gives a constant other than a text; an integer counts as long."""
    match constant:
        case bool():
            return BooleanType()
        case int() if -(2**63) <= constant < 2**63:
            return LongType()
        case float():
            return DoubleType()
        case int() | Decimal() if Decimal(constant).is_finite():
            exact = Decimal(f"{constant:f}" if isinstance(constant, Decimal) else constant)
            scale = -int(exact.as_tuple().exponent)
            precision = max(len(exact.as_tuple().digits), scale)
            if precision > _MAX_DIGITS:
                raise NotIndexableError(f"{constant} has more than {_MAX_DIGITS} digits")
            return DecimalType(precision, scale)
        case bytes():
            return BinaryType()
        case dt.datetime():
            return TimestampType() if constant.tzinfo is None else TimestamptzType()
        case dt.date():
            return DateType()
        case UUID() | dt.time():
            return StringType()
    raise NotIndexableError(f"a parameter of type {type(constant).__name__} is no constant here")


def _common(types: Iterable[IcebergType]) -> IcebergType:
    """The type in which values of all are compared. Raises NotIndexableError where there is none here."""
    first, *others = types
    for other in others:
        first = _wider(first, other)
    return first


def _wider(left: IcebergType, right: IcebergType) -> IcebergType:
    if left == right:
        return left
    if {left, right} == {DateType(), TimestampType()}:
        return TimestampType()
    sides = (left, right)
    if not all(side in _DIGITS or side in _FLOATS or isinstance(side, DecimalType) for side in sides):
        zone = ", with a zone, as in '2026-01-31 08:00:00Z'" if TimestamptzType() in sides else ""
        raise NotIndexableError(f"{left} and {right} are not compared here: give a constant of the column's type{zone}")
    decimals = [side for side in sides if isinstance(side, DecimalType)]
    if any(side in _FLOATS for side in sides):
        if any(side.precision > sys.float_info.dig for side in decimals):
            raise NotIndexableError(f"{decimals[0]} has more digits than a double: it is not compared with one here")
        return DoubleType()
    if not decimals:
        return LongType()
    digits = [(side.precision, side.scale) if isinstance(side, DecimalType) else (_DIGITS[side], 0) for side in sides]
    scale = max(scale for _, scale in digits)
    precision = max(precision - scale for precision, scale in digits) + scale
    if precision > _MAX_DIGITS:
        raise NotIndexableError(f"no decimal holds the values of {left} and {right}")
    return DecimalType(precision, scale)
