"""From several Arrow columns to a theta sketch of their rows: of the tuples that GROUP BY makes groups of.

Nulls are values, as GROUP BY has them, and a row of nulls alone is a group. As in the sketch of one column, floats are
told apart by their bits; unlike there, an empty text counts. Values are hashed in their widest form (integers, booleans
and dates as long, float as double, decimals as 16 bytes), so that a promotion of a type changes no hash.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ann_kernels.sketches.tuple_hashes import fold_bytes, fold_words
from icepuffin.ops.tasks.sketches.canonical_columns import (
    BYTE_STRINGS,
    STORED,
    byte_strings,
    canonical_chunks,
    stored_values,
)
from icepuffin.ops.tasks.sketches.sketch_types import SketchTypeError, type_name_of
from icepuffin.ops.tasks.sketches.statistic import Kind


def update_joint(
    accumulator: ThetaAccumulator, arrays: Sequence[pa.Array | pa.ChunkedArray], iceberg_types: Sequence[str]
) -> None:
    """Add the rows of columns of one length, in a fixed order, to a sketch of 64-bit hashes of rows.

    Each array as in `canonical_chunks`. Raises SketchTypeError for types without a theta sketch, and for data of
    another type or length.
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
