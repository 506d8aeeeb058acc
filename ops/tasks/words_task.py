"""Reading columns of texts of data files: their words are staged, or compared with those that a version stores."""

import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import I32, I64, U8, U32
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text.term_lists import invert, pack, unpack
from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, StorageConfig
from icepuffin.ops.rows.attributes import analyzer_of, reading_of
from icepuffin.ops.rows.datafile import DataFile
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.attribute_task import column_values
from icepuffin.ops.tasks.included_task import IncludedCheck, IncludedPart, IncludedTask, PartToCheck
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.blobs.words_blob import (
    WordsEncoder,
    WordsHead,
    decode_head,
    list_of,
    pages_of,
    range_locations,
    words_of,
)
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.puffin_writer import ByteSink

RANGE_WORDS, RANGE_ROWS = 1 << 22, 1 << 20
"""Words and rows of a range, about: a task holds 16 bytes per word"""
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class WordsTask(IncludedTask):
    """Data files of some of whose columns the words are to be staged."""

    analyzer: str


def stage_words(task: WordsTask) -> list[IncludedPart]:
    """Write the words of each column of each file into one object. Raises DataFileError, StorageError.

    Memory: a range of rows of one column, and the forms of words that were met.
    """
    path = f"{task.staging}/words-{uuid.uuid4().hex}.annx"
    analyzer, parts, offset = Analyzer(task.analyzer), list[IncludedPart](), 0
    with open_storage(task.staging, task.storage).open_output(path, durable=False) as sink:
        for columns in task.files:
            for field_id in columns.field_ids:
                entry = write_words(sink, columns.slot, columns.file, field_id, task.schema, task.storage, analyzer)
                parts.append(IncludedPart(field_id, entry, ObjectRange(path, offset, entry.length)))
                offset += entry.length
    return parts


def write_words(
    sink: ByteSink,
    slot: FileSlot,
    file: LiveFile,
    field_id: int,
    schema: Schema,
    storage: StorageConfig,
    analyzer: Analyzer,
) -> WordsEntry:
    """Write the words of one column of one file. Raises DataFileError, StorageError."""
    opened = DataFile(open_storage(file.path, storage), file, schema, [field_id])
    by_name = not opened.has_field_ids
    reading = reading_of(schema, file, field_id, by_name=by_name, analyzer=analyzer.identity)
    kind = str(schema.find_type(field_id))
    encoder, length, ranges = WordsEncoder(), 0, 0
    for terms, row_ends in ranges_of(column_values(opened), analyzer):
        ranges += 1
        for stored in RangeWords.from_terms(analyzer.terms, terms, row_ends).encoded(encoder):
            sink.write(stored)
            length += len(stored)
    index = encoder.index()
    sink.write(index)
    length, checksum = length + len(index), zlib.crc32(index)
    return WordsEntry(slot, file.record_count, kind, reading, block_rows=ranges, length=length, checksum=checksum)


def ranges_of(batches: Iterable[pa.Array], analyzer: Analyzer, sizes: Sequence[int] = ()) -> Iterator[tuple[I32, I64]]:
    """Terms of each range of rows, as `Analyzer.terms_of` gives them. `sizes`: rows of each; as is fit without."""
    terms, ends, rows, words, number = list[I32](), list[I64](), 0, 0, 0
    for whole in batches:
        batch = whole
        while len(batch):
            own_terms, own_ends = analyzer.terms_of(batch.slice(0, sizes[number] - rows if sizes else len(batch)))
            batch = batch.slice(len(own_ends))
            terms.append(own_terms)
            ends.append(own_ends + words)
            rows, words = rows + len(own_ends), words + len(own_terms)
            if rows == sizes[number] if sizes else words >= RANGE_WORDS or rows >= RANGE_ROWS:
                yield np.concatenate(terms), np.concatenate(ends)
                terms, ends, rows, words, number = [], [], 0, 0, number + 1
                analyzer.forget_if_many()
    if rows:
        yield np.concatenate(terms), np.concatenate(ends)


@dataclass(frozen=True, slots=True, eq=False)
class RangeWords:
    """The words of a range of rows, as `WordsEncoder.add` takes them."""

    lengths: I64
    ties: U32
    terms: list[bytes]
    row_counts: I64
    lists: U8
    list_ends: I64

    @classmethod
    def from_terms(cls, terms: list[bytes], numbers: I32, row_ends: I64) -> "RangeWords":
        """The words of rows by numbers of `terms`, as `Analyzer.terms_of` gives them."""
        starts, rows, counts = invert(numbers, row_ends, len(terms))
        used = np.flatnonzero(np.diff(starts)).tolist()
        order = np.array(sorted(used, key=terms.__getitem__), np.int64)
        lengths = np.diff(np.append(0, np.cumsum(numbers >= 0))[np.append(0, row_ends)])
        of_order = [terms[number] for number in order.tolist()]
        packed = pack(order, starts, rows, counts)
        return cls(lengths, _ties(terms, numbers, row_ends), of_order, np.diff(starts)[order], *packed)

    def encoded(self, encoder: WordsEncoder) -> tuple[bytes, bytes]:
        """The stored bytes: head and lists."""
        return encoder.add(self.lengths, self.ties, self.terms, self.row_counts, self.lists, self.list_ends)

    def is_stored(self, head: WordsHead, lists: bytes) -> bool:
        """Whether it is what a head and lists hold."""
        pairs = (
            (self.lengths, head.lengths), (self.ties, head.ties), (self.row_counts, head.row_counts),
            (self.list_ends, head.list_ends[1:]), (np.cumsum([0, *map(len, self.terms)]), head.term_ends),
        )  # fmt: skip
        are_equal = all(np.array_equal(own, stored) for own, stored in pairs)
        return are_equal and b"".join(self.terms) == head.terms and self.lists.tobytes() == lists


def check_words(task: IncludedCheck) -> list[str]:
    """One line on each column of a file whose stored words are damaged, or not those of the file.

    Raises DataFileError, StorageError.
    """
    faults = []
    for one in task.parts:
        part = one.part
        try:
            if isinstance(part.entry, WordsEntry) and not _are_words_of(part, part.entry, one, task.storage):
                faults.append(f"{one.file and one.file.path}: the words of column {part.field_id} are others")
        except (PuffinError, KernelError) as error:
            faults.append(f"{part.location.path}, words of column {part.field_id}: {error}")
    return faults


def _are_words_of(part: IncludedPart, entry: WordsEntry, to_check: PartToCheck, storage: StorageConfig) -> bool:
    """Whether stored words are those of a file; without a file they are only decoded."""
    location, file, schema = part.location, to_check.file, to_check.schema
    store = open_storage(location.path, storage)
    end = location.offset + location.length
    ranges = range_locations(entry, store.read_range(location.path, end - entry.index_length, entry.index_length))
    read = None
    if file is not None and schema is not None:
        opened = DataFile(open_storage(file.path, storage), file, schema, [part.field_id])
        analyzer = Analyzer(analyzer_of(entry.reading).partition("/")[0])
        read = ranges_of(column_values(opened), analyzer, [each.rows for each in ranges])
    for each in ranges:
        length = each.head_length + each.lists_length
        stored = store.read_range(location.path, location.offset + each.offset, length)
        head = decode_head(stored[: each.head_length], each, words_of(entry))
        lists = stored[each.head_length :]
        for term, count in enumerate(head.row_counts.tolist()):
            begin, after = pages_of(head, term)
            unpack(list_of(head, term, lists[begin:after], words_of(entry)), count, each.rows)
        if read is None:
            continue
        terms = next(read)  # before the words by their numbers are asked for
        if not RangeWords.from_terms(analyzer.terms, *terms).is_stored(head, lists):
            return False
    return True


def _ties(terms: list[bytes], numbers: I32, row_ends: I64) -> U32:
    """u32[N]: a hash of the terms of each row, whatever their order, by which rows of one score are ordered."""
    hashes = np.array([*map(zlib.crc32, terms), 0], np.uint64) * _MIX  # -1, for a word left out, is the last one
    before = np.append(np.uint64(0), np.cumsum(hashes[numbers]))[np.append(0, row_ends)]
    return np.asarray(np.diff(before) >> np.uint64(32), np.uint32)
