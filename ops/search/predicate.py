"""Predicates on rows: a condition as it was written, for Iceberg to plan a scan by, and for Arrow to evaluate."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, extract_field_ids, visit
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FixedType, FloatType, UUIDType
from pyparsing import ParseException

from icepuffin.ops.search.condition_text import condition_text
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.literals import fitted

_POSITION = "icepuffin_position"
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\w+|\S""")
_UNKNOWN_COLUMN = re.compile("Could not find field with name (.+), case_sensitive=True")
"""PyIceberg's message for a column that a schema lacks"""


class RowPredicate:
    """A condition that fits a snapshot's schema. Raises FilterError for one that does not."""

    def __init__(self, where: str | BooleanExpression, schema: Schema) -> None:
        if not isinstance(where, str | BooleanExpression):
            raise FilterError(
                f"where is a value of type {type(where).__name__}: write a text or a PyIceberg expression"
            )
        self._text = condition_text(where)
        try:
            self.planned = fitted(_parsed(where) if isinstance(where, str) else where, schema)
            """Expression that a scan is planned by"""
            bound = bind(schema, self.planned, case_sensitive=True)
            self.columns = self._top_level(bound, schema)
            self._expression = visit(bound, _ArrowExpression())
        except ParseException as error:
            raise FilterError(
                f"the condition {self._text} cannot be read; write it like: section = 'database' and "
                '"unit price" >= 100'
            ) from error
        except (ValueError, TypeError, NotImplementedError, OverflowError, pa.ArrowException) as error:
            columns = ", ".join(field.name for field in schema.fields)
            unknown = _UNKNOWN_COLUMN.fullmatch(str(error))
            why = f"it has no column {unknown[1]!r}" if unknown else str(error)
            raise FilterError(
                f"the condition {self._text} does not fit the table: {why}; its columns are {columns}"
            ) from error

    def _top_level(self, bound: BooleanExpression, schema: Schema) -> tuple[str, ...]:
        names = sorted({str(schema.find_column_name(field_id)) for field_id in extract_field_ids(bound)})
        if nested := [name for name in names if "." in name]:
            raise FilterError(
                f"the condition {self._text} is on a nested column, {nested[0]}; only top-level ones are read"
            )
        return tuple(names)

    def satisfied(self, rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions of the rows for which the condition is true: not false, not unknown. Raises FilterError.

        `rows` has the columns `columns`; `positions` int64[n] are those of its rows.
        """
        stored = [column.storage if isinstance(column.type, pa.UuidType) else column for column in rows.columns]
        table = pa.Table.from_arrays([*stored, pa.array(positions)], names=[*rows.schema.names, _POSITION])
        try:
            return np.asarray(table.filter(self._expression)[_POSITION].to_numpy())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise FilterError(f"the condition {self._text} cannot be evaluated: {error}") from error


def _parsed(text: str) -> BooleanExpression:
    """Raises ParseException; ValueError for a LIKE with `_`, which PyIceberg takes for the character itself."""
    tokens = _TOKEN.findall(text)
    if any(word.lower() == "like" and "_" in pattern for word, pattern in pairwise(tokens)):
        raise ValueError(
            "the _ of LIKE stands for any character, and conditions know % at the end alone; from Python "
            "StartsWith takes a text as it is"
        )
    return parse(text)


class _ArrowExpression(BoundBooleanExpressionVisitor[pc.Expression]):
    """Conditions on top-level columns for Arrow, by SQL's logic: `null in (...)` and its negation are null."""

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        values = [*literals, 0.0, -0.0] if 0.0 in literals and _is_float(term) else literals  # Arrow tells them apart
        is_in = _column(term).isin(_constants(term, values))
        return pc.if_else(_column(term).is_valid(), is_in, pa.scalar(None, pa.bool_()))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return ~self.visit_in(term, literals)

    def visit_is_nan(self, term: BoundTerm) -> pc.Expression:
        return pc.is_nan(_column(term))

    def visit_not_nan(self, term: BoundTerm) -> pc.Expression:
        return ~pc.is_nan(_column(term))

    def visit_is_null(self, term: BoundTerm) -> pc.Expression:
        return _column(term).is_null()

    def visit_not_null(self, term: BoundTerm) -> pc.Expression:
        return _column(term).is_valid()

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) == _constant(term, literal)

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) != _constant(term, literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) >= _constant(term, literal)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) > _constant(term, literal)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) < _constant(term, literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return _column(term) <= _constant(term, literal)

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return pc.starts_with(_column(term), literal.value)

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> pc.Expression:
        return ~pc.starts_with(_column(term), literal.value)

    def visit_true(self) -> pc.Expression:
        return pc.scalar(True)

    def visit_false(self) -> pc.Expression:
        return pc.scalar(False)

    def visit_not(self, child_result: pc.Expression) -> pc.Expression:
        return ~child_result

    def visit_and(self, left_result: pc.Expression, right_result: pc.Expression) -> pc.Expression:
        return left_result & right_result

    def visit_or(self, left_result: pc.Expression, right_result: pc.Expression) -> pc.Expression:
        return left_result | right_result


def _column(term: BoundTerm) -> pc.Expression:
    return pc.field(term.ref().field.name)


def _is_float(term: BoundTerm) -> bool:
    return isinstance(term.ref().field.field_type, FloatType | DoubleType)


def _constants(term: BoundTerm, values: Iterable[Any]) -> pa.Array:
    """Uuids are compared by their bytes: Arrow has no order for them."""
    field_type = term.ref().field.field_type
    return pa.array(list(values), schema_to_pyarrow(FixedType(16) if isinstance(field_type, UUIDType) else field_type))


def _constant(term: BoundTerm, literal: Literal[Any]) -> pa.Scalar:
    return _constants(term, [literal.value])[0]
