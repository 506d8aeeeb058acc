"""Exact search by reading rows, of a whole snapshot or of its freshness tail. Streams; never holds the table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import QUERIES_AT_ONCE, bounds_of, rounding_of_units
from icepuffin.ann_kernels.distances.top_k import ExactTopK
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, LiveFile, LiveFiles, StorageConfig
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.candidates import Candidates, DistanceReader, Hits
from icepuffin.ops.rows.datafile import batch_rows, take_rows
from icepuffin.ops.rows.vector_column import (
    InexactVectorError,
    VectorColumnError,
    element_type_of,
    holds_doubles,
    vector_lengths,
)
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import LiveBatch, read_live
from icepuffin.ops.table.row_deletes import deleted_in_group, deleted_of_scanned
from icepuffin.ops.tasks.vectors import prepared, vectors_at, with_vector

_ROWS_AT_ONCE = 65_536
_PAIRS_PENDING = 1 << 20
"""Pairs of query and row that a search with a limit collects before it keeps the nearest ones"""


@dataclass(frozen=True, slots=True, eq=False)
class RowVectors:
    """N rows of one or more files, with their vectors."""

    files: I64
    """int64[N]: file numbers"""
    positions: I64
    """int64[N]: row positions"""
    vectors: npt.NDArray[Any]
    """[N, D]: of unit length under cosine, f32; otherwise as the table or the index has them, f32 or f64"""
    raw: npt.NDArray[Any] | None = None
    """Vectors of the table under cosine, whose rounded directions are `vectors`; None where they are not read"""


class SkippedRows:
    """Rows that a scan leaves out because they have no distance from any query. Not shared between threads."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""
        """File, row and fault of the first row without a distance"""

    @classmethod
    def from_parts(cls, parts: Iterable["SkippedRows"]) -> "SkippedRows":
        """All of them together."""
        whole = cls()
        for part in parts:
            whole.add(part.count, part.first)
        return whole

    def add(self, count: int, first: str) -> None:
        self.count += count
        self.first = self.first or first

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.count:
            return ()
        have = "has" if self.count == 1 else "have"
        return (
            f"{plural(self.count, 'row')} {have} no distance from anything, and no search finds them: {self.first}",
        )


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The vector column of a snapshot's data files."""

    live: LiveFiles
    schema: Schema
    field_id: int
    metric: Metric
    storage: StorageConfig
    dims: int | None = None
    """Dimensions of the vectors, where an index knows them"""

    @property
    def value_bytes(self) -> int:
        """Bytes of one value of a vector, as it is compared."""
        return 8 if holds_doubles(self.schema, self.field_id) else 4

    @property
    def element_type(self) -> str:
        """Element type of the vectors."""
        return element_type_of(self.schema, self.field_id)

    def in_memory(self, files: Sequence[FileNumber], matches: Matches | None) -> frozenset[FileNumber]:
        """The files among some whose rows (that match) are in memory, and which `rows` does not read."""
        return frozenset()

    def deleted_in_group(self, files: Iterable[FileNumber]) -> dict[str, I64]:
        """Deleted row positions, by path, of those files whose deletes are better read for all at once."""
        return deleted_in_group(lambda path: open_storage(path, self.storage), (self.live.files[at] for at in files))

    def rows(
        self,
        files: Sequence[FileNumber],
        dims: int | None,
        matches: Matches | None,
        skipped: SkippedRows | None = None,
        deleted: Mapping[str, I64] | None = None,
    ) -> Iterator[RowVectors]:
        """The live rows of some files (that match), in batches. Rows whose vector is null are left out.

        Vectors without a distance (NaN, infinity, another length, zero under cosine) are counted in `skipped`; without
        it they raise VectorColumnError, naming file and row, as integers always do that floats do not hold. Where no
        index knows the dimensions, the first batch is compared with the query: raises QueryError if none of its vectors
        has the query's dimensions. `deleted`: what `deleted_in_group` gives of these files and others, for who reads
        files one by one.
        """
        to_compare = dims if self.dims is None else None
        for number, (file, of_file) in zip(files, self._deleted(files, matches, deleted), strict=True):
            for batch in _batches(file, self, matches, number, dims, of_file):
                positions, column = with_vector(batch)
                if not len(positions):
                    continue
                if to_compare is not None:
                    _require_dims(column, to_compare, file, self.element_type)
                to_compare = None
                for usable, vectors, raw in self._prepared(positions, column, dims, file, skipped):
                    yield RowVectors(np.full(len(usable), number, np.int64), usable, vectors, raw)

    def require_dims(self, files: Sequence[FileNumber], dims: int, matches: Matches | None) -> None:
        """Raise QueryError where `rows` of these files does. Tasks that read them know only their own files."""
        if self.dims is None:
            next(self.rows(files, dims, matches, SkippedRows()), None)

    def _deleted(
        self, files: Sequence[FileNumber], matches: Matches | None, deleted: Mapping[str, I64] | None
    ) -> Iterator[tuple[LiveFile, I64 | None]]:
        """(file, deleted row positions; None where they are not read yet, or not needed)."""
        live = [self.live.files[number] for number in files]
        if matches is None and deleted is None:
            return deleted_of_scanned(lambda path: open_storage(path, self.storage), live)
        return ((file, None if deleted is None else deleted.get(file.path)) for file in live)

    def _prepared(
        self, positions: I64, column: pa.Array, dims: int | None, file: LiveFile, skipped: SkippedRows | None
    ) -> Iterator[tuple[I64, npt.NDArray[Any], npt.NDArray[Any] | None]]:
        """(positions, vectors, raw) as in `RowVectors`: all at once, or by halves around rows without a distance."""
        try:
            raw = vectors_at(column, positions, file, dims, self.element_type)
            units = prepared(raw, positions, file, self.metric)
        except VectorColumnError as error:
            if skipped is None or isinstance(error, InexactVectorError):
                raise
            if len(positions) == 1:
                skipped.add(1, str(error))
                return
        else:
            yield (positions, units, raw) if self.metric is Metric.COSINE else (positions, raw, None)
            return
        half = len(positions) // 2
        for part in (slice(None, half), slice(half, None)):
            yield from self._prepared(positions[part], column[part], dims, file, skipped)


def scan(
    source: VectorSource,
    queries: F64,
    k: int,
    files: Sequence[FileNumber],
    matches: Matches | None = None,
    skipped: SkippedRows | None = None,
) -> tuple[Candidates, int]:
    """(the k nearest live rows (that match) of some live files, number of rows compared).

    `queries` f64[Q, D] prepared. `skipped` as in `VectorSource.rows`. Raises VectorColumnError, QueryError.
    """
    top = ExactTopK(queries, k, source.metric)
    compared = 0
    for rows in source.rows(files, queries.shape[1], matches, skipped):
        top.update(rows.vectors, addresses_of(rows.files, rows.positions), raw=rows.raw)
        compared += len(rows.positions)
    addresses, distances = top.result()
    return Candidates(*rows_at(addresses), distances), compared


@dataclass(frozen=True, slots=True, eq=False)
class NearestScan:
    """The k nearest rows of some data files, and the work of finding them."""

    candidates: Candidates
    compared: int
    """Rows whose vectors were compared"""
    files: tuple[FileNumber, ...]
    """Files that were read"""
    skipped: SkippedRows


def scan_in_reach(
    queries: F64,
    k: int,
    source: VectorSource,
    files: Sequence[FileNumber],
    bounds: F64,
    farthest: F64,
    matches: Matches | None,
    refined: Callable[[F64, FileNumber], F64] | None = None,
) -> NearestScan:
    """The k nearest live rows (that match) of some live files, which are read in order. A file is not read where k rows
    of those before it, or other rows, rule it out for each query.

    Parameters
    ----------
    queries : f64 [Q, D]
        Prepared.
    bounds : f64 [Q, files]
        Distances that no row of a file is under. Those that are refined are replaced.
    farthest : f64 [Q]
        Distances within which there are k rows in other files; inf where there are fewer.
    refined : callable, optional
        From some of the queries and a file to bounds that may be higher.
    """
    top = ExactTopK(queries, k, source.metric)
    deleted = source.deleted_in_group(files if matches is None else ())
    skipped, read, compared = SkippedRows(), [], 0
    for number, nearest in zip(files, bounds.T, strict=True):
        limits = np.minimum(farthest, top.farthest)
        undecided = np.flatnonzero(nearest <= limits)
        if refined is not None:
            nearest[undecided] = refined(queries[undecided], number)
        if (nearest[undecided] > limits[undecided]).all():
            continue
        read.append(number)
        for rows in source.rows([number], queries.shape[1], matches, skipped, deleted):
            top.update(rows.vectors, addresses_of(rows.files, rows.positions), raw=rows.raw)
            compared += len(rows.positions)
    addresses, distances = top.result()
    return NearestScan(Candidates(*rows_at(addresses), distances), compared, tuple(read), skipped)


def _require_dims(column: pa.Array, dims: int, file: LiveFile, element_type: str) -> None:
    """Raises QueryError where no vector of a scan's first batch has the query's dimensions."""
    lengths = vector_lengths(column, element_type)
    if pc.all(pc.not_equal(lengths, dims)).as_py():
        raise QueryError(f"the query has {plural(dims, 'dimension')}, the vectors of {file.path} have {lengths[0]}")


def _batches(
    file: LiveFile,
    source: VectorSource,
    matches: Matches | None,
    number: FileNumber,
    dims: int | None,
    deleted: I64 | None,
) -> Iterator[LiveBatch]:
    """The live rows of one file (that match). `deleted`: None where they are not read yet."""
    store = open_storage(file.path, source.storage)
    if matches is None:
        field_ids, size = [source.field_id], batch_rows(dims)
        yield from read_live(store, file, source.schema, field_ids, batch_rows=size, deleted=deleted)
        return
    matching = matches.positions.get(number, np.empty(0, np.int64))
    for start in range(0, len(matching), _ROWS_AT_ONCE):
        positions = matching[start : start + _ROWS_AT_ONCE]
        rows = take_rows(store, file, source.schema, [source.field_id], positions).combine_chunks()
        yield LiveBatch(positions, rows.to_batches()[0])


FileScan = Callable[[F64, int, Sequence[FileNumber], Matches | None, SkippedRows], tuple[Candidates, int]]
"""Function from queries, k, files and matches to (the nearest rows of the files, number of rows compared). It counts
rows without a distance"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeThresholds:
    """The distances, as the metric reports them, that a range search stays under: one per query."""

    distances: F64
    """f64[Q]"""
    inclusive: bool
    """Whether rows exactly at the threshold count"""
    metric: Metric

    @classmethod
    def from_distance(cls, distance: float, queries: int, metric: Metric, *, inclusive: bool) -> "RangeThresholds":
        """The same distance for all queries."""
        return cls(np.full(queries, distance, np.float64), inclusive, metric)

    @classmethod
    def none(cls, queries: int, metric: Metric) -> "RangeThresholds":
        """Thresholds that every distance meets."""
        return cls.from_distance(np.inf, queries, metric, inclusive=True)

    def admit(self, queries: I64, distances: F64) -> Bool:
        """bool[n]: whether reported distances f64[n] from queries int64[n] are within the thresholds."""
        limits = self.distances[queries]
        return distances <= limits if self.inclusive else distances < limits

    def euclidean(self) -> F64:
        """f64[Q]: distances between prepared vectors at which the metric reports these; inner product has none."""
        positive = np.maximum(self.distances, 0.0)
        if self.metric is Metric.HAMMING:
            return np.asarray(np.sqrt(positive))
        # of unit vectors: |q - x|^2 = 2 (1 - q x)
        return np.sqrt(2 * positive) if self.metric is Metric.COSINE else positive

    def widened(self, dims: int) -> "RangeThresholds":
        """For cosine, thresholds for directions rounded to f32: every row that may meet these meets them."""
        wide = (self.euclidean() + rounding_of_units(dims)) ** 2 / 2
        none = self.distances < 0  # no row is that near
        return replace(self, distances=np.where(none, self.distances, wide), inclusive=True)


def hits_within(
    queries: F64, thresholds: RangeThresholds, batches: Iterable[RowVectors], limit: int | None
) -> tuple[Hits, int]:
    """(rows that meet the thresholds, by query, nearest first; number of rows compared).

    `queries` f64[Q, D] prepared. `limit`: only so many, the nearest ones, per query. Memory: all rows that meet the
    thresholds; with a limit that many per query, and `_PAIRS_PENDING`.
    """
    hits, compared, pending = [Hits.none()], 0, 0
    for batch in batches:
        compared += len(batch.positions)
        vectors, raw = (batch.vectors, False) if batch.raw is None else (batch.raw, True)
        for query, row in _near_pairs(queries, batch, thresholds):
            distances = pair_distances(queries, vectors, query, row, thresholds.metric, raw=raw)
            hit = np.flatnonzero(thresholds.admit(query, distances))
            rows = row[hit]
            hits.append(Hits(query[hit], np.zeros_like(hit), batch.files[rows], batch.positions[rows], distances[hit]))
            pending += len(hit)
            if limit is not None and pending > max(_PAIRS_PENDING, limit * len(queries)):
                hits, pending = [Hits.ranked(hits, limit)], 0
    return Hits.ranked(hits, limit), compared


def _near_pairs(queries: F64, batch: RowVectors, thresholds: RangeThresholds) -> Iterator[tuple[I64, I64]]:
    """(query, row) pairs that may meet the thresholds, by lower bounds of their distances."""
    distances = thresholds.distances
    if thresholds.metric is not Metric.INNER_PRODUCT:
        if (distances < 0).all():
            return  # no row is that near
        distances = np.maximum(distances, 0.0)
    for rows, bound_of in bounds_of(batch.vectors, len(queries), thresholds.metric, rounded=batch.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            block = slice(first, first + QUERIES_AT_ONCE)
            query, row = np.nonzero(bound_of(queries[block]).may_be_within(distances[block]))
            yield query + first, rows[row]


def resolve_rounding(hits: Hits, thresholds: RangeThresholds, limit: int | None, distances: DistanceReader) -> Hits:
    """The hits that truly meet the thresholds, in their true order; the first `limit` per query.

    `hits` are ranked by directions rounded to f32, and were found with `widened` thresholds. The table's own vectors
    are read where rounding leaves it in doubt whether a row meets its threshold, or comes before the next one.
    """
    rounding = rounding_of_units(distances.queries.shape[1])
    euclidean = np.sqrt(2 * hits.distances)  # between unit vectors: wrong by `rounding`, at most
    close = (np.diff(euclidean) <= 2 * rounding) & (np.diff(hits.queries) == 0)
    first = np.flatnonzero(np.append(True, ~close)[: len(euclidean)])  # of rows whose order is in doubt
    sizes = np.diff(np.append(first, len(euclidean)))
    limits = thresholds.euclidean()[hits.queries]
    doubtful = np.repeat(sizes > 1, sizes) | (np.abs(euclidean - limits) <= rounding)
    if limit is not None:
        doubtful &= np.repeat(hits.ranks[first], sizes) <= limit
    rows = np.flatnonzero(doubtful)
    resolved = hits.distances.copy()
    resolved[rows] = distances.read(hits.queries[rows], hits.files[rows], hits.positions[rows])
    within = np.flatnonzero(thresholds.admit(hits.queries, resolved))
    return Hits.ranked([replace(hits.take(within), distances=resolved[within])], limit)
