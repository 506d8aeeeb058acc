"""Candidates: rows by file number and row position, ranked by exact distance and turned into rows with columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.distances.top_k import Neighbors, merge_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.datafile import no_rows
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.rows.vector_column import exact_vectors

_NUMBER, _DISTANCE = pa.int32(), pa.float64()
_ANSWER_SCHEMA = pa.schema([("query", _NUMBER), ("rank", _NUMBER), ("distance", _DISTANCE)])
_ANSWER_NAMES = frozenset(_ANSWER_SCHEMA.names)
_FEW = 100
"""Rows up to which the columns that all answers to one query share are kept"""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Up to k rows per query. A file is its number among the snapshot's live files, never a path out of a blob."""

    files: I64
    """int64[Q, k]: file numbers; -1 where there are fewer than k rows"""
    positions: I64
    """int64[Q, k]: row positions"""
    distances: F64
    """f64[Q, k] ascending; inf where there are fewer than k rows"""

    @classmethod
    def none(cls, queries: int, k: int) -> "Candidates":
        """No row for any query."""
        empty = np.full((queries, k), -1, np.int64)
        return cls(empty, empty, np.full((queries, k), np.inf))

    def first(self, k: int) -> "Candidates":
        """The first k of each query."""
        if self.files.shape[1] <= k:
            return self
        return Candidates(self.files[:, :k], self.positions[:, :k], self.distances[:, :k])

    def of_queries(self, rows: slice) -> "Candidates":
        """The candidates of some queries."""
        return Candidates(self.files[rows], self.positions[rows], self.distances[rows])

    def padded(self, k: int) -> "Candidates":
        """The same with at least k slots per query."""
        missing = k - self.files.shape[1]
        return self if missing <= 0 else merge([self, Candidates.none(len(self.files), missing)], k)

    def ordered(self, k: int) -> "Candidates":
        """The k nearest of each query, from lists in any order; ties by file, then position."""
        distances = self.distances
        ascending = distances[:, 1:] > distances[:, :-1]
        if np.count_nonzero(ascending) == ascending.size:  # `all` would take four times as long for a few
            return self.first(k)
        if len(distances) == 1:  # `take_along_axis` would take longer than all else
            nearest = np.lexsort((self.positions[0], self.files[0], distances[0]))[:k]
            return Candidates(self.files[:, nearest], self.positions[:, nearest], distances[:, nearest])
        unsorted = ~ascending.all(axis=1)  # the other lists need no sorting
        order = np.broadcast_to(np.arange(distances.shape[1]), distances.shape).copy()
        order[unsorted] = np.lexsort((self.positions[unsorted], self.files[unsorted], distances[unsorted]), axis=1)
        order = order[:, :k]
        files, positions = (np.take_along_axis(array, order, axis=1) for array in (self.files, self.positions))
        return Candidates(files, positions, np.take_along_axis(distances, order, axis=1))

    def without(self, dropped: Bool) -> "Candidates":
        """The candidates but for those that bool[Q, k] marks, whose slots stay empty."""
        files, positions = np.where(dropped, -1, self.files), np.where(dropped, -1, self.positions)
        return Candidates(files, positions, np.where(dropped, np.inf, self.distances))

    def spread(self, numbers: I64, queries: int) -> "Candidates":
        """The same among all `queries`: row i becomes row numbers[i], the other queries have no candidates."""
        if len(numbers) == queries:
            return self
        whole = Candidates.none(queries, self.files.shape[1])
        files, positions = whole.files.copy(), whole.positions.copy()
        files[numbers], positions[numbers], whole.distances[numbers] = self.files, self.positions, self.distances
        return Candidates(files, positions, whole.distances)


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Rows of an answer, one after the other: any number per query."""

    queries: I64
    """int64[n]: query of each row, ascending"""
    ranks: I64
    """int64[n]: rank within the query, from 1"""
    files: I64
    positions: I64
    distances: F64

    @classmethod
    def none(cls) -> "Hits":
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, np.empty(0))

    @classmethod
    def from_candidates(cls, candidates: Candidates) -> "Hits":
        """All candidates, under their ranks."""
        filled = candidates.files >= 0
        count = filled.size
        if len(filled) == 1 and np.count_nonzero(filled) == count:
            rows = candidates.files[0], candidates.positions[0], candidates.distances[0]
            return cls(np.zeros(count, np.int64), np.arange(1, count + 1), *rows)
        query, rank = np.nonzero(filled)
        cell = query, rank
        return cls(query, rank + 1, candidates.files[cell], candidates.positions[cell], candidates.distances[cell])

    def first_distances(self, queries: int, k: int) -> F64:
        """f64[queries, k]: distances of the first k of each query; inf where there are fewer."""
        distances = np.full((queries, k), np.inf)
        first = self.ranks <= k
        distances[self.queries[first], self.ranks[first] - 1] = self.distances[first]
        return distances

    def take(self, rows: I64) -> "Hits":
        """Some of the rows, under the ranks that they have."""
        names = ("queries", "ranks", "files", "positions", "distances")
        return Hits(*(getattr(self, name)[rows] for name in names))

    def distinct(self) -> "Hits":
        """The rows of one query, each once: where it comes first."""
        _, first = np.unique(addresses_of(self.files, self.positions), return_index=True)
        return self.take(np.sort(first))

    @classmethod
    def ranked(cls, parts: Sequence["Hits"], limit: int | None) -> "Hits":
        """All rows by query and distance, ties by file and position; the first `limit` per query."""
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
    """The k nearest of several lists in any order; ties by file, then position: the order is always the same."""
    if len(parts) == 1:
        return parts[0].ordered(k)
    nonempty = [part for part in parts if (part.files >= 0).any()]
    if sum(part.files.shape[1] for part in nonempty) >= k:
        parts = nonempty
    columns = ([getattr(part, name) for part in parts] for name in ("files", "positions", "distances"))
    return Candidates(*(np.concatenate(arrays, axis=1) for arrays in columns)).ordered(k)


def nearest_rows(parts: Sequence[Neighbors], k: int) -> Candidates:
    """The k nearest of several lists (addresses int64[Q, n], distances f64[Q, n]), each in order; -1 and inf stand for
    no row. Ties by file, then position, as `merge` has them.
    """
    addresses, distances = parts[0]
    if len(parts) > 1:
        addresses = np.concatenate([array for array, _ in parts], axis=1)
        distances = np.concatenate([array for _, array in parts], axis=1)
        order = np.lexsort((addresses, distances), axis=1)[:, :k]
        if len(order) == 1:  # as in `ordered`
            addresses, distances = addresses[:, order[0]], distances[:, order[0]]
        else:
            addresses = np.take_along_axis(addresses, order, axis=1)
            distances = np.take_along_axis(distances, order, axis=1)
    return Candidates(*rows_at(addresses[:, :k]), distances[:, :k])


def merge_sorted(parts: Sequence[Candidates], k: int) -> Candidates:
    """The k nearest of sorted lists, by a loser tree; the same rows and order as `merge` gives."""
    runs = [(np.where(part.files >= 0, addresses_of(part.files, part.positions), -1), part.distances) for part in parts]
    _, addresses, distances = merge_top_k(runs, k)
    return Candidates(*rows_at(addresses), distances)


@dataclass(frozen=True, slots=True, eq=False)
class DistanceReader:
    """Exact distances of rows whose vectors are read from the data files, each row once."""

    queries: F64
    """f64[Q, D] prepared"""
    reader: RowReader
    field_id: int
    metric: Metric
    meter: Meter
    """Meter of the bytes that are read"""

    def read(self, queries: I64, files: I64, positions: I64) -> F64:
        """f64[n]: distances of queries[i], an index in `self.queries`, from row (files[i], positions[i])."""
        vectors, indices = self.vectors(files, positions)
        return table_distances(self.queries, vectors, queries, indices, self.metric) if len(indices) else np.empty(0)

    def vectors(self, files: I64, positions: I64) -> tuple[npt.NDArray[Any], I64]:
        """(vectors of the distinct rows as the table has them, in the order of their addresses; the index of each row
        among these).
        """
        rows, indices = _by_file(files, positions)
        tables = self.reader.take_all(rows, [self.field_id], self.meter)
        dims, element_type = self.queries.shape[1], self.reader.element_type(self.field_id)
        vectors = [exact_vectors(table.column(0), dims, element_type) for table in tables]
        return np.concatenate(vectors) if vectors else np.empty((0, dims)), indices


def rerank(
    candidates: Candidates, queries: F64, reader: RowReader, field_id: int, metric: Metric, meter: Meter | None = None
) -> Candidates:
    """Rank approximate candidates by exact distances: reads the vectors of just these rows, each once.

    `queries` f64[Q, D] prepared.
    """
    cell = query, _ = np.nonzero(candidates.files >= 0)
    exact = np.full(candidates.files.shape, np.inf)
    distances = DistanceReader(queries, reader, field_id, metric, meter or Meter())
    exact[cell] = distances.read(query, candidates.files[cell], candidates.positions[cell])
    return Candidates(candidates.files, candidates.positions, exact).ordered(candidates.files.shape[1])


def cut_in_doubt(
    approximate: Candidates, exact: Candidates, queries: F64, k: int, metric: Metric, longest: float
) -> bool:
    """Whether a list of candidates ends where rounding may have put a row that is among the k nearest.

    `approximate` are ranked by vectors rounded from f64 to f32, `exact` the same rows by the vectors as they are.
    `longest`: length of the longest vector that was ranked, as far as it is known, which only the inner product needs.
    """
    cut = approximate.files[:, -1] >= 0  # other lists have every row
    last, kth = approximate.distances[cut, -1], exact.distances[cut, k - 1]
    if metric is Metric.COSINE:
        last, kth = np.sqrt(2 * last), np.sqrt(2 * kth)
        return bool((kth > last - rounding_of_units(queries.shape[1])).any())
    lengths = np.linalg.norm(queries[cut], axis=1)
    if metric is Metric.L2:
        return bool((kth > last - _rounding(lengths + kth, queries.shape[1])).any())
    error = lengths * _rounding(longest, queries.shape[1])
    return bool((kth > last - np.maximum(error, _rounding(np.abs(last), 0))).any())  # no product exceeds the lengths


def _rounding(lengths: Any, dims: int) -> Any:
    """The largest distances of f64 vectors of these lengths from the same vectors in f32."""
    return 1.01 * 2.0**-24 * lengths + np.sqrt(dims) * 2.0**-149


def table_distances(queries: F64, vectors: npt.NDArray[Any], query: I64, row: I64, metric: Metric) -> F64:
    """f64[n]: distances of queries[query[i]], f64[Q, D] prepared, from vectors[row[i]] as the table has them."""
    prepare(vectors, metric)  # an engine may have changed them: vectors without a distance are refused
    return pair_distances(queries, vectors, query, row, metric, raw=True)


def _by_file(files: I64, positions: I64) -> tuple[list[tuple[FileNumber, I64]], I64]:
    """The distinct rows, as (file, its positions ascending), and the index of each row among all of them."""
    # pairs would take five times as long
    addresses, indices = np.unique(addresses_of(files, positions), return_inverse=True)
    numbers, rows = rows_at(addresses)
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(addresses)] if len(addresses) else []
    return [(FileNumber(int(numbers[start])), rows[start:end]) for start, end in pairwise(starts)], indices


def fetch(
    hits: Hits,
    reader: RowReader,
    field_ids: Sequence[int],
    meter: Meter | None = None,
    values: Mapping[str, pa.Array] | None = None,
) -> pa.Table:
    """query, rank, distance and the fields by their `answer_names`, in the order of the hits; each row is read once.

    `values`: columns in place of the distance. Of data files only the row groups that hold a hit are read.
    """
    values = values or {"distance": _column(hits.distances, _DISTANCE)}
    leading = [*_queries_and_ranks(hits), *values.values()]
    own = pa.schema([*list(_ANSWER_SCHEMA)[:2], *((name, column.type) for name, column in values.items())])
    if not field_ids:
        return pa.Table.from_arrays(leading, schema=own)
    stored = reader.schema_of(field_ids)
    names = answer_names(stored.names, taken=frozenset(own.names))
    schema = pa.schema([*own, *(field.with_name(name) for field, name in zip(stored, names, strict=True))])
    if not len(hits.files):
        return no_rows(schema)
    columns = reader.few_at_hand(hits.files, hits.positions, field_ids)
    if columns is None:
        rows, indices = _by_file(hits.files, hits.positions)
        tables = reader.take_all(rows, field_ids, meter)
        columns = pa.concat_tables(tables).select(stored.names).take(pa.array(indices))
    return pa.Table.from_arrays([*leading, *columns.columns], schema=schema)


def _queries_and_ranks(hits: Hits) -> tuple[pa.Array, pa.Array]:
    """The first two columns of an answer."""
    count = len(hits.ranks)
    if 0 < count <= _FEW and hits.queries[-1] == 0 and hits.ranks[-1] == count:
        return _of_one_query(count)
    return _column(hits.queries.astype(np.int32), _NUMBER), _column(hits.ranks.astype(np.int32), _NUMBER)


@cache
def _of_one_query(count: int) -> tuple[pa.Array, pa.Array]:
    """The same where there is one query, and no rank of its rows is left out: made once for all such answers."""
    return _column(np.zeros(count, np.int32), _NUMBER), _column(np.arange(1, count + 1, dtype=np.int32), _NUMBER)


def _column(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Values [n] without nulls as an Arrow array of their own type: `pa.array` takes twice as long for a few."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def answer_names(
    names: Sequence[str], *, ignores_case: bool = False, taken: frozenset[str] = _ANSWER_NAMES
) -> list[str]:
    """Names of table columns in an answer: `table_rank` where a column has a name of the answer's own.

    `ignores_case`: whether `Rank` is such a name, too. `taken`: the answer's own names.
    """
    key = str.lower if ignores_case else str
    others, renamed = frozenset(map(key, names)), []
    for name in names:
        unique = name
        while key(unique) in taken or (unique != name and key(unique) in others):
            unique = f"table_{unique}"
        renamed.append(unique)
    return renamed
