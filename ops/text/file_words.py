"""The words of one column in one data file: as an index version stores them, or as the file has them."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import I64, U32
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text.term_lists import unpack
from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, StorageConfig
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.storage import open_storage
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
from icepuffin.puffin.errors import BadBlobError

ReadRange = Callable[[int, int], bytes]
"""Function from an offset in the words of a file, and a length, to the bytes"""


@dataclass(frozen=True, slots=True, eq=False)
class FileWords:
    """The words of one column in one data file. Heads of its ranges are in memory; lists are read by term."""

    where: str
    """What to call it in messages"""
    ranges: tuple[tuple[RangeLocation, WordsHead], ...]
    read: ReadRange
    bytes_read: int
    """Bytes of index and heads, which were read"""

    @classmethod
    def stored(cls, entry: WordsEntry, location: ObjectRange, storage: StorageConfig) -> "FileWords":
        """Those that a version stores. Raises StorageError, PuffinError."""
        store = open_storage(location.path, storage)
        return cls.opened(
            entry, lambda offset, length: store.read_range(location.path, location.offset + offset, length)
        )

    @classmethod
    def scanned(
        cls, file: LiveFile, field_id: int, schema: Schema, storage: StorageConfig, analyzer: Analyzer
    ) -> "FileWords":
        """Those of a file that is read now, and kept in memory. Raises DataFileError, StorageError."""
        sink = io.BytesIO()
        entry = write_words(sink, FileSlot(0), file, field_id, schema, storage, analyzer)
        body = sink.getvalue()
        return cls.opened(entry, lambda offset, length: body[offset : offset + length])

    @classmethod
    def opened(cls, entry: WordsEntry, read: ReadRange) -> "FileWords":
        """Those that `read` gives. Raises PuffinError."""
        where = words_of(entry)
        locations = range_locations(entry, read(entry.length - entry.index_length, entry.index_length))
        heads = tuple((each, decode_head(read(each.offset, each.head_length), each, where)) for each in locations)
        size = entry.index_length + sum(each.head_length for each in locations)
        return cls(where, heads, read, size)

    @property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """u32[rows]: words of each row."""
        return np.concatenate([np.empty(0, np.uint32), *(head.lengths for _, head in self.ranges)]).astype(np.uint32)

    @property
    def ties(self) -> U32:
        """u32[rows]: hash of each row's words."""
        return np.concatenate([np.empty(0, np.uint32), *(head.ties for _, head in self.ranges)])

    def rows_with(self, term: bytes) -> tuple[I64, U32, int]:
        """(positions int64[n] of the rows that have a term, ascending; how often u32[n]; bytes that were read).

        Raises StorageError, PuffinError.
        """
        rows, counts, read = [np.empty(0, np.int64)], [np.empty(0, np.uint32)], 0
        for location, head in self.ranges:
            number = head.find(term)
            if number is None:
                continue
            begin, end = pages_of(head, number)
            pages = self.read(location.offset + location.head_length + begin, end - begin)
            packed = list_of(head, number, pages, self.where)
            try:
                own, often = unpack(packed, int(head.row_counts[number]), location.rows)
            except KernelError as error:
                raise BadBlobError(f"{self.where}: {error}") from error
            rows.append(own.astype(np.int64) + location.first_row)
            counts.append(often)
            read += len(pages)
        return np.concatenate(rows), np.concatenate(counts), read
