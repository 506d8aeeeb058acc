"""From an Arrow column, however it is held, to arrays of the Arrow type whose buffers the sketches read."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ops.tasks.sketches.sketch_types import ARROW_TYPES, SketchTypeError, type_name_of
from icepuffin.ops.tasks.sketches.statistic import TYPES, Kind

STORED = {"int": "<i4", "date": "<i4", "float": "<f4", "double": "<f8"}
"""Dtypes of the buffers of numbers, by type name, where they are not i64"""
BYTE_STRINGS = frozenset({"string", "binary", "uuid", "fixed"})
"""Names of the types whose values are read as bytes"""
_SMALL = {"string": pa.string(), "binary": pa.binary()}


def canonical_chunks(
    array: pa.Array | pa.ChunkedArray, iceberg_type: str, kind: Kind, *, distinct: bool = False
) -> Iterator[pa.Array]:
    """The chunks of a column that have rows, each as the Arrow type of its Iceberg type (such as "decimal(9, 2)").

    `array` may be sliced, dictionary-encoded, chunked, and of any Arrow type that casts without loss. distinct: of a
    dictionary only the values that rows use, each once. Raises SketchTypeError where the types differ, and for a type
    of which there are no statistics of this kind.
    """
    if type_name_of(iceberg_type) not in TYPES[kind]:
        raise SketchTypeError(f"type {iceberg_type} has no {kind}, only {', '.join(sorted(TYPES[kind]))}")
    for part in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        chunk = part.storage if isinstance(part, pa.ExtensionArray) else part
        if pa.types.is_dictionary(chunk.type):
            rows = chunk.indices.unique().drop_null() if distinct else chunk.indices
            chunk = chunk.dictionary.take(rows)
        if len(chunk):
            yield _canonical(chunk, iceberg_type)


def _canonical(array: pa.Array, iceberg_type: str) -> pa.Array:
    """The array as the Arrow type whose buffers the kernels read."""
    type_name = type_name_of(iceberg_type)
    canonical_type = ARROW_TYPES.get(type_name)
    if type_name == "decimal":
        precision, scale = (int(x) for x in iceberg_type[8:-1].split(","))
        if pa.types.is_decimal128(array.type) and array.type.scale == scale:
            return array
        canonical_type = pa.decimal128(precision, scale)
    elif type_name == "fixed":
        canonical_type = pa.binary(int(iceberg_type[6:-1]))
    if array.type == canonical_type or (type_name in _SMALL and array.type == _SMALL[type_name]):
        return array
    # readers cut nanoseconds off, as Spark wrote them (INT96) before there were tables
    from_nanos = (
        type_name in ("timestamp", "timestamptz") and pa.types.is_timestamp(array.type) and array.type.unit == "ns"
    )
    try:
        return array.cast(canonical_type, safe=not from_nanos)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"Arrow data of type {array.type} is not Iceberg's {iceberg_type}: {error}"
        raise SketchTypeError(message) from error


def stored_values(array: pa.Array, dtype: str, width: int = 1) -> npt.NDArray[Any]:
    """The array's own part of its value buffer, `width` items a value; where it is null, anything."""
    values = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset * width : (array.offset + len(array)) * width]


def byte_strings(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Offsets i32 or i64[N + 1] and data u8[] of texts, byte strings, or values of one width."""
    if pa.types.is_decimal(array.type) or pa.types.is_fixed_size_binary(array.type):
        starts = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return starts * array.type.byte_width, np.frombuffer(array.buffers()[1], np.uint8)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    data = array.buffers()[2]
    octets = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return offsets[array.offset : array.offset + len(array) + 1], octets
