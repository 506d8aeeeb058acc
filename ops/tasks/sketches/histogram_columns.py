"""From an Arrow column to a KLL sketch, by the column's Iceberg type."""

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks
from icepuffin.ops.tasks.sketches.sketch_types import HISTOGRAM_TYPES, SketchTypeError, type_name_of


def update_histogram(accumulator: KllAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch of `HISTOGRAM_TYPES[type name]`; nulls and NaNs are left out.

    A date is its days since 1970, a decimal the double next to it. `array` as in `canonical_chunks`. Raises
    SketchTypeError for other types and data.
    """
    type_name = type_name_of(iceberg_type)
    if type_name not in HISTOGRAM_TYPES:
        raise SketchTypeError(f"no histogram is defined for type {iceberg_type}, only for {', '.join(HISTOGRAM_TYPES)}")
    for chunk in canonical_chunks(array, iceberg_type):
        present = chunk.drop_null()
        if type_name == "date":
            present = present.view(pa.int32())
        elif type_name == "decimal":
            present = present.cast(pa.float64())
        values = present.to_numpy().astype(HISTOGRAM_TYPES[type_name], copy=False)
        is_nan = np.isnan(values)
        accumulator.update(values[~is_nan] if is_nan.any() else values)
