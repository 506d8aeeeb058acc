"""Predicates on rows: a condition as it was written, for Iceberg to plan a scan by, and its truth by Arrow's arrays."""

import re
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundStartsWith,
    BoundTerm,
    Or,
)
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FixedType, FloatType, IcebergType, ListType, UUIDType
from pyparsing import ParseException

from icepuffin.ops.filters.condition_parser import parse_condition
from icepuffin.ops.filters.condition_text import TOO_DEEP, condition_text
from icepuffin.ops.filters.list_predicate import BoundArrayContains, contains, element_of
from icepuffin.ops.filters.literals import fitted
from icepuffin.ops.search.errors import FilterError

_UNKNOWN_COLUMN = re.compile("Could not find field with name (.+), case_sensitive=True")
"""PyIceberg's message for a column that a schema lacks"""


class RowPredicate:
    """A condition that fits a snapshot's schema. Raises FilterError for one that does not."""

    def __init__(self, where: str | BooleanExpression, schema: Schema) -> None:
        if not isinstance(where, str | BooleanExpression):
            raise FilterError(
                f"where is a value of type {type(where).__name__}: write a text or a PyIceberg expression"
            )
        self._where = where
        try:
            expression = parse_condition(where) if isinstance(where, str) else where
            self.planned = fitted(expression, schema)
            """Expression that a scan is planned by"""
            self.bound = bind(schema, self.planned, case_sensitive=True)
            """The condition, bound to the schema"""
            self.planned_fields = frozenset(extract_field_ids(self.bound))
            """Field ids of the columns that a scan is planned by"""
            self.columns = self._top_level(self.bound, schema)
            if any(isinstance(schema.find_type(name), ListType) for name in self.columns):
                self.planned = fitted(expression, schema, on_lists=False)
        except ParseException as error:
            raise FilterError(
                f"the condition {self._text} cannot be read; write it like: section = 'database' and "
                '"unit price" >= 100'
            ) from error
        except RecursionError:
            raise FilterError(TOO_DEEP) from None  # whose trace has thousands of lines
        except (ValueError, TypeError, NotImplementedError, OverflowError, pa.ArrowException) as error:
            raise self._misfit(schema, error) from error
        self._schema = schema

    @property
    def _text(self) -> str:
        return condition_text(self._where)

    def _misfit(self, schema: Schema, error: Exception) -> FilterError:
        columns = ", ".join(field.name for field in schema.fields)
        unknown = _UNKNOWN_COLUMN.fullmatch(str(error))
        why = f"it has no column {unknown[1]!r}" if unknown else str(error)
        return FilterError(f"the condition {self._text} does not fit the table: {why}; its columns are {columns}")

    def _top_level(self, bound: BooleanExpression, schema: Schema) -> tuple[str, ...]:
        """Names of the columns of a condition. Raises FilterError for a nested one."""
        top_level = {field.field_id for field in schema.fields}
        names = {field_id: str(schema.find_column_name(field_id)) for field_id in extract_field_ids(bound)}
        if nested := sorted(name for field_id, name in names.items() if field_id not in top_level):
            raise FilterError(
                f"the condition {self._text} is on a nested column, {nested[0]}; only top-level ones are read"
            )
        return tuple(sorted(names.values()))

    def part(self, bound: BooleanExpression) -> "RowPredicate":
        """A part of the condition, as a predicate of its own. A scan is planned by the whole."""
        other = copy(self)
        other.bound, other.columns = bound, self._top_level(bound, self._schema)
        return other

    def satisfied(self, rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions of the rows for which the condition is true: not false, not unknown. Raises FilterError.

        `rows` has the columns `columns`; `positions` int64[n] are those of its rows.
        """
        columns = {
            name: column.storage if isinstance(column.type, pa.UuidType) else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        return positions[self._true(self.bound, lambda term: columns[term.ref().field.name], len(positions))]

    def truth(self, part: BooleanExpression, values: pa.Array) -> npt.NDArray[np.bool_]:
        """bool[n]: for which values of its only column a part of the condition is true: not false, not unknown.

        Raises FilterError.
        """
        return self._true(part, lambda _: values, len(values))

    def _true(
        self, part: BooleanExpression, column: Callable[[BoundTerm], pa.Array], count: int
    ) -> npt.NDArray[np.bool_]:
        """bool[count]: for which rows a part of the condition is true, by arrays of its columns. Raises FilterError."""
        try:
            result = _truth(part, column, count)
        except RecursionError:
            raise FilterError(TOO_DEEP) from None  # whose trace has thousands of lines
        except (ValueError, TypeError, NotImplementedError, OverflowError, pa.ArrowException) as error:
            raise self._misfit(self._schema, error) from error
        return np.asarray(result.fill_null(False).to_numpy(zero_copy_only=False))


_COMPARISONS: dict[type, Callable[[pa.Array, pa.Scalar], pa.BooleanArray]] = {
    BoundEqualTo: pc.equal,
    BoundNotEqualTo: pc.not_equal,
    BoundLessThan: pc.less,
    BoundLessThanOrEqual: pc.less_equal,
    BoundGreaterThan: pc.greater,
    BoundGreaterThanOrEqual: pc.greater_equal,
}
_TESTS: dict[type, Callable[[pa.Array], pa.BooleanArray]] = {
    BoundIsNull: pc.is_null,
    BoundNotNull: pc.is_valid,
    BoundIsNaN: pc.is_nan,
    BoundNotNaN: lambda values: pc.invert(pc.is_nan(values)),
}


def _truth(part: BooleanExpression, column: Callable[[BoundTerm], pa.Array], count: int) -> pa.BooleanArray:
    """bool[count]: of which rows a fitted condition is true; false or null of the others. It has no NOT.

    Rows are compared as they are read: to encode them by their distinct values takes longer than to compare them. An
    expression of Arrow takes longer, too, and one of 20,000 parts ends the process: its depth overflows the stack.
    """
    match part:
        case And():
            return pc.and_kleene(_truth(part.left, column, count), _truth(part.right, column, count))
        case Or():
            return pc.or_kleene(_truth(part.left, column, count), _truth(part.right, column, count))
        case AlwaysTrue() | AlwaysFalse():
            return pa.array(np.full(count, isinstance(part, AlwaysTrue)))
        case BoundPredicate():
            return _compared(part, column(part.term))
    raise TypeError(f"{part} is no part of a fitted condition")


def _compared(part: BoundPredicate, values: pa.Array) -> pa.BooleanArray:
    """bool[n] or null: whether a comparison is true of each value of its column, by SQL's logic."""
    field = part.term.ref().field
    match part:
        case BoundArrayContains():
            elements = values.flatten()
            if isinstance(elements, pa.ExtensionArray):
                elements = elements.storage
            truth = contains(values, element_truth(part, elements))
            return pc.invert(truth) if part.negated else truth
        case BoundIn() | BoundNotIn():
            named = list(part.value_set)
            if 0.0 in named and isinstance(field.field_type, FloatType | DoubleType):
                named += [0.0, -0.0]  # Arrow tells them apart
            truth = pc.is_in(values, value_set=_typed(named, field.field_type))
            truth = pc.if_else(pc.is_valid(values), truth, pa.scalar(None, pa.bool_()))
            return truth if isinstance(part, BoundIn) else pc.invert(truth)
        case BoundStartsWith() | BoundNotStartsWith():
            truth = pc.starts_with(values, part.literal.value)
            return truth if isinstance(part, BoundStartsWith) else pc.invert(truth)
        case BoundLiteralPredicate():
            return _COMPARISONS[type(part)](values, _typed([part.literal.value], field.field_type)[0])
    return _TESTS[type(part)](values)


def element_truth(predicate: BoundArrayContains, elements: pa.Array) -> pa.BooleanArray:
    """bool[n] or null: whether each element is equal to the value of `array_contains`."""
    if predicate.value is None:
        return pa.array(np.zeros(len(elements), np.bool_), mask=np.asarray(elements.is_null()))
    kind = element_of(predicate.term.ref().field).field_type
    return pc.equal(elements, _typed([predicate.value.value], kind)[0])


def _typed(values: list[Any], field_type: IcebergType) -> pa.Array:
    """Uuids are compared by their bytes: Arrow has no order for them."""
    return pa.array(values, schema_to_pyarrow(FixedType(16) if isinstance(field_type, UUIDType) else field_type))
