"""What a query does with the nearest rows: filter, order, limit, project."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.expressions import DISTANCE, condition, evaluate, typed
from icepuffin.ops.sql.values import Node


@dataclass(frozen=True, slots=True)
class Output:
    """One column of an answer."""

    column: str | None
    """Column of the incoming rows; None for the distance or an expression"""
    name: str
    expression: Node | None = None

    @property
    def is_star(self) -> bool:
        """Whether it stands for every column: one that is called `*` is a column as any other."""
        return isinstance(self.expression, exp.Star)

    @property
    def node(self) -> Node:
        if self.expression is not None:
            return self.expression
        return exp.column(DISTANCE if self.column is None else self.column)


STAR = Output(None, "*", exp.Star())


@dataclass(frozen=True, slots=True)
class Order:
    """One key of an ORDER BY."""

    key: Node
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class PostprocessingStep:
    """SELECT outputs ... WHERE ... ORDER BY ... LIMIT ... OFFSET, over given rows."""

    outputs: tuple[Output, ...] | None
    """Output columns; None for every column (`*`)"""
    where: Node | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    def columns(self) -> frozenset[str]:
        """Names that its expressions read, the distance left out."""
        nodes = [output.expression for output in self.outputs or () if output.expression is not None]
        nodes += [order.key for order in self.order] + ([] if self.where is None else [self.where])
        read = {column.name for node in nodes for column in node.find_all(exp.Column)} - {DISTANCE}
        return frozenset(read.union(output.column for output in self.outputs or () if output.column is not None))

    def apply(self, rows: pa.Table) -> pa.Table:
        """Raises SqlError for an expression that has no value."""
        if self.where is not None:
            rows = rows.filter(evaluate(self.where, rows).cast(pa.bool_()))
        for order in reversed(self.order):
            rows = rows.take(_places(evaluate(order.key, rows), order))
        rows = rows.slice(self.offset, self.limit)
        outputs = self._outputs(rows.schema)
        arrays = [
            rows[output.column or DISTANCE] if output.expression is None else evaluate(output.expression, rows)
            for output in outputs
        ]
        return pa.Table.from_arrays(arrays, names=[output.name for output in outputs])

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the answer, for rows with these columns. Raises NotIndexableError for what is not computed."""
        require_distinct_names(self.columns(), schema.names)
        if self.where is not None:
            condition(self.where, schema)
        for order in self.order:
            typed(order.key, schema)
        fields = []
        for output in self._outputs(schema):
            plain = output.expression is None and output.column and schema.names.count(output.column) == 1
            sql_type = schema.field(output.column).type if plain else typed(output.node, schema).sql_type
            fields.append(pa.field(output.name, sql_type))
        return pa.schema(fields)

    def _outputs(self, schema: pa.Schema) -> tuple[Output, ...]:
        """Raises NotIndexableError where a name that SELECT gives is one of `*`, too: it would be ambiguous."""
        expanded = expand_star(self.outputs, [name for name in schema.names if name != DISTANCE])
        names = [output.name.lower() for output in expanded]
        stars = self.outputs is None or any(output.is_star for output in self.outputs)
        if stars and self.order and len(set(names)) < len(names):
            raise NotIndexableError("several columns of its answer have the same name")
        return expanded


def require_distinct_names(columns: Iterable[str], names: Sequence[str]) -> None:
    """Raises NotIndexableError for a column beside which another one has its name in other letters: to Spark, the name
    is ambiguous.
    """
    counts = Counter(name.lower() for name in set(names))
    if ambiguous := sorted(name for name in columns if counts[name.lower()] > 1):
        raise NotIndexableError(f"several columns have the name {ambiguous[0]}, in small letters or large ones")


def _places(keys: pa.Array, order: Order) -> pa.Array:
    """Stable: keys are applied from the last to the first. As Spark has it, NaN is larger than every number."""
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    places = pc.sort_indices(keys, sort_keys=[("", "descending" if order.descending else "ascending")])
    sorted_ = keys.take(places)
    rank = np.ones(len(sorted_), np.int8)
    if pa.types.is_floating(sorted_.type):
        nan = pc.fill_null(pc.is_nan(sorted_), fill_value=False)
        rank[np.asarray(nan)] = 0 if order.descending else 2
    rank[np.asarray(pc.is_null(sorted_))] = -1 if order.nulls_first else 3
    return places.take(pa.array(np.argsort(rank, kind="stable")))


def expand_star(outputs: Sequence[Output] | None, names: Sequence[str]) -> tuple[Output, ...]:
    """Outputs with `*` replaced by the columns of the table."""
    requested = (STAR,) if outputs is None else outputs
    return tuple(
        item
        for output in requested
        for item in ([Output(name, name) for name in names] if output.is_star else [output])
    )
