"""Bytes of the values of a column of variable width, as Presto's `sum_data_size_for_stats` counts them."""

import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks
from icepuffin.ops.tasks.sketches.statistic import Kind


def data_size(array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> int:
    """Bytes of all values of a column, of texts in UTF-8; nulls have none.

    `array` as in `canonical_chunks`. Raises SketchTypeError for types of fixed width, and for other data.
    """
    chunks = canonical_chunks(array, iceberg_type, Kind.SIZE)
    return sum(pc.sum(pc.binary_length(chunk)).as_py() or 0 for chunk in chunks)
