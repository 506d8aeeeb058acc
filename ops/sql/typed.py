"""Typed expressions: what an expression is once the columns of its rows are known.

Each kind of sqlglot node has a rule, registered with `@rule(...)` in `expressions`, `comparisons` or `logic`. A node
without a rule is refused (NotIndexableError): a part of a statement that nobody reads must not be passed over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from icepuffin.ops.sql.casts import caster, constant
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.types import Kind, is_text
from icepuffin.ops.sql.values import Node

DISTANCE = " distance"
"""Column of the distance among the rows of an answer: no SQL text can name it"""


@dataclass(frozen=True, slots=True, eq=False)
class TypedExpression:
    """An expression over rows of known columns."""

    kind: Kind
    """Type of its values"""
    run: Callable[[pa.Table], pa.Array]
    """Function from rows to one value per row; raises SqlError for a row that has none (a division by zero)"""
    columns: frozenset[str] = frozenset()
    """Names of the columns that it reads"""
    may_fail: bool = False
    """Whether a row may have no value, so that rows that do not need it must not compute it"""
    text: str | None = None
    """The text of a text constant, which a comparison may turn into a number or a time"""
    digits: Kind | None = None
    """Type of an integer constant beside decimals"""
    exact: Decimal | None = None
    """The value of a decimal constant"""


Rule = Callable[[Any, pa.Schema], TypedExpression]
RULES: dict[type, Rule] = {}
"""The rule of each kind of node; filled by the modules of rules"""


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Register a rule for kinds of nodes."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def shown(node: Node) -> str:
    """Its text."""
    return str(node.sql(dialect="spark")).replace(f"`{DISTANCE}`", "distance")


def typed(node: Node, schema: pa.Schema) -> TypedExpression:
    """An expression over rows with these columns. Raises NotIndexableError for what is not computed here."""
    make = RULES.get(type(node))
    if make is None:
        raise NotIndexableError(f"{shown(node)} is not computed here")
    try:
        return make(node, schema)
    except NotIndexableError as error:
        if shown(node) in str(error) or not isinstance(node, exp.Binary | exp.Func):
            raise
        raise NotIndexableError(f"{shown(node)[:200]}: {error}") from error


def as_kind(value: TypedExpression, kind: Kind) -> TypedExpression:
    """Cast without being asked to; of text constants, to what they are compared with."""
    if value.text is not None and not is_text(kind):
        return constant_of(constant(value.text, kind), kind)
    change, may_fail = caster(value.kind, kind, implicit=True)
    if value.kind == kind:
        return value
    return TypedExpression(kind, lambda rows: change(value.run(rows)), value.columns, value.may_fail or may_fail)


def constant_of(value: Any, kind: Kind, **more: Any) -> TypedExpression:
    scalar = pa.scalar(value, kind)
    return TypedExpression(kind, lambda rows: pa.repeat(scalar, rows.num_rows), **more)
