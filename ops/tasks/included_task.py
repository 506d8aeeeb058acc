"""Reading included columns of data files: their values are staged, or compared with those that a version stores."""

import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from pyiceberg.schema import Schema

from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, StorageConfig
from icepuffin.ops.rows.attributes import reading_of, stored_type, value_width
from icepuffin.ops.rows.datafile import DataFile
from icepuffin.ops.rows.included_columns import (
    MAX_BLOCK_BYTES,
    LargeBlockError,
    value_blocks,
    with_block_rows,
)
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.attribute_task import ColumnsOfFile, column_values
from icepuffin.puffin.blobs.included_columns_blob import (
    BlockEncoder,
    IncludedEntry,
    WordsEntry,
    block_index,
    decode_block,
    raw_block,
)
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.puffin_writer import ByteSink

_UNEVEN = f"its values begin short, and some rows together take more than {MAX_BLOCK_BYTES >> 20} MiB"
_BLOCKS_READ = 64
"""Stored blocks that are read at once"""


@dataclass(frozen=True, slots=True)
class IncludedPart:
    """The values of one included column in one data file, and where they lie until the version's file has them."""

    field_id: int
    entry: IncludedEntry
    location: ObjectRange

    @property
    def values(self) -> tuple[int, FileSlot, bool]:
        """(field id, file slot, whether they are words of the column)."""
        return self.field_id, FileSlot(self.entry.slot), isinstance(self.entry, WordsEntry)


@dataclass(frozen=True, slots=True)
class IncludedTask:
    """Data files some of whose columns are to be staged."""

    files: tuple[ColumnsOfFile, ...]
    schema: Schema
    staging: str
    """Prefix of the object that the values of all files are written to"""
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class PartToCheck:
    """Stored values, and the file that they are of."""

    part: IncludedPart
    file: LiveFile | None
    """Data file; None where it would be read in another way today: then checksums and layout alone are checked"""
    schema: Schema | None
    """Schema to read the file by"""


@dataclass(frozen=True, slots=True)
class IncludedCheck:
    """Stored values that are to be compared with those of data files."""

    parts: tuple[PartToCheck, ...]
    storage: StorageConfig


def stage_included(task: IncludedTask) -> list[IncludedPart]:
    """Write the values of each column of each file into one object. Raises DataFileError, StorageError.

    Memory: a batch of one column.
    """
    path = f"{task.staging}/included-{uuid.uuid4().hex}.annc"
    parts, offset = [], 0
    with open_storage(task.staging, task.storage).open_output(path, durable=False) as sink:
        for columns in task.files:
            for field_id in columns.field_ids:
                entry, written = _write(task, sink, columns, field_id)
                parts.append(IncludedPart(field_id, entry, ObjectRange(path, offset, entry.length)))
                offset += written
    return parts


def _write(task: IncludedTask, sink: ByteSink, columns: ColumnsOfFile, field_id: int) -> tuple[IncludedEntry, int]:
    """(entry, bytes that were written): an entry without values where a block would be too large."""
    file, field = columns.file, task.schema.find_field(field_id)
    opened = DataFile(open_storage(file.path, task.storage), file, task.schema, [field_id])
    reading = reading_of(task.schema, file, field_id, by_name=not opened.has_field_ids)
    entry = IncludedEntry(columns.slot, file.record_count, str(field.field_type), reading)
    block_rows, batches = with_block_rows(column_values(opened))
    encoder, length = BlockEncoder(), 0
    try:
        for block in value_blocks(batches, block_rows):
            stored = encoder.add(raw_block(block))
            sink.write(stored)
            length += len(stored)
    except LargeBlockError:
        return replace(entry, left_out=_UNEVEN), length
    index = encoder.index()
    sink.write(index)
    width, length = value_width(stored_type(field)), length + len(index)
    entry = replace(entry, block_rows=block_rows, width=width, length=length, checksum=zlib.crc32(index))
    return entry, entry.length


def check_included(task: IncludedCheck) -> list[str]:
    """One line on each column of a file whose stored values are damaged, or not those of the file.

    Raises DataFileError, StorageError.
    """
    faults = []
    for to_check in task.parts:
        part, file, schema = to_check.part, to_check.file, to_check.schema
        try:
            stored = _stored_blocks(part, open_storage(part.location.path, task.storage))
            if file is None or schema is None:
                for _ in stored:
                    pass
                continue
            opened = DataFile(open_storage(file.path, task.storage), file, schema, [part.field_id])
            read = map(raw_block, value_blocks(column_values(opened), part.entry.block_rows))
            width = value_width(stored_type(schema.find_field(part.field_id)))
            if width != part.entry.width or not _are_equal(stored, read):
                faults.append(f"{file.path}: the included values of column {part.field_id} are others")
        except PuffinError as error:
            faults.append(f"{part.location.path}, column {part.field_id}: {error}")
    return faults


def _are_equal(stored: Iterator[bytes], read: Iterator[bytes]) -> bool:
    try:
        return all(ours == other for ours, other in zip_longest(stored, read))
    except LargeBlockError:  # which is stored of no file
        return False


def _stored_blocks(part: IncludedPart, storage: Storage) -> Iterator[bytes]:
    """The blocks of stored values before compression. Raises StorageError, PuffinError."""
    entry, location = part.entry, part.location
    end = location.offset + location.length
    index = block_index(entry, storage.read_range(location.path, end - entry.index_length, entry.index_length))
    for first in range(0, entry.blocks, _BLOCKS_READ):
        numbers = range(first, min(first + _BLOCKS_READ, entry.blocks))
        start, stop = int(index.starts[first]), int(index.starts[numbers[-1]] + index.lengths[numbers[-1]])
        data = storage.read_range(location.path, location.offset + start, stop - start)
        for number in numbers:
            at = int(index.starts[number]) - start
            stored = data[at : at + int(index.lengths[number])]
            yield raw_block(decode_block(entry, index, number, stored))


def without_values(part: IncludedPart, reason: str) -> IncludedPart:
    """The same without its values."""
    entry = part.entry
    return replace(
        part,
        entry=type(entry)(entry.slot, entry.rows, entry.kind, entry.reading, reason),
        location=replace(part.location, length=0),
    )
