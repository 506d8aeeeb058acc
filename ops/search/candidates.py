"""Candidates: rows by (live file, position), ranked by exact distance and turned into rows with columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.distance import prepare
from icepuffin.ann_kernels.exact_distances import pair_distances
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.addresses import pack, unpack
from icepuffin.ops.datafile import exact_vectors
from icepuffin.ops.search.row_reader import Meter, RowReader

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_LEAD = pa.schema([("query", pa.int32()), ("rank", pa.int32()), ("distance", pa.float64())])
_OWN = frozenset(_LEAD.names)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """k places a query; a file is an integer into the snapshot's own live files, never a path out of a blob."""

    files: Integers
    """int64[Q, k]; -1 where there are fewer"""
    positions: Integers
    """int64[Q, k]"""
    distances: Floats
    """f64[Q, k] ascending; inf where there are fewer"""

    @classmethod
    def none(cls, queries: int, k: int) -> "Candidates":
        empty = np.full((queries, k), -1, np.int64)
        return cls(empty, empty, np.full((queries, k), np.inf))

    def first(self, k: int) -> "Candidates":
        """Of lists in order."""
        if self.files.shape[1] <= k:
            return self
        return Candidates(self.files[:, :k], self.positions[:, :k], self.distances[:, :k])

    def padded(self, k: int) -> "Candidates":
        """Of at least k places."""
        missing = k - self.files.shape[1]
        return self if missing <= 0 else merge([self, Candidates.none(len(self.files), missing)], k)

    def ordered(self, k: int) -> "Candidates":
        """The k nearest of each query, from lists in any order; ties by file, then position."""
        far = self.distances
        farther = far[:, 1:] > far[:, :-1]
        if farther.all():
            return self.first(k)
        unsure = ~farther.all(axis=1)  # of the others there is nothing to sort
        order = np.broadcast_to(np.arange(far.shape[1]), far.shape).copy()
        order[unsure] = np.lexsort((self.positions[unsure], self.files[unsure], far[unsure]), axis=1)
        order = order[:, :k]
        files, positions = (np.take_along_axis(array, order, axis=1) for array in (self.files, self.positions))
        return Candidates(files, positions, np.take_along_axis(far, order, axis=1))

    def spread(self, places: Integers, queries: int) -> "Candidates":
        """The candidates of some queries among all `queries`: row i becomes row places[i], the others have none."""
        if len(places) == queries:
            return self
        whole = Candidates.none(queries, self.files.shape[1])
        files, positions = whole.files.copy(), whole.positions.copy()
        files[places], positions[places], whole.distances[places] = self.files, self.positions, self.distances
        return Candidates(files, positions, whole.distances)


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Rows of an answer, one after the other: any number a query."""

    queries: Integers
    """int64[n], ascending"""
    ranks: Integers
    """int64[n], from 1"""
    files: Integers
    positions: Integers
    distances: Floats

    @classmethod
    def none(cls) -> "Hits":
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, np.empty(0))

    @classmethod
    def of(cls, found: Candidates) -> "Hits":
        query, place = np.nonzero(found.files >= 0)
        at = query, place
        return cls(query, place + 1, found.files[at], found.positions[at], found.distances[at])

    def taken(self, rows: Integers) -> "Hits":
        """Some of them, under the ranks that they have."""
        names = ("queries", "ranks", "files", "positions", "distances")
        return Hits(*(getattr(self, name)[rows] for name in names))

    @classmethod
    def ranked(cls, parts: Sequence["Hits"], limit: int | None) -> "Hits":
        """All of them, by query and distance, ties by file and position; the first `limit` a query."""
        names = ("queries", "files", "positions", "distances")
        queries, files, positions, distances = (
            np.concatenate([getattr(part, name) for part in parts]) for name in names
        )
        order = np.lexsort((positions, files, distances, queries))
        queries = queries[order]
        ranks = np.arange(len(order)) - np.searchsorted(queries, queries) + 1
        kept = slice(None) if limit is None else ranks <= limit
        return cls(queries[kept], ranks[kept], *(array[order][kept] for array in (files, positions, distances)))


def merge(parts: Sequence[Candidates], k: int) -> Candidates:
    """The k nearest of several candidate lists; ties by file, then position, so that the order is always the same."""
    if len(parts) == 1:
        return parts[0].ordered(k)
    some = [part for part in parts if (part.files >= 0).any()]
    if sum(part.files.shape[1] for part in some) >= k:
        parts = some
    columns = ([getattr(part, name) for part in parts] for name in ("files", "positions", "distances"))
    return Candidates(*(np.concatenate(arrays, axis=1) for arrays in columns)).ordered(k)


@dataclass(frozen=True, slots=True, eq=False)
class DistanceReader:
    """Exact distances of some rows, whose vectors are read from the data files, each once."""

    queries: Floats
    """f64[Q, D] prepared"""
    reader: RowReader
    field_id: int
    metric: Metric
    meter: Meter

    def distances(self, asked: Integers, files: Integers, positions: Integers) -> Floats:
        """f64[n], of queries[asked] from the rows at `positions` of `files`, all int64[n]."""
        rows, places = _by_file(files, positions)
        parts = self.reader.take_all(rows, [self.field_id], self.meter)
        if not parts:
            return np.empty(0)
        vectors = np.concatenate([exact_vectors(part.column(0), self.queries.shape[1]) for part in parts])
        return table_distances(self.queries, vectors, asked, places, self.metric)


def rerank(
    found: Candidates, queries: Floats, reader: RowReader, field_id: int, metric: Metric, meter: Meter | None = None
) -> Candidates:
    """Exact distances for approximate candidates: reads the vectors of just these rows, each once.

    `queries` f64[Q, D] prepared.
    """
    asked, place = np.nonzero(found.files >= 0)
    exact = np.full(found.files.shape, np.inf)
    reading = DistanceReader(queries, reader, field_id, metric, meter or Meter())
    exact[asked, place] = reading.distances(asked, found.files[asked, place], found.positions[asked, place])
    return Candidates(found.files, found.positions, exact).ordered(found.files.shape[1])


def table_distances(
    queries: Floats, vectors: npt.NDArray[Any], asked: Integers, rows: Integers, metric: Metric
) -> Floats:
    """f64[n], of queries[asked], f64[Q, D] prepared, from vectors[rows] as the table has them."""
    prepare(vectors, metric)  # an engine may have changed them: what has no distance is refused
    return pair_distances(queries, vectors, asked, rows, metric, raw=True)


def _by_file(files: Integers, positions: Integers) -> tuple[list[tuple[int, Integers]], Integers]:
    """The distinct rows, (file, its positions ascending), and the place of each row among all of them."""
    addresses, places = np.unique(pack(files, positions), return_inverse=True)  # pairs would take five times as long
    numbers, rows = unpack(addresses)
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(addresses)] if len(addresses) else []
    return [(int(numbers[start]), rows[start:end]) for start, end in pairwise(starts)], places


def fetch(hits: Hits, reader: RowReader, field_ids: Sequence[int], meter: Meter | None = None) -> pa.Table:
    """query, rank, distance and the fields by their `answer_names`, in the order of the hits; each row is read once.

    Of data files only the row groups that hold a hit are read.
    """
    lead = [
        pa.array(hits.queries.astype(np.int32)),
        pa.array(hits.ranks.astype(np.int32)),
        pa.array(hits.distances),
    ]
    if not field_ids:
        return pa.Table.from_arrays(lead, schema=_LEAD)
    schema = reader.schema_of(field_ids)
    told = (field.with_name(name) for field, name in zip(schema, answer_names(schema.names), strict=True))
    whole = pa.schema([*_LEAD, *told])
    if not len(hits.files):
        return whole.empty_table()
    rows, places = _by_file(hits.files, hits.positions)
    parts = reader.take_all(rows, field_ids, meter)
    columns = pa.concat_tables(parts).select(schema.names).take(pa.array(places))
    return pa.Table.from_arrays([*lead, *columns.columns], schema=whole)


def answer_names(names: Sequence[str]) -> list[str]:
    """What the columns of a table are called in an answer: `table_rank` where one has a name of the answer's own."""
    found = []
    for name in names:
        told = name
        while told in _OWN or (told != name and told in names):
            told = f"table_{told}"
        found.append(told)
    return found
