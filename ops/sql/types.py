"""Types of expressions, as Spark has them under ANSI: what two types have in common, and what arithmetic makes of them.

Types are Arrow's: int32, int64, float, double, decimal128, string, binary, boolean, date32, timestamps in microseconds
(with UTC: an instant; without: a time on a clock) and null.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from icepuffin.ops.sql.errors import NotIndexableError

Kind = Any
"""A type of Arrow, whose classes are not typed"""
MAX_DIGITS = 38
DIGITS_IN_DOUBLE = 15
_LEAST_SCALE = 6
_INTEGER_DIGITS = {pa.int32(): 10, pa.int64(): 20}
CLOCK = pa.timestamp("us")
INSTANT = pa.timestamp("us", "UTC")


def is_decimal(kind: Kind) -> bool:
    return bool(pa.types.is_decimal(kind))


def is_integer(kind: Kind) -> bool:
    return kind in _INTEGER_DIGITS


def is_floating(kind: Kind) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def is_number(kind: Kind) -> bool:
    return is_integer(kind) or is_floating(kind) or is_decimal(kind)


def is_text(kind: Kind) -> bool:
    return bool(pa.types.is_string(kind))


def supported_type(kind: Kind) -> Kind:
    """The type that expressions use for a column's. Raises NotIndexableError for a type that is not supported."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return CLOCK if kind.tz is None else INSTANT
    plain = is_number(kind) or kind in (pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.null())
    if not plain:
        raise NotIndexableError(f"values of type {kind} are not computed with here")
    return kind


def digits_of(kind: Kind) -> tuple[int, int]:
    """(precision, scale) of a decimal, or of the decimal that holds an integer."""
    return (_INTEGER_DIGITS[kind], 0) if is_integer(kind) else (kind.precision, kind.scale)


def as_decimal(kind: Kind) -> Kind:
    return pa.decimal128(*digits_of(kind))


def adjusted(precision: int, scale: int) -> Kind:
    """A decimal of so many digits; where they are too many, digits behind the point are dropped, down to six."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - whole, min(scale, _LEAST_SCALE)))


def wider_decimal(left: Kind, right: Kind) -> Kind:
    """A decimal that holds the values of both. Raises NotIndexableError where none does."""
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(s1, s2)
    precision = max(p1 - s1, p2 - s2) + scale
    if precision > MAX_DIGITS:
        raise NotIndexableError(f"no decimal holds the values of {left} and {right}")
    return pa.decimal128(precision, scale)


def common(left: Kind, right: Kind) -> Kind:
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


def common_of(kinds: Iterable[Kind]) -> Kind:
    result = pa.null()
    for kind in kinds:
        result = common(result, kind)
    return result


def _common_number(left: Kind, right: Kind) -> Kind:
    if is_floating(left) or is_floating(right):
        wide = [kind for kind in (left, right) if is_decimal(kind) and kind.precision > DIGITS_IN_DOUBLE]
        if wide:
            raise NotIndexableError(f"{wide[0]} has more digits than a double: it is not compared with one here")
        return pa.float64()
    if is_integer(left) and is_integer(right):
        return pa.int64()
    return wider_decimal(left, right)


def sum_kind(left: Kind, right: Kind) -> Kind:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(s1, s2)
    return adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)


def product_kind(left: Kind, right: Kind) -> Kind:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    return adjusted(p1 + p2 + 1, s1 + s2)


def quotient_kind(left: Kind, right: Kind) -> Kind:
    (p1, s1), (p2, s2) = digits_of(left), digits_of(right)
    scale = max(_LEAST_SCALE, s1 + p2 + 1)
    return adjusted(p1 - s1 + s2 + scale, scale)


def rounded_kind(kind: Kind, places: int) -> Kind:
    """The type of a rounded decimal."""
    whole = kind.precision - kind.scale + 1
    if places < 0:
        return pa.decimal128(min(max(whole, 1 - places), MAX_DIGITS), 0)
    scale = min(kind.scale, places)
    return pa.decimal128(min(whole + scale, MAX_DIGITS), scale)
