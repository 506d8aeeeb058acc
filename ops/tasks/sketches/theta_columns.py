"""From an Arrow column to a theta sketch, by the column's Iceberg type, without a Python object per value.

A value is hashed as its Iceberg single-value serialisation ("Appendix D" of the table spec), read straight from
Arrow's buffers. Floats are hashed as they are stored, as Iceberg's own statistics do: 0.0 and -0.0 are two values, and
so are two NaNs of different bits. Nulls and empty strings do not count.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import byte_strings, canonical_chunks, stored_values
from icepuffin.ops.tasks.sketches.sketch_types import SketchTypeError, type_name_of


def update_from_arrow(accumulator: ThetaAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch.

    `array` may be sliced, dictionary-encoded, chunked, and of any Arrow type that casts without loss to the one of
    `iceberg_type` (its text form, such as "decimal(9, 2)"). Raises SketchTypeError where it does not.
    """
    update = _UPDATES.get(type_name_of(iceberg_type))
    if update is None:
        raise SketchTypeError(f"no theta sketch is defined for type {iceberg_type}; leave the column out")
    for chunk in canonical_chunks(array, iceberg_type, distinct=True):
        update(accumulator, chunk)


def _validity(array: pa.Array) -> tuple[npt.NDArray[np.uint8] | None, int]:
    bitmap = array.buffers()[0]
    if array.null_count == 0:
        return None, 0
    return np.frombuffer(bitmap, np.uint8), array.offset


def _update_numbers(dtype: str) -> Callable[[ThetaAccumulator, pa.Array], None]:
    def update(accumulator: ThetaAccumulator, array: pa.Array) -> None:
        accumulator.update_fixed(stored_values(array, dtype), *_validity(array))

    return update


def _update_booleans(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    accumulator.update_fixed(array.unique().drop_null().cast(pa.uint8()).to_numpy())


def _update_decimals(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    accumulator.update_decimals(stored_values(array, "<u8", 2).reshape(-1, 2), *_validity(array))


def _update_bytes(accumulator: ThetaAccumulator, array: pa.Array) -> None:
    accumulator.update_bytes(*byte_strings(array), *_validity(array))


_UPDATES: dict[str, Callable[[ThetaAccumulator, pa.Array], None]] = {
    "boolean": _update_booleans,
    **dict.fromkeys(("int", "date"), _update_numbers("<i4")),
    **dict.fromkeys(
        ("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _update_numbers("<i8")
    ),
    "float": _update_numbers("<f4"),
    "double": _update_numbers("<f8"),
    "string": _update_bytes,
    "binary": _update_bytes,
    "fixed": _update_bytes,
    "uuid": _update_bytes,
    "decimal": _update_decimals,
}
