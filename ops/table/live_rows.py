"""Rows of a data file that are live in a snapshot, with their positions.

Executors import this: no dagster, no pyspark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ops.model import LiveFile
from icepuffin.ops.rows.datafile import BATCH_ROWS, DataFile
from icepuffin.ops.storage import Storage
from icepuffin.ops.table.row_deletes import deleted_positions

_ROWS_PER_PIECE = 32
"""Rows per deleted row from which those between are copied in one piece"""


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """A batch of live rows of one file."""

    positions: npt.NDArray[np.int64]
    """int64[n], absolute row positions in the file, ascending"""
    columns: pa.RecordBatch
    """n rows of the requested fields, under the snapshot's names and types"""


def read_live(
    storage: Storage,
    file: LiveFile,
    schema: Schema,
    field_ids: Sequence[int],
    *,
    batch_rows: int = BATCH_ROWS,
    deleted: npt.NDArray[np.int64] | None = None,
) -> Iterator[LiveBatch]:
    """Stream the live rows of a file, row group by row group; fields that it lacks are filled in as `conform` says.

    `schema` is the snapshot's. `deleted` are the deleted row positions, int64, ascending: a reader of many files reads
    them once, by `deleted_by_file`. Raises DataFileError, EqualityDeletesError.
    """
    if deleted is None:
        deleted = deleted_positions(storage, file)
    opened = DataFile(storage, file, schema, field_ids)
    start = 0
    for batch in opened.batches(batch_rows):
        positions = np.arange(start, start + batch.num_rows, dtype=np.int64)
        start += batch.num_rows
        first, last = np.searchsorted(deleted, (positions[0], positions[-1] + 1)) if len(positions) else (0, 0)
        rows = deleted[first:last] - positions[0] if first < last else deleted[:0]
        kept = _without(batch, rows)
        if kept.num_rows:
            yield LiveBatch(np.delete(positions, rows), opened.conform(kept))


def _without(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The batch without some rows, which ascend."""
    if not len(rows):
        return batch
    if len(rows) > batch.num_rows // _ROWS_PER_PIECE:
        keep = np.ones(batch.num_rows, bool)
        keep[rows] = False
        return batch.filter(pa.array(keep))
    bounds = zip([0, *(rows + 1).tolist()], [*rows.tolist(), batch.num_rows], strict=True)
    # a filter copies lists value by value; what lies between two rows is copied at once
    pieces = [batch.slice(start, end - start) for start, end in bounds]
    return pa.concat_batches(pieces)
