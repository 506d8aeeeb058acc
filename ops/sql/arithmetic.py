"""Arithmetic by the types of its operands, as Spark does it under ANSI: overflow and a zero divisor are errors."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql.casts import WIDE, fit
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.sql_types import (
    MAX_DIGITS,
    SqlType,
    as_decimal,
    is_decimal,
    is_floating,
    is_integer,
    is_number,
    product_type,
    quotient_type,
    sum_type,
)

__all__ = ["BINARY", "MAX_DIGITS", "Rule", "negative"]
_PRODUCT = Context(prec=MAX_DIGITS + 1, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of an operator or a function for arguments of certain types."""

    arguments: tuple[SqlType, ...]
    """Types that the arguments are cast to"""
    sql_type: SqlType
    compute: Callable[..., pa.Array]
    may_fail: bool = False


def _add(left: SqlType, right: SqlType) -> Rule:
    return _sum(left, right, "add_checked", WIDE.add)


def _sub(left: SqlType, right: SqlType) -> Rule:
    return _sum(left, right, "subtract_checked", WIDE.subtract)


def _sum(left: SqlType, right: SqlType, how: str, exactly: Callable[[Decimal, Decimal], Decimal]) -> Rule:
    return _plain(left, right, how) or _exact(left, right, sum_type, exactly)


def _mul(left: SqlType, right: SqlType) -> Rule:
    return _plain(left, right, "multiply_checked") or _exact(left, right, product_type, _PRODUCT.multiply)


def _div(left: SqlType, right: SqlType) -> Rule:
    _numbers(left, right)
    if (is_decimal(left) or is_decimal(right)) and not (is_floating(left) or is_floating(right)):
        return _exact(left, right, quotient_type, _quotient)
    return Rule((pa.float64(), pa.float64()), pa.float64(), _divided, may_fail=True)


def _plain(left: SqlType, right: SqlType, how: str) -> Rule | None:
    """The rule for integers and floats; None where one side is a decimal."""
    _numbers(left, right)
    sql_types = {left, right} - {pa.null()}
    if not sql_types:
        raise NotIndexableError("null and null have no type")
    if any(is_floating(sql_type) for sql_type in sql_types):
        sql_type = pa.float32() if sql_types == {pa.float32()} else pa.float64()
    elif any(is_decimal(sql_type) for sql_type in sql_types):
        return None
    else:
        sql_type = pa.int64() if pa.int64() in sql_types else pa.int32()
    function = how if is_integer(sql_type) else how.removesuffix("_checked")
    return Rule(
        (sql_type, sql_type), sql_type, lambda a, b: pc.call_function(function, [a, b]), may_fail=is_integer(sql_type)
    )


def _numbers(*sql_types: SqlType) -> None:
    for sql_type in sql_types:
        if not (is_number(sql_type) or pa.types.is_null(sql_type)):
            raise NotIndexableError(f"there is no arithmetic here with {sql_type}")


def _exact(
    left: SqlType,
    right: SqlType,
    of: Callable[[SqlType, SqlType], SqlType],
    compute: Callable[[Decimal, Decimal], Decimal],
) -> Rule:
    """The rule for decimals, computed value by value in Python."""
    if pa.types.is_null(left) or pa.types.is_null(right):
        raise NotIndexableError("null beside a decimal is not computed here")
    sql_type = of(left, right)

    def run(ones: pa.Array, others: pa.Array) -> pa.Array:
        pairs = zip(ones.to_pylist(), others.to_pylist(), strict=True)
        return pa.array([None if a is None or b is None else fit(compute(a, b), sql_type) for a, b in pairs], sql_type)

    return Rule((as_decimal(left), as_decimal(right)), sql_type, run, may_fail=True)


def _quotient(left: Decimal, right: Decimal) -> Decimal:
    if not right:
        raise SqlError("division by zero")
    # Spark computes more digits first, and rounds twice
    numerator, denominator = left.as_integer_ratio(), right.as_integer_ratio()
    top, bottom = numerator[0] * denominator[1], numerator[1] * denominator[0]
    shifted, rest = divmod(abs(top) * 10 ** (MAX_DIGITS + 1), abs(bottom))
    whole = shifted + (2 * rest >= abs(bottom))
    return Decimal(whole if (top < 0) == (bottom < 0) else -whole).scaleb(-MAX_DIGITS - 1, WIDE)


def _divided(left: pa.Array, right: pa.Array) -> pa.Array:
    if pc.any(pc.and_(pc.equal(right, 0.0), pc.is_valid(left))).as_py():
        raise SqlError("division by zero")
    return pc.divide(left, right)


def negative(sql_type: SqlType) -> Rule:
    """The rule of the sign minus."""
    _numbers(sql_type)
    if is_decimal(sql_type):
        return Rule((sql_type,), sql_type, pc.negate)
    if pa.types.is_null(sql_type):
        raise NotIndexableError("null has no type")
    return Rule((sql_type,), sql_type, pc.negate_checked, may_fail=is_integer(sql_type))


BINARY: dict[type, Callable[[SqlType, SqlType], Rule]] = {exp.Add: _add, exp.Sub: _sub, exp.Mul: _mul, exp.Div: _div}
