"""From an Arrow column to a KLL sketch, by the column's Iceberg type."""

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks, stored_values
from icepuffin.ops.tasks.sketches.sketch_types import HISTOGRAM_TYPES, type_name_of
from icepuffin.ops.tasks.sketches.statistic import Kind

_MAX_EXACT_DIGITS = 15
"""Digits of the decimals whose unscaled values are doubles, so that one division rounds once"""


def update_histogram(accumulator: KllAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch of `HISTOGRAM_TYPES[type name]`; nulls and NaNs are left out.

    A date is its days since 1970, a decimal the double next to it. `array` as in `canonical_chunks`.
    Raises SketchTypeError for other types and data.
    """
    type_name = type_name_of(iceberg_type)
    for chunk in canonical_chunks(array, iceberg_type, Kind.HISTOGRAM):
        present = chunk.drop_null()
        if type_name == "date":
            present = present.view(pa.int32())
        elif type_name == "decimal":
            present = _as_doubles(present)
        values = present.to_numpy().astype(HISTOGRAM_TYPES[type_name], copy=False)
        is_nan = np.isnan(values)
        accumulator.update(values[~is_nan] if is_nan.any() else values)


def _as_doubles(array: pa.Array) -> pa.Array:
    """The double next to each: Arrow's cast multiplies by a power of ten, and makes -9.950000000000001 of -9.95."""
    if array.type.precision > _MAX_EXACT_DIGITS:
        return array.cast(pa.string()).cast(pa.float64())
    return pa.array(stored_values(array, "<i8", 2)[::2] / 10.0**array.type.scale)
