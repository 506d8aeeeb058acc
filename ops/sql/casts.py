"""Values of one type as values of another, as Spark's CAST has it under ANSI: what does not fit is an error."""

import datetime as dt
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.sql_types import CLOCK, INSTANT, SqlType, is_decimal, is_floating, is_integer

Values = Any
"""An array of Arrow"""
WIDE = Context(prec=200, rounding=ROUND_HALF_UP)
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NAMED = {"nan": "nan", "inf": "inf", "+inf": "inf", "-inf": "-inf", "infinity": "inf", "-infinity": "-inf"}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?")
_ZONED = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)"
    r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
)


def caster(source: SqlType, target: SqlType, *, implicit: bool = False) -> tuple[Callable[[Values], Values], bool]:  # noqa: PLR0911  one per pair
    """(function that casts an array, whether it may fail). Raises NotIndexableError for casts that only Spark does."""
    if source == target:
        return (lambda values: values), False
    if pa.types.is_null(source):
        return (lambda values: pa.nulls(len(values), target)), False
    if is_floating(target) and (is_integer(source) or is_floating(source)):
        return (lambda values: values.cast(target, safe=False)), False
    if target == pa.float64() and is_decimal(source):
        return by_value(float, target), False
    if is_decimal(target) and (is_integer(source) or is_decimal(source)):
        return by_value(lambda value: fit(Decimal(value), target), target), True
    if is_integer(target) and is_integer(source):
        return (lambda values: values.cast(target)), target != pa.int64()
    if is_integer(target) and is_floating(source):
        return (lambda values: _whole(values, target)), True
    if is_integer(target) and is_decimal(source):
        return (lambda values: pa.array([None if v is None else int(v) for v in values.to_pylist()], target)), True
    if (source, target) == (pa.date32(), CLOCK):
        return (lambda values: values.cast(target)), True
    if not implicit and (source, target) == (CLOCK, pa.date32()):
        return (lambda values: pc.floor_temporal(values, unit="day").cast(target)), False
    raise NotIndexableError(f"{source} is not cast to {target} here")


def by_value(change: Callable[[Any], Any], sql_type: SqlType) -> Callable[[Values], Values]:
    """A function over arrays that changes one value at a time, in Python: exact, and slow."""
    return lambda values: pa.array([None if value is None else change(value) for value in values.to_pylist()], sql_type)


def fit(value: Decimal, sql_type: SqlType) -> Decimal:
    """The value, rounded half up to the digits of the type. Raises SqlError where it has too many before the point."""
    try:
        rounded = value.quantize(Decimal((0, (1,), -sql_type.scale)), context=WIDE)
    except InvalidOperation as error:
        raise SqlError(f"{value} is out of the range of {sql_type}") from error
    if len(rounded.as_tuple().digits) > sql_type.precision:
        raise SqlError(f"{value} is out of the range of {sql_type}")
    return rounded


def _whole(values: Values, sql_type: SqlType) -> Values:
    """Integers: floats cut towards zero. Raises SqlError for NaN and what is out of range."""
    numbers = np.asarray(values.drop_null().cast(pa.float64()))
    bits = 31 if sql_type == pa.int32() else 63
    cut = np.trunc(numbers)
    if not np.all((cut >= -(2.0**bits)) & (cut < 2.0**bits)):
        raise SqlError(f"a number is out of the range of {sql_type}")
    return pc.trunc(values).cast(sql_type)


def constant(text: str, sql_type: SqlType) -> Any:
    """The value of a text. Raises NotIndexableError for forms that only Spark reads, and for invalid texts."""
    stripped = text.strip(" ")
    if is_integer(sql_type) and _WHOLE.fullmatch(stripped):
        bits = 31 if sql_type == pa.int32() else 63
        if -(2**bits) <= int(stripped) < 2**bits:
            return int(stripped)
    if sql_type == pa.float64():
        if _NUMBER.fullmatch(stripped):
            return float(stripped)
        if stripped.lower() in _NAMED:
            return float(_NAMED[stripped.lower()])
    try:
        if sql_type == pa.date32() and _DAY.fullmatch(stripped):
            return dt.date.fromisoformat(stripped)
        if sql_type == CLOCK and _TIME.fullmatch(stripped):
            return dt.datetime.fromisoformat(stripped)
        if sql_type == INSTANT and _ZONED.fullmatch(stripped):
            return dt.datetime.fromisoformat(stripped).astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise NotIndexableError(f"{text!r} is no {sql_type}: {error}") from error
    raise NotIndexableError(f"{text!r} is not read as {sql_type} here")
