"""Exact search by reading rows: of a whole snapshot, or of what an index lacks. Streams; never holds the table."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from ann_kernels.distance import prepare
from ann_kernels.errors import NonFiniteVectorError, ZeroVectorError
from ann_kernels.metric import Metric
from ann_kernels.topk import ExactTopK
from ops.datafile import LiveBatch, VectorColumnError, read_live, take_rows, vectors_from_arrow
from ops.model import LiveFile, LiveFiles, StorageConfig
from ops.probe.candidates import Candidates
from ops.probe.filters import Matches
from ops.storage import open_storage

_POSITION_BITS = 40
_ROWS_AT_ONCE = 65_536


def scan(
    queries: npt.NDArray[np.float32],
    k: int,
    live: LiveFiles,
    files: Sequence[int],
    schema: Schema,
    field_id: int,
    metric: Metric,
    storage: StorageConfig,
    *,
    matches: Matches | None = None,
) -> tuple[Candidates, int]:
    """The k nearest live rows among some of the live files; -> (candidates, rows compared).

    `queries` f32[Q, D] prepared. `matches`: only these rows.
    Raises VectorColumnError naming file and row for vectors that have no distance.
    """
    top = ExactTopK(queries, k, metric)
    compared = 0
    for number in files:
        file = live.files[number]
        for batch in _batches(file, schema, field_id, storage, matches, number):
            try:
                vectors = prepare(vectors_from_arrow(batch.columns.column(0), queries.shape[1]), metric)
            except (NonFiniteVectorError, ZeroVectorError) as error:
                raise VectorColumnError(f"{file.path}, row {batch.positions[error.row]}: {error}") from error
            except VectorColumnError as error:
                raise VectorColumnError(f"{file.path}, rows from {batch.positions[0]}: {error}") from error
            top.update(vectors, (np.int64(number) << _POSITION_BITS) | batch.positions)
            compared += len(vectors)
    ids, distances = top.result()
    found = ids >= 0
    mask = (np.int64(1) << _POSITION_BITS) - 1
    files_of, positions = np.where(found, ids >> _POSITION_BITS, -1), np.where(found, ids & mask, -1)
    return Candidates(files_of, positions, distances), compared


def _batches(
    file: LiveFile, schema: Schema, field_id: int, storage: StorageConfig, matches: Matches | None, number: int
) -> Iterator[LiveBatch]:
    store = open_storage(file.path, storage)
    if matches is None:
        yield from read_live(store, file, schema, [field_id])
        return
    wanted = matches.positions.get(number, np.empty(0, np.int64))
    for start in range(0, len(wanted), _ROWS_AT_ONCE):
        positions = wanted[start : start + _ROWS_AT_ONCE]
        rows = take_rows(store, file, schema, [field_id], positions).combine_chunks()
        yield LiveBatch(positions, rows.to_batches()[0])
