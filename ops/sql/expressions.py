"""SQL expressions over the rows of an answer: columns, constants, arithmetic, functions and casts.

They mean what they mean in Spark 4.1: three-valued logic, decimals with Spark's digits, floats compared as doubles, NaN
equal to itself and larger than every number, ANSI errors, branches computed for the rows that take them and no others.
An expression is typed before rows are there; what has no rule is refused (NotIndexableError), arguments included.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql import (
    arithmetic,
    comparisons,  # noqa: F401  registers its rules
    functions,
    lists,  # noqa: F401  registers its rules
)
from icepuffin.ops.sql.casts import caster, constant
from icepuffin.ops.sql.computed_numbers import is_computed
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.logic import condition
from icepuffin.ops.sql.sql_types import CLOCK, INSTANT, SqlType, is_decimal, is_integer, is_text, supported_type
from icepuffin.ops.sql.typed_expressions import (
    DISTANCE,
    RULES,
    TypedExpression,
    as_type,
    constant_of,
    require_one_case,
    rule,
    shown,
    typed,
    value_of,
)
from icepuffin.ops.sql.values import TIMES, Node, bytes_of, double, is_plain_time

__all__ = ["DISTANCE", "check", "condition", "evaluate", "shown", "typed"]

_CASTS = {
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.DATE: pa.date32(),
}


def check(node: Node) -> None:
    """Raises NotIndexableError for an expression that is not computed here, whatever the types of its columns are."""
    for part in node.walk():
        if type(part) not in RULES and not isinstance(part, exp.DataType | exp.DataTypeParam | exp.Identifier):
            raise NotIndexableError(f"{shown(part)} is not computed here")


def evaluate(node: Node, rows: pa.Table) -> pa.Array:
    """The value of an expression for each row. Raises SqlError for what has none, such as a division by zero."""
    return value_of(typed(node, rows.schema), node, rows)


@rule(exp.Column)
def _column(node: Node, schema: pa.Schema) -> TypedExpression:
    name = node.name
    if schema.names.count(name) != 1:
        columns = ", ".join(schema.names).replace(DISTANCE, "distance")
        problem = "there are several columns" if name in schema.names else "there is no column"
        raise NotIndexableError(f"{problem} {name!r}; there are: {columns}")
    sql_type = supported_type(schema.field(name).type)
    return TypedExpression(sql_type, lambda rows: _flat(rows[name], sql_type), frozenset({name}))


def _flat(values: pa.ChunkedArray, sql_type: SqlType) -> pa.Array:
    whole = values.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # texts of more than 2 GiB
        raise SqlError("a column has more text than can be computed with at once")
    return whole if whole.type == sql_type else whole.cast(sql_type)


@rule(exp.Literal)
def _literal(node: Node, _: pa.Schema) -> TypedExpression:
    return constant_of(node.this, pa.string(), text=node.this) if node.is_string else _number(node.this)


def _number(text: str) -> TypedExpression:
    """A literal, typed as Spark does: int, bigint or decimal; a decimal with a point, a double with an exponent."""
    if "e" in text.lower():
        return constant_of(double(text), pa.float64())
    exact = Decimal(text)
    digits, exponent = len(exact.as_tuple().digits), -int(exact.as_tuple().exponent)
    precision = max(digits, exponent)
    if precision > arithmetic.MAX_DIGITS:
        raise NotIndexableError(f"{text} has more than {arithmetic.MAX_DIGITS} digits")
    as_decimal = pa.decimal128(precision, exponent)
    if "." in text or not -(2**63) <= exact < 2**63:
        return constant_of(exact, as_decimal, exact=exact)
    whole = pa.int32() if -(2**31) <= exact < 2**31 else pa.int64()
    return constant_of(int(exact), whole, digits=as_decimal)


@rule(exp.Neg)
def _neg(node: Node, schema: pa.Schema) -> TypedExpression:
    if isinstance(node.this, exp.Literal) and not node.this.is_string and not is_computed(node.this):
        return _number(f"-{node.this.this}")  # at once: -2^63 is a bigint, and 2^63 alone is not
    return _map(arithmetic.negative, typed(node.this, schema))


def _map(rule_of: Callable[..., arithmetic.Rule], *values: TypedExpression) -> TypedExpression:
    """An operation on values. `rule_of` gives, for their types, the arguments' types, the result's, and the kernel."""
    operation = rule_of(
        *(
            value.digits if value.digits is not None and _beside_decimal(value, values) else value.sql_type
            for value in values
        )
    )
    arguments = [as_type(value, sql_type) for value, sql_type in zip(values, operation.arguments, strict=True)]
    columns = frozenset().union(*(value.columns for value in arguments)) if arguments else frozenset()
    return TypedExpression(
        operation.sql_type,
        lambda rows: operation.compute(*(value.run(rows) for value in arguments)),
        columns,
        operation.may_fail or any(value.may_fail for value in arguments),
    )


def _beside_decimal(value: TypedExpression, values: Sequence[TypedExpression]) -> bool:
    return any(is_decimal(other.sql_type) for other in values if other is not value)


@rule(*arithmetic.BINARY)
def _arithmetic(node: Node, schema: pa.Schema) -> TypedExpression:
    left, right = typed(node.left, schema), typed(node.right, schema)
    for side, value in ((node.left, left), (node.right, right)):
        inner = side.unnest()
        while isinstance(inner, exp.Neg):  # as in -1L
            inner = inner.this.unnest()
        if (
            isinstance(inner, exp.Cast)
            and isinstance(inner.this, exp.Literal)
            and is_integer(value.sql_type)
            and (is_decimal(left.sql_type) or is_decimal(right.sql_type))
        ):  # sqlglot parses 1L and CAST(1 AS BIGINT) to one tree, and Spark gives them different digits
            raise NotIndexableError(f"{shown(inner)} beside a decimal is not computed here")
    return _map(arithmetic.BINARY[type(node)], left, right)


@rule(*functions.RULES)
def _function(node: Node, schema: pa.Schema) -> TypedExpression:
    value = typed(node.this, schema)
    if isinstance(node, exp.Upper | exp.Lower):
        require_one_case(node, value)
    return _map(functions.RULES[type(node)], value)


@rule(exp.Pow)
def _power(node: Node, schema: pa.Schema) -> TypedExpression:
    return _map(functions.power, typed(node.this, schema), typed(node.expression, schema))


@rule(exp.Round)
def _round(node: Node, schema: pa.Schema) -> TypedExpression:
    digits = node.args.get("decimals")
    places = 0 if digits is None else _places(digits)
    return _map(functions.rounded(places), typed(node.this, schema))


def _places(node: Node) -> int:
    inner, sign = node.unnest(), 1
    if isinstance(inner, exp.Neg):
        inner, sign = inner.this.unnest(), -1
    if not isinstance(inner, exp.Literal) or inner.is_string or not inner.this.isdecimal() or len(inner.this) > 3:
        raise NotIndexableError(f"round(..., {shown(node)}): the number of digits is to be a small constant")
    return sign * int(inner.this)


@rule(exp.Concat, exp.DPipe)
def _concat(node: Node, schema: pa.Schema) -> TypedExpression:
    parts = [
        typed(part, schema) for part in (node.expressions if isinstance(node, exp.Concat) else (node.left, node.right))
    ]
    if not parts or not all(is_text(part.sql_type) for part in parts):
        raise NotIndexableError(f"{shown(node)}: only texts are joined here")
    return TypedExpression(
        pa.string(),
        lambda rows: pc.binary_join_element_wise(*(part.run(rows) for part in parts), ""),
        frozenset().union(*(part.columns for part in parts)),
        any(part.may_fail for part in parts),
    )


@rule(exp.Cast, exp.TryCast)  # Spark's CAST is TryCast to sqlglot
def _cast(node: Node, schema: pa.Schema) -> TypedExpression:
    target = node.to.this
    if isinstance(node.this, exp.Literal) and node.this.is_string and target in TIMES and not node.to.expressions:
        return _time(node)
    sql_type = _decimal_of(node) if target is exp.DType.DECIMAL else _CASTS.get(target)
    if sql_type is None or (node.to.expressions and target is not exp.DType.DECIMAL):
        raise NotIndexableError(f"{shown(node)} is not computed here")
    value = typed(node.this, schema)
    if value.text is not None:
        return constant_of(constant(value.text, sql_type), sql_type)
    change, may_fail = caster(value.sql_type, sql_type)
    return TypedExpression(sql_type, lambda rows: change(value.run(rows)), value.columns, value.may_fail or may_fail)


def _decimal_of(node: Node) -> SqlType:
    digits = [parameter.this for parameter in node.to.expressions]
    numbers = [int(part.this) for part in digits if isinstance(part, exp.Literal) and str(part.this).isdecimal()]
    if len(numbers) != len(digits) or not 1 <= len(numbers) <= 2:
        raise NotIndexableError(f"{shown(node)}: write DECIMAL(precision, scale)")
    precision, scale = (*numbers, 0)[:2]
    if not (1 <= precision <= arithmetic.MAX_DIGITS and 0 <= scale <= precision):
        raise NotIndexableError(f"{shown(node)}: there is no such type")
    return pa.decimal128(precision, scale)


def _time(node: Node) -> TypedExpression:
    """TIMESTAMP '...': without a zone it is a time on the session's clock, to be compared with such times alone."""
    text = node.this.this
    if node.to.this is exp.DType.TIMESTAMPNTZ:
        return constant_of(constant(text, CLOCK), CLOCK)
    sql_type = CLOCK if is_plain_time(text) else INSTANT
    if sql_type == CLOCK and not isinstance(
        node.parent, exp.In | exp.Between | exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE
    ):
        raise NotIndexableError(f"{shown(node)} depends on the session's time zone: write it with a zone")
    return constant_of(constant(text, sql_type), sql_type)


@rule(exp.Boolean)
def _boolean(node: Node, _: pa.Schema) -> TypedExpression:
    return constant_of(bool(node.this), pa.bool_())


@rule(exp.Null)
def _null(_node: Node, _schema: pa.Schema) -> TypedExpression:
    return constant_of(None, pa.null())


@rule(exp.HexString)
def _binary(node: Node, _: pa.Schema) -> TypedExpression:
    return constant_of(bytes_of(node), pa.binary())


@rule(exp.Paren)
def _parentheses(node: Node, schema: pa.Schema) -> TypedExpression:
    return typed(node.this, schema)
