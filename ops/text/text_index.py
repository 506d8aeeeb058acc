"""Scores of the rows of a snapshot by their words: BM25 with the counts of exactly the rows that the reader may see.

Rows of all files have numbers, one after the other. Counts are summed over all files before anything is scored, so
that neither files, nor deletes, nor the rows that a version lacks show in a score.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import F64, I64, U32, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.text.bm25 import best_rows, impacts, inverse_frequency
from icepuffin.ops.errors import ArgumentError
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.versions.version_reader import OpenVersion, location_of, read_included_blob, same_files
from icepuffin.ops.messages import listed, plural
from icepuffin.ops.model import FileNumber, LiveFiles, StorageConfig
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.table.row_deletes import deleted_of_scanned, deleted_positions
from icepuffin.ops.text.file_words import FileWords, WordsPlace, open_words, read_parts
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.errors import PuffinError

_KEPT_LISTS = 128 << 20
"""Bytes of lists of terms that a reader keeps"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class TextAnswer:
    """The rows with the largest scores of one query, best first."""

    files: I64
    """int64[n]: file numbers"""
    positions: I64
    """int64[n]: row positions"""
    scores: F64
    """f64[n]: BM25, summed over the columns"""
    bytes_read: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _TermRows:
    """The rows that have a term in a column."""

    rows: U32
    """u32[n]: numbers of the visible rows, ascending"""
    impacts: F64
    """f64[n]: see `bm25.impacts`"""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.impacts.nbytes + 64


class TextIndex:
    """The words of columns of texts in one snapshot, of an index version as far as it has them. Thread-safe.

    `files`: numbers of the files with rows that may be in an answer. `allowed`: gives the rows that the reader may see
    where the catalog hides some. Files whose words the version lacks are read, and their words kept in memory.
    """

    def __init__(
        self,
        opened: OpenVersion | None,
        live: LiveFiles,
        schema: Schema,
        storage: StorageConfig,
        analyzer: str,
        files: Sequence[FileNumber],
        allowed: Callable[[], Matches | None],
    ) -> None:
        self._opened = opened
        self._live, self._schema, self._storage = live, schema, storage
        self._files = tuple(files)
        self._allowed = allowed
        self._lock = ProcessLock()
        self._columns: dict[int, ColumnScores] = {}
        self._scanned = set[FileNumber]()
        self._ties: dict[tuple[int, ...], U32] = {}
        """u32[rows] of some columns together, once they are read"""
        self.rows = self._live.record_count_of(self._files)
        """Rows of the files, deleted ones included"""
        if self.rows >= 1 << 32:
            raise ArgumentError(f"text is searched in up to {(1 << 32) - 1:,} rows, the snapshot has {self.rows:,}")
        counts = [self._live.files[number].record_count for number in self._files]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._analyzer = analyzer
        self._scanner = Analyzer(analyzer)
        """Analyzer of the files that are read here"""

    @property
    def scanned_rows(self) -> int:
        """Rows of files whose words were read from the files."""
        return self._live.record_count_of(self._scanned)

    @property
    def scanned(self) -> str:
        """The same, in words; empty where there are none."""
        files = plural(len(self._scanned), "data file")
        return f"words of {files} that the index lacks were read, and are kept in memory" if self._scanned else ""

    def best(self, text: str, k: int, matches: Matches | None, field_ids: Sequence[int]) -> TextAnswer:
        """The k rows (that match) with the largest scores by some columns. Raises DataFileError, StorageError."""
        words = Counter(Analyzer(self._analyzer).query_terms(text))
        with self._lock:
            before = sum(column.bytes_read for column in self._columns.values())
            columns = [self._column(field_id) for field_id in field_ids]
            terms = [pair for column in columns for pair in column.weighted(words)]
            read = sum(column.bytes_read for column in self._columns.values()) - before
            if (key := tuple(field_ids)) not in self._ties:
                self._ties[key] = reduce(np.add, (each.ties for each in columns), np.zeros(self.rows, np.uint32))
            ties = self._ties[key]
        warnings = _warnings(columns, words)
        lists, weights = [(found.rows, found.impacts) for found, _ in terms], [weight for _, weight in terms]
        rows, scores = best_rows(lists, weights, ties, k, None if matches is None else self._mask(matches))
        index = np.searchsorted(self._starts, rows, side="right") - 1
        files = np.array(self._files, np.int64)[index] if len(rows) else np.empty(0, np.int64)
        return TextAnswer(files, rows - self._starts[index], scores, read, warnings)

    def having(self, text: str, field_ids: Sequence[int]) -> Matches:
        """The rows with at least one word of a text in some columns. Raises DataFileError, StorageError."""
        words = Counter(Analyzer(self._analyzer).query_terms(text))
        with self._lock:
            columns = [self._column(field_id) for field_id in field_ids]
            lists = [found.rows for column in columns for found, _ in column.weighted(words)]
        rows = np.unique(np.concatenate([np.empty(0, np.uint32), *lists])).astype(np.int64)
        bounds = np.searchsorted(rows, self._starts)
        positions = {
            number: rows[bounds[index] : bounds[index + 1]] - self._starts[index]
            for index, number in enumerate(self._files)
            if bounds[index] < bounds[index + 1]
        }
        return Matches(positions, 0, "by the words of the index", warnings=_warnings(columns, words))

    def _mask(self, matches: Matches) -> Bool:
        """bool[rows]: whether each row matches."""
        mask = np.zeros(self.rows, np.bool_)
        for index, number in enumerate(self._files):
            if (positions := matches.positions.get(number)) is not None:
                mask[self._starts[index] + positions] = True
        return mask

    @cached_property
    def _visible(self) -> Bool:
        """bool[rows]: whether each row is live, and the reader may see it."""
        matches = self._allowed()
        if matches is not None:
            return self._mask(matches)
        visible = np.ones(self.rows, np.bool_)
        live = [self._live.files[number] for number in self._files]
        found = deleted_of_scanned(lambda path: open_storage(path, self._storage), live)
        for start, (file, deleted) in zip(self._starts, found, strict=False):
            gone = deleted_positions(open_storage(file.path, self._storage), file) if deleted is None else deleted
            visible[start + gone] = False
        return visible

    def _column(self, field_id: int) -> "ColumnScores":
        if field_id not in self._columns:
            places, warnings = self._places(field_id)
            self._columns[field_id] = ColumnScores(
                places, self._starts, self._visible, warnings, self._scan(field_id), self._storage
            )
        return self._columns[field_id]

    def _scan(self, field_id: int) -> Callable[[int], WordsPlace]:
        def scan(index: int) -> WordsPlace:
            file = self._live.files[self._files[index]]
            self._scanned.add(self._files[index])
            return WordsPlace.scanned(file, field_id, self._schema, self._storage, self._scanner)

        return scan

    def _places(self, field_id: int) -> tuple[list[WordsPlace], list[str]]:
        """(where the words of a column are of each file, why none of the version serve)."""
        opened, scan, warnings = self._opened, self._scan(field_id), list[str]()
        entries = self._entries(opened, field_id, warnings) if opened and field_id in opened.texts else {}
        places = []
        for index, number in enumerate(self._files):
            entry = entries.get(number)
            if entry is None or opened is None:
                places.append(scan(index))
            else:
                places.append(WordsPlace(entry, location_of(opened.bound, entry)))
        return places, warnings

    def _entries(self, opened: OpenVersion, field_id: int, warnings: list[str]) -> Mapping[FileNumber, WordsEntry]:
        """What the version stores of a column, by file, of files that the snapshot reads alike."""
        try:
            blob = read_included_blob(opened, field_id, self._storage, of_words=True)
        except (PuffinError, StorageError) as error:
            warnings.append(str(error))
            return {}
        same, entries = same_files(opened, self._live), dict[FileNumber, WordsEntry]()
        for entry in blob.entries:
            covered = opened.routing.files[entry.slot]
            number = same.get(covered.path) if covered.present else None
            if number is None or entry.left_out or not isinstance(entry, WordsEntry):
                continue
            by_name, analyzer = is_by_name(entry.reading), self._scanner.identity
            if entry.reading == reading_of(
                self._schema, self._live.files[number], field_id, by_name=by_name, analyzer=analyzer
            ):
                entries[number] = entry
        return entries


class ColumnScores:
    """The words of one column in all files, and the scores of rows by them. Its caller has the lock of the index.

    `starts` int64[files + 1]: rows before those of each file; `scan`: gives the words of a file by reading the file.
    """

    def __init__(
        self,
        places: Sequence[WordsPlace],
        starts: I64,
        visible: Bool,
        warnings: list[str],
        scan: Callable[[int], WordsPlace],
        storage: StorageConfig,
    ) -> None:
        self._starts = starts
        self._visible = visible
        self._scan = scan
        self._storage = storage
        self._kept = LruCache[bytes, _TermRows](_KEPT_LISTS)
        self.warnings = warnings
        opened, self.bytes_read = open_words(places, storage)
        self._words = [
            words if isinstance(words, FileWords) else self._instead(index, words) for index, words in enumerate(opened)
        ]
        self._lengths = np.concatenate([np.empty(0, np.uint8), *(each.lengths for each in self._words)])
        self.ties: U32 = np.concatenate([np.empty(0, np.uint32), *(each.ties for each in self._words)])
        self._words = [replace(each, lengths=each.lengths[:0], ties=each.ties[:0]) for each in self._words]
        seen = self._lengths[visible]
        self.documents = int(np.count_nonzero(seen))
        """Visible rows that have a word"""
        self._average = max(1.0, float(seen.sum(dtype=np.int64)) / max(1, self.documents))

    def weighted(self, terms: Mapping[bytes, int]) -> list[tuple[_TermRows, float]]:
        """(rows that have a term, its weight) of each term of a query, and how often the query has it.

        Raises DataFileError, StorageError.
        """
        found = {term: kept for term in terms if (kept := self._kept.get(term)) is not None}
        found |= self._read([term for term in terms if term not in found])
        return [
            (found[term], times * inverse_frequency(self.documents, len(found[term].rows)))
            for term, times in terms.items()
        ]

    def _read(self, terms: Sequence[bytes]) -> dict[bytes, _TermRows]:
        """The visible rows that have each term: all lists are read in one round of requests; in a second one, where
        data files have to be read in place of some.
        """
        asked = [
            (term, index, part) for term in terms for index, words in enumerate(self._words)
            for part in words.parts_of(term)
        ]  # fmt: skip
        pages = read_parts([part for _, _, (_, _, part) in asked], self._storage)
        self.bytes_read += sum(length for _, _, (_, _, (_, _, length)) in asked)
        rows: dict[bytes, list[tuple[I64, U32]]] = {term: [] for term in terms}
        failed: dict[int, Exception] = {}
        for (term, index, (number, own_term, _)), data in zip(asked, pages, strict=True):
            try:
                if isinstance(data, StorageError):
                    raise data
                positions, counts = self._words[index].rows_of(number, own_term, data)
            except (PuffinError, StorageError) as error:
                failed.setdefault(index, error)
                continue
            rows[term].append((positions + self._starts[index], counts))
        for index, fault in failed.items():
            self._words[index] = self._instead(index, fault)
        if failed:
            return self._read(terms)
        return {term: self._kept_rows(term, parts) for term, parts in rows.items()}

    def _kept_rows(self, term: bytes, parts: Sequence[tuple[I64, U32]]) -> _TermRows:
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
        counts = np.concatenate([np.empty(0, np.uint32), *(often for _, often in parts)])
        seen = self._visible[rows]
        rows = rows[seen]
        found = _TermRows(rows.astype(np.uint32), impacts(counts[seen], self._lengths[rows], self._average))
        self._kept.put(term, found, found.nbytes)
        return found

    def _instead(self, index: int, error: Exception) -> FileWords:
        """The words of a file as the file has them, in place of those that cannot be read."""
        self.warnings.append(str(error))
        (words,), _ = open_words([self._scan(index)], self._storage)
        if not isinstance(words, FileWords):
            raise words
        return words


def _warnings(columns: Sequence[ColumnScores], words: Mapping[bytes, int]) -> tuple[str, ...]:
    """Warnings of an answer by the words of a text: one of all that cannot be read, such as files of a lost pack."""
    faults, warnings = list(dict.fromkeys(fault for column in columns for fault in column.warnings)), list[str]()
    if faults:
        warnings.append(f"words of the index cannot be read, data files were: {'; '.join(listed(faults))}")
    if not words:
        warnings.append("the text has no word that is searched for: no row is found by it")
    return tuple(warnings)
