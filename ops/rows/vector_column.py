"""Vectors of a column of Arrow: lists of numbers, or bytes in which the numbers lie one after the other.

Executors import this: no dagster, no pyspark.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import PrivateAttr
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType

from icepuffin.ops.errors import TableStateError
from icepuffin.ops.messages import plural
from icepuffin.ops.rows.element_types import ELEMENT_BITS, OF_BITS, OF_COLUMN

LARGEST_INTEGER = 1 << 24
"""Largest absolute value of integers that each have an f32 of the same value"""
_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "f32": np.dtype("<f4"),
        "f16": np.dtype("<f2"),
        "i8": np.dtype("i1"),
        "u8": np.dtype("u1"),
        OF_BITS: np.dtype("u1"),
    }
)


class VectorColumnError(TableStateError):
    """Raised when a column's values are no vectors of one dimension; the message names the first bad row."""

    retryable = False

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason if row is None else f"row {row} {reason}")
        self.reason = reason
        self.row = row
        """Row of the column that is at fault; None where the cause is not a single row"""


class InexactVectorError(VectorColumnError):
    """Raised for a vector of integers that floats do not hold. It has distances, so no scan may leave it out."""


class VectorSchema(Schema):
    """A table's schema that also says what the bytes of a vector column are.

    It is a schema like any other; what is selected from it is a plain one.
    """

    _element_types: dict[int, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def with_element_type(cls, schema: Schema, field_id: int, element_type: str) -> Schema:
        """The schema, in which the vectors of field `field_id` have this element type."""
        if element_type == OF_COLUMN:
            return schema
        new = cls(*schema.fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)
        new._element_types = {field_id: element_type}
        return new

    def element_type(self, field_id: int) -> str:
        """The element type of a column of vectors; `OF_COLUMN` for lists."""
        return self._element_types.get(field_id, OF_COLUMN)

    def __repr__(self) -> str:
        return f"Vector{super().__repr__()} of {self._element_types}"


def element_type_of(schema: Schema, field_id: int) -> str:
    """The element type of a column of vectors; `OF_COLUMN` for lists."""
    return schema.element_type(field_id) if isinstance(schema, VectorSchema) else OF_COLUMN


def holds_doubles(schema: Schema, field_id: int) -> bool:
    """Whether the column's vectors are of doubles, which f32 cannot hold exactly."""
    field_type = schema.find_type(field_id)
    return isinstance(field_type, ListType) and isinstance(field_type.element_type, DoubleType)


def exact_vectors(
    column: pa.Array | pa.ChunkedArray, dims: int | None = None, element_type: str = OF_COLUMN
) -> npt.NDArray[Any]:
    """A column of vectors as it is: [N, D] of f64 where it holds doubles, else of f32.

    Takes lists, large lists and fixed-size lists of half, float, double or integers up to `LARGEST_INTEGER`. With an
    `element_type` it takes bytes, of one length or each with its own: the elements, little-endian, without a gap; of
    bits, 0 or 1, eight per byte.

    Raises VectorColumnError for another type, a null vector, a null element, a larger integer, bytes that end inside of
    an element, or a length that is not `dims` (without it: not the first vector's). NaN and infinity are left to the
    kernels.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # several chunks too large for one array
        return np.concatenate([exact_vectors(chunk, dims, element_type) for chunk in array.chunks])
    of_bytes = element_type != OF_COLUMN
    if not (_is_bytes(array.type) if of_bytes else _is_list_of_numbers(array.type)):
        kind = f"of {element_type} elements holds bytes" if of_bytes else "is a list of numbers"
        raise VectorColumnError(f"a vector column {kind}, this one is {array.type}")
    if array.null_count:
        raise VectorColumnError("has no vector (null)", _first(array.is_null()))
    return _of_bytes(array, dims, element_type) if of_bytes else _of_lists(array, dims)


def vector_lengths(column: pa.Array, element_type: str) -> pa.Array:
    """Elements of each vector, those of bytes rounded down."""
    if element_type == OF_COLUMN:
        return pc.list_value_length(column)
    return pc.divide(pc.multiply(pc.binary_length(column), 8), ELEMENT_BITS[element_type])


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _of_lists(array: pa.Array, dims: int | None) -> npt.NDArray[Any]:
    width = _common_length(pc.list_value_length(array), dims)
    values = array.flatten()
    if values.null_count:
        raise VectorColumnError("has a null element in its vector", _first(values.is_null()) // max(1, width))
    flat = values.to_numpy(zero_copy_only=False)
    if np.issubdtype(flat.dtype, np.integer):
        _require_exact(flat, width)
    dtype = np.float64 if flat.dtype == np.float64 else np.float32
    return np.ascontiguousarray(flat, dtype=dtype).reshape(len(array), width)


def _of_bytes(array: pa.Array, dims: int | None, element_type: str) -> npt.NDArray[np.float32]:
    bits = ELEMENT_BITS[element_type]
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False)
    if (spare := 8 * lengths % bits).any():
        row = int(np.argmax(spare > 0))
        raise VectorColumnError(
            f"has {plural(int(lengths[row]), 'byte')}, no whole number of {element_type} elements", row
        )
    width = _common_length(vector_lengths(array, element_type), dims)
    flat = array.cast(pa.large_binary())
    first, last = np.frombuffer(flat.buffers()[1], np.int64)[[flat.offset, flat.offset + len(flat)]]
    content = flat.buffers()[2]
    octets = np.frombuffer(b"" if content is None else content, np.uint8)[first:last]
    rows = octets.reshape(len(array), width * bits // 8).view(_DTYPES[element_type])
    return (np.unpackbits(rows, axis=1) if element_type == OF_BITS else rows).astype(np.float32)


def _common_length(lengths: pa.Array, dims: int | None) -> int:
    """The length of all vectors. Raises VectorColumnError naming the first one of another."""
    width = dims if dims is not None else (lengths[0].as_py() if len(lengths) else 0)
    bad = pc.not_equal(lengths, width)
    if pc.any(bad).as_py():
        row = _first(bad)
        raise VectorColumnError(f"has a vector of {plural(lengths[row].as_py(), 'dimension')}, not {width}", row)
    return int(width)


def _require_exact(flat: npt.NDArray[Any], width: int) -> None:
    """Raises InexactVectorError naming the first vector with an integer that a float may not hold."""
    beyond = (flat > LARGEST_INTEGER) | (flat < -LARGEST_INTEGER)  # no abs: the smallest integer has none
    if beyond.any():
        index = int(np.argmax(beyond))
        reason = f"holds {flat[index]} in its vector, and floats are exact up to 2^24; mend or delete the row"
        raise InexactVectorError(reason, index // width)


def _first(mask: pa.BooleanArray) -> int:
    return int(pc.index(mask, pa.scalar(value=True)).as_py())
