"""Arguments of a search, checked before anything is read: query vectors, numbers, distances, conditions, columns."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.distances.distance import prepare_exact
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.messages import plural
from icepuffin.ops.rows.element_types import OF_BITS, OF_COLUMN
from icepuffin.ops.rows.vector_column import VectorColumnError, element_type_of, exact_vectors
from icepuffin.ops.search.errors import QueryError, UnknownColumnError

Condition = str | BooleanExpression
Conditions = Condition | Sequence[Condition | None] | None
"""A condition of all queries, or one per query"""


def prepare_queries(
    queries: npt.ArrayLike | bytes | Sequence[bytes],
    metric: Metric,
    dims: int | None,
    element_type: str = OF_COLUMN,
) -> F64:
    """Queries [D] or [Q, D] of any real type, or an Arrow column of lists -> f64[Q, D], as kernels take them.

    With an `element_type` also bytes as the column has them: one value, several, or an Arrow column; of bits also
    u8 [D / 8] or [Q, D / 8], packed as by `numpy.packbits`, and under hamming bool [D] or [Q, D].

    Raises QueryError.
    """
    try:
        array = _array_of(queries, dims, element_type)
    except ValueError as error:
        raise QueryError(f"the queries are not vectors of one length: {error}") from error
    except VectorColumnError as error:
        raise QueryError(f"the queries cannot be run: {error}") from error
    if isinstance(queries, np.ndarray) and type(queries) is not np.ndarray and np.ma.is_masked(queries):
        raise QueryError("queries are a masked array, some of whose numbers are masked: give a number for each")
    if array.dtype.kind == "b" and metric is Metric.HAMMING:
        array = array.astype(np.uint8)
    if array.dtype.kind not in "fiu":
        kind = {"U": "text", "S": "bytes", "b": "true or false", "M": "times"}.get(array.dtype.kind, "Python objects")
        raise QueryError(f"queries are {kind}, not numbers: an array [queries, dimensions], or Arrow lists")
    try:
        vectors = prepare_exact(array, metric)
    except KernelError as error:
        raise QueryError(f"the query cannot be run: {error}") from error
    if metric is Metric.HAMMING and not ((vectors == 0) | (vectors == 1)).all():
        raise QueryError("under hamming a query is numbers that are 0 or 1, or their bits packed, as u8 or bytes")
    if dims is not None and vectors.shape[1] != dims:
        raise QueryError(f"the query has {plural(vectors.shape[1], 'dimension')}, the index has {dims}")
    return vectors


def _array_of(queries: Any, dims: int | None, element_type: str) -> npt.NDArray[Any]:
    """Queries as an array [Q, D], whatever its type. Raises ValueError, VectorColumnError."""
    if type(queries) is np.ndarray and element_type == OF_COLUMN:
        return np.atleast_2d(queries)
    lists = isinstance(queries, pa.Array | pa.ChunkedArray) and pa.types.is_nested(queries.type)
    column = queries if lists else _column_of_bytes(queries, element_type)
    if column is None:
        return np.atleast_2d(np.asarray(queries))
    return exact_vectors(column, None if len(column) else dims, OF_COLUMN if lists else element_type)


BYTES = bytes | bytearray | memoryview
"""Types of a query that is bytes"""


def _column_of_bytes(queries: Any, element_type: str) -> pa.Array | pa.ChunkedArray | None:
    """Queries that are bytes, as an Arrow column; None where they are none, or the column holds no bytes."""
    if element_type == OF_COLUMN:
        return None
    if isinstance(queries, pa.Array | pa.ChunkedArray):
        return queries
    if element_type == OF_BITS and isinstance(queries, np.ndarray) and queries.dtype == np.uint8 and queries.ndim <= 2:
        return pa.array([row.tobytes() for row in np.atleast_2d(queries)], pa.large_binary())
    values = [queries] if isinstance(queries, BYTES) else queries
    if isinstance(values, list | tuple) and values and all(isinstance(value, BYTES) for value in values):
        return pa.array(map(bytes, values), pa.large_binary())
    return None


def require_at_least_one(**numbers: int | None) -> None:
    """Raises QueryError for a value that is under 1 or not a whole number. Only `k` must not be None."""
    for name, value in numbers.items():
        if value is None and name != "k":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise QueryError(f"{name} is {value!r}; it is a whole number")
        if value < 1:
            raise QueryError(f"{name} is {value}; ask for at least 1")


def checked_distance(distance: float) -> float:
    """The distance as a float. Raises QueryError for NaN, for values that are not numbers, and for larger numbers."""
    try:
        value = float(distance)
    except (TypeError, ValueError) as error:
        raise QueryError(f"the distance is {distance!r}, not a number") from error
    except OverflowError as error:
        raise QueryError("the distance is a whole number over 1.8e308; write inf for all rows") from error
    if math.isnan(value):
        raise QueryError("the distance is NaN: no row is nearer than that, and none is farther")
    return value


def field_ids(schema: Schema, columns: Sequence[str] | None, table: str) -> list[int]:
    """Field ids of the columns to return; None means all but nested ones and vectors.

    Raises UnknownColumnError, QueryError.
    """
    if isinstance(columns, str):
        raise QueryError(f"columns is the text {columns!r}; it must be a list of names, such as [{columns!r}]")
    if columns is None:
        return [
            field.field_id
            for field in schema.fields
            if field.field_type.is_primitive and element_type_of(schema, field.field_id) == OF_COLUMN
        ]
    by_name = {field.name: field.field_id for field in schema.fields}
    if unknown := [name for name in columns if name not in by_name]:
        raise UnknownColumnError(f"{table} has no column {unknown[0]!r} in this snapshot; it has {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(columns)]


def conditions_of(where: object, queries: int) -> list[Condition | None] | None:
    """The condition of each of so many queries; None where one condition, or none, is for all queries.

    Raises QueryError where there are more or fewer conditions than queries.
    """
    if where is None or isinstance(where, str | BooleanExpression) or not isinstance(where, Iterable):
        return None
    conditions = list(where)
    if len(conditions) != queries:
        raise QueryError(
            f"where has {plural(len(conditions), 'condition')} for {plural(queries, 'query')}: it takes one condition "
            "for all queries, or one per query, None for a query without one"
        )
    return conditions


def groups_of(conditions: Sequence[Condition | None], numbers: Sequence[int]) -> list[tuple[Condition | None, I64]]:
    """The distinct conditions of the queries with some numbers, each with the numbers int64[n] of its queries. Raises
    FilterError.
    """
    groups: dict[str, tuple[Condition | None, list[int]]] = {}
    for number in numbers:
        condition = conditions[number]
        groups.setdefault(condition_key(condition), (condition, []))[1].append(number)
    return [(condition, np.array(members, np.int64)) for condition, members in groups.values()]
