"""Arguments of a search, checked before anything is read: query vectors, numbers, column names."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.distance import prepare_exact
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.datafile import VectorColumnError, exact_vectors
from icepuffin.ops.search.errors import QueryError, UnknownColumnError


def prepare_queries(queries: npt.ArrayLike, metric: Metric, dims: int | None) -> npt.NDArray[np.float64]:
    """Queries [D] or [Q, D] of any real type, or an Arrow column of lists -> f64[Q, D], as kernels take them.

    Raises QueryError.
    """
    try:
        lists = isinstance(queries, pa.Array | pa.ChunkedArray) and pa.types.is_nested(queries.type)
        array: npt.NDArray[Any] = exact_vectors(queries) if lists else np.atleast_2d(np.asarray(queries))
    except ValueError as error:
        raise QueryError(f"the queries are not vectors of one length: {error}") from error
    except VectorColumnError as error:
        raise QueryError(f"the queries cannot be asked: {error}") from error
    if array.dtype.kind not in "fiu":
        raise QueryError(f"queries are {array.dtype}, not numbers: an array [queries, dimensions], or Arrow lists")
    try:
        ready = prepare_exact(array, metric)
    except KernelError as error:
        raise QueryError(f"the query cannot be asked: {error}") from error
    if dims is not None and ready.shape[1] != dims:
        raise QueryError(f"the query has {ready.shape[1]} dimensions, the index has {dims}")
    return ready


def require_at_least_one(**numbers: int | None) -> None:
    """Raises QueryError for a number that is given and is under 1, or is none. k is always given."""
    for name, value in numbers.items():
        if value is None and name != "k":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise QueryError(f"{name} is {value!r}; it is a whole number")
        if value < 1:
            raise QueryError(f"{name} is {value}; ask for at least 1")


def checked_distance(distance: float) -> float:
    """Raises QueryError for NaN and for what is no number."""
    try:
        value = float(distance)
    except (TypeError, ValueError) as error:
        raise QueryError(f"the distance is {distance!r}, not a number") from error
    if math.isnan(value):
        raise QueryError("the distance is NaN: no row is nearer than that, and none is farther")
    return value


def field_ids(schema: Schema, columns: Sequence[str] | None, table: str) -> list[int]:
    """Field ids of the columns to return; None means all that are not nested. Raises UnknownColumnError, QueryError."""
    if isinstance(columns, str):
        raise QueryError(f"columns is the text {columns!r}; it must be a list of names, such as [{columns!r}]")
    if columns is None:
        return [field.field_id for field in schema.fields if field.field_type.is_primitive]
    by_name = {field.name: field.field_id for field in schema.fields}
    if unknown := [name for name in columns if name not in by_name]:
        raise UnknownColumnError(f"{table} has no column {unknown[0]!r} in this snapshot; it has {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(columns)]
