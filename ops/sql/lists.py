"""The expression on lists: `array_contains(column, constant)`, as Spark has it."""

import pyarrow as pa
from sqlglot import exp

from icepuffin.ops.filters.list_predicate import contains
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.sql_types import is_text
from icepuffin.ops.sql.typed_expressions import TypedExpression, rule, shown, typed
from icepuffin.ops.sql.values import Node

_ELEMENT = " element"
"""Column of the elements of all lists: no SQL text can name it"""


@rule(exp.ArrayContains)
def _array_contains(node: Node, schema: pa.Schema) -> TypedExpression:
    lists, value = node.this, node.expression
    name = lists.name if isinstance(lists, exp.Column) else ""
    if schema.names.count(name) != 1 or not is_list(schema.field(name).type) or value.find(exp.Column):
        raise NotIndexableError(f"{shown(node)}: array_contains takes a column of lists, and a constant")
    elements = pa.schema([(_ELEMENT, schema.field(name).type.value_type)])
    constant, element = typed(value, elements), typed(exp.column(_ELEMENT), elements)
    if pa.types.is_null(constant.sql_type) or is_text(constant.sql_type) is not is_text(element.sql_type):
        raise NotIndexableError(f"{shown(node)}: the lists have elements of type {element.sql_type}")
    equality = exp.EQ(this=exp.column(_ELEMENT), expression=value.copy())
    equal = typed(equality, elements)

    def run(rows: pa.Table) -> pa.Array:
        column = rows[name].combine_chunks()
        return contains(column, equal.run(pa.table([column.flatten()], elements)))

    return TypedExpression(pa.bool_(), run, frozenset({name}))


def is_list(sql_type: pa.DataType) -> bool:
    """Whether a type is one of lists of plain values."""
    return bool(pa.types.is_list(sql_type) or pa.types.is_large_list(sql_type))
