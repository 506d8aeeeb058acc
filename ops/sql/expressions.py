"""SQL expressions over the rows of an answer: arithmetic, comparisons, conditions and some functions, in Arrow.

They mean what they mean in Spark: three-valued logic, `/` on doubles, overflow and division by zero are errors.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from ops.sql.errors import NotIndexableError, SqlError
from ops.sql.values import TIMES, Node, bytes_of

DISTANCE = " distance"
"""Column of the distance among the rows that were found: no SQL text can name it"""
Value = Any
"""A column, or a scalar that stands for one"""

_BINARY: dict[type, str] = {
    exp.Add: "add_checked",
    exp.Sub: "subtract_checked",
    exp.Mul: "multiply_checked",
    exp.And: "and_kleene",
    exp.Or: "or_kleene",
}
_UNARY: dict[type, str] = {
    exp.Not: "invert",
    exp.Neg: "negate_checked",
    exp.Abs: "abs_checked",
    exp.Upper: "utf8_upper",
    exp.Lower: "utf8_lower",
    exp.Length: "utf8_length",
    exp.Floor: "floor",
    exp.Ceil: "ceil",
}
_COMPARISONS: dict[type, str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
}
_OF_DOUBLES: dict[type, str] = {exp.Sqrt: "sqrt", exp.Exp: "exp", exp.Ln: "ln"}
_TYPES = {
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.DATE: pa.date32(),
}


def shown(node: Node) -> str:
    """Its text."""
    return str(node.sql(dialect="spark")).replace(f"`{DISTANCE}`", "distance")


def check(node: Node) -> None:
    """Raises NotIndexableError for an expression that is not evaluated here."""
    for part in node.walk():
        known = type(part) in _RULES or isinstance(part, exp.DataType | exp.Identifier)
        if not known or (isinstance(part, exp.Cast) and part.to.this not in _TYPES and not _is_time(part)):
            raise NotIndexableError(f"{shown(part)} is not computed here")


def _is_time(node: Node) -> bool:
    """A constant such as TIMESTAMP '2026-01-01 08:00:00': a text, which what it is compared with makes a time."""
    return node.to.this in TIMES and isinstance(node.this, exp.Literal) and bool(node.this.is_string)


def evaluate(node: Node, rows: pa.Table) -> Value:
    """The value of a checked expression for each row. Raises SqlError for what has none, such as a division by zero."""
    try:
        return _evaluate(node, rows)
    except (pa.ArrowException, KeyError, TypeError, OverflowError) as error:
        raise SqlError(f"{shown(node)}: {error}") from error


def as_column(value: Value, length: int) -> pa.ChunkedArray | pa.Array:
    """A scalar repeated, a column as it is."""
    return pa.repeat(value, length) if isinstance(value, pa.Scalar) else value


def _evaluate(node: Node, rows: pa.Table) -> Value:
    return _RULES[type(node)](node, rows)


def _of(nodes: Sequence[Node], rows: pa.Table) -> list[Value]:
    return [_evaluate(node, rows) for node in nodes]


def _column(node: Node, rows: pa.Table) -> Value:
    if node.name not in rows.column_names:
        raise SqlError(f"there is no column {node.name!r}; there are: {', '.join(rows.column_names)}")
    return rows[node.name]


def _literal(node: Node, _: pa.Table) -> Value:
    if node.is_string:
        return pa.scalar(node.this)
    return _number(node.this)


def _number(text: str) -> Value:
    if not text.lstrip("-").isdecimal():
        return pa.scalar(float(text))
    return pa.scalar(int(text)) if -(2**63) <= int(text) < 2**63 else pa.scalar(Decimal(text))


def _binary(node: Node, rows: pa.Table) -> Value:
    return pc.call_function(_BINARY[type(node)], _alike(*_of((node.left, node.right), rows)))


def _comparison(node: Node, rows: pa.Table) -> Value:
    return _compared(_COMPARISONS[type(node)], *_of((node.left, node.right), rows))


def _compared(how: str, left: Value, right: Value) -> Value:
    """As Spark has it, NaN equals NaN and is larger than every number. Arrow has it equal to nothing."""
    values = _alike(left, right)
    if not any(pa.types.is_floating(value.type) for value in values):
        return pc.call_function(how, values)
    doubles = [value.cast(pa.float64()) for value in values]
    nan = [pc.is_nan(value) for value in doubles]
    by_nan = pc.call_function(how, [flag.cast(pa.int8()) for flag in nan])
    return pc.if_else(pc.or_(*nan), by_nan, pc.call_function(how, doubles))


def _alike(*values: Value) -> list[Value]:
    """A text beside a number, a date or a time is one as well."""
    kinds = {value.type for value in values if not _is_text(value)} - {pa.null()}
    if len(kinds) != 1:
        return list(values)
    return [value.cast(*kinds) if isinstance(value, pa.Scalar) and _is_text(value) else value for value in values]


def _is_text(value: Value) -> bool:
    return bool(pa.types.is_string(value.type) or pa.types.is_large_string(value.type))


def _unary(node: Node, rows: pa.Table) -> Value:
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(f"-{node.this.this}")  # the least long is minus what no long is
    return pc.call_function(_UNARY[type(node)], _of((node.this,), rows))


def _double(node: Node, rows: pa.Table) -> Value:
    return pc.call_function(_OF_DOUBLES[type(node)], [_evaluate(node.this, rows).cast(pa.float64())])


def _divide(node: Node, rows: pa.Table) -> Value:
    left, right = (value.cast(pa.float64()) for value in _of((node.left, node.right), rows))
    zeros = pc.equal(right, 0.0)
    if pc.any(zeros).as_py() if isinstance(zeros, pa.ChunkedArray | pa.Array) else zeros.as_py():
        raise SqlError(f"{shown(node)}: division by zero")
    return pc.divide(left, right)


def _is(node: Node, rows: pa.Table) -> Value:
    if not isinstance(node.expression, exp.Null):
        raise SqlError(f"{shown(node)}: only IS NULL and IS NOT NULL are known")
    return pc.is_null(_evaluate(node.this, rows))


def _in(node: Node, rows: pa.Table) -> Value:
    value = _evaluate(node.this, rows)
    return reduce(pc.or_kleene, [_compared("equal", value, item) for item in _of(node.expressions, rows)])


def _between(node: Node, rows: pa.Table) -> Value:
    value, low, high = _of((node.this, node.args["low"], node.args["high"]), rows)
    return pc.and_kleene(_compared("greater_equal", value, low), _compared("less_equal", value, high))


def _like(node: Node, rows: pa.Table) -> Value:
    pattern = _evaluate(node.expression, rows)
    if not isinstance(pattern, pa.Scalar):
        raise SqlError(f"{shown(node)}: LIKE takes a constant pattern")
    found = pc.match_like(_evaluate(node.this, rows), pattern.as_py(), ignore_case=isinstance(node, exp.ILike))
    return pc.invert(found) if node.args.get("negate") else found


def _round(node: Node, rows: pa.Table) -> Value:
    digits = node.args.get("decimals")
    many = 0 if digits is None else int(_evaluate(digits, rows).as_py())
    return pc.round(_evaluate(node.this, rows), many, round_mode="half_towards_infinity")


def _power(node: Node, rows: pa.Table) -> Value:
    return pc.power(*(value.cast(pa.float64()) for value in _of((node.this, node.expression), rows)))


def _concat(node: Node, rows: pa.Table) -> Value:
    parts = node.expressions if isinstance(node, exp.Concat) else (node.left, node.right)
    return pc.binary_join_element_wise(*_of(parts, rows), "")


def _coalesce(node: Node, rows: pa.Table) -> Value:
    return pc.coalesce(*_of((node.this, *node.expressions), rows))


def _case(node: Node, rows: pa.Table) -> Value:
    default = node.args.get("default")
    found = pa.scalar(None) if default is None else _evaluate(default, rows)
    compared = node.args.get("this")
    for branch in reversed(node.args["ifs"]):
        condition = branch.this if compared is None else exp.EQ(this=compared, expression=branch.this)
        found = _choose(_evaluate(condition, rows), _evaluate(branch.args["true"], rows), found)
    return found


def _if(node: Node, rows: pa.Table) -> Value:
    other = node.args.get("false")
    otherwise = pa.scalar(None) if other is None else _evaluate(other, rows)
    return _choose(_evaluate(node.this, rows), _evaluate(node.args["true"], rows), otherwise)


def _choose(condition: Value, chosen: Value, other: Value) -> Value:
    return pc.if_else(pc.fill_null(condition, fill_value=False), chosen, other)


def _cast(node: Node, rows: pa.Table) -> Value:
    if _is_time(node):
        return pa.scalar(node.this.this)
    kind = _TYPES[node.to.this]
    value = _evaluate(node.this, rows)
    if pa.types.is_integer(kind) and pa.types.is_floating(value.type):
        value = pc.trunc(value)
    return value.cast(kind)


_RULES: dict[type, Callable[[Any, pa.Table], Value]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda node, _: pa.scalar(bool(node.this)),
    exp.Null: lambda _node, _rows: pa.scalar(None),
    exp.HexString: lambda node, _: pa.scalar(bytes_of(node)),
    exp.Paren: lambda node, rows: _evaluate(node.this, rows),
    exp.Div: _divide,
    exp.Is: _is,
    exp.IsNan: lambda node, rows: pc.fill_null(pc.is_nan(_evaluate(node.this, rows)), fill_value=False),
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Round: _round,
    exp.Pow: _power,
    exp.Concat: _concat,
    exp.DPipe: _concat,
    exp.Coalesce: _coalesce,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
    exp.TryCast: _cast,  # Spark's CAST, as sqlglot has it
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_OF_DOUBLES, _double),
}
