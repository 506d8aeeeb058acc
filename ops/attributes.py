"""Attributes: the values of a column of a data file, as versions keep them for conditions. See docs/concepts.md.

A data file never changes, so what was read of it holds for as long as it would be read in the same way.
"""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icepuffin.ops.datafile import arrow_schema, mapped_names
from icepuffin.ops.model import LiveFile
from icepuffin.puffin.blobs.attributes import FileValues
from icepuffin.puffin.errors import BadBlobError

BYTES_PER_ROW = 16
"""Bytes of distinct values and codes per row of a data file over which they are not kept, as of unique texts"""
ALWAYS_KEPT = 1 << 16
"""Bytes of distinct values that are kept of any file"""
_MERGED_BYTES = 1 << 20
"""Bytes of the distinct values of single batches that are merged at once, at least"""
_OFFSET = np.dtype(np.int32)

Codes = npt.NDArray[np.unsignedinteger]


def reading_of(schema: Schema, file: LiveFile, field_id: int, *, by_name: bool) -> str:
    """How a snapshot's schema reads a column of a data file: equal texts mean equal values.

    `by_name`: the file has no field ids, and its columns are found by their names.
    """
    field = schema.find_field(field_id)
    reading = {"type": str(field.field_type), "default": repr(field.initial_default)}
    constants = dict(file.constants)
    if field_id in constants:
        reading["partition"] = repr(constants[field_id])
    if by_name:
        names = mapped_names(file.name_mapping, field_id)
        reading["names"] = json.dumps([field.name] if names is None else ["", *sorted(names)])
    return json.dumps(reading, sort_keys=True)


def is_by_name(reading: str) -> bool:
    """Whether a reading is of a file whose columns are found by their names. False for what is no reading of ours."""
    try:
        return "names" in json.loads(reading)
    except (ValueError, TypeError):
        return False


def stored_type(field: NestedField) -> pa.DataType:
    """The Arrow type that holds the values of a column of plain values."""
    kind = arrow_schema(Schema(field)).field(0).type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def plain_values(column: pa.Array) -> pa.Array:
    """A column in its `stored_type`."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def merged(parts: Sequence[pa.Array]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """(distinct values of all parts in the order of their first appearance, the place of each value of the parts)."""
    encoded = pa.concat_arrays(parts).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def file_values(batches: Iterable[pa.Array], kind: pa.DataType, rows: int) -> FileValues | None:
    """The values of a column, from batches of its rows; None where they take more than `BYTES_PER_ROW`.

    Memory: the distinct values, and 4 bytes per row.
    """
    limit = ALWAYS_KEPT + BYTES_PER_ROW * rows
    distinct, codes = pa.array([], kind), list[npt.NDArray[np.int64]]()
    pending, pending_bytes = list[pa.DictionaryArray](), 0
    for batch in batches:
        pending.append(batch.dictionary_encode())
        pending_bytes += pending[-1].dictionary.nbytes
        if pending_bytes > max(_MERGED_BYTES, distinct.nbytes):
            distinct = _merge(distinct, pending, codes)
            pending, pending_bytes = [], 0
            if distinct.nbytes > limit:
                return None
    distinct = _merge(distinct, pending, codes)
    values = encoded_values(distinct, codes)
    own_bytes = len(values.values) + values.codes.nbytes + (0 if values.offsets is None else values.offsets.nbytes)
    return values if own_bytes <= limit else None


def _merge(distinct: pa.Array, batches: Sequence[pa.DictionaryArray], codes: list[npt.NDArray[np.int64]]) -> pa.Array:
    """The distinct values with those of some batches, whose codes are appended to `codes`; -1 stands for null."""
    if not batches:
        return distinct
    every, places = merged([distinct, *(batch.dictionary for batch in batches)])
    start = len(distinct)
    for batch in batches:
        end = start + len(batch.dictionary)
        new_code = np.append(places[start:end], -1)
        codes.append(new_code[batch.indices.fill_null(len(batch.dictionary)).to_numpy()].astype(np.int32))
        start = end
    return every


def encoded_values(distinct: pa.Array, codes: Sequence[npt.NDArray[np.int64]]) -> FileValues:
    """Values by the layout of the blob. Codes of -1 stand for null."""
    count = len(distinct)
    every = np.concatenate([np.empty(0, np.int32), *codes])
    every = np.where(every < 0, count, every).astype(code_type(count))
    kind = distinct.type
    if pa.types.is_boolean(kind):
        flags = distinct.to_numpy(zero_copy_only=False).astype(np.uint8)
        return FileValues(count, 1, flags.tobytes(), None, every)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(distinct.buffers()[1], np.int32, count + 1, distinct.offset * _OFFSET.itemsize)
        data = distinct.buffers()[2]
        values = b"" if data is None else bytes(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        return FileValues(count, 0, values, (offsets - offsets[0]).astype(np.uint32), every)
    width = kind.byte_width
    values = bytes(memoryview(distinct.buffers()[1])[distinct.offset * width : (distinct.offset + count) * width])
    return FileValues(count, width, values, None, every)


def code_type(count: int) -> type[np.unsignedinteger]:
    """The smallest type of codes 0 to `count`."""
    return np.uint8 if count < 1 << 8 else np.uint16 if count < 1 << 16 else np.uint32


def decoded_values(values: FileValues, kind: pa.DataType) -> pa.Array:
    """The distinct values, as Arrow has them. Raises BadBlobError where they are none of the type."""
    texts = pa.types.is_string(kind) or pa.types.is_binary(kind)
    width = 0 if texts else 1 if pa.types.is_boolean(kind) else kind.byte_width
    if width != values.width:
        raise BadBlobError(f"attributes are values of {values.width} bytes, {kind} has {width}")
    if pa.types.is_boolean(kind):
        return pa.array(np.frombuffer(values.values, np.uint8).astype(bool))
    buffers = [None, pa.py_buffer(values.values)]
    if values.offsets is not None:
        buffers.insert(1, pa.py_buffer(values.offsets.astype(np.int32)))
    try:
        distinct = pa.Array.from_buffers(kind, values.count, buffers)
        distinct.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBlobError(f"attributes are no values of {kind}: {error}") from error
    return distinct
