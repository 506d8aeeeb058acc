"""Exact search by reading rows: of a whole snapshot, or of what an index lacks. Streams; never holds the table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from ann_kernels.metric import Metric
from ann_kernels.topk import ExactTopK
from ops.datafile import LiveBatch, read_live, take_rows
from ops.model import LiveFile, LiveFiles, StorageConfig
from ops.probe.candidates import Candidates
from ops.probe.errors import QueryError
from ops.probe.filters import Matches
from ops.probe.within import Rows
from ops.storage import open_storage
from ops.tasks.vectors import prepared, vectors_at, with_vector

_POSITION_BITS = 40
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The vector column of a snapshot's data files."""

    live: LiveFiles
    schema: Schema
    field_id: int
    metric: Metric
    storage: StorageConfig

    def rows(self, files: Sequence[int], dims: int | None, matches: Matches | None) -> Iterator[Rows]:
        """The live rows of some files (that match), a batch at a time; those whose vector is null are near nothing.

        Raises VectorColumnError naming file and row for vectors that have no distance, QueryError where the first
        vector shows that the query has another number of dimensions.
        """
        first = True
        for number in files:
            file = self.live.files[number]
            for batch in _batches(file, self, matches, number):
                positions, column = with_vector(batch)
                if not len(positions):
                    continue
                if first and dims is not None:
                    _require_dims(column, dims, file)
                first = False
                vectors = prepared(vectors_at(column, positions, file, dims), positions, file, self.metric)
                yield Rows(np.full(len(vectors), number, np.int64), positions, vectors)


def scan(
    queries: npt.NDArray[np.float32],
    k: int,
    source: VectorSource,
    files: Sequence[int],
    *,
    matches: Matches | None = None,
) -> tuple[Candidates, int]:
    """The k nearest live rows among some of the live files; -> (candidates, rows compared).

    `queries` f32[Q, D] prepared. `matches`: only these rows. Raises VectorColumnError, QueryError.
    """
    top = ExactTopK(queries, k, source.metric)
    compared = 0
    for rows in source.rows(files, queries.shape[1], matches):
        top.update(rows.vectors, (rows.files << _POSITION_BITS) | rows.positions)
        compared += len(rows.positions)
    ids, distances = top.result()
    found = ids >= 0
    mask = (np.int64(1) << _POSITION_BITS) - 1
    files_of, positions = np.where(found, ids >> _POSITION_BITS, -1), np.where(found, ids & mask, -1)
    return Candidates(files_of, positions, distances), compared


def _require_dims(column: pa.Array, dims: int, file: LiveFile) -> None:
    """The first vector of a scan tells whether the query fits the column; later ones are the table's fault."""
    if not (pa.types.is_list(column.type) and len(column)):
        return
    held = len(column[0])
    if held != dims:
        raise QueryError(f"the query has {dims} dimensions, the vectors of {file.path} have {held}")


def _batches(file: LiveFile, source: VectorSource, matches: Matches | None, number: int) -> Iterator[LiveBatch]:
    store = open_storage(file.path, source.storage)
    if matches is None:
        yield from read_live(store, file, source.schema, [source.field_id])
        return
    wanted = matches.positions.get(number, np.empty(0, np.int64))
    for start in range(0, len(wanted), _ROWS_AT_ONCE):
        positions = wanted[start : start + _ROWS_AT_ONCE]
        rows = take_rows(store, file, source.schema, [source.field_id], positions).combine_chunks()
        yield LiveBatch(positions, rows.to_batches()[0])
