"""Reading the columns for conditions of data files, each column alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import ListType

from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig
from icepuffin.ops.rows.attributes import (
    BYTES_PER_ROW,
    LIST_BYTES_PER_ROW,
    file_lists,
    file_values,
    plain_values,
    reading_of,
    stored_type,
)
from icepuffin.ops.rows.datafile import BATCH_ROWS, DataFile
from icepuffin.ops.storage import open_storage
from icepuffin.puffin.blobs.attributes_blob import AttributeEntry, entry_of, list_entry_of

_VALUE_BYTES = 8
"""Bytes that reading one value takes, about; of a list, as many as are kept at most"""
_STORED_AT_ONCE = 1 << 22
"""Bytes of a file that a batch of values takes, about: of texts, 10 to 40 MB"""

_TOO_MANY = f"its distinct values take more than {BYTES_PER_ROW} bytes per row"
_TOO_MANY_IN_LISTS = f"its lists take more than {LIST_BYTES_PER_ROW} bytes per row"


@dataclass(frozen=True, slots=True)
class ColumnsOfFile:
    """Columns of one data file that are to be read."""

    slot: FileSlot
    file: LiveFile
    field_ids: tuple[int, ...]

    def size(self, schema: Schema) -> int:
        """Bytes that reading them takes, about."""
        types = [schema.find_type(field_id) for field_id in self.field_ids]
        per_row = sum(LIST_BYTES_PER_ROW if isinstance(column, ListType) else _VALUE_BYTES for column in types)
        return self.file.record_count * per_row


@dataclass(frozen=True, slots=True)
class AttributesTask:
    """Data files some of whose columns are to be read."""

    files: tuple[ColumnsOfFile, ...]
    schema: Schema
    storage: StorageConfig


def read_attributes(task: AttributesTask) -> list[tuple[int, AttributeEntry]]:
    """(field id, entry) of each column of each file. Raises DataFileError, StorageError."""
    return [
        (field_id, _entry(task, columns.slot, columns.file, field_id))
        for columns in task.files
        for field_id in columns.field_ids
    ]


def _entry(task: AttributesTask, slot: FileSlot, file: LiveFile, field_id: int) -> AttributeEntry:
    opened = DataFile(open_storage(file.path, task.storage), file, task.schema, [field_id])
    field = task.schema.find_field(field_id)
    reading = reading_of(task.schema, file, field_id, by_name=not opened.has_field_ids)
    kind = str(field.field_type)
    if isinstance(field.field_type, ListType):
        lists = file_lists(column_values(opened), stored_type(field), file.record_count)
        if lists is not None:
            return list_entry_of(slot, file.record_count, kind, reading, lists)
        return AttributeEntry(slot, file.record_count, kind, reading, _TOO_MANY_IN_LISTS)
    values = file_values(column_values(opened), stored_type(field), file.record_count)
    if values is None:
        return AttributeEntry(slot, file.record_count, kind, reading, _TOO_MANY)
    return entry_of(slot, file.record_count, kind, reading, values)


def column_values(opened: DataFile) -> Iterator[pa.Array]:
    """The values of the only column that a file was opened for, batch by batch: the longer they are, the fewer."""
    stored, rows = sum(map(opened.stored_bytes, range(opened.groups))), opened.start(opened.groups)
    for batch in opened.batches(min(BATCH_ROWS, max(1, _STORED_AT_ONCE * rows // max(1, stored)))):
        yield plain_values(opened.conform(batch).column(0))
