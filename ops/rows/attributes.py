"""Attributes: the values of a column of a data file, as versions keep them for conditions. See docs/concepts.md.

A data file never changes, so what was read of it holds for as long as it would be read in the same way.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icepuffin.ops.model import LiveFile
from icepuffin.ops.rows.datafile import arrow_schema, mapped_names
from icepuffin.puffin.blobs.attributes_blob import NULL, WHOLE, WITH_NULL, FileTokens, FileValues
from icepuffin.puffin.errors import BadBlobError

BYTES_PER_ROW = 16
"""Bytes of distinct values and codes per row of a data file over which they are not kept, as of unique texts"""
LIST_BYTES_PER_ROW = 128
"""Bytes of distinct elements and of rows per row of a data file over which a column of lists is not kept"""
ALWAYS_KEPT = 1 << 16
"""Bytes of distinct values that are kept of any file"""
_MERGED_BYTES = 1 << 20
"""Bytes of the distinct values of single batches that are merged at once, at least"""
OFFSET = np.dtype(np.int32)
"""Offsets of the texts of an Arrow array"""

Codes = npt.NDArray[np.unsignedinteger]


def reading_of(schema: Schema, file: LiveFile, field_id: int, *, by_name: bool, analyzer: str = "") -> str:
    """How a snapshot's schema reads a column of a data file: equal texts mean equal values.

    `by_name`: the file has no field ids, and its columns are found by their names. `analyzer`: identity of the one that
    makes words of the values, where it is these that are read.
    """
    field = schema.find_field(field_id)
    reading = {"type": str(field.field_type), "default": repr(field.initial_default)}
    constants = dict(file.constants)
    if field_id in constants:
        reading["partition"] = repr(constants[field_id])
    if by_name:
        names = mapped_names(file.name_mapping, field_id)
        reading["names"] = json.dumps([field.name] if names is None else ["", *sorted(names)])
    if analyzer:
        reading["analyzer"] = analyzer
    return json.dumps(reading, sort_keys=True)


def analyzer_of(reading: str) -> str:
    """The identity of the analyzer in what `reading_of` gives; empty for anything else."""
    try:
        return str(json.loads(reading).get("analyzer", ""))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""


def is_by_name(reading: str) -> bool:
    """Whether a reading is of a file whose columns are found by their names. False for what is no reading of ours."""
    try:
        return "names" in json.loads(reading)
    except (ValueError, TypeError, RecursionError):
        return False


def stored_type(field: NestedField) -> pa.DataType:
    """The Arrow type that holds the values of a column of plain values, or the elements of one of lists."""
    kind = arrow_schema(Schema(field)).field(0).type
    if pa.types.is_list(kind):
        kind = kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def plain_values(column: pa.Array) -> pa.Array:
    """A column in its `stored_type`."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def list_parents(lists: pa.Array) -> npt.NDArray[np.int64]:
    """int64[n]: number of the list of each value of `lists.flatten()`."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths)


def merged(parts: Sequence[pa.Array]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """(distinct values of all parts in the order of their first appearance, the index of each value of the parts)."""
    encoded = pa.concat_arrays(parts).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def file_values(batches: Iterable[pa.Array], kind: pa.DataType, rows: int) -> FileValues | None:
    """The values of a column, from batches of its rows; None where they take more than `BYTES_PER_ROW`.

    Memory: the distinct values, and 4 bytes per row.
    """
    limit = ALWAYS_KEPT + BYTES_PER_ROW * rows
    merged_values = _merged_batches(batches, kind, limit)
    if merged_values is None:
        return None
    values = encoded_values(*merged_values)
    return values if values.codes.nbytes + _size(values) <= limit else None


def file_lists(batches: Iterable[pa.Array], kind: pa.DataType, rows: int) -> FileTokens | None:
    """The lists of a column, from batches of its rows; None where they take more than `LIST_BYTES_PER_ROW`.

    `kind`: of the elements. Memory: the distinct elements, and 16 bytes per element of a list.
    """
    limit = ALWAYS_KEPT + LIST_BYTES_PER_ROW * rows
    owners, states, first = [np.empty(0, np.int64)], [np.empty(0, np.uint8)], 0

    def elements() -> Iterator[pa.Array]:
        nonlocal first
        for lists in batches:
            states.append(np.where(np.asarray(lists.is_null()), NULL, WHOLE).astype(np.uint8))
            owners.append(first + list_parents(lists))
            first += len(lists)
            yield plain_values(lists.flatten())

    merged_values = _merged_batches(elements(), kind, limit)
    if merged_values is None or rows >= 1 << 32:
        return None
    distinct, codes = merged_values
    owner, state = np.concatenate(owners), np.concatenate(states)
    state[owner[codes < 0]] = WITH_NULL
    pairs = np.unique(codes[codes >= 0].astype(np.int64) * rows + owner[codes >= 0])
    starts = np.searchsorted(pairs, np.arange(len(distinct) + 1) * np.int64(rows)).astype(np.uint32)
    tokens = FileTokens(
        encoded_values(distinct, np.empty(0, np.int32)), state, starts, (pairs % max(1, rows)).astype(np.uint32)
    )
    size = _size(tokens.tokens) + tokens.starts.nbytes + tokens.rows.nbytes + rows
    return tokens if size <= limit else None


def _size(values: FileValues) -> int:
    """Bytes of the distinct values."""
    return len(values.values) + (0 if values.offsets is None else values.offsets.nbytes)


def _merged_batches(
    batches: Iterable[pa.Array], kind: pa.DataType, limit: int
) -> tuple[pa.Array, npt.NDArray[np.int32]] | None:
    """(distinct values, the code of each value, -1 for null); None where they take more bytes than `limit`."""
    encoded, pending_bytes = [pa.array([], kind).dictionary_encode()], 0
    for batch in batches:
        encoded.append(batch.dictionary_encode())
        pending_bytes += encoded[-1].dictionary.nbytes
        if pending_bytes > max(_MERGED_BYTES, encoded[0].dictionary.nbytes):
            encoded, pending_bytes = [unified(encoded)], 0
            if encoded[0].dictionary.nbytes > limit:
                return None
    every = unified(encoded)
    return every.dictionary, every.indices.fill_null(-1).to_numpy()


def unified(parts: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    """The parts one after the other, with one dictionary: values in the order of their first appearance."""
    return pa.chunked_array(parts).unify_dictionaries().combine_chunks()


def encoded_values(distinct: pa.Array, codes: npt.NDArray[np.int32]) -> FileValues:
    """Values by the layout of the blob. Codes of -1 stand for null."""
    count = len(distinct)
    every = np.where(codes < 0, count, codes).astype(code_type(count))
    return FileValues(count, *plain_bytes(distinct), every)


def value_width(kind: pa.DataType) -> int:
    """Bytes of each value of a column's `stored_type`; 0 where values have lengths of their own."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 0
    return 1 if pa.types.is_boolean(kind) else int(kind.byte_width)


def plain_bytes(values: pa.Array) -> tuple[int, bytes, npt.NDArray[np.uint32] | None]:
    """(`value_width`, the values one after the other, bytes before each and before the end where that is 0) of a column
    in its `stored_type`. What stands for a null is any value.
    """
    kind, count, width = values.type, len(values), value_width(values.type)
    if pa.types.is_boolean(kind):
        flags = values.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        return width, flags.astype(np.uint8).tobytes(), None
    if width:
        fixed = memoryview(values.buffers()[1])[values.offset * width : (values.offset + count) * width]
        return width, bytes(fixed), None
    offsets = np.frombuffer(values.buffers()[1], OFFSET, count + 1, values.offset * OFFSET.itemsize)
    texts = values.buffers()[2]
    stored = b"" if texts is None else bytes(memoryview(texts)[int(offsets[0]) : int(offsets[-1])])
    return width, stored, (offsets - offsets[0]).astype(np.uint32)


def code_type(count: int) -> type[np.unsignedinteger]:
    """The smallest type of codes 0 to `count`."""
    return np.uint8 if count < 1 << 8 else np.uint16 if count < 1 << 16 else np.uint32


def decoded_values(values: FileValues, kind: pa.DataType) -> pa.Array:
    """The distinct values, as Arrow has them. Raises BadBlobError where they are none of the type."""
    if (width := value_width(kind)) != values.width:
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
