"""A condition as it was written -> what Iceberg plans a scan by, and what Arrow evaluates on rows.

Both are PyIceberg's, but for where these would find other rows than SQL: a constant that the column's type cannot hold
is refused, not rounded; a null is in no list, and out of none; a uuid is compared by its bytes.
"""

from decimal import Decimal, DecimalException
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
    BoundPredicate,
    BoundTerm,
    LiteralPredicate,
    Not,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import DecimalLiteral, Literal, LongLiteral, StringLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    bind,
    extract_field_ids,
    translate_column_names,
    visit,
)
from pyiceberg.io.pyarrow import _ConvertToArrowExpression
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyparsing import ParseException

from ops.probe.errors import FilterError

_POSITION = "icepuffin_position"
_DAY = len("2026-01-31")


class Condition:
    """A condition that fits a snapshot's schema. Raises FilterError for one that does not."""

    def __init__(self, where: str | BooleanExpression, schema: Schema) -> None:
        self._text = repr(where) if isinstance(where, str) else str(where)
        try:
            self.planned = visit(parse(where) if isinstance(where, str) else where, _Fitted(schema))
            """For a scan to plan by"""
            bound = bind(schema, self.planned, case_sensitive=True)
            self.columns = self._top_level(bound, schema)
            self._expression = _in_arrow(bound, schema)
        except ParseException as error:
            raise FilterError(
                f"the condition {self._text} cannot be read; write it like: section = 'database' and "
                '"unit price" >= 100'
            ) from error
        except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:
            columns = ", ".join(field.name for field in schema.fields)
            raise FilterError(
                f"the condition {self._text} does not fit the table: {error}; its columns are {columns}"
            ) from error

    def _top_level(self, bound: BooleanExpression, schema: Schema) -> tuple[str, ...]:
        names = sorted({str(schema.find_column_name(field_id)) for field_id in extract_field_ids(bound)})
        if nested := [name for name in names if "." in name]:
            raise FilterError(
                f"the condition {self._text} is on a nested column, {nested[0]}; only top-level ones are read"
            )
        return tuple(names)

    def satisfied(self, rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions of the rows, of `columns`, for which it is true: not false, not unknown. Raises FilterError."""
        stored = [column.storage if isinstance(column.type, pa.UuidType) else column for column in rows.columns]
        table = pa.Table.from_arrays([*stored, pa.array(positions)], names=[*rows.schema.names, _POSITION])
        try:
            return np.asarray(table.filter(self._expression)[_POSITION].to_numpy())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise FilterError(f"the condition {self._text} cannot be evaluated: {error}") from error


def _in_arrow(bound: BooleanExpression, schema: Schema) -> pc.Expression:
    """For columns as Arrow compares them: it has no order for uuids, but one for their bytes."""
    fields = [
        NestedField(field.field_id, field.name, FixedType(16)) if isinstance(field.field_type, UUIDType) else field
        for field in schema.fields
    ]
    stored = Schema(*fields)
    again = bind(stored, translate_column_names(bound, stored, case_sensitive=True), case_sensitive=True)
    return visit(again, _ThreeValued(stored))


class _ThreeValued(_ConvertToArrowExpression):
    """Whether a null is in a list is unknown, and so is whether it is not."""

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        known = super().visit_in(term, literals)
        return pc.if_else(super().visit_not_null(term), known, pa.scalar(None, pa.bool_()))

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return ~self.visit_in(term, literals)


class _Fitted(BooleanExpressionVisitor[BooleanExpression]):
    """Constants as the types of their columns have them. PyIceberg rounds some, and reads others in one form only."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        made: Any = type(predicate)
        if not isinstance(predicate, LiteralPredicate | SetPredicate):
            return predicate
        field = predicate.term.bind(self._schema, case_sensitive=True).ref().field
        if isinstance(predicate, LiteralPredicate):
            fitted: BooleanExpression = made(predicate.term, _fitted(predicate.literal, field))
        else:
            fitted = made(predicate.term, {_fitted(item, field) for item in predicate.literals})
        return fitted

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        return predicate

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)


def _fitted(constant: Literal[Any], field: NestedField) -> Literal[Any]:
    """Raises ValueError for a constant that the type cannot hold."""
    kind, value = field.field_type, constant.value
    said = isinstance(constant, StringLiteral)
    number = said or isinstance(value, float | Decimal)
    if isinstance(kind, IntegerType | LongType) and number:
        return LongLiteral(int(_exactly(value, field, Decimal(1))))
    if isinstance(kind, DecimalType) and number:
        return DecimalLiteral(_exactly(value, field, Decimal((0, (1,), -kind.scale))))
    if isinstance(kind, TimestampType | TimestamptzType) and said:
        return StringLiteral(_iso(value, zoned=isinstance(kind, TimestamptzType)))
    if isinstance(kind, BinaryType | FixedType) and said:
        raise ValueError(f"{field.name} is {kind}, which a text cannot say; from Python give an expression with bytes")
    return constant


def _exactly(value: str | float | Decimal, field: NestedField, step: Decimal) -> Decimal:
    """The number, a multiple of `step`."""
    try:
        exact = Decimal(str(value))
        rounded = exact.quantize(step)
    except DecimalException as error:
        raise ValueError(f"{value!r} is no {field.field_type}, as {field.name} is") from error
    if rounded != exact:
        raise ValueError(f"{field.name} is {field.field_type}, which {value} is not: compare it with what it can be")
    return rounded


def _iso(text: str, *, zoned: bool) -> str:
    """A time as ISO 8601 has it; a day is its first moment, where no zone can be meant."""
    whole = text if len(text) > _DAY or zoned else f"{text}T00:00:00"
    whole = whole.replace(" ", "T", 1)
    return f"{whole[:-1]}+00:00" if zoned and whole.endswith("Z") else whole
