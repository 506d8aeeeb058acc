"""Predicates on rows: a condition as it was written, for Iceberg to plan a scan by, and its truth by Arrow's arrays."""

import re
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, BoundPredicate, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, extract_field_ids, visit
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
        # an expression of Arrow takes longer, and one of 20,000 parts ends the process: its depth overflows the stack
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
            result = visit(part, _Truth(column))
        except RecursionError:
            raise FilterError(TOO_DEEP) from None  # whose trace has thousands of lines
        except (ValueError, TypeError, NotImplementedError, OverflowError, pa.ArrowException) as error:
            raise self._misfit(self._schema, error) from error
        if isinstance(result, pa.Scalar):
            return np.full(count, bool(result.as_py()))
        return np.asarray(result.fill_null(False).to_numpy(zero_copy_only=False))


class _Truth(BoundBooleanExpressionVisitor[Any]):
    """Truth values of a condition on top-level columns, by SQL's logic: `null in (...)` and its negation are null.

    `column` gives the array of a term's values. The result is an array, or a scalar where it is the same for all.
    """

    def __init__(self, column: Callable[[BoundTerm], pa.Array]) -> None:
        self._column = column

    def visit_bound_predicate(self, predicate: BoundPredicate) -> Any:
        if not isinstance(predicate, BoundArrayContains):
            return super().visit_bound_predicate(predicate)
        lists = self._column(predicate.term)
        elements = lists.flatten()
        if isinstance(elements, pa.ExtensionArray):
            elements = elements.storage
        truth = contains(lists, element_truth(predicate, elements))
        return pc.invert(truth) if predicate.negated else truth

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> Any:
        values = [*literals, 0.0, -0.0] if 0.0 in literals and _is_float(term) else literals  # Arrow tells them apart
        is_in = pc.is_in(self._column(term), value_set=_constants(term, values))
        return pc.if_else(pc.is_valid(self._column(term)), is_in, pa.scalar(None, pa.bool_()))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> Any:
        return pc.invert(self.visit_in(term, literals))

    def visit_is_nan(self, term: BoundTerm) -> Any:
        return pc.is_nan(self._column(term))

    def visit_not_nan(self, term: BoundTerm) -> Any:
        return pc.invert(pc.is_nan(self._column(term)))

    def visit_is_null(self, term: BoundTerm) -> Any:
        return pc.is_null(self._column(term))

    def visit_not_null(self, term: BoundTerm) -> Any:
        return pc.is_valid(self._column(term))

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.equal(self._column(term), _constant(term, literal))

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.not_equal(self._column(term), _constant(term, literal))

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.greater_equal(self._column(term), _constant(term, literal))

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.greater(self._column(term), _constant(term, literal))

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.less(self._column(term), _constant(term, literal))

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.less_equal(self._column(term), _constant(term, literal))

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.starts_with(self._column(term), literal.value)

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> Any:
        return pc.invert(pc.starts_with(self._column(term), literal.value))

    def visit_true(self) -> Any:
        return pa.scalar(True)

    def visit_false(self) -> Any:
        return pa.scalar(False)

    def visit_not(self, child_result: Any) -> Any:
        return pc.invert(child_result)

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        return pc.and_kleene(left_result, right_result)

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        return pc.or_kleene(left_result, right_result)


def element_truth(predicate: BoundArrayContains, elements: pa.Array) -> pa.Array:
    """bool[n] or null: whether each element is equal to the value of `array_contains`."""
    if predicate.value is None:
        return pa.array(np.zeros(len(elements), np.bool_), mask=np.asarray(elements.is_null()))
    kind = element_of(predicate.term.ref().field).field_type
    return pc.equal(elements, _typed([predicate.value.value], kind)[0])


def _is_float(term: BoundTerm) -> bool:
    return isinstance(term.ref().field.field_type, FloatType | DoubleType)


def _constants(term: BoundTerm, values: Iterable[Any]) -> pa.Array:
    return _typed(values, term.ref().field.field_type)


def _typed(values: Iterable[Any], field_type: IcebergType) -> pa.Array:
    """Uuids are compared by their bytes: Arrow has no order for them."""
    return pa.array(list(values), schema_to_pyarrow(FixedType(16) if isinstance(field_type, UUIDType) else field_type))


def _constant(term: BoundTerm, literal: Literal[Any]) -> pa.Scalar:
    return _constants(term, [literal.value])[0]
