"""Types of expressions, as Spark has them under ANSI: the common type of two types, and the types of results.

Types are Arrow's: int32, int64, float, double, decimal128, string, binary, boolean, date32, timestamps in microseconds
(with UTC: an instant; without: a time on a clock) and null.
"""

import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from icepuffin.ops.sql.errors import NotIndexableError

SqlType = Any
"""A type of Arrow, whose classes are not typed"""
MAX_DIGITS = 38
_LEAST_SCALE = 6
_INTEGER_DIGITS = {pa.int32(): 10, pa.int64(): 20}
CLOCK = pa.timestamp("us")
INSTANT = pa.timestamp("us", "UTC")


def is_decimal(sql_type: SqlType) -> bool:
    return bool(pa.types.is_decimal(sql_type))


def is_integer(sql_type: SqlType) -> bool:
    return sql_type in _INTEGER_DIGITS


def is_floating(sql_type: SqlType) -> bool:
    return bool(pa.types.is_float32(sql_type) or pa.types.is_float64(sql_type))


def is_number(sql_type: SqlType) -> bool:
    return is_integer(sql_type) or is_floating(sql_type) or is_decimal(sql_type)


def is_text(sql_type: SqlType) -> bool:
    return bool(pa.types.is_string(sql_type))


def supported_type(sql_type: SqlType) -> SqlType:
    """The type that expressions use for a column's. Raises NotIndexableError for a type that is not supported."""
    if pa.types.is_large_string(sql_type):
        return pa.string()
    if pa.types.is_large_binary(sql_type) or pa.types.is_fixed_size_binary(sql_type):
        return pa.binary()
    if pa.types.is_timestamp(sql_type) and sql_type.unit == "us":
        return CLOCK if sql_type.tz is None else INSTANT
    plain = is_number(sql_type) or sql_type in (pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.null())
    if not plain:
        raise NotIndexableError(f"values of type {sql_type} are not computed with here")
    return sql_type


def digits_of(sql_type: SqlType) -> tuple[int, int]:
    """(precision, scale) of a decimal, or of the decimal that holds an integer."""
    return (_INTEGER_DIGITS[sql_type], 0) if is_integer(sql_type) else (sql_type.precision, sql_type.scale)


def as_decimal(sql_type: SqlType) -> SqlType:
    return pa.decimal128(*digits_of(sql_type))


def adjusted(precision: int, scale: int) -> SqlType:
    """A decimal of so many digits; where they are too many, digits behind the point are dropped, down to six."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - whole, min(scale, _LEAST_SCALE)))


def wider_decimal(left: SqlType, right: SqlType) -> SqlType:
    """A decimal that holds the values of both. Raises NotIndexableError where none does."""
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(s1, s2)
    precision = max(p1 - s1, p2 - s2) + scale
    if precision > MAX_DIGITS:
        raise NotIndexableError(f"no decimal holds the values of {left} and {right}")
    return pa.decimal128(precision, scale)


def common(left: SqlType, right: SqlType) -> SqlType:
    """The type in which values of both are compared. Raises NotIndexableError where there is none here."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if {left, right} == {pa.date32(), CLOCK}:
        return CLOCK
    raise NotIndexableError(f"{left} and {right} are not compared here")


def common_of(sql_types: Iterable[SqlType]) -> SqlType:
    result = pa.null()
    for sql_type in sql_types:
        result = common(result, sql_type)
    return result


def _common_number(left: SqlType, right: SqlType) -> SqlType:
    if is_floating(left) or is_floating(right):
        wide = [
            sql_type for sql_type in (left, right) if is_decimal(sql_type) and sql_type.precision > sys.float_info.dig
        ]
        if wide:
            raise NotIndexableError(f"{wide[0]} has more digits than a double: it is not compared with one here")
        return pa.float64()
    if is_integer(left) and is_integer(right):
        return pa.int64()
    return wider_decimal(left, right)


def sum_type(left: SqlType, right: SqlType) -> SqlType:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(s1, s2)
    return adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)


def product_type(left: SqlType, right: SqlType) -> SqlType:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    return adjusted(p1 + p2 + 1, s1 + s2)


def quotient_type(left: SqlType, right: SqlType) -> SqlType:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(_LEAST_SCALE, s1 + p2 + 1)
    return adjusted(p1 - s1 + s2 + scale, scale)


def rounded_type(sql_type: SqlType, places: int) -> SqlType:
    """The type of a rounded decimal."""
    whole = sql_type.precision - sql_type.scale + 1
    if places < 0:
        return pa.decimal128(min(max(whole, 1 - places), MAX_DIGITS), 0)
    scale = min(sql_type.scale, places)
    return pa.decimal128(min(whole + scale, MAX_DIGITS), scale)
