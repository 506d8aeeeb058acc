"""Conditions and branches, by Spark's rules: three-valued logic, and branches computed for the rows that take them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.sql_types import common_of
from icepuffin.ops.sql.typed_expressions import DISTANCE, TypedExpression, as_type, in_branch, rule, shown, typed
from icepuffin.ops.sql.values import Node


def boolean(value: TypedExpression, node: Node) -> TypedExpression:
    if pa.types.is_null(value.sql_type):
        return as_type(value, pa.bool_())
    if not pa.types.is_boolean(value.sql_type):
        raise NotIndexableError(f"{shown(node)} is {value.sql_type}, not a condition")
    return value


def condition(node: Node, schema: pa.Schema) -> TypedExpression:
    """The condition of a WHERE, a CASE or an if(). Raises NotIndexableError for other types, NULL among them."""
    value = typed(node, schema)
    if not pa.types.is_boolean(value.sql_type):
        raise NotIndexableError(f"{shown(node)} is {value.sql_type}, not a condition")
    return value


def _operand(node: Node, schema: pa.Schema) -> TypedExpression:
    """An operand of AND, OR or NOT, which take NULL as well."""
    return boolean(typed(node, schema), node)


@rule(exp.Not)
def _not(node: Node, schema: pa.Schema) -> TypedExpression:
    value = _operand(node.this, schema)
    return TypedExpression(pa.bool_(), lambda rows: pc.invert(value.run(rows)), value.columns, value.may_fail)


@rule(exp.And, exp.Or)
def _connected(node: Node, schema: pa.Schema) -> TypedExpression:
    """AND and OR; the right side is computed only for the rows that the left side does not decide."""
    conjunction = isinstance(node, exp.And)
    sides = [_operand(side, schema) for side in _chain(node, type(node))]
    return joined(sides, conjunction=conjunction)


def _chain(node: Node, sql_type: Any) -> list[Node]:
    """The sides of a chain of one operator, left to right, however long it is."""
    sides: list[Node] = []
    while isinstance(node, sql_type):
        sides.append(node.args["expression"])
        node = node.args["this"]
    return [node, *reversed(sides)]


def joined(sides: Sequence[TypedExpression], *, conjunction: bool) -> TypedExpression:
    join = pc.and_kleene if conjunction else pc.or_kleene

    def run(rows: pa.Table) -> pa.Array:
        truth = sides[0].run(rows)
        for side in sides[1:]:
            truth = join_open(truth, side, rows) if side.may_fail else join(truth, side.run(rows))
        return truth

    def join_open(truth: pa.Array, side: TypedExpression, rows: pa.Table) -> pa.Array:
        """Compute a side that may fail only for the rows that are not decided yet."""
        decided = np.asarray(pc.fill_null(pc.equal(truth, not conjunction), fill_value=False), bool)
        closed, still_open = np.flatnonzero(decided), np.flatnonzero(~decided)
        values = join(truth.take(pa.array(still_open)), side.run(_rows_at(rows, still_open, side.columns)))
        return _scattered(rows.num_rows, [(closed, truth.take(pa.array(closed))), (still_open, values)])

    columns = frozenset().union(*(side.columns for side in sides))
    return TypedExpression(pa.bool_(), run, columns, any(side.may_fail for side in sides))


def _rows_at(rows: pa.Table, places: Any, columns: frozenset[str]) -> pa.Table:
    """Rows at these places, with the columns that are read: at least one column, which says how many rows there are."""
    names = [name for name in rows.column_names if name in columns] or [DISTANCE]
    if names == [DISTANCE] and DISTANCE not in rows.column_names:
        return pa.table({DISTANCE: pa.nulls(len(places))})
    return rows.select(names).take(pa.array(places))


def _scattered(count: int, parts: Sequence[tuple[Any, pa.Array]]) -> pa.Array:
    """Values of parts of the rows, in the order of the rows."""
    places = np.concatenate([part for part, _ in parts])
    values = pa.concat_arrays([values for _, values in parts])
    back = np.empty(count, np.int64)
    back[places] = np.arange(count)
    return values.take(pa.array(back))


def _choice(branches: Sequence[tuple[TypedExpression, TypedExpression]], default: TypedExpression) -> TypedExpression:
    """The value of the first branch whose condition is true."""
    sql_type = common_of([*(value.sql_type for _, value in branches), default.sql_type])
    chosen = [(when, as_type(value, sql_type)) for when, value in branches]
    last = as_type(default, sql_type)

    def run(rows: pa.Table) -> pa.Array:
        rest, parts = np.arange(rows.num_rows), []
        for when, value in chosen:
            flags = np.asarray(pc.fill_null(when.run(_rows_at(rows, rest, when.columns)), fill_value=False), bool)
            matching, rest = rest[flags], rest[~flags]
            parts.append((matching, value.run(_rows_at(rows, matching, value.columns))))
        parts.append((rest, last.run(_rows_at(rows, rest, last.columns))))
        return _scattered(rows.num_rows, parts)

    every = [last, *(part for branch in chosen for part in branch)]
    return TypedExpression(
        sql_type, run, frozenset().union(*(part.columns for part in every)), any(part.may_fail for part in every)
    )


@rule(exp.Case)
@in_branch()
def _case(node: Node, schema: pa.Schema) -> TypedExpression:
    default, compared = node.args.get("default"), node.args.get("this")
    branches = []
    for branch in node.args["ifs"]:
        when = branch.this if compared is None else exp.EQ(this=compared.copy(), expression=branch.this.copy())
        branches.append((condition(when, schema), typed(branch.args["true"], schema)))
    return _choice(branches, typed(exp.Null() if default is None else default, schema))


@rule(exp.If)
@in_branch()
def _if(node: Node, schema: pa.Schema) -> TypedExpression:
    other = node.args.get("false")
    if other is None:
        raise NotIndexableError(f"{shown(node)}: if() takes a condition and two values")
    when, value = condition(node.this, schema), typed(node.args["true"], schema)
    return _choice([(when, value)], typed(other, schema))


@rule(exp.Coalesce)
@in_branch()
def _coalesce(node: Node, schema: pa.Schema) -> TypedExpression:
    values = [typed(item, schema) for item in (node.this, *node.expressions)]
    valid = [TypedExpression(pa.bool_(), _is_valid(value), value.columns, value.may_fail) for value in values]
    return _choice(list(zip(valid, values, strict=True)), typed(exp.Null(), schema))


def _is_valid(value: TypedExpression) -> Callable[[pa.Table], pa.Array]:
    return lambda rows: pc.is_valid(value.run(rows))
