"""Reading rows of one Parquet data file as a snapshot sees them: by field id, live rows only, with their positions.

Executors import this: no dagster, no pyspark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema

from ops.catalog.deletes import deleted_positions
from ops.errors import IcepuffinError
from ops.model import LiveFile
from ops.parquet import ParquetObject
from ops.storage import ObjectMissingError, Storage

BATCH_ROWS = 8_192


class DataFileError(IcepuffinError):
    """Raised when a data file cannot be read as the snapshot's schema says; the message names the file."""


class VectorColumnError(IcepuffinError):
    """Raised when a column's values are no vectors of one dimension; the message names the first bad row."""


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """Some live rows of one file."""

    positions: npt.NDArray[np.int64]
    """int64[n], absolute row positions in the file, ascending"""
    columns: pa.RecordBatch
    """n rows, the fields that were asked for, under the snapshot's names and types"""


def read_live(
    storage: Storage, file: LiveFile, schema: Schema, field_ids: Sequence[int], *, batch_rows: int = BATCH_ROWS
) -> Iterator[LiveBatch]:
    """Stream the live rows of a file, row group by row group; fields that the file lacks are null.

    `schema` is the snapshot's. Raises DataFileError, EqualityDeletesError.
    """
    deleted = deleted_positions(storage, file)
    projected = schema.select(*(_name(schema, field_id) for field_id in field_ids))
    parquet = open_data_file(storage, file)
    present = _present_columns(parquet, projected, file)
    start = 0
    for batch in _batches(parquet, present, batch_rows, file):
        positions = np.arange(start, start + batch.num_rows, dtype=np.int64)
        start += batch.num_rows
        first, last = np.searchsorted(deleted, (positions[0], positions[-1] + 1)) if len(positions) else (0, 0)
        if first < last:
            keep = np.ones(len(positions), bool)
            keep[deleted[first:last] - positions[0]] = False
            live = batch.filter(pa.array(keep))
            positions = positions[keep]
        else:
            live = batch
        if len(positions):
            yield LiveBatch(positions, _conform(live, present, projected, file))


def take_rows(
    storage: Storage, file: LiveFile, schema: Schema, field_ids: Sequence[int], positions: npt.NDArray[np.int64]
) -> pa.Table:
    """Rows of a file by absolute position, in the order of `positions`; only row groups that hold one are read.

    The caller has made sure that the rows are live. Raises DataFileError for a position past the end.
    """
    projected = schema.select(*(_name(schema, field_id) for field_id in field_ids))
    parquet = open_data_file(storage, file)
    present = _present_columns(parquet, projected, file)
    counts = [parquet.metadata.row_group(group).num_rows for group in range(parquet.metadata.num_row_groups)]
    ends = np.cumsum(counts, dtype=np.int64)
    if len(positions) and (positions.min() < 0 or positions.max() >= parquet.metadata.num_rows):
        raise DataFileError(
            f"{file.path} has {parquet.metadata.num_rows} rows, position {positions.max()} was asked for"
        )
    groups = np.searchsorted(ends, positions, side="right")
    needed, group_of = np.unique(groups, return_inverse=True)
    starts = np.concatenate([[0], ends])[needed] if len(needed) else np.empty(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([counts[group] for group in needed])]).astype(np.int64)
    read = _read_groups(parquet, [int(group) for group in needed], present, file)
    rows = read.take(pa.array(offsets[group_of] + positions - starts[group_of], pa.int64()))
    batches = [_conform(batch, present, projected, file) for batch in rows.combine_chunks().to_batches()]
    return pa.Table.from_batches(batches, schema=arrow_schema(projected))


def vectors_from_arrow(column: pa.Array | pa.ChunkedArray, dims: int | None = None) -> npt.NDArray[np.float32]:
    """A list column as f32[N, D]. Takes lists, large lists and fixed-size lists of half, float or double.

    Raises VectorColumnError for another type, a null vector, a null element, or a length that is not `dims` (without
    it: not the first vector's). NaN and infinity are left to the kernels.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # several chunks too large for one array
        return np.concatenate([vectors_from_arrow(chunk, dims) for chunk in array.chunks])
    kind = array.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or not pa.types.is_floating(kind.value_type):
        raise VectorColumnError(f"a vector column is a list of float or double, this one is {kind}")
    if array.null_count:
        raise VectorColumnError(f"row {_first(array.is_null())} has no vector (null)")
    lengths = pc.list_value_length(array)
    wanted = dims if dims is not None else (lengths[0].as_py() if len(array) else 0)
    bad = pc.not_equal(lengths, wanted)
    if pc.any(bad).as_py():
        row = _first(bad)
        raise VectorColumnError(f"row {row} has a vector of {lengths[row].as_py()} dimensions, {wanted} were expected")
    values = array.flatten()
    if values.null_count:
        raise VectorColumnError(f"row {_first(values.is_null()) // max(1, wanted)} has a null element in its vector")
    flat = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(flat, dtype=np.float32).reshape(len(array), wanted)


def _first(mask: pa.BooleanArray) -> int:
    return int(pc.index(mask, pa.scalar(value=True)).as_py())


def _name(schema: Schema, field_id: int) -> str:
    name = schema.find_column_name(field_id)
    if name is None:
        raise DataFileError(f"the snapshot's schema has no field {field_id}: the column was dropped")
    return name


def open_data_file(storage: Storage, file: LiveFile) -> ParquetObject:
    """Raises DataFileError for another format, a missing or a broken file."""
    if file.file_format.upper() != "PARQUET":
        raise DataFileError(f"{file.path} is {file.file_format}; only Parquet data files are read")
    try:
        return ParquetObject(storage, file.path, file.size)
    except ObjectMissingError as error:
        raise DataFileError(f"{file.path} is missing, although the snapshot's manifests name it") from error
    except pa.ArrowInvalid as error:
        raise DataFileError(f"{file.path} is no readable Parquet file: {error}") from error


@dataclass(frozen=True, slots=True)
class _Present:
    """What of the projection the file has, as a schema of the file's own names and types."""

    schema: Schema
    columns: tuple[str, ...]


def _present_columns(parquet: ParquetObject, projected: Schema, file: LiveFile) -> _Present:
    mapping = create_mapping_from_schema(projected)  # for files without field ids: imported ones
    try:
        whole = pyarrow_to_schema(parquet.schema, name_mapping=mapping)
    except ValueError as error:
        raise DataFileError(
            f"{file.path}: its columns have no field ids, and their names do not match: {error}"
        ) from error
    wanted = {field.field_id for field in projected.fields}
    fields = [field for field in whole.fields if field.field_id in wanted]
    return _Present(Schema(*fields), tuple(field.name for field in fields))


def _batches(parquet: ParquetObject, present: _Present, batch_rows: int, file: LiveFile) -> Iterator[pa.RecordBatch]:
    if not present.columns:
        for group in range(parquet.metadata.num_row_groups):
            yield _nothing(parquet.metadata.row_group(group).num_rows)
        return
    try:
        yield from parquet.batches(present.columns, batch_rows=batch_rows)
    except pa.ArrowInvalid as error:
        raise DataFileError(f"{file.path} is damaged: {error}") from error


def _read_groups(parquet: ParquetObject, groups: list[int], present: _Present, file: LiveFile) -> pa.Table:
    if not present.columns:
        return pa.Table.from_batches([_nothing(sum(parquet.metadata.row_group(group).num_rows for group in groups))])
    try:
        return parquet.read(present.columns, groups)
    except pa.ArrowInvalid as error:
        raise DataFileError(f"{file.path} is damaged: {error}") from error


def _nothing(rows: int) -> pa.RecordBatch:
    """Rows of which nothing is known but their number; Arrow needs a column to carry that."""
    return pa.record_batch({"_": pa.nulls(rows)})


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow types that this module returns for a schema: plain strings, binaries and lists, not the large ones."""
    fields = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in fields])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type), kind.value_field.nullable))
    return kind


def _conform(batch: pa.RecordBatch, present: _Present, projected: Schema, file: LiveFile) -> pa.RecordBatch:
    out = arrow_schema(projected)
    if not present.columns:
        return pa.record_batch([pa.nulls(batch.num_rows, field.type) for field in out], names=out.names)
    try:
        return _to_requested_schema(projected, present.schema, batch).cast(out)
    except (ValueError, TypeError, pa.ArrowInvalid) as error:
        raise DataFileError(f"{file.path} cannot be read as the snapshot's schema says: {error}") from error
