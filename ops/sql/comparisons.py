"""Comparisons, by Spark's rules: NaN equals itself and is the largest number, texts take the other side's type."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql import functions
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.logic import boolean, joined
from icepuffin.ops.sql.sql_types import (
    CLOCK,
    INSTANT,
    SqlType,
    common,
    common_of,
    is_floating,
    is_integer,
    is_number,
    is_text,
)
from icepuffin.ops.sql.typed_expressions import DISTANCE, TypedExpression, as_type, require_one_case, rule, shown, typed
from icepuffin.ops.sql.values import Node

_COMPARISONS: dict[type, str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
}


@rule(*_COMPARISONS)
def _comparison(node: Node, schema: pa.Schema) -> TypedExpression:
    return _compared(_COMPARISONS[type(node)], typed(node.left, schema), typed(node.right, schema))


def _compared(how: str, left: TypedExpression, right: TypedExpression) -> TypedExpression:
    sql_type = _common_with_texts(left, right)
    for one, other in ((left, right), (right, left)):
        if is_integer(one.sql_type) and other.exact is not None and not -(2**63) <= other.exact < 2**63:
            raise NotIndexableError(f"{other.exact} is beyond all integers: compare it with what one can be")
    one, other = as_type(left, sql_type), as_type(right, sql_type)
    return TypedExpression(
        pa.bool_(),
        lambda rows: _compare(how, sql_type, one.run(rows), other.run(rows)),
        one.columns | other.columns,
        one.may_fail or other.may_fail,
    )


def _common_with_texts(left: TypedExpression, right: TypedExpression) -> SqlType:
    """The common type of a text and another operand: a text constant is read as a number, a date or a time."""
    if (left.text is None) == (right.text is None):
        return common(left.sql_type, right.sql_type)
    other = right.sql_type if left.text is not None else left.sql_type
    return _of_text_beside(other)


def _of_text_beside(sql_type: SqlType) -> SqlType:
    if pa.types.is_null(sql_type):
        return pa.string()
    if is_integer(sql_type):
        return pa.int64()
    if is_number(sql_type):
        return common(sql_type, pa.float64())
    if sql_type in (pa.date32(), CLOCK, INSTANT, pa.string()):
        return sql_type
    raise NotIndexableError(f"a text is not compared with {sql_type} here")


def _compare(how: str, sql_type: SqlType, left: pa.Array, right: pa.Array) -> pa.Array:
    """Compare as Spark does: NaN equals NaN and is larger than every number. To Arrow, NaN equals nothing."""
    if pa.types.is_null(sql_type):
        return pa.nulls(len(left), pa.bool_())
    if pa.types.is_boolean(sql_type):
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    if not is_floating(sql_type):
        return pc.call_function(how, [left, right])
    nan = [pc.is_nan(value) for value in (left, right)]
    by_nan = pc.call_function(how, [flag.cast(pa.int8()) for flag in nan])
    return pc.if_else(pc.or_(*nan), by_nan, pc.call_function(how, [left, right]))


@rule(exp.Is)
def _is(node: Node, schema: pa.Schema) -> TypedExpression:
    name = node.this.name if isinstance(node.this, exp.Column) else ""
    if isinstance(node.expression, exp.Null) and schema.names.count(name) == 1:  # a column of any type
        return TypedExpression(pa.bool_(), lambda rows: pc.is_null(rows[name]).combine_chunks(), frozenset({name}))
    value = typed(node.this, schema)
    if isinstance(node.expression, exp.Null):
        return TypedExpression(pa.bool_(), lambda rows: pc.is_null(value.run(rows)), value.columns, value.may_fail)
    if not isinstance(node.expression, exp.Boolean):
        raise NotIndexableError(f"{shown(node)}: only IS NULL, IS TRUE and IS FALSE are known here")
    value, truth = boolean(value, node.this), bool(node.expression.this)
    return TypedExpression(
        pa.bool_(),
        lambda rows: pc.fill_null(pc.equal(value.run(rows), truth), fill_value=False),
        value.columns,
        value.may_fail,
    )


@rule(exp.IsNan)
def _is_nan(node: Node, schema: pa.Schema) -> TypedExpression:
    value = typed(node.this, schema)
    if not is_floating(value.sql_type):
        raise NotIndexableError(f"{shown(node)}: that is {value.sql_type}, no float")
    return TypedExpression(
        pa.bool_(),
        lambda rows: pc.fill_null(pc.is_nan(value.run(rows)), fill_value=False),
        value.columns,
        value.may_fail,
    )


@rule(exp.In)
def _in(node: Node, schema: pa.Schema) -> TypedExpression:
    if not node.expressions:
        raise NotIndexableError(f"{shown(node)}: IN takes constants")
    value, elements = typed(node.this, schema), [typed(element, schema) for element in node.expressions]
    texts = [element for element in (value, *elements) if element.text is not None]
    others = {element.sql_type for element in (value, *elements) if element.text is None} - {pa.null()}
    sql_type = common_of(others)
    if texts:
        if len(others) > 1 and not all(is_integer(sql_type) for sql_type in others):
            raise NotIndexableError(f"{shown(node)[:200]}: texts beside several types are not compared here")
        sql_type = _of_text_beside(sql_type) if others else pa.string()
    if value.text is None and all(not element.columns and not element.may_fail for element in elements):
        return _in_constants(as_type(value, sql_type), [as_type(element, sql_type) for element in elements])
    return joined(
        [_compared("equal", as_type(value, sql_type), as_type(element, sql_type)) for element in elements],
        conjunction=False,
    )


def _in_constants(value: TypedExpression, elements: Sequence[TypedExpression]) -> TypedExpression:
    """IN by one lookup. It is null for a null and, where the list holds a null, for every value that is not listed."""
    one = pa.table({DISTANCE: [0.0]})
    listed = pa.concat_arrays([element.run(one) for element in elements])
    present = listed.drop_null()
    if is_floating(value.sql_type) and pc.any(pc.equal(present, 0.0)).as_py():  # Arrow tells 0.0 and -0.0 apart
        present = pa.concat_arrays([present, pa.array([0.0, -0.0], present.type)])

    def run(rows: pa.Table) -> pa.Array:
        values = value.run(rows)
        is_listed = pc.is_in(values, value_set=present)
        unknown = pc.or_(pc.is_null(values), pc.and_(pc.invert(is_listed), bool(listed.null_count)))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), is_listed)

    return TypedExpression(pa.bool_(), run, value.columns, value.may_fail)


@rule(exp.Between)
def _between(node: Node, schema: pa.Schema) -> TypedExpression:
    value, low, high = (typed(part, schema) for part in (node.this, node.args["low"], node.args["high"]))
    return joined([_compared("greater_equal", value, low), _compared("less_equal", value, high)], conjunction=True)


@rule(exp.Like, exp.ILike)
def _like(node: Node, schema: pa.Schema) -> TypedExpression:
    value, pattern = typed(node.this, schema), typed(node.expression, schema)
    if pattern.text is None:
        raise NotIndexableError(f"{shown(node)}: LIKE takes a constant pattern")
    if not is_text(value.sql_type):
        raise NotIndexableError(f"{shown(node)}: that is {value.sql_type}, no text")
    if isinstance(node, exp.ILike):  # it compares in lower case
        require_one_case(node, value)
    matches = functions.like(pattern.text, ignore_case=isinstance(node, exp.ILike))
    negated = bool(node.args.get("negate"))
    return TypedExpression(
        pa.bool_(),
        lambda rows: pc.invert(matches(value.run(rows))) if negated else matches(value.run(rows)),
        value.columns,
        value.may_fail,
    )
