"""WHERE clauses as Iceberg row filters."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
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
)
from pyiceberg.expressions.literals import StringLiteral
from pyiceberg.types import IcebergType, ListType, TimeType, UUIDType
from sqlglot import exp

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.sql.comparability import Comparison, Operation
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.values import Node, Values, double, shown


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition, as a search and Iceberg take it, and what has to hold for it to mean what it means to Spark."""

    expression: BooleanExpression
    comparisons: tuple[Comparison, ...] = field(default=(), compare=False)
    """Operations on columns that it consists of"""
    text: str = field(default="", compare=False)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that it reads"""
        return frozenset(comparison.column for comparison in self.comparisons)

    def require_as_in_spark(self, types: Mapping[str, IcebergType]) -> None:
        """Raises NotIndexableError where Spark compares otherwise. `types`: those of its columns, by name."""
        for comparison in self.comparisons:
            comparison.require_as_in_spark(types[comparison.column])
        for predicate in _predicates_of(self.expression):
            _require_written_texts(predicate, types)


def read_filter(node: Node, values: Values) -> RowFilter:
    """Raises NotIndexableError for what Iceberg has no filter for: functions, arithmetic, columns on both sides."""
    reading = _Reading(values)
    return RowFilter(reading.filter_of(node), tuple(reading.comparisons), shown(node))


def joined(filters: Sequence[RowFilter]) -> RowFilter | None:
    """The conjunction, without constants that are always true; None where nothing is left."""
    filters = [part for part in filters if part.comparisons or part.expression != AlwaysTrue()]
    if not filters:
        return None
    return RowFilter(
        reduce(And, (part.expression for part in filters)),
        tuple(comparison for part in filters for comparison in part.comparisons),
        " AND ".join(f"({part.text})" if isinstance(part.expression, Or) else part.text for part in filters),
    )


def _predicates_of(expression: BooleanExpression) -> Iterable[Any]:
    """The comparisons of which a condition consists, from left to right."""
    match expression:
        case And() | Or():
            return (*_predicates_of(expression.left), *_predicates_of(expression.right))
        case Not():
            return _predicates_of(expression.child)
    return () if isinstance(expression, AlwaysTrue | AlwaysFalse) else (expression,)


def _require_written_texts(predicate: Any, types: Mapping[str, IcebergType]) -> None:
    """Raises NotIndexableError for a uuid or a time of day that is written in another way than the column's texts.

    Spark compares these columns as texts, which a filter does not: it takes `'08:30'` for 08:30:00.
    """
    name = str(getattr(predicate.term, "name", ""))
    kind = types.get(name)
    if isinstance(kind, ListType):
        kind = kind.element_type
    for literal in _literals_of(predicate):
        written = _as_text(literal.value, kind)
        if literal.value != written:
            raise NotIndexableError(
                f"{name} is {kind}, a text in SQL, which {literal.value!r} is never equal to: write {written!r}"
            )


def _literals_of(predicate: Any) -> Iterable[StringLiteral]:
    direct = [getattr(predicate, name, None) for name in ("literal", "value")]
    return [one for one in (*direct, *getattr(predicate, "literals", ())) if isinstance(one, StringLiteral)]


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


class _Reading:
    """Reads one condition, and notes its operations on columns."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.comparisons: list[Comparison] = []

    def filter_of(self, node: Node) -> BooleanExpression:
        rule = _RULES.get(type(node))
        if rule is None:
            raise NotIndexableError(
                f"the condition {shown(node)} is no Iceberg filter: compare one column with constants"
            )
        return rule(self, node)

    def compared(self, node: Node) -> BooleanExpression:
        straight, turned = _COMPARISONS[type(node)]
        left, right = node.left.unnest(), node.right.unnest()
        if type(node) in _EQUALITIES and _is_integer(left) and _is_integer(right):  # 1 = 1
            return AlwaysTrue() if (left.this == right.this) is (type(node) is exp.EQ) else AlwaysFalse()
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            return self._filter(turned, right, left)
        return self._filter(straight, left, right)

    def is_null(self, node: Node) -> BooleanExpression:
        if not isinstance(node.expression, exp.Null):
            raise NotIndexableError(f"{shown(node)}: only IS NULL and IS NOT NULL of a column are Iceberg filters")
        return cast("BooleanExpression", cast("Any", IsNull)(self._column(node.this, Operation.NULL)))

    def is_nan(self, node: Node) -> BooleanExpression:
        name = self._column(node.this, Operation.NAN)
        return And(*(cast("Any", kind)(name) for kind in (NotNull, IsNaN)))  # isnan(null) is false, not null

    def listed(self, node: Node) -> BooleanExpression:
        if not node.expressions:
            raise NotIndexableError(f"{shown(node)}: IN takes constants")
        constants = [self._values.comparable(item) for item in node.expressions]
        name = self._column(node.this, Operation.LIST, *constants)
        if any(isinstance(constant, float) for constant in constants):  # then Spark compares all of them as doubles
            constants = [double(str(constant)) if _is_exact(constant) else constant for constant in constants]
        return _predicate(In, name, [_literal(constant) for constant in constants])

    def between(self, node: Node) -> BooleanExpression:
        low = self._filter(GreaterThanOrEqual, node.this, node.args["low"])
        return And(low, self._filter(LessThanOrEqual, node.this, node.args["high"]))

    def like(self, node: Node) -> BooleanExpression:
        pattern = self._values.comparable(node.expression)
        if not isinstance(pattern, str):
            raise NotIndexableError(f"LIKE {pattern}: a pattern is a text")
        if not pattern.endswith("%") or set(pattern[:-1]) & {"%", "_", "\\"}:
            raise NotIndexableError(f"LIKE '{pattern}': only a prefix, such as 'abc%', is an Iceberg filter")
        prefix = _predicate(StartsWith, self._column(node.this, Operation.PREFIX), pattern[:-1])
        return Not(prefix) if node.args.get("negate") else prefix

    def contained(self, node: Node) -> BooleanExpression:
        constant = self._values.comparable(node.expression)
        return _predicate(ArrayContains, self._column(node.this, Operation.ELEMENT, constant), _literal(constant))

    def true(self, node: Node) -> BooleanExpression:
        return _predicate(EqualTo, self._column(node, Operation.TRUTH), True)

    def _filter(self, kind: Any, column: Node, constant: Node) -> BooleanExpression:
        _require_column(column)
        value = self._values.comparable(constant)
        return _predicate(kind, self._column(column, Operation.COMPARE, value), _literal(value))

    def _column(self, node: Node, operation: Operation, *constants: Any) -> str:
        name = _require_column(node)
        self.comparisons.append(Comparison(name, operation, constants))
        return name


def _require_column(node: Node) -> str:
    """The name of the column that the node is."""
    node = node.unnest()
    if not isinstance(node, exp.Column):
        raise NotIndexableError(f"{shown(node)} is no column: compare one column with constants")
    return str(node.name)


def _predicate(kind: Any, name: str, value: Any) -> BooleanExpression:
    try:
        predicate: BooleanExpression = kind(name, value)
    except (TypeError, ValueError) as error:
        raise NotIndexableError(f"{name} cannot be compared: {error}") from error
    return predicate


def _literal(value: Any) -> Any:
    """The value as a filter takes it: times as texts, with their zone where they have one."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


def _is_exact(constant: Any) -> bool:
    return isinstance(constant, int | Decimal) and not isinstance(constant, bool)


def _is_integer(node: Node) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and bool(node.this.isdecimal())


_EQUALITIES = (exp.EQ, exp.NEQ)
_COMPARISONS: dict[type, tuple[Any, Any]] = {
    exp.EQ: (EqualTo, EqualTo),
    exp.NEQ: (NotEqualTo, NotEqualTo),
    exp.GT: (GreaterThan, LessThan),
    exp.GTE: (GreaterThanOrEqual, LessThanOrEqual),
    exp.LT: (LessThan, GreaterThan),
    exp.LTE: (LessThanOrEqual, GreaterThanOrEqual),
}
"""Iceberg predicates for (`column op value`, `value op column`)"""
_RULES: dict[type, Callable[[_Reading, Any], BooleanExpression]] = {
    **dict.fromkeys(_COMPARISONS, _Reading.compared),
    exp.Boolean: lambda _, node: AlwaysTrue() if node.this else AlwaysFalse(),
    exp.Column: _Reading.true,
    exp.Paren: lambda reading, node: reading.filter_of(node.this),
    exp.And: lambda reading, node: And(reading.filter_of(node.left), reading.filter_of(node.right)),
    exp.Or: lambda reading, node: Or(reading.filter_of(node.left), reading.filter_of(node.right)),
    exp.Not: lambda reading, node: Not(reading.filter_of(node.this)),
    exp.Is: _Reading.is_null,
    exp.IsNan: _Reading.is_nan,
    exp.In: _Reading.listed,
    exp.Between: _Reading.between,
    exp.Like: _Reading.like,
    exp.ArrayContains: _Reading.contained,
}
