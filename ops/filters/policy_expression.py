"""The row filter of a catalog's read restrictions, as an expression on the columns of a snapshot.

It comes in the JSON of https://github.com/apache/iceberg/blob/main/format/expressions-spec.md, appendix B, with columns
named by field id. There a comparison of null or NaN is true or false; to SQL it is unknown, and NaN is the largest
number. A test of a column, or its negation, holds where it does by both readings: whoever wrote the filter by one of
them loses nothing to the other. A row is hidden that each of them shows, but by another side of an `or`.
What is not read here (calls of functions, names of columns, literals of other types) raises ValueError.
"""

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import numpy as np
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
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_TESTS: dict[str, Any] = {"is-null": IsNull, "not-null": NotNull, "is-nan": IsNaN, "not-nan": NotNaN}
_COMPARISONS: dict[str, Any] = {
    "eq": EqualTo,
    "not-eq": NotEqualTo,
    "lt": LessThan,
    "lt-eq": LessThanOrEqual,
    "gt": GreaterThan,
    "gt-eq": GreaterThanOrEqual,
    "starts-with": StartsWith,
    "not-starts-with": NotStartsWith,
}
_SETS: dict[str, Any] = {"in": In, "not-in": NotIn}
_UPWARDS = ("gt", "gt-eq")
"""Comparisons that are true of NaN by SQL, which is the largest number there"""
_WIDENED = {("int", "long")}
"""Types of a literal, each with another type of a column that has all of its values"""


def policy_expression(document: object, schema: Schema, *, negated: bool = False) -> BooleanExpression:
    """The expression of a predicate in JSON, or of its negation; `schema` is the snapshot's.

    Raises ValueError, RecursionError.
    """
    if isinstance(document, bool):
        return AlwaysTrue() if document is not negated else AlwaysFalse()
    kind = document.get("type") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(kind, str):
        raise ValueError(f"{document!r} is no predicate")  # noqa: TRY004  of the catalog's
    keys = {*document} - {"type"}
    if kind in ("true", "false") and not keys:
        return policy_expression(kind == "true", schema, negated=negated)
    if kind == "not" and keys == {"child"}:
        return policy_expression(document["child"], schema, negated=not negated)
    if kind in ("and", "or") and keys == {"left", "right"}:
        sides = (policy_expression(document[side], schema, negated=negated) for side in ("left", "right"))
        joined: BooleanExpression = (And if (kind == "and") is not negated else Or)(*sides)
        return joined
    return _leaf(kind, document, keys, schema, negated=negated)


def _leaf(
    kind: str, document: Mapping[str, object], keys: set[str], schema: Schema, *, negated: bool
) -> BooleanExpression:
    """A test of a column, or its negation. `keys`: those of the document beside its type."""
    test: BooleanExpression
    is_upward = False
    if kind in _TESTS and keys == {"child"}:
        column = _column(document["child"], schema)
        if "nan" in kind and not isinstance(column.field_type, FloatType | DoubleType):
            raise ValueError(f"{kind} of {column.name}, which is {column.field_type}")
        test = _TESTS[kind](Reference(column.name))
    elif kind in _COMPARISONS and keys == {"left", "right"}:
        column = _column(document["left"], schema)
        test = _COMPARISONS[kind](Reference(column.name), _literal(document["right"], column))
        is_upward = kind in _UPWARDS
    elif kind in _SETS and keys == {"child", "values"}:
        column = _column(document["child"], schema)
        test = _SETS[kind](Reference(column.name), _literals(document["values"], column))
    else:
        raise ValueError(f"a predicate of type {kind!r} with {', '.join(sorted(map(str, keys))) or 'nothing else'}")
    if negated:
        return ~test
    has_nan = isinstance(column.field_type, FloatType | DoubleType)
    not_nan: Any = NotNaN
    return And(test, not_nan(Reference(column.name))) if is_upward and has_nan else test


def _column(reference: object, schema: Schema) -> NestedField:
    """The top-level column that a reference names by field id."""
    if isinstance(reference, Mapping) and {*reference} == {"type", "id"} and reference["type"] == "reference":
        field_id = reference["id"]
        for field in schema.fields:
            if field.field_id == field_id and not isinstance(field_id, bool):
                return field
    raise ValueError(f"{reference!r} is no field id of a top-level column that the snapshot has")


def _literals(document: object, column: NestedField) -> tuple[object, ...]:
    """The values of a set."""
    if isinstance(document, list):
        return tuple(_literal(value, column) for value in document)
    if isinstance(document, Mapping) and {*document} == {"type", "values", "data-type"}:
        values, data_type = document["values"], document["data-type"]
        if document["type"] == "literals" and isinstance(values, list):
            return tuple(_typed(value, data_type, column) for value in values)
    raise ValueError(f"{document!r} are no literals")


def _literal(document: object, column: NestedField) -> object:
    """The value of a literal."""
    if not isinstance(document, Mapping):
        return _value(document, column, rounded=False)
    if document.get("type") != "literal" or not {"value"} <= {*document} - {"type"} <= {"value", "data-type"}:
        raise ValueError(f"{document!r} is no literal")
    if "data-type" in document:
        return _typed(document["value"], document["data-type"], column)
    return _value(document["value"], column, rounded=False)


def _typed(value: object, data_type: object, column: NestedField) -> object:
    """A value of a type that is named; it has to be the column's, or one whose values the column's all has."""
    named, actual = str(data_type).replace(" ", ""), str(column.field_type).replace(" ", "")
    if named != actual and (named, actual) not in _WIDENED:
        raise ValueError(f"{column.name} is {actual}, and {value!r} is {named}")
    return _value(value, column, rounded=True)


def _value(value: Any, column: NestedField, *, rounded: bool) -> object:
    """A value in the JSON of Iceberg's specification, as Python has it. `rounded`: whether it is of the column's own
    type, to which a number is rounded then; without that, a float that the column cannot have is ambiguous.
    """
    kind = column.field_type
    try:
        read = _read(value, kind)
        if isinstance(kind, FloatType) and read is not None:
            with np.errstate(over="raise"):
                nearest = float(np.float32(read))
            read = nearest if rounded or nearest == read else None
    except (ValueError, OverflowError, FloatingPointError, InvalidOperation) as error:
        raise ValueError(f"{column.name} is {kind}, which {value!r} is not: {error}") from error
    if read is None:
        raise ValueError(f"{column.name} is {kind}, which {value!r} is not")
    return read


def _read(value: Any, kind: IcebergType) -> Any:
    """The value; None where its JSON type is not that of the column's type."""
    read: Any = None
    if isinstance(value, bool):
        read = value if isinstance(kind, BooleanType) else None
    elif isinstance(kind, DecimalType) and isinstance(value, int | str):
        number = Decimal(value)
        read = number if number.is_finite() else None
    elif isinstance(kind, IntegerType | LongType | FloatType | DoubleType) and isinstance(value, int | float):
        read = value if math.isfinite(value) else None
    elif isinstance(value, str):
        if isinstance(kind, StringType | DateType | TimeType | TimestampType | TimestamptzType):
            read = value  # times are read, and refused, where they are fitted to the column
        elif isinstance(kind, UUIDType):
            read = UUID(value)
        elif isinstance(kind, FixedType | BinaryType):
            read = bytes.fromhex(value)
    return read
