"""Candidates: rows by (live file, position), ranked by exact distance and turned into rows with columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from ann_kernels.distance import prepare
from ann_kernels.metric import Metric
from ann_kernels.topk import exact_top_k
from ops.datafile import arrow_schema, vectors_from_arrow
from ops.probe.rows import RowReader

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """k places a query; a file is an integer into the snapshot's own live files, never a path out of a blob."""

    files: Integers
    """int64[Q, k]; -1 where there are fewer"""
    positions: Integers
    """int64[Q, k]"""
    distances: Floats
    """f32[Q, k] ascending; inf where there are fewer"""

    @classmethod
    def none(cls, queries: int, k: int) -> "Candidates":
        empty = np.full((queries, k), -1, np.int64)
        return cls(empty, empty, np.full((queries, k), np.inf, np.float32))


def merge(parts: Sequence[Candidates], k: int) -> Candidates:
    """The k nearest of several candidate lists; ties by file, then position, so that the order is always the same."""
    files = np.concatenate([part.files for part in parts], axis=1)
    positions = np.concatenate([part.positions for part in parts], axis=1)
    distances = np.concatenate([part.distances for part in parts], axis=1)
    order = np.lexsort((positions, files, distances), axis=1)[:, :k]
    return Candidates(*(np.take_along_axis(array, order, axis=1) for array in (files, positions, distances)))


def rerank(found: Candidates, queries: Floats, reader: RowReader, field_id: int, metric: Metric) -> Candidates:
    """Exact distances for approximate candidates: reads the vectors of just these rows, each once.

    `queries` f32[Q, D] prepared.
    """
    rows, places = _distinct(found)
    vectors = np.empty((len(rows), queries.shape[1]), np.float32)
    for number in np.unique(rows[:, 0]):
        mine = np.flatnonzero(rows[:, 0] == number)
        column = reader.take(int(number), [field_id], rows[mine, 1]).column(0)
        vectors[mine] = prepare(vectors_from_arrow(column, queries.shape[1]), metric)
    exact = np.full(found.files.shape, np.inf, np.float32)
    for query in range(len(queries)):
        wanted = places[query][places[query] >= 0]
        ids, distances = exact_top_k(queries[query : query + 1], vectors[wanted], max(1, len(wanted)), metric)
        exact[query, ids[0][ids[0] >= 0]] = distances[0][ids[0] >= 0]
    return merge([Candidates(found.files, found.positions, exact)], found.files.shape[1])


def _distinct(found: Candidates) -> tuple[Integers, Integers]:
    """(distinct (file, position) int64[n, 2], place of each candidate among them int64[Q, k] or -1)."""
    valid = found.files >= 0
    pairs = np.stack([found.files[valid], found.positions[valid]], axis=1)
    rows, inverse = np.unique(pairs, axis=0, return_inverse=True)
    places = np.full(found.files.shape, -1, np.int64)
    places[valid] = inverse.reshape(-1)
    return rows, places


def fetch_rows(found: Candidates, reader: RowReader, schema: Schema, field_ids: Sequence[int]) -> pa.Table:
    """query, rank, distance and the fields; only the row groups that hold a candidate are read."""
    query, place = np.nonzero(found.files >= 0)
    lead = {
        "query": pa.array(query.astype(np.int32)),
        "rank": pa.array((place + 1).astype(np.int32)),
        "distance": pa.array(found.distances[query, place]),
    }
    if not field_ids:
        return pa.table(lead)
    rows, places = _distinct(found)
    projected = schema.select(*(str(schema.find_column_name(field_id)) for field_id in field_ids))
    parts = [arrow_schema(projected).empty_table()]
    order = [np.empty(0, np.int64)]
    for number in np.unique(rows[:, 0]):
        mine = np.flatnonzero(rows[:, 0] == number)
        parts.append(reader.take(int(number), field_ids, rows[mine, 1]))
        order.append(mine)
    where = np.empty(len(rows), np.int64)
    where[np.concatenate(order)] = np.arange(len(rows))
    columns = pa.concat_tables(parts).take(pa.array(where[places[query, place]]))
    names = [str(schema.find_column_name(field_id)) for field_id in field_ids]
    return pa.table({**lead, **{name: columns[name] for name in names}})
