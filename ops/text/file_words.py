"""The words of one column in one data file: as an index version stores them, or as the file has them."""

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import I64, U32, AnyArray
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text.term_lists import unpack
from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, StorageConfig
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.tasks.words_task import write_words
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.blobs.words_blob import (
    RangeLocation,
    WordsHead,
    decode_head,
    list_of,
    pages_of,
    range_locations,
    words_of,
)
from icepuffin.puffin.errors import BadBlobError, PuffinError


@dataclass(frozen=True, slots=True)
class WordsPlace:
    """Where the words of a file are."""

    entry: WordsEntry
    location: ObjectRange | None = None
    """Their location; None where they are in memory"""
    body: bytes = b""

    @classmethod
    def scanned(
        cls, file: LiveFile, field_id: int, schema: Schema, storage: StorageConfig, analyzer: Analyzer
    ) -> "WordsPlace":
        """Those of a file that is read now, in memory. Raises DataFileError, StorageError."""
        sink = io.BytesIO()
        entry = write_words(sink, FileSlot(0), file, field_id, schema, storage, analyzer)
        return cls(entry, body=sink.getvalue())


Part = tuple[WordsPlace, int, int]
"""Some bytes of the words of a file: place, offset, length"""


def read_parts(parts: Sequence[Part], storage: StorageConfig) -> list[bytes | StorageError]:
    """The bytes of each part, or why they cannot be read: those of one object are requested together."""
    read: list[bytes | StorageError] = [place.body[offset : offset + length] for place, offset, length in parts]
    by_path: defaultdict[str, list[int]] = defaultdict(list)
    for number, (place, _, _) in enumerate(parts):
        if place.location is not None:
            by_path[place.location.path].append(number)
    for path, numbers in by_path.items():
        own = [parts[number] for number in numbers]
        ranges = [(place.location.offset + offset, length) for place, offset, length in own if place.location]
        try:
            found: Sequence[bytes | StorageError] = open_storage(path, storage).read_ranges(path, ranges)
        except StorageError as error:
            found = [error] * len(numbers)
        for number, data in zip(numbers, found, strict=True):
            read[number] = data
    return read


@dataclass(frozen=True, slots=True, eq=False)
class FileWords:
    """The words of one column in one data file. Dictionaries of its ranges are in memory; lists are read by term."""

    place: WordsPlace
    ranges: tuple[tuple[RangeLocation, WordsHead], ...]
    """Heads without lengths and ties"""
    lengths: AnyArray
    """u8, u16 or u32 [rows]: words of each row"""
    ties: U32
    """u32[rows]: hash of each row's words"""

    def parts_of(self, term: bytes) -> list[tuple[int, int, Part]]:
        """(range, term's number there, pages to read) of each range of rows that has a term."""
        parts = []
        for index, (location, head) in enumerate(self.ranges):
            if (number := head.find(term)) is not None:
                begin, end = pages_of(head, number)
                first = location.offset + location.head_length + begin
                parts.append((index, number, (self.place, first, end - begin)))
        return parts

    def rows_of(self, index: int, number: int, pages: bytes) -> tuple[I64, U32]:
        """(positions int64[n] of a range's rows that have a term, ascending; how often u32[n]). Raises PuffinError."""
        location, head = self.ranges[index]
        where = words_of(self.place.entry)
        packed = list_of(head, number, pages, where)
        try:
            rows, counts = unpack(packed, int(head.row_counts[number]), location.rows)
        except KernelError as error:
            raise BadBlobError(f"{where}: {error}") from error
        return rows.astype(np.int64) + location.first_row, counts


def open_words(
    places: Sequence[WordsPlace], storage: StorageConfig
) -> tuple[list[FileWords | StorageError | PuffinError], int]:
    """(words of each file, or why they cannot be read; bytes that were read), in two rounds of requests."""
    indexes = [(place, place.entry.length - place.entry.index_length, place.entry.index_length) for place in places]
    locations: list[tuple[RangeLocation, ...] | StorageError | PuffinError] = []
    for place, data in zip(places, read_parts(indexes, storage), strict=True):
        try:
            locations.append(data if isinstance(data, StorageError) else range_locations(place.entry, data))
        except PuffinError as error:
            locations.append(error)
    heads = [
        (place, each.offset, each.head_length)
        for place, ranges in zip(places, locations, strict=True)
        for each in (ranges if isinstance(ranges, tuple) else ())
    ]
    read = iter(read_parts(heads, storage))
    opened: list[FileWords | StorageError | PuffinError] = []
    for place, ranges in zip(places, locations, strict=True):
        own = [next(read) for _ in (ranges if isinstance(ranges, tuple) else ())]
        opened.append(_opened(place, ranges, own) if isinstance(ranges, tuple) else ranges)
    return opened, sum(length for _, _, length in (*indexes, *heads))


def _opened(
    place: WordsPlace, ranges: tuple[RangeLocation, ...], stored: Sequence[bytes | StorageError]
) -> FileWords | StorageError | PuffinError:
    heads = []
    for location, data in zip(ranges, stored, strict=True):
        if isinstance(data, StorageError):
            return data
        try:
            heads.append(decode_head(data, location, words_of(place.entry)))
        except PuffinError as error:
            return error
    lengths = np.concatenate([np.empty(0, np.uint8), *(head.lengths for head in heads)])
    ties = np.concatenate([np.empty(0, np.uint32), *(head.ties for head in heads)])
    slim = [replace(head, lengths=lengths[:0], ties=ties[:0]) for head in heads]
    return FileWords(place, tuple(zip(ranges, slim, strict=True)), lengths, ties)
