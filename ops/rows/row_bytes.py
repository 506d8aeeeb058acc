"""Sizes of rows, one by one: rows of one table may differ by orders of magnitude.

Executors import this: no dagster, no pyspark.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ann_kernels.arrays import I64

_OFFSET_BYTES = 4


def row_bytes(rows: pa.Table) -> I64:
    """int64[n] bytes of each row in Arrow's arrays, without bitmaps."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        sizes += np.concatenate([np.zeros(0, np.int64), *map(_value_bytes, column.chunks)])
    return sizes


def _value_bytes(values: pa.Array) -> I64:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_struct(kind):
        return sum(map(_value_bytes, values.flatten()), np.zeros(len(values), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = np.concatenate([[0], np.cumsum(_value_bytes(values.values))])
        offsets = values.offsets.to_numpy()
        return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]] + _OFFSET_BYTES, np.int64)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    try:
        width = -(-kind.bit_width // 8)
    except ValueError:  # of texts and bytes
        return np.asarray(pc.fill_null(pc.binary_length(values), 0), np.int64) + _OFFSET_BYTES
    return np.full(len(values), width, np.int64)
