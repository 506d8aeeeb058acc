"""From Arrow columns to sketches, by their Iceberg types, without a Python object per value.

A value is hashed as its Iceberg single-value serialisation ("Appendix D" of the table spec), read straight from
Arrow's buffers. Floats are hashed as they are stored, as Iceberg's own statistics do: 0.0 and -0.0 are two values, and
so are two NaNs of different bits. Nulls and empty strings do not count.

Rows of several columns are the tuples that GROUP BY makes groups of: nulls and empty strings are values, and a row of
nulls alone is a group. Their values are hashed in their widest form (integers, booleans and dates as long, float as
double, decimals as 16 bytes), so that a promotion of a type changes no hash.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.sketches.hashing import fold_bytes, fold_words
from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import (
    BYTE_STRINGS,
    STORED,
    byte_strings,
    canonical_chunks,
    stored_values,
)
from icepuffin.ops.tasks.sketches.sketch_types import HISTOGRAM_TYPES, SketchTypeError, type_name_of
from icepuffin.ops.tasks.sketches.statistic import Kind

_MAX_EXACT_DIGITS = 15
"""Digits of the decimals whose unscaled values are doubles, so that one division rounds once"""


def update_ndv(accumulator: ThetaAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
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


def update_histogram(accumulator: KllAccumulator, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
    """Add a column's values to a sketch of `HISTOGRAM_TYPES[type name]`; nulls and NaNs are left out.

    A date is its days since 1970, a decimal the double next to it. `array` and errors as in `canonical_chunks`.
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


def update_joint(
    accumulator: ThetaAccumulator, arrays: Sequence[pa.Array | pa.ChunkedArray], iceberg_types: Sequence[str]
) -> None:
    """Add the rows of columns of one length, in a fixed order, to a sketch of 64-bit hashes of rows.

    Each array, and errors, as in `canonical_chunks`; SketchTypeError, too, for columns of several lengths.
    """
    hashes = np.zeros(len(arrays[0]), np.uint64)
    for array, iceberg_type in zip(arrays, iceberg_types, strict=True):
        if len(array) != len(hashes):
            raise SketchTypeError(f"columns of a joint sketch have {len(hashes)} rows and {len(array)} rows")
        start = 0
        for chunk in canonical_chunks(array, iceberg_type, Kind.JOINT):
            _fold(hashes[start : start + len(chunk)], chunk, type_name_of(iceberg_type))
            start += len(chunk)
    accumulator.update_fixed(hashes)


def _fold(hashes: npt.NDArray[np.uint64], chunk: pa.Array, type_name: str) -> None:
    present = chunk.is_valid().to_numpy(zero_copy_only=False) if chunk.null_count else None
    if type_name in BYTE_STRINGS or type_name == "decimal":
        fold_bytes(hashes, *byte_strings(chunk), present)
        return
    stored = chunk.cast(pa.int64()) if type_name == "boolean" else chunk
    values = stored_values(stored, STORED.get(type_name, "<i8"))
    fold_words(hashes, values.astype("<f8" if values.dtype.kind == "f" else "<i8", copy=False).view("<u8"), present)
