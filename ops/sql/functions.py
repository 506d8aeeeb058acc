"""Functions of SQL, by the type of their argument, as Spark 4.1 has them."""

import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql.arithmetic import Rule
from icepuffin.ops.sql.casts import WIDE, by_value
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.sql_types import SqlType, is_decimal, is_floating, is_integer, is_number, is_text, rounded_type

_LONG = 2.0**63


def _abs(sql_type: SqlType) -> Rule:
    _number(sql_type)
    return Rule(
        (sql_type,), sql_type, pc.abs if is_decimal(sql_type) else pc.abs_checked, may_fail=is_integer(sql_type)
    )


def _double(function: Callable[[pa.Array], pa.Array]) -> Callable[[SqlType], Rule]:
    def rule(sql_type: SqlType) -> Rule:
        _number(sql_type)
        return Rule((pa.float64(),), pa.float64(), function)

    return rule


def _ln(values: pa.Array) -> pa.Array:
    """The natural logarithm; null where there is none."""
    return pc.ln(pc.if_else(pc.less_equal(values, 0.0), pa.scalar(None, pa.float64()), values))


def power(sql_type: SqlType, exponent: SqlType) -> Rule:
    """The rule of power(x, y), computed in doubles."""
    _number(sql_type)
    _number(exponent)
    return Rule((pa.float64(), pa.float64()), pa.float64(), _power)


def _power(bases: pa.Array, exponents: pa.Array) -> pa.Array:
    """Powers as the JVM computes them: 1 ** NaN, 1 ** inf and (-1) ** inf are NaN there, and 1 in C."""
    one = pc.equal(pc.abs(bases), 1.0)
    odd = pc.and_(one, pc.invert(pc.is_finite(exponents)))
    return pc.if_else(odd, float("nan"), pc.power(bases, exponents))


def _whole(function: Callable[[pa.Array], pa.Array], how: str) -> Callable[[SqlType], Rule]:
    """The rule of floor or ceil: the result is a bigint, or a decimal for a decimal."""

    def rule(sql_type: SqlType) -> Rule:
        _number(sql_type)
        if is_decimal(sql_type):
            whole = pa.decimal128(min(sql_type.precision - sql_type.scale + 1, 38), 0) if sql_type.scale else sql_type
            step = Decimal((0, (1,), 0))
            return Rule((sql_type,), whole, by_value(lambda value: value.quantize(step, how, WIDE), whole))
        if is_integer(sql_type):
            return Rule((pa.int64(),), pa.int64(), lambda values: values)
        return Rule((pa.float64(),), pa.int64(), lambda values: _as_long(function(values)))

    return rule


def _as_long(values: pa.Array) -> pa.Array:
    """int64 from doubles as the JVM casts them: NaN becomes 0, and values out of range the nearest long."""
    numbers = np.asarray(pc.fill_null(values, 0.0))
    with np.errstate(invalid="ignore"):
        inside = np.where(np.isnan(numbers) | (np.abs(numbers) >= _LONG), 0.0, numbers).astype(np.int64)
    inside[numbers >= _LONG] = 2**63 - 1
    inside[numbers <= -_LONG] = -(2**63)
    return pc.if_else(pc.is_valid(values), pa.array(inside), pa.scalar(None, pa.int64()))


def rounded(places: int) -> Callable[[SqlType], Rule]:
    """The rule of round(x, places): half is rounded away from zero."""

    def rule(sql_type: SqlType) -> Rule:
        _number(sql_type)
        if is_integer(sql_type):
            if places < 0:
                raise NotIndexableError("round() of an integer to tens or more is not computed here")
            return Rule((sql_type,), sql_type, lambda values: values)
        if is_floating(sql_type):
            return Rule((sql_type,), sql_type, by_value(lambda value: _round_float(value, places), sql_type))
        if places < 0:
            raise NotIndexableError("round() of a decimal to tens or more is not computed here")
        target = rounded_type(sql_type, places)
        step = Decimal((0, (1,), -target.scale))
        return Rule((sql_type,), target, by_value(lambda value: value.quantize(step, context=WIDE), target))

    return rule


def _round_float(value: float, places: int) -> float:
    if np.isfinite(value) and places <= 400:  # more digits than a double has
        step = Decimal((0, (1,), -places))
        value = float(Decimal(repr(value)).quantize(step, rounding=ROUND_HALF_UP, context=_LONGEST))
    return value + 0.0  # Spark rounds as a decimal, and these have no minus zero


_LONGEST = WIDE.copy()
_LONGEST.prec = 1_000


def _cased(function: Callable[[pa.Array], pa.Array], change: Callable[[str], str]) -> Callable[[SqlType], Rule]:
    def rule(sql_type: SqlType) -> Rule:
        if not is_text(sql_type):
            raise NotIndexableError(f"{sql_type} is no text")
        return Rule((sql_type,), sql_type, changed)

    def changed(values: pa.Array) -> pa.Array:
        """Upper or lower case, by Python: Arrow does not know letters that become two, such as ß."""
        plain = pc.all(pc.string_is_ascii(values)).as_py()
        return function(values) if plain is not False else by_value(change, pa.string())(values)

    return rule


def _length(sql_type: SqlType) -> Rule:
    if is_text(sql_type):
        return Rule((sql_type,), pa.int32(), pc.utf8_length)
    if sql_type == pa.binary():
        return Rule((sql_type,), pa.int32(), lambda values: pc.binary_length(values).cast(pa.int32()))
    raise NotIndexableError(f"{sql_type} has no length")


def like(pattern: str, *, ignore_case: bool) -> Callable[[pa.Array], pa.Array]:
    """Raises SqlError for a pattern that ends in the midst of an escape, or escapes what needs none."""
    expression_parts, rest = [], iter(pattern.lower() if ignore_case else pattern)
    for letter in rest:
        if letter == "\\":
            escaped = next(rest, None)
            if escaped not in ("%", "_", "\\"):
                raise SqlError(f"LIKE '{pattern}': \\ stands before %, _ or \\ alone")
            expression_parts.append(re.escape(escaped))
        else:
            expression_parts.append({"%": ".*", "_": "."}.get(letter, re.escape(letter)))
    expression = re.compile("".join(expression_parts), re.DOTALL)
    if any(not letter.isascii() for letter in pattern) or ignore_case or "\x00" in pattern:
        return by_value(
            lambda value: expression.fullmatch(value.lower() if ignore_case else value) is not None, pa.bool_()
        )
    return lambda values: pc.match_like(values, pattern)


def _number(sql_type: SqlType) -> None:
    if not is_number(sql_type):
        raise NotIndexableError(f"{sql_type} is no number")


RULES: dict[type, Callable[[SqlType], Rule]] = {
    exp.Abs: _abs,
    exp.Sqrt: _double(pc.sqrt),
    exp.Exp: _double(pc.exp),
    exp.Ln: _double(_ln),
    exp.Floor: _whole(pc.floor, ROUND_FLOOR),
    exp.Ceil: _whole(pc.ceil, ROUND_CEILING),
    exp.Upper: _cased(pc.utf8_upper, str.upper),
    exp.Lower: _cased(pc.utf8_lower, str.lower),
    exp.Length: _length,
}
