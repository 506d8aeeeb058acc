"""From an Arrow column to a theta sketch, by the column's Iceberg type, without a Python object per value.

A value is hashed as its Iceberg single-value serialisation ("Appendix D" of the table spec), read straight from
Arrow's buffers. Floats are hashed as they are stored, as Iceberg's own statistics do: 0.0 and -0.0 are two values, and
so are two NaNs of different bits. Nulls and empty strings do not count.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.sketch_types import ARROW_TYPES, SketchTypeError, type_name_of

_SMALL = {"string": pa.string(), "binary": pa.binary()}


def update_from_arrow(accumulator: ThetaAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch.

    `array` may be sliced, dictionary-encoded, chunked, and of any Arrow type that casts without loss to the one of
    `iceberg_type` (its text form, such as "decimal(9, 2)"). Raises SketchTypeError where it does not.
    """
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            update_from_arrow(accumulator, chunk, iceberg_type)
        return
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary.take(array.indices.unique().drop_null())
    type_name = type_name_of(iceberg_type)
    update = _UPDATES.get(type_name)
    if update is None:
        raise SketchTypeError(f"no theta sketch is defined for type {iceberg_type}; leave the column out")
    if len(array):
        update(accumulator, _canonical(array, type_name, iceberg_type))


def _canonical(array: pa.Array, type_name: str, iceberg_type: str) -> pa.Array:
    """The array as the Arrow type whose buffers the kernels read."""
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


def _validity(array: pa.Array) -> tuple[npt.NDArray[np.uint8] | None, int]:
    bitmap = array.buffers()[0]
    if array.null_count == 0:
        return None, 0
    return np.frombuffer(bitmap, np.uint8), array.offset


def _values(array: pa.Array, dtype: str, width: int = 1) -> npt.NDArray[Any]:
    """The array's own part of its value buffer, `width` items a value."""
    values = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset * width : (array.offset + len(array)) * width]


def _update_numbers(dtype: str) -> Callable[[ThetaAccumulator, pa.Array], None]:
    def update(accumulator: ThetaAccumulator, array: pa.Array) -> None:
        accumulator.update_fixed(_values(array, dtype), *_validity(array))

    return update


def _update_booleans(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    accumulator.update_fixed(array.unique().drop_null().cast(pa.uint8()).to_numpy())


def _update_decimals(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    accumulator.update_decimals(_values(array, "<u8", 2).reshape(-1, 2), *_validity(array))


def _update_fixed_bytes(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    width = array.type.byte_width
    offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    data = array.buffers()[1]
    accumulator.update_bytes(offsets, np.frombuffer(data, np.uint8), *_validity(array))


def _update_strings(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    data = array.buffers()[2]
    octets = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    accumulator.update_bytes(offsets[array.offset : array.offset + len(array) + 1], octets, *_validity(array))


_UPDATES: dict[str, Callable[[ThetaAccumulator, pa.Array], None]] = {
    "boolean": _update_booleans,
    **dict.fromkeys(("int", "date"), _update_numbers("<i4")),
    **dict.fromkeys(
        ("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _update_numbers("<i8")
    ),
    "float": _update_numbers("<f4"),
    "double": _update_numbers("<f8"),
    "string": _update_strings,
    "binary": _update_strings,
    "fixed": _update_fixed_bytes,
    "uuid": _update_fixed_bytes,
    "decimal": _update_decimals,
}
