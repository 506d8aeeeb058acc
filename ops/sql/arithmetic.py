"""Arithmetic by the types of its operands, as Spark does it under ANSI: overflow and a zero divisor are errors."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql.casts import WIDE, fit
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.types import (
    MAX_DIGITS,
    Kind,
    as_decimal,
    is_decimal,
    is_floating,
    is_integer,
    is_number,
    product_kind,
    quotient_kind,
    sum_kind,
)

__all__ = ["BINARY", "MAX_DIGITS", "Rule", "negative"]
_PRODUCT = Context(prec=MAX_DIGITS + 1, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of an operator or a function for arguments of certain types."""

    arguments: tuple[Kind, ...]
    """Types that the arguments are cast to"""
    kind: Kind
    compute: Callable[..., pa.Array]
    may_fail: bool = False


def _add(left: Kind, right: Kind) -> Rule:
    return _sum(left, right, "add_checked", WIDE.add)


def _sub(left: Kind, right: Kind) -> Rule:
    return _sum(left, right, "subtract_checked", WIDE.subtract)


def _sum(left: Kind, right: Kind, how: str, exactly: Callable[[Decimal, Decimal], Decimal]) -> Rule:
    return _plain(left, right, how) or _exact(left, right, sum_kind, exactly)


def _mul(left: Kind, right: Kind) -> Rule:
    return _plain(left, right, "multiply_checked") or _exact(left, right, product_kind, _PRODUCT.multiply)


def _div(left: Kind, right: Kind) -> Rule:
    _numbers(left, right)
    if (is_decimal(left) or is_decimal(right)) and not (is_floating(left) or is_floating(right)):
        return _exact(left, right, quotient_kind, _quotient)
    return Rule((pa.float64(), pa.float64()), pa.float64(), _divided, may_fail=True)


def _plain(left: Kind, right: Kind, how: str) -> Rule | None:
    """The rule for integers and floats; None where one side is a decimal."""
    _numbers(left, right)
    kinds = {left, right} - {pa.null()}
    if not kinds:
        raise NotIndexableError("null and null have no type")
    if any(is_floating(kind) for kind in kinds):
        kind = pa.float32() if kinds == {pa.float32()} else pa.float64()
    elif any(is_decimal(kind) for kind in kinds):
        return None
    else:
        kind = pa.int64() if pa.int64() in kinds else pa.int32()
    function = how if is_integer(kind) else how.removesuffix("_checked")
    return Rule((kind, kind), kind, lambda a, b: pc.call_function(function, [a, b]), may_fail=is_integer(kind))


def _numbers(*kinds: Kind) -> None:
    for kind in kinds:
        if not (is_number(kind) or pa.types.is_null(kind)):
            raise NotIndexableError(f"there is no arithmetic here with {kind}")


def _exact(
    left: Kind,
    right: Kind,
    of: Callable[[Kind, Kind], Kind],
    compute: Callable[[Decimal, Decimal], Decimal],
) -> Rule:
    """The rule for decimals, computed value by value in Python."""
    if pa.types.is_null(left) or pa.types.is_null(right):
        raise NotIndexableError("null beside a decimal is not computed here")
    kind = of(left, right)

    def run(ones: pa.Array, others: pa.Array) -> pa.Array:
        pairs = zip(ones.to_pylist(), others.to_pylist(), strict=True)
        return pa.array([None if a is None or b is None else fit(compute(a, b), kind) for a, b in pairs], kind)

    return Rule((as_decimal(left), as_decimal(right)), kind, run, may_fail=True)


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


def negative(kind: Kind) -> Rule:
    """The rule of the sign minus."""
    _numbers(kind)
    if is_decimal(kind):
        return Rule((kind,), kind, pc.negate)
    if pa.types.is_null(kind):
        raise NotIndexableError("null has no type")
    return Rule((kind,), kind, pc.negate_checked, may_fail=is_integer(kind))


BINARY: dict[type, Callable[[Kind, Kind], Rule]] = {exp.Add: _add, exp.Sub: _sub, exp.Mul: _mul, exp.Div: _div}
