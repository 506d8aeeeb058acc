"""The freshness tail of one reader, kept in memory: searches after the first read no data file for it.

A reader is bound to one snapshot, so its tail never changes, deletes included. The first search without a condition
reads it. Searches under conditions read their matches alone, until they have taken about as long as reading the tail
does; the next one reads it. A search that comes while another one reads it waits, as reading it twice would take
longer. The memory is reserved before, and given back with the reader.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.codes import coarse_codes, scalar_quantization
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import FEW_QUERIES, rounding_of_units
from icepuffin.ann_kernels.distances.top_k import ExactTopK
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED
from icepuffin.ann_kernels.graphs.neighbor_check import preserves_neighbors
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB, FileNumber
from icepuffin.ops.process.process_budget import TAIL_MEMORY
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.exact.scan import FileScan, RowVectors, SkippedRows, VectorSource
from icepuffin.ops.search.indexed.version_search import EXTRA_ROWS
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.search.tuning import SearchParameters

FROM_FILES = "read from the data files"
_DOUBLE = 8
"""Bytes of a double"""
_SEARCHES = 8
"""Searches for one matching row that take as long as reading the tail"""
_MAX_BY_CODES = 128
"""k up to which codes rule rows out faster than bounds by the vectors do"""
_ADDRESS = 8
_TERMS = 9
"""Bytes of a row's code beside the code: norm, sum and error"""


@dataclass(frozen=True, eq=False)
class CachedRows:
    """The live rows of some data files, with their vectors. Immutable, thread-safe.

    Distances are those of the table's own vectors, so an answer is that of `scan`, to the last bit.
    """

    files: frozenset[FileNumber]
    """File numbers of the files that the rows lie in"""
    metric: Metric
    addresses: I64
    """int64[N] ascending: file number and position of each row"""
    vectors: npt.NDArray[Any]
    """[N, D] as `RowVectors` has them"""
    raw: npt.NDArray[Any] | None
    """[N, D] as `RowVectors` has them"""
    skipped: SkippedRows
    """Rows that have no distance from anything, which are not kept"""
    coded: CodedVectors | None
    """The vectors with their codes, which rule most of them out; None where codes do not serve"""
    _matching: "WeakKeyDictionary[Matches, Bitmap]" = field(default_factory=WeakKeyDictionary)

    @classmethod
    def read(cls, source: VectorSource, files: Sequence[FileNumber], dims: int, *, threads: int = 1) -> "CachedRows":
        """All live rows of some files, each read once. Raises VectorColumnError, DataFileError."""
        most = source.live.record_count_of(files)
        addresses, skipped, count = np.empty(most, np.int64), SkippedRows(), 0
        vectors: npt.NDArray[Any] = np.empty((0, dims), np.float32)
        raw: npt.NDArray[Any] | None = None
        for rows in source.rows(sorted(files), dims, None, skipped):
            part = slice(count, count + len(rows.positions))
            if not count:  # the first rows tell the types
                vectors = np.empty((most, dims), rows.vectors.dtype)
                raw = None if rows.raw is None else np.empty((most, dims), rows.raw.dtype)
            addresses[part] = addresses_of(rows.files, rows.positions)
            vectors[part] = rows.vectors
            if raw is not None:
                raw[part] = rows.raw
            count = part.stop
        vectors, raw = vectors[:count], None if raw is None else raw[:count]
        coded = _coded(vectors, source.metric, threads)
        return cls(frozenset(files), source.metric, addresses[:count], vectors, raw, skipped, coded)

    @property
    def count(self) -> int:
        """N."""
        return len(self.addresses)

    def nearest(self, queries: F64, k: int, matches: Matches | None) -> tuple[Candidates, int]:
        """(the k nearest rows (that match), number of rows compared), as `scan` gives them. `queries` f64[Q, D]
        prepared.
        """
        live = self._live(matches)
        if self.coded is not None and len(queries) < FEW_QUERIES and k <= _MAX_BY_CODES:
            addresses, distances = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), np.inf)
            for number, query in enumerate(queries):
                rows, row_distances = self._nearest_by_codes(self.coded, query, k, live)
                addresses[number, : len(rows)], distances[number, : len(rows)] = self.addresses[rows], row_distances
        else:
            top = ExactTopK(queries, k, self.metric)
            chosen = None if live.count() == self.count else live.indices()
            top.update(self.vectors, self.addresses, rows=chosen, raw=self.raw)
            addresses, distances = top.result()
        return Candidates(*rows_at(addresses), distances), live.count()

    def rows(self, files: Sequence[FileNumber], matches: Matches | None) -> Iterator[RowVectors]:
        """The rows of some of the files (that match), as `VectorSource.rows` gives them."""
        live = None if matches is None else self._live(matches)
        for number in files:
            first, last = np.searchsorted(
                self.addresses, addresses_of(np.array([number, number + 1]), np.zeros(2, np.int64))
            )
            chosen: slice | I64 = slice(first, last)
            if live is not None:
                chosen = first + np.flatnonzero(live.marked(first, last))
            numbers, positions = rows_at(self.addresses[chosen])
            if len(positions):
                raw = None if self.raw is None else self.raw[chosen]
                yield RowVectors(numbers, positions, self.vectors[chosen], raw)

    def _live(self, matches: Matches | None) -> Bitmap:
        """The rows (that match). Kept for as long as the matches are: making them takes longer than a search."""
        if matches is None:
            return self._every
        live = self._matching.get(matches)
        if live is None:
            live = self._matching[matches] = self._bitmap(self._rows_of(matches))
        return live

    def _rows_of(self, matches: Matches) -> I64:
        """Numbers of the rows that match, ascending."""
        of_files = ((number, matches.positions.get(number)) for number in sorted(self.files))
        parts = [addresses_of(number, rows) for number, rows in of_files if rows is not None]
        addresses = np.concatenate([np.empty(0, np.int64), *parts])
        numbers = np.searchsorted(self.addresses, addresses)
        is_here = numbers < self.count
        is_here[is_here] = self.addresses[numbers[is_here]] == addresses[is_here]  # others have no vector
        return numbers[is_here]

    @cached_property
    def _every(self) -> Bitmap:
        return self._bitmap(np.arange(self.count))

    def _bitmap(self, rows: I64) -> Bitmap:
        """Some rows, ascending, as numbers: every search goes through them in order."""
        return Bitmap.of_few(rows.astype(np.uint32), self.count)

    def _nearest_by_codes(self, coded: CodedVectors, query: F64, k: int, live: Bitmap) -> tuple[I64, F64]:
        """(the k nearest rows int64[n], n <= k, distances f64[n]) in order, ties by row."""
        if self.raw is None:
            rows, distances = coded.nearest(query, k, self.metric, live)
        else:
            rows = self._undecided_by_directions(coded, query, k, live)
            distances = pair_distances(query[None], self.raw, np.zeros_like(rows), rows, self.metric, raw=True)
        order = np.lexsort((rows, distances))[:k]
        return rows[order], distances[order]

    def _undecided_by_directions(self, coded: CodedVectors, query: F64, k: int, live: Bitmap) -> I64:
        """Rows int64[n] that may be among the k nearest: their directions are rounded to f32."""
        doubt = 2 * rounding_of_units(len(query))
        width = k + EXTRA_ROWS
        while True:
            rows, distances = coded.nearest(query, width, self.metric, live)
            euclidean = np.sort(np.sqrt(2 * distances))
            if len(rows) == live.count() or euclidean[-1] > euclidean[k - 1] + doubt:
                return rows
            width *= 4


def kept_bytes(rows: int, dims: int, metric: Metric, *, doubles: bool) -> int:
    """Memory of so many rows, codes and addresses included, at most."""
    value = 8 if doubles else 4
    vectors = 4 * dims + value * dims if metric is Metric.COSINE else value * dims
    codes = dims + -dims % BLOCK + _TERMS + coarse_codes.scanned_bytes(dims)
    return rows * (_ADDRESS + vectors + codes)


def _coded(vectors: npt.NDArray[Any], metric: Metric, threads: int) -> CodedVectors | None:
    """Vectors with codes by which they are compared, ready; None where these do not serve."""
    if vectors.dtype != np.float32 or len(vectors) < MIN_CODED:
        return None
    codes = scalar_quantization.encode(vectors, threads=threads)
    if codes is None or not preserves_neighbors(codes, vectors, metric, threads=threads):
        return None
    coded = CodedVectors(vectors, codes, threads=threads, scans=True)
    _ = coded.table, coded.coarse  # made now: later every search would wait for them
    return coded


@dataclass(frozen=True, slots=True)
class TailCacheState:
    """What a reader keeps of its freshness tail."""

    rows: int
    """Rows in memory; 0 before the tail was read, and where it is not kept"""
    bytes: int
    """Memory that is reserved for them"""
    why: str
    """Reason why the tail is kept, or is not, in words"""


@dataclass(frozen=True, slots=True)
class TailAccess:
    """The rows of a tail for one search."""

    rows: CachedRows | None
    """The rows in memory; None where the search is to scan the data files"""
    how: str
    """Location of the tail, and the reason, in words"""
    was_read: bool = False
    """Whether this search read the rows into memory"""


class TailCache:
    """Rows of a freshness tail, for one reader. Thread-safe."""

    def __init__(self, source: VectorSource, files: Sequence[FileNumber], dims: int, *, threads: int) -> None:
        self.files = frozenset(files)
        self._source = source
        self._dims = dims
        self._threads = threads
        rows, doubles = source.live.record_count_of(self.files), source.value_bytes == _DOUBLE
        self._bytes = kept_bytes(rows, dims, source.metric, doubles=doubles)
        self._lock = ProcessLock()
        self._rows_read = 0.0
        """Rows that searches under conditions have read, or others that would take as long"""
        self._held: tuple[CachedRows | None, str] = None, "no search has read the tail yet"
        """The rows, None where they are not kept, and the reason: searches that do not wait see both change at once"""

    @property
    def state(self) -> TailCacheState:
        """What is kept now."""
        kept, why = self._held
        return TailCacheState(0 if kept is None else kept.count, 0 if kept is None else self._bytes, why)

    def rows(self, matches: Matches | None, files: Collection[FileNumber]) -> TailAccess:
        """The rows for a search of some files of the tail (and of rows that match); they are read where they were not
        before. Raises VectorColumnError, DataFileError.
        """
        (kept, why), was_read = self._held, False
        if kept is None:
            with self._lock:
                if self._held[0] is None:
                    was_read = self._read(matches, files)
                kept, why = self._held
        if kept is not None and not self.has(matches, files):
            return TailAccess(None, f"{FROM_FILES}: they tell which rows without a distance are meant")
        return TailAccess(kept, why, was_read)

    def has(self, matches: Matches | None, files: Collection[FileNumber]) -> bool:
        """Whether the rows for a search of some files of the tail (and of rows that match) are in memory. They are not
        where rows without a distance are among them: a part of the tail, or a condition, leaves open which are meant.
        """
        kept, _ = self._held
        return kept is not None and (not kept.skipped.count or (matches is None and len(files) == len(self.files)))

    def _read(self, matches: Matches | None, files: Collection[FileNumber]) -> bool:
        """Read the tail, unless its memory is over the budget, or reading the matches alone is less work. Returns
        whether it is kept now.
        """
        if not TAIL_MEMORY.budget:
            self._held = None, f"{FROM_FILES}: tail_mb is 0"
            return False
        if matches is not None:
            self._rows_read += max(matches.in_files(files).count, self._source.live.record_count_of(files) / _SEARCHES)
            if self._rows_read < self._source.live.record_count_of(self.files):
                why = "those of the matches alone, until such searches have read as much as it is"
                self._held = None, f"{FROM_FILES}: {why}"
                return False
        if not TAIL_MEMORY.reserve(self._bytes):
            why = (
                f"{FROM_FILES}: in memory it takes {self._bytes / MIB:,.0f} MiB, and {TAIL_MEMORY.reserved / MIB:,.0f} "
                f"MiB of tail_mb = {TAIL_MEMORY.budget // MIB:,} are taken"
            )
            self._held = None, why
            return False
        try:
            kept = CachedRows.read(self._source, sorted(self.files), self._dims, threads=self._threads)
        except BaseException as error:
            TAIL_MEMORY.release(self._bytes)
            if matches is None or not isinstance(error, DataFileError | VectorColumnError):
                raise
            self._rows_read = 0  # matches may lie in files that are sound
            self._held = None, f"{FROM_FILES}: those of the matches alone, as the tail cannot be read: {error}"
            return False
        finalize(kept, TAIL_MEMORY.release, self._bytes)
        by = "by codes" if kept.coded else "each"
        self._held = kept, f"{plural(kept.count, 'row')} in memory, compared {by}"
        return True


@dataclass(frozen=True, slots=True)
class SourceWithTail(VectorSource):
    """The vector column of a snapshot's data files, of which those of the tail come from memory."""

    delta: TailCache = field(kw_only=True)

    def in_memory(self, files: Sequence[FileNumber], matches: Matches | None) -> frozenset[FileNumber]:
        """See VectorSource."""
        tail = frozenset(files) & self.delta.files
        return tail if self.delta.has(matches, tail) else frozenset()

    @classmethod
    def from_source(cls, source: VectorSource, delta: TailCache) -> "SourceWithTail":
        return cls(source.live, source.schema, source.field_id, source.metric, source.storage, source.dims, delta=delta)

    def rows(
        self,
        files: Sequence[FileNumber],
        dims: int | None,
        matches: Matches | None,
        skipped: SkippedRows | None = None,
        deleted: Mapping[str, I64] | None = None,
    ) -> Iterator[RowVectors]:
        """See VectorSource."""
        tail = [number for number in files if number in self.delta.files]
        kept = self.delta.rows(matches, tail).rows if tail else None
        if kept is None:
            yield from VectorSource.rows(self, files, dims, matches, skipped, deleted)
            return
        if skipped is not None:
            skipped.add(kept.skipped.count, kept.skipped.first)
        others = [number for number in files if number not in kept.files]
        yield from kept.rows(tail, matches)
        yield from VectorSource.rows(self, others, dims, matches, skipped, deleted)


class TailSource:
    """Rows of data files that no shard answers for: in memory, or scanned. `memory`: None where none is kept."""

    def __init__(
        self, vectors: VectorSource, files: Sequence[FileNumber], scan: FileScan, memory: TailCache | None
    ) -> None:
        self._files = files
        self._scan = scan
        self._memory = memory
        self._value_bytes = vectors.value_bytes

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See `Source` of the pipeline."""
        memory = self._memory
        access = TailAccess(None, FROM_FILES) if memory is None else memory.rows(matches, self._files)
        if access.rows is None:
            skipped = SkippedRows()
            candidates, compared = self._scan(queries, k, self._files, matches, skipped)
            read = compared
        else:
            skipped = access.rows.skipped
            candidates, compared = access.rows.nearest(queries, k, matches)
            read = access.rows.count if access.was_read else 0
        return SourceAnswer(
            candidates,
            len(queries),
            "scan",
            scanned=compared,
            bytes_read=self._value_bytes * read * queries.shape[1],
            condition="" if matches is None else matches.how,
            tail=access.how if self._files else "",
            warnings=skipped.warnings,
        )
