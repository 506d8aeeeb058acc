"""The freshness tail of one reader, kept in memory: searches after the first read no data file for it.

A reader is bound to one snapshot, so its tail never changes, deletes included. The first search without a condition
reads it. Searches under conditions read their matches alone, until they have taken about as long as reading the tail
does; the next one reads it. A search that comes while another one reads it waits, as reading it twice would take
longer. The memory is reserved before, and given back with the reader.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import finalize

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB, FileNumber
from icepuffin.ops.process.process_budget import TAIL_MEMORY
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.exact.kept_rows import KeptRows, kept_bytes
from icepuffin.ops.search.exact.scan import RowVectors, SkippedRows, VectorSource

FROM_FILES = "read from the data files"
_DOUBLE = 8
"""Bytes of a double"""
_SEARCHES = 8
"""Searches for one matching row that take as long as reading the tail"""


@dataclass(frozen=True, slots=True)
class KeptTail:
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

    rows: KeptRows | None
    """The rows in memory; None where the search is to scan the data files"""
    how: str
    """Place of the tail, and the reason, in words"""
    was_read: bool = False
    """Whether this search read the rows into memory"""


class PrivateDelta:
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
        self._kept: KeptRows | None = None
        self._why = "no search has read the tail yet"

    @property
    def state(self) -> KeptTail:
        """What is kept now."""
        kept = self._kept
        return KeptTail(0 if kept is None else kept.count, 0 if kept is None else self._bytes, self._why)

    def rows(self, matches: Matches | None, files: Collection[FileNumber]) -> TailAccess:
        """The rows for a search of some files of the tail (and of rows that match); they are read where they were not
        before. Raises VectorColumnError, DataFileError.
        """
        kept, was_read = self._kept, False
        if kept is None:
            with self._lock:
                if self._kept is None:
                    was_read = self._read(matches, files)
                kept = self._kept
        if kept is not None and not self.has(matches, files):
            return TailAccess(None, f"{FROM_FILES}: they tell which rows without a distance are meant")
        return TailAccess(kept, self._why, was_read)

    def has(self, matches: Matches | None, files: Collection[FileNumber]) -> bool:
        """Whether the rows for a search of some files of the tail (and of rows that match) are in memory. They are not
        where rows without a distance are among them: a part of the tail, or a condition, leaves open which are meant.
        """
        kept = self._kept
        return kept is not None and (not kept.skipped.count or (matches is None and len(files) == len(self.files)))

    def _read(self, matches: Matches | None, files: Collection[FileNumber]) -> bool:
        """Read the tail, unless its memory is over the budget, or reading the matches alone is less work. Returns
        whether it is kept now.
        """
        if not TAIL_MEMORY.budget:
            self._why = f"{FROM_FILES}: tail_mb is 0"
            return False
        if matches is not None:
            self._rows_read += max(matches.in_files(files).count, self._source.live.record_count_of(files) / _SEARCHES)
            if self._rows_read < self._source.live.record_count_of(self.files):
                self._why = f"{FROM_FILES}: those of the matches alone, until such searches have read as much as it is"
                return False
        if not TAIL_MEMORY.reserve(self._bytes):
            self._why = (
                f"{FROM_FILES}: in memory it takes {self._bytes / MIB:,.0f} MiB, and {TAIL_MEMORY.reserved / MIB:,.0f} "
                f"MiB of tail_mb = {TAIL_MEMORY.budget // MIB:,} are taken"
            )
            return False
        try:
            kept = KeptRows.read(self._source, sorted(self.files), self._dims, threads=self._threads)
        except BaseException as error:
            TAIL_MEMORY.release(self._bytes)
            if matches is None or not isinstance(error, DataFileError | VectorColumnError):
                raise
            self._rows_read = 0  # matches may lie in files that are sound
            self._why = f"{FROM_FILES}: those of the matches alone, as the tail cannot be read: {error}"
            return False
        finalize(kept, TAIL_MEMORY.release, self._bytes)
        by = "by codes" if kept.coded else "each"
        self._kept, self._why = kept, f"{plural(kept.count, 'row')} in memory, compared {by}"
        return True


@dataclass(frozen=True, slots=True)
class SourceWithDelta(VectorSource):
    """The vector column of a snapshot's data files, of which those of the tail come from memory."""

    delta: PrivateDelta | None = None

    def in_memory(self, files: Sequence[FileNumber], matches: Matches | None) -> frozenset[FileNumber]:
        """See VectorSource."""
        tail = frozenset(files) & self.delta.files if self.delta else frozenset()
        return tail if self.delta and self.delta.has(matches, tail) else frozenset()

    @classmethod
    def of(cls, source: VectorSource, delta: PrivateDelta) -> "SourceWithDelta":
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
        delta, kept = self.delta, None
        tail = [number for number in files if delta and number in delta.files]
        if delta and tail:
            kept = delta.rows(matches, tail).rows
        if kept is None:
            yield from VectorSource.rows(self, files, dims, matches, skipped, deleted)
            return
        if skipped is not None:
            skipped.add(kept.skipped.count, kept.skipped.first)
        others = [number for number in files if number not in kept.files]
        yield from kept.rows(tail, matches)
        yield from VectorSource.rows(self, others, dims, matches, skipped, deleted)
