"""Typed expressions: what an expression is once the columns of its rows are known.

Each kind of sqlglot node has a rule, registered with `@rule(...)` in `expressions`, `comparisons` or `logic`. A node
without a rule is refused (NotIndexableError): no part of a statement may be ignored.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from icepuffin.ops.sql.casts import caster, constant
from icepuffin.ops.sql.computed_numbers import is_computed
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.sql_types import SqlType, is_text
from icepuffin.ops.sql.values import Node

DISTANCE = " distance"
"""Column of the distance among the rows of an answer: no SQL text can name it"""


@dataclass(frozen=True, slots=True, eq=False)
class TypedExpression:
    """An expression over rows of known columns."""

    sql_type: SqlType
    """Type of its values"""
    run: Callable[[pa.Table], pa.Array]
    """Function from rows to one value per row; raises SqlError for a row that has none (a division by zero)"""
    columns: frozenset[str] = frozenset()
    """Names of the columns that it reads"""
    may_fail: bool = False
    """Whether a row may have no value, so that rows that do not need it must not compute it"""
    text: str | None = None
    """The text of a text constant, which a comparison may turn into a number or a time"""
    digits: SqlType | None = None
    """Type of an integer that is written, not computed, beside decimals"""
    exact: Decimal | None = None
    """The value of a decimal constant"""


Rule = Callable[[Any, pa.Schema], TypedExpression]
ONE_ROW = pa.table({DISTANCE: [0.0]})
_IN_BRANCH: ContextVar[bool] = ContextVar("_IN_BRANCH", default=False)
RULES: dict[type, Rule] = {}
"""The rule of each kind of node; filled by the modules of rules"""


def rule(*sql_types: type) -> Callable[[Rule], Rule]:
    """Register a rule for kinds of nodes."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(sql_types, function))
        return function

    return register


def shown(node: Node) -> str:
    """The node's SQL text, for messages."""
    return str(node.sql(dialect="spark")).replace(f"`{DISTANCE}`", "distance")


def typed(node: Node, schema: pa.Schema) -> TypedExpression:
    """An expression over rows with these columns. Raises NotIndexableError for what is not computed here."""
    make = RULES.get(type(node))
    if make is None:
        raise NotIndexableError(f"{shown(node)} is not computed here")
    try:
        expression = make(node, schema)
    except NotIndexableError as error:
        if shown(node) in str(error) or not isinstance(node, exp.Binary | exp.Func):
            raise
        raise NotIndexableError(f"{shown(node)[:200]}: {error}") from error
    if is_computed(node):
        expression = replace(expression, digits=None)
    return _folded(expression, node) if expression.may_fail and not expression.columns else expression


def _folded(expression: TypedExpression, node: Node) -> TypedExpression:
    """The constant's value. A constant that fails is refused, whatever the rows are, unless it is in a branch."""
    try:
        return constant_of(value_of(expression, node, ONE_ROW)[0], expression.sql_type)
    except SqlError as error:
        part_of_a_constant = node.parent is not None and node.parent.find(exp.Column) is None  # as in `false AND ...`
        if not part_of_a_constant and not _IN_BRANCH.get():
            raise NotIndexableError(str(error)) from error
        return expression


def value_of(expression: TypedExpression, node: Node, rows: pa.Table) -> pa.Array:
    """The expression's value for each row. Raises SqlError where it has none, such as for a division by zero."""
    try:
        return expression.run(rows)
    except (pa.ArrowException, OverflowError, SqlError) as error:
        raise SqlError(f"{shown(node)}: {error}") from error


@contextmanager
def in_branch() -> Iterator[None]:
    """Context for `typed`: a branch of a CASE, an if() or a coalesce(), which may never be evaluated."""
    before = _IN_BRANCH.set(True)
    try:
        yield
    finally:
        _IN_BRANCH.reset(before)


def require_one_case(node: Node, value: TypedExpression) -> None:
    """Raises NotIndexableError for upper, lower or ILIKE of an upper or lower, unless it is a constant.

    Spark's optimizer drops the inner one, so that 'ß' does not become 'ss'; it does not see it in every plan.
    """
    if value.columns and isinstance(node.this.unnest(), exp.Upper | exp.Lower):
        raise NotIndexableError(f"{shown(node)}: the case of {shown(node.this)} is not changed again here")


def as_type(value: TypedExpression, sql_type: SqlType) -> TypedExpression:
    """An implicit cast; a text constant is read as a value of the type."""
    if value.text is not None and not is_text(sql_type):
        return constant_of(constant(value.text, sql_type), sql_type)
    change, may_fail = caster(value.sql_type, sql_type, implicit=True)
    if value.sql_type == sql_type:
        return value
    return TypedExpression(sql_type, lambda rows: change(value.run(rows)), value.columns, value.may_fail or may_fail)


def constant_of(value: Any, sql_type: SqlType, **more: Any) -> TypedExpression:
    scalar = pa.scalar(value, sql_type)
    return TypedExpression(sql_type, lambda rows: pa.repeat(scalar, rows.num_rows), **more)
