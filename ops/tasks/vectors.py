"""The vector column of data files, batch by batch, with errors that name the row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.errors import DimensionError, NonFiniteVectorError, ZeroVectorError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.sketches.hashing import content_hash
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.ops.rows.vector_column import VectorColumnError, element_type_of, exact_vectors
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import LiveBatch, read_live
from icepuffin.ops.table.row_deletes import deleted_by_file

Vectors = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
"""(row positions int64[n], vectors [n, dims] as the table has them: f64 where the column holds doubles, else f32)"""
_SMALLEST_FLOAT = float(np.finfo(np.float32).tiny)
"""Magnitude below which f32 holds fewer digits"""
_LONGEST_CODED = 9e18
"""Length up to which two vectors are so near that the square of their distance is a float"""


@dataclass(frozen=True, slots=True, eq=False)
class VectorColumn:
    """A column of vectors in the data files of a table, and how they are compared."""

    schema: Schema
    field_id: int
    dims: int
    metric: Metric
    storage: StorageConfig

    def vectors_at(self, vectors: pa.Array, positions: npt.NDArray[np.int64], file: LiveFile) -> npt.NDArray[Any]:
        """[n, D], as `vectors_at` gives them of a part of the column."""
        return vectors_at(vectors, positions, file, self.dims, element_type_of(self.schema, self.field_id))


class VectorFiles:
    """The vectors of some data files. Delete files that are about many of them are read once."""

    def __init__(self, files: Iterable[LiveFile], column: VectorColumn) -> None:
        self._column = column
        self._deleted = deleted_by_file(lambda path: open_storage(path, column.storage), files)
        self._without: dict[str, int] = {}

    @property
    def without_vector(self) -> int:
        """Live rows that have none, of the files that were read so far; each counts once."""
        return sum(self._without.values())

    def read(self, file: LiveFile) -> Iterator[Vectors]:
        """Batches of the live rows that have a vector, in order. Raises VectorColumnError naming file and row."""
        column, deleted = self._column, self._deleted[file.path]
        store = open_storage(file.path, column.storage)
        self._without[file.path] = 0
        for batch in read_live(store, file, column.schema, [column.field_id], deleted=deleted):
            positions, vectors = with_vector(batch)
            self._without[file.path] += len(batch.positions) - len(positions)
            if len(positions):
                yield positions, column.vectors_at(vectors, positions, file)


def with_vector(batch: LiveBatch) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """(positions int64[n], vectors) of a batch of one column, without the rows whose vector is null: those are near
    nothing, have no node, and are in no answer.
    """
    column = batch.columns.column(0)
    if not column.null_count:
        return batch.positions, column
    return batch.positions[np.asarray(column.is_valid())], column.drop_null()


def vectors_at(
    column: pa.Array,
    positions: npt.NDArray[np.int64],
    file: LiveFile,
    dims: int | None,
    element_type: str = OF_COLUMN,
) -> npt.NDArray[Any]:
    """[n, D], the vectors at positions int64[n] of a file, as they are: f64 where the column holds doubles, else f32.

    Raises VectorColumnError naming file and row.
    """
    try:
        return exact_vectors(column, dims, element_type)
    except VectorColumnError as error:
        where = "" if error.row is None else f"row {positions[error.row]} "
        raise type(error)(f"{file.path}: {where}{error.reason}") from error


def prepared(
    raw: npt.NDArray[Any], positions: npt.NDArray[np.int64], file: LiveFile, metric: Metric
) -> npt.NDArray[np.float32]:
    """Prepare vectors for a metric. Raises VectorColumnError naming file and row of a vector that cannot be indexed."""
    try:
        with np.errstate(over="ignore"):  # doubles past float's range become infinite, and are refused as such
            return prepare(raw, metric)
    except (NonFiniteVectorError, ZeroVectorError) as error:
        why = (
            "holds NaN or infinity (or more than a float can)"
            if isinstance(error, NonFiniteVectorError)
            else "is zero, under cosine (shorter than 1e-150)"
        )
        raise VectorColumnError(
            f"{file.path}: the vector of row {positions[error.row]} {why}; mend or delete the row"
        ) from error
    except DimensionError as error:
        raise VectorColumnError(f"{file.path}: {error}") from error


def content_hashes(vectors: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """u64[n], content hashes of vectors [n, D] as the table has them; see docs/formats.md for those of doubles.

    Doubles of a tiny vector would be few floats, or none but zero. So they are scaled first, and the scale is a value.
    """
    with np.errstate(over="ignore"):
        hashes = content_hash(np.ascontiguousarray(vectors, np.float32))
    if vectors.dtype == np.float64 and vectors.shape[1]:
        largest = np.maximum(vectors.max(axis=1), -vectors.min(axis=1))
        tiny = np.flatnonzero((largest < _SMALLEST_FLOAT) & (largest > 0))
        if len(tiny):
            exponents = np.frexp(largest[tiny])[1][:, None]
            scaled = np.concatenate([np.ldexp(vectors[tiny], -exponents), exponents], axis=1).astype(np.float32)
            hashes[tiny] = content_hash(scaled)
    return hashes


def require_half(vectors: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], file: LiveFile) -> None:
    """Raises VectorColumnError naming file and row of a prepared vector that half precision makes infinite."""
    with np.errstate(over="ignore"):
        kept = np.isfinite(vectors.astype(np.float16)).all(axis=1)
    if not kept.all():
        row = int(np.argmin(kept))
        raise VectorColumnError(
            f"{file.path}: the vector of row {positions[row]} holds {np.abs(vectors[row]).max():g}, and half "
            "precision ends at 65504; create the index with vectors = 'f32', or 'none'"
        )


def require_short(vectors: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], file: LiveFile) -> None:
    """Raises VectorColumnError naming file and row of a prepared vector that is too long for rotated codes.

    They hold the square of its distance from a mean of such vectors as a float.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    if (lengths > _LONGEST_CODED).any():
        row = int(np.argmax(lengths))
        raise VectorColumnError(
            f"{file.path}: the vector of row {positions[row]} is {lengths[row]:g} long, and rotated codes take lengths "
            f"up to {_LONGEST_CODED:g}; create the index with vectors = 'f32', or scale the column to about 1"
        )


def is_selected(positions: npt.NDArray[np.int64], selected: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool[n], which positions of a batch are among all that are selected of the file; both ascend."""
    first, last = np.searchsorted(selected, (positions[0], positions[-1] + 1))
    return np.isin(positions, selected[first:last])
