"""What a query does with the nearest rows: filter, order, limit, project."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import IcebergType, NestedField

from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.spark.spark_types import as_spark
from icepuffin.ops.sql.comparability import comparable_type
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.row_filters import RowFilter
from icepuffin.ops.sql.values import DISTANCE


@dataclass(frozen=True, slots=True)
class Output:
    """One column of an answer."""

    column: str
    """Column of the incoming rows; `DISTANCE` for the distance"""
    name: str
    is_star: bool = False
    """Whether it stands for every column: one that is called `*` is a column as any other"""


STAR = Output("*", "*", is_star=True)


@dataclass(frozen=True, slots=True)
class Order:
    """One key of an ORDER BY."""

    column: str
    """Column of the incoming rows; `DISTANCE` for the distance"""
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class PostprocessingStep:
    """SELECT outputs ... WHERE ... ORDER BY ... LIMIT ... OFFSET, over given rows.

    Their columns are given as fields of Iceberg, the distance among them.
    """

    outputs: tuple[Output, ...] | None
    """Output columns; None for every column (`*`)"""
    where: RowFilter | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    def columns(self) -> frozenset[str]:
        """Names of the columns that it reads, the distance left out."""
        read = {output.column for output in self.outputs or () if not output.is_star}
        read |= {order.column for order in self.order} | (set() if self.where is None else self.where.columns)
        return frozenset(read - {DISTANCE})

    def apply(self, rows: pa.Table, fields: Sequence[NestedField]) -> pa.Table:
        """Raises FilterError for a condition that does not fit the columns."""
        if self.where is not None:
            rows = rows.take(_true_positions(rows, self._predicate(self.where, fields)))
        for order in reversed(self.order):
            keys = as_spark(rows.select([order.column])).column(0)
            rows = rows.take(_sorted_indices(keys, order))
        rows = rows.slice(self.offset, self.limit)
        outputs = self._outputs([field.name for field in fields])
        return pa.Table.from_arrays(
            [rows[output.column] for output in outputs], names=[output.name for output in outputs]
        )

    def check(self, fields: Sequence[NestedField]) -> tuple[NestedField, ...]:
        """The columns of the answer, for rows with these columns.

        Raises NotIndexableError for what would mean something else to Spark, FilterError for a condition that does not
        fit the columns.
        """
        require_distinct_names(self.columns(), [field.name for field in fields])
        if self.where is not None:
            self.where.require_as_in_spark({name: _field(name, fields).field_type for name in self.where.columns})
            self._predicate(self.where, fields)
        for order in self.order:
            comparable_type(_field(order.column, fields).field_type)
        outputs = self._outputs([field.name for field in fields])
        return tuple(named_field(output.name, _field(output.column, fields).field_type) for output in outputs)

    def _predicate(self, where: RowFilter, fields: Sequence[NestedField]) -> RowPredicate:
        schema = Schema(*(_field(name, fields) for name in sorted(where.columns)))
        return RowPredicate(where.expression, assign_fresh_schema_ids(schema))  # columns of one id may have two names

    def _outputs(self, names: Sequence[str]) -> tuple[Output, ...]:
        """Raises NotIndexableError where a name that SELECT gives is one of `*`, too: it would be ambiguous."""
        expanded = expand_star(self.outputs, [name for name in names if name != DISTANCE])
        given = [output.name.lower() for output in expanded]
        stars = self.outputs is None or any(output.is_star for output in self.outputs)
        if stars and self.order and len(set(given)) < len(given):
            raise NotIndexableError("several columns of its answer have the same name")
        return expanded


def named_field(name: str, field_type: IcebergType) -> NestedField:
    """A column of rows that were found. Its id means nothing."""
    return NestedField(0, name, field_type, required=False)


def _field(name: str, fields: Sequence[NestedField]) -> NestedField:
    named = [field for field in fields if field.name == name]
    if len(named) != 1:
        columns = ", ".join(field.name for field in fields).replace(DISTANCE, "distance")
        problem = "there are several columns" if named else "there is no column"
        raise NotIndexableError(f"{problem} {name!r}; there are: {columns}")
    return named[0]


def _true_positions(rows: pa.Table, predicate: RowPredicate) -> pa.Array:
    """Positions of the rows for which a condition is true."""
    found, start = [np.empty(0, np.int64)], 0
    for batch in rows.to_batches():
        found.append(predicate.satisfied(batch, np.arange(start, start + batch.num_rows)))
        start += batch.num_rows
    return pa.array(np.concatenate(found))


def require_distinct_names(columns: Iterable[str], names: Sequence[str]) -> None:
    """Raises NotIndexableError for a column beside which another one has its name in other letters: to Spark, the name
    is ambiguous.
    """
    counts = Counter(name.lower() for name in set(names))
    if ambiguous := sorted(name for name in columns if counts[name.lower()] > 1):
        raise NotIndexableError(f"several columns have the name {ambiguous[0]}, in small letters or large ones")


def _sorted_indices(keys: pa.ChunkedArray, order: Order) -> pa.Array:
    """Stable: keys are applied from the last to the first. As Spark has it, NaN is larger than every number."""
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    indices = pc.sort_indices(keys, sort_keys=[("", "descending" if order.descending else "ascending")])
    sorted_ = keys.take(indices)
    rank = np.ones(len(sorted_), np.int8)
    if pa.types.is_floating(sorted_.type):
        nan = pc.fill_null(pc.is_nan(sorted_), fill_value=False)
        rank[np.asarray(nan)] = 0 if order.descending else 2
    rank[np.asarray(pc.is_null(sorted_))] = -1 if order.nulls_first else 3
    return indices.take(pa.array(np.argsort(rank, kind="stable")))


def expand_star(outputs: Sequence[Output] | None, names: Sequence[str]) -> tuple[Output, ...]:
    """Outputs with `*` replaced by the columns of the table."""
    requested = (STAR,) if outputs is None else outputs
    return tuple(
        item
        for output in requested
        for item in ([Output(name, name) for name in names] if output.is_star else [output])
    )
