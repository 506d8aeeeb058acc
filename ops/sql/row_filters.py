"""WHERE clauses as Iceberg row filters."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, cast

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotNull,
    Or,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import StringLiteral
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, TimeType, UUIDType
from sqlglot import exp

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.typed_expressions import shown
from icepuffin.ops.sql.values import Node, Values, double

_COMPARISONS: dict[type, tuple[Any, Any]] = {
    exp.EQ: (EqualTo, EqualTo),
    exp.NEQ: (NotEqualTo, NotEqualTo),
    exp.GT: (GreaterThan, LessThan),
    exp.GTE: (GreaterThanOrEqual, LessThanOrEqual),
    exp.LT: (LessThan, GreaterThan),
    exp.LTE: (LessThanOrEqual, GreaterThanOrEqual),
}
"""Iceberg predicates for (`column op value`, `value op column`)"""


def to_filter(node: Node, values: Values) -> BooleanExpression:
    """Raises NotIndexableError for what Iceberg has no filter for: functions, arithmetic, columns on both sides."""
    if type(node) in _COMPARISONS:
        return _comparison(node, values)
    if type(node) in _RULES:
        return _RULES[type(node)](node, values)
    raise NotIndexableError(f"the condition {shown(node)} is no Iceberg filter: compare one column with constants")


def require_written_as_texts(where: BooleanExpression, schema: Schema) -> None:
    """Raises NotIndexableError for a uuid or a time of day that is written in another way than the column's texts.

    Spark compares these columns as texts, which a filter does not: it takes `'08:30'` for 08:30:00.
    """
    visit(where, _WrittenTexts(schema))


class _WrittenTexts(BooleanExpressionVisitor[None]):
    """See `require_written_as_texts`."""

    def __init__(self, schema: Schema) -> None:
        self._types = {field.name: field.field_type for field in schema.fields}

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> None:
        name = str(getattr(predicate.term, "name", ""))
        kind = self._types.get(name)
        if isinstance(kind, ListType):
            kind = kind.element_type
        for literal in _literals_of(predicate):
            written = _as_text(literal.value, kind)
            if literal.value != written:
                raise NotIndexableError(
                    f"{name} is {kind}, a text in SQL, which {literal.value!r} is never equal to: write {written!r}"
                )

    def visit_bound_predicate(self, predicate: Any) -> None:
        """SQL has none."""

    def visit_true(self) -> None:
        """Nothing is compared."""

    def visit_false(self) -> None:
        """Nothing is compared."""

    def visit_not(self, child_result: None) -> None:
        """The part was visited."""

    def visit_and(self, left_result: None, right_result: None) -> None:
        """Both parts were visited."""

    def visit_or(self, left_result: None, right_result: None) -> None:
        """Both parts were visited."""


def _literals_of(predicate: Any) -> Iterable[StringLiteral]:
    own = [getattr(predicate, name, None) for name in ("literal", "value")]
    return [one for one in (*own, *getattr(predicate, "literals", ())) if isinstance(one, StringLiteral)]


def _as_text(value: str, kind: IcebergType | None) -> str:
    """The text as a column of the type has it in SQL; the same where it is of another type, or no value of this one."""
    try:
        if isinstance(kind, UUIDType):
            return str(uuid.UUID(value))
        if isinstance(kind, TimeType):
            return dt.time.fromisoformat(value).isoformat()
    except ValueError:  # the search refuses it
        return value
    return value


def _comparison(node: Node, values: Values) -> BooleanExpression:
    straight, turned = _COMPARISONS[type(node)]
    if isinstance(node.right, exp.Column) and not isinstance(node.left, exp.Column):
        return _filter(turned, node.right, values.comparable(node.left))
    if not isinstance(node.left, exp.Column):
        raise NotIndexableError(f"{shown(node.left)} is no column: compare one column with constants")
    return _filter(straight, node.left, values.comparable(node.right))


def _filter(sql_type: Any, column: Node, value: Any) -> BooleanExpression:
    if not isinstance(column, exp.Column):
        raise NotIndexableError(f"{shown(column)} is no column: compare one column with constants")
    try:
        row_filter: BooleanExpression = sql_type(column.name, value)
    except (TypeError, ValueError) as error:
        raise NotIndexableError(f"{shown(column)} cannot be compared: {error}") from error
    return row_filter


def _is(node: Node, _: Values) -> BooleanExpression:
    if not isinstance(node.expression, exp.Null) or not isinstance(node.this, exp.Column):
        raise NotIndexableError(f"{shown(node)}: only IS NULL and IS NOT NULL of a column are Iceberg filters")
    is_null: BooleanExpression = cast("Any", IsNull)(node.this.name)
    return is_null


def _is_nan(node: Node, _: Values) -> BooleanExpression:
    if not isinstance(node.this, exp.Column):
        raise NotIndexableError(f"{shown(node)}: only of a column")
    return And(
        *(cast("Any", sql_type)(node.this.name) for sql_type in (NotNull, IsNaN))
    )  # isnan(null) is false, not null


def _in(node: Node, values: Values) -> BooleanExpression:
    if not node.expressions:
        raise NotIndexableError(f"{shown(node)}: IN takes constants")
    constants = [values.comparable(item) for item in node.expressions]
    if any(isinstance(constant, float) for constant in constants):  # then Spark compares all of them as doubles
        constants = [double(str(constant)) if _is_exact(constant) else constant for constant in constants]
    return _filter(In, node.this, constants)


def _is_exact(constant: Any) -> bool:
    return isinstance(constant, int | Decimal) and not isinstance(constant, bool)


def _between(node: Node, values: Values) -> BooleanExpression:
    low = _filter(GreaterThanOrEqual, node.this, values.comparable(node.args["low"]))
    return And(low, _filter(LessThanOrEqual, node.this, values.comparable(node.args["high"])))


def _like(node: Node, values: Values) -> BooleanExpression:
    pattern = values.comparable(node.expression)
    if not isinstance(pattern, str):
        raise NotIndexableError(f"LIKE {pattern}: a pattern is a text")
    if pattern.endswith("%") and not set(pattern[:-1]) & {"%", "_", "\\"}:
        prefix = _filter(StartsWith, node.this, pattern[:-1])
        return Not(prefix) if node.args.get("negate") else prefix
    raise NotIndexableError(f"LIKE '{pattern}': only a prefix, such as 'abc%', is an Iceberg filter")


def _array_contains(node: Node, values: Values) -> BooleanExpression:
    return _filter(ArrayContains, node.this, values.comparable(node.expression))


_RULES: dict[type, Callable[[Any, Values], BooleanExpression]] = {
    exp.Boolean: lambda node, _: AlwaysTrue() if node.this else AlwaysFalse(),
    exp.Column: lambda node, _: _filter(EqualTo, node, value=True),
    exp.Paren: lambda node, values: to_filter(node.this, values),
    exp.And: lambda node, values: And(to_filter(node.left, values), to_filter(node.right, values)),
    exp.Or: lambda node, values: Or(to_filter(node.left, values), to_filter(node.right, values)),
    exp.Not: lambda node, values: Not(to_filter(node.this, values)),
    exp.Is: _is,
    exp.IsNan: _is_nan,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ArrayContains: _array_contains,
}
