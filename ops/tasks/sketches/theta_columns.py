"""From an Arrow column to a theta sketch, by the column's Iceberg type, without a Python object per value.

A value is hashed as its Iceberg single-value serialisation ("Appendix D" of the table spec), read straight from
Arrow's buffers. Floats are hashed as they are stored, as Iceberg's own statistics do: 0.0 and -0.0 are two values, and
so are two NaNs of different bits. Nulls and empty strings do not count.
"""

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import (
    BYTE_STRINGS,
    STORED,
    byte_strings,
    canonical_chunks,
    stored_values,
)
from icepuffin.ops.tasks.sketches.sketch_types import type_name_of
from icepuffin.ops.tasks.sketches.statistic import Kind


def update_from_arrow(accumulator: ThetaAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch.

    `array` and `iceberg_type` as in `canonical_chunks`, and so are errors.
    """
    type_name = type_name_of(iceberg_type)
    for chunk in canonical_chunks(array, iceberg_type, Kind.NDV, distinct=True):
        validity = (np.frombuffer(chunk.buffers()[0], np.uint8), chunk.offset) if chunk.null_count else (None, 0)
        if type_name == "boolean":
            accumulator.update_fixed(chunk.unique().drop_null().cast(pa.uint8()).to_numpy())
        elif type_name == "decimal":
            accumulator.update_decimals(stored_values(chunk, "<u8", 2).reshape(-1, 2), *validity)
        elif type_name in BYTE_STRINGS:
            accumulator.update_bytes(*byte_strings(chunk), *validity)
        else:
            accumulator.update_fixed(stored_values(chunk, STORED.get(type_name, "<i8")), *validity)
