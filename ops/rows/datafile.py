"""Reading rows of one Parquet data file as a snapshot sees them: by field id, deleted rows included.

Executors import this: no dagster, no pyspark.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, create_mapping_from_schema, parse_mapping_from_json
from pyiceberg.types import NestedField

from icepuffin.ops.errors import FileDamageError
from icepuffin.ops.messages import plural
from icepuffin.ops.model import LiveFile
from icepuffin.ops.rows.parquet import ParquetObject
from icepuffin.ops.rows.projection import projected
from icepuffin.ops.storage import ObjectMissingError, Storage

BATCH_ROWS = 8_192
BATCH_BYTES = 1 << 26
"""Largest size of a batch of vectors, as f32"""
_FIELD_ID = b"PARQUET:field_id"
_DECIMAL_DIGITS = 38
_STORED_AS_THEY_ARE = ("arrow.json", "arrow.fixed_shape_tensor")
"""Extension types whose stored values mean the same: texts, and lists of numbers"""
_PROJECTIONS = 64
"""Projections that are kept, with the schemas that they are of"""


class DataFileError(FileDamageError):
    """Raised when a data file cannot be read as the snapshot's schema says; the message names the file."""


def batch_rows(dims: int | None) -> int:
    """Number of vectors per batch, smaller for long vectors; `dims` None where the dimension is not known yet."""
    return min(BATCH_ROWS, max(1, BATCH_BYTES // (4 * (dims or 1))))


def take_rows(
    storage: Storage, file: LiveFile, schema: Schema, field_ids: Sequence[int], positions: npt.NDArray[np.int64]
) -> pa.Table:
    """Rows of a file by absolute position, in the order of `positions`; only row groups that hold one are read.

    The caller has made sure that the rows are live. Raises DataFileError for a position past the end.
    """
    return DataFile(storage, file, schema, field_ids).take(positions)


class DataFile:
    """One opened data file, seen as some fields of a snapshot's schema, in the order of `field_ids`. Its footer has
    been read.

    Raises DataFileError for another format, a missing or a damaged file, columns that do not fit the schema, or more
    rows than its manifest counts: positions would be those of the next file's rows.
    """

    def __init__(self, storage: Storage, file: LiveFile, schema: Schema, field_ids: Sequence[int]) -> None:
        self._file = file
        constants = frozenset((field_id, value is None) for field_id, value in file.constants)
        self._projected, self.schema = _projection(_SchemaItself(schema), tuple(field_ids), constants)
        self._parquet = open_data_file(storage, file)
        self._as_stored = _names_as_stored(self._parquet.schema, self._projected, self.schema)
        if self._as_stored is None:
            self._present = _present_fields(self._parquet, self._projected, file)
        self._columns = [field.name for field in self._present.fields] if self._as_stored is None else self._as_stored
        """Names, in the file, of the fields that it has"""
        counts = [self._parquet.metadata.row_group(group).num_rows for group in range(self.groups)]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self._bounds: list[int] = self._starts.tolist()
        if self._bounds[-1] > file.record_count:
            raise DataFileError(
                f"{file.path} has {plural(self._bounds[-1], 'row')}, and the manifest that names it says "
                f"{file.record_count:,}: add the file to the table again, with its true record_count"
            )

    @property
    def has_field_ids(self) -> bool:
        """Whether columns are found by their field ids, and not by their names."""
        return bool(_by_field_id(self._parquet.schema))

    @property
    def stored_field_ids(self) -> frozenset[int]:
        """Ids of the fields that the file has, those inside of structs included."""
        return frozenset(_field_ids(self._parquet.schema))

    @property
    def groups(self) -> int:
        return int(self._parquet.metadata.num_row_groups)

    def start(self, group: int) -> int:
        """Position of a row group's first row."""
        return int(self._starts[group])

    def locate(self, position: int) -> tuple[int, int]:
        """(row group, row within it) of a row position. Raises DataFileError for one past the end."""
        self._require_rows(position, position)
        group = bisect_right(self._bounds, position) - 1
        return group, position - self._bounds[group]

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, as the file has them: `conform` makes them what the schema says."""
        if not self._columns:
            for group in range(self.groups):
                yield _nothing(self._parquet.metadata.row_group(group).num_rows)
            return
        with reporting_damage(self._file):
            yield from self._parquet.batches(self._columns, batch_rows=batch_rows)

    def first(self, rows: int, group: int) -> pa.RecordBatch | None:
        """The first rows of a row group, conformed, without a read of the rest; None where it is empty."""
        if not self._columns:
            return self.conform(_nothing(min(rows, self._parquet.metadata.row_group(group).num_rows)))
        with reporting_damage(self._file):
            batch = self._parquet.first(self._columns, rows=rows, group=group)
        return None if batch is None else self.conform(batch)

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The snapshot's names, order and types.

        A field that the file lacks has the value of its identity partition, else its `initial-default`, else null
        (Iceberg spec, "Column Projection").
        """
        try:
            if self._as_stored is not None:
                return batch.select(self._as_stored).rename_columns(self.schema.names).cast(self.schema)
            filled = {key: _for_arrow(value) for key, value in self._file.constants}
            rows = _in_supported_types(batch)
            return projected(self._projected, self._present, rows, filled).cast(self.schema)
        except (ValueError, TypeError, ResolveError, pa.ArrowNotImplementedError) as error:
            raise DataFileError(f"{self._file.path} cannot be read as the snapshot's schema says: {error}") from error

    def stored_bytes(self, group: int) -> int:
        """Compressed bytes of the column chunks that reading the row group takes."""
        names = frozenset(self._columns)
        return sum(int(chunk.total_compressed_size) for name, chunk in self._parquet.chunks(group) if name in names)

    def read_group(self, group: int) -> pa.Table:
        """One row group, conformed."""
        if not self._columns:
            table = pa.Table.from_batches([_nothing(self._parquet.metadata.row_group(group).num_rows)])
        else:
            with reporting_damage(self._file):
                table = self._parquet.read(self._columns, [group])
        batches = [self.conform(batch) for batch in table.combine_chunks().to_batches()]
        return pa.Table.from_batches(batches, schema=self.schema)

    def take(self, positions: npt.NDArray[np.int64], read_group: Callable[[int], pa.Table] | None = None) -> pa.Table:
        """Rows by absolute position, in the order of `positions`. `read_group` replaces the method, as a cache does."""
        if not len(positions):
            return no_rows(self.schema)
        low, high = positions.min(), positions.max()
        self._require_rows(low, high)
        read = read_group or self.read_group
        first, last = (int(np.searchsorted(self._starts, position, side="right")) - 1 for position in (low, high))
        if first == last:
            return read(first).take(pa.array(positions - self._starts[first]))
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        parts, order = [], []
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            parts.append(read(int(group)).take(pa.array(positions[rows] - self._starts[group])))
            order.append(rows)
        return pa.concat_tables(parts).combine_chunks().take(pa.array(np.argsort(np.concatenate(order))))

    def _require_rows(self, low: int, high: int) -> None:
        if low < 0 or high >= self._bounds[-1]:
            raise DataFileError(
                f"{self._file.path} has {plural(int(self._bounds[-1]), 'row')}, position {high} was requested"
            )


def _name(schema: Schema, field_id: int) -> str:
    name = schema.find_column_name(field_id)
    if name is None:
        raise DataFileError(f"the snapshot's schema has no field {field_id}: the column was dropped")
    return name


class _SchemaItself:
    """A schema as a key: no equal one, as hashing a schema takes time for each of its columns."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SchemaItself) and self.schema is other.schema


@lru_cache(maxsize=_PROJECTIONS)
def _projection(
    key: _SchemaItself, field_ids: tuple[int, ...], constants: frozenset[tuple[int, bool]]
) -> tuple[Schema, pa.Schema]:
    """(some fields of a schema in the order of `field_ids`, their Arrow types).

    They are the same for most files of a table, and take half of the time that opening a file takes. `constants`: ids
    of the columns of identity partitions, and whether the partition is null.
    """
    schema = key.schema
    selected = schema.select(*(_name(schema, field_id) for field_id in field_ids))
    order = {field_id: index for index, field_id in enumerate(field_ids)}
    # `select` leaves them in the schema's order, which another schema of the table may not have
    fields = sorted(selected.fields, key=lambda field: order.get(field.field_id, len(order)))
    filled = (_filled_by_partition(field, dict(constants)) for field in fields)
    return Schema(*filled, schema_id=schema.schema_id), arrow_schema(Schema(*fields, schema_id=schema.schema_id))


def _filled_by_partition(field: NestedField, constants: Mapping[int, bool]) -> NestedField:
    """The field, as PyIceberg's projection gives it the partition's value where a file lacks it: a required one would
    be an error there, and the default of one whose partition is null would be its value.
    """
    if field.field_id not in constants:
        return field
    default = None if constants[field.field_id] else field.initial_default
    return field.model_copy(update={"required": False, "initial_default": default})


def open_data_file(storage: Storage, file: LiveFile) -> ParquetObject:
    """Raises DataFileError for another format, a missing or a broken file."""
    if file.file_format.upper() != "PARQUET":
        raise DataFileError(f"{file.path} is {file.file_format}; only Parquet data files are read")
    try:
        return ParquetObject(storage, file.path, file.size)
    except ObjectMissingError as error:
        raise DataFileError(f"{file.path} is missing, although the snapshot's manifests name it") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(file.path, "is no readable Parquet file", error) from error


@contextmanager
def reporting_damage(file: LiveFile) -> Iterator[None]:
    """Raises DataFileError, which names the file, for what Arrow raises while it reads the rows."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:  # Arrow raises OSError for some damage
        raise _unreadable(file.path, "is damaged", error) from error


def _unreadable(path: str, what: str, error: Exception) -> DataFileError:
    """The error on a file that Arrow cannot read: `what`, unless the file is encrypted, which has no type in Arrow."""
    if "decrypt" in str(error):
        what = "is encrypted, and icepuffin reads plain data files only"
    return DataFileError(f"{path} {what}: {error}")


def column_names(stored: pa.Schema, file: LiveFile, schema: Schema) -> dict[int, str]:
    """Names of a file's top-level columns, by field id.

    Columns of imported files have no ids. Their ids are found by name: in the table's mapping (Iceberg spec, "Column
    Projection"), or in the schema where the table has no mapping. Left out are columns of
    other names, and columns whose value comes from an identity partition.
    """
    by_id = _by_field_id(stored)
    if by_id:
        return {field_id: field.name for field_id, field in by_id.items()}
    constant = frozenset(field_id for field_id, _ in file.constants)
    field_ids = {name: m.field_id for m in _mapping(file, schema) if m.field_id not in constant for name in m.names}
    return {field_id: name for name in stored.names if (field_id := field_ids.get(name)) is not None}


def mapped_names(mapping: str | None, field_id: int) -> frozenset[str] | None:
    """Names that a name mapping, JSON, has for a field; none where it cannot be read. None without a mapping."""
    if mapping is None:
        return None
    try:
        return frozenset(
            name for field in parse_mapping_from_json(mapping) if field.field_id == field_id for name in field.names
        )
    except ValueError:
        return frozenset()


def lacks_field_ids(storage: Storage, file: LiveFile) -> bool:
    """Whether columns of a file are found by their names. Reads the file's footer. Raises DataFileError."""
    return not _by_field_id(open_data_file(storage, file).schema)


def _by_field_id(stored: pa.Schema) -> dict[int, pa.Field]:
    return {int(field.metadata[_FIELD_ID]): field for field in stored if _FIELD_ID in (field.metadata or {})}


def _field_ids(fields: Iterable[pa.Field]) -> Iterator[int]:
    for field in fields:
        if _FIELD_ID in (field.metadata or {}):
            yield int(field.metadata[_FIELD_ID])
        if pa.types.is_struct(field.type):
            yield from _field_ids(field.type)


def _mapping(file: LiveFile, schema: Schema) -> NameMapping:
    if file.name_mapping is None:
        return create_mapping_from_schema(schema)
    try:
        return parse_mapping_from_json(file.name_mapping)
    except ValueError as error:
        raise DataFileError(f"{file.path}: the table's schema.name-mapping.default cannot be read: {error}") from error


def _names_as_stored(stored: pa.Schema, projected: Schema, requested: pa.Schema) -> list[str] | None:
    """The file's own names of the fields, where it has all of them under their ids and in the requested types.

    Most files do. PyIceberg's projection, 0.1 ms per file and more per batch, is skipped for them. None for other
    files, and for fields inside of fields, which have ids of their own.
    """
    by_id = _by_field_id(stored)
    names = []
    for field, target in zip(projected.fields, requested, strict=True):
        stored_field = by_id.get(field.field_id)
        if stored_field is None or _with_small_offsets(stored_field.type) != target.type or _is_nested(target.type):
            return None
        names.append(stored_field.name)
    return names


def _is_nested(arrow_type: pa.DataType) -> bool:
    """Whether a type is nested deeper than a list."""
    return bool(pa.types.is_nested(arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type))


def _present_fields(parquet: ParquetObject, projected: Schema, file: LiveFile) -> Schema:
    """The fields of the projection that the file has, under the file's own names and types."""
    names = column_names(parquet.schema, file, projected)
    present = {names[field.field_id] for field in projected.fields if field.field_id in names}
    stored = pa.schema(
        [field.with_type(_supported_type(field.type)) for field in parquet.schema if field.name in present]
    )
    try:
        return pyarrow_to_schema(stored, name_mapping=_mapping(file, projected), format_version=3)
    except UnsupportedPyArrowTypeException as error:
        raise DataFileError(f"{file.path} cannot be read as the snapshot's schema says: {error}") from error
    except ValueError as error:
        raise DataFileError(
            f"{file.path}: its columns have no field ids, and their names do not match: {error}"
        ) from error


def _for_arrow(constant: Any) -> Any:
    """A value as Arrow 22 takes it for its type: a UUID by its bytes."""
    return constant.bytes if isinstance(constant, UUID) else constant


def _in_supported_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with types that PyIceberg knows. Raises ArrowInvalid for a value that does not fit them."""
    schema = pa.schema([field.with_type(_supported_type(field.type)) for field in batch.schema])
    if schema.equals(batch.schema):
        return batch
    columns = [_lists_of_views(column) if _is_list_view(column.type) else column for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names).cast(schema)


def _supported_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type with the same values that PyIceberg knows: imported files have what their writer's Arrow had."""
    if getattr(arrow_type, "extension_name", None) in _STORED_AS_THEY_ARE:
        return arrow_type.storage_type
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        return pa.timestamp(arrow_type.unit, "UTC")
    if pa.types.is_time(arrow_type):
        return pa.time64("us")
    if pa.types.is_decimal(arrow_type) and arrow_type.precision <= _DECIMAL_DIGITS:
        return pa.decimal128(arrow_type.precision, arrow_type.scale)
    return _with_supported_children(arrow_type)


def _with_supported_children(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_supported_type(field.type)) for field in arrow_type])
    if pa.types.is_list(arrow_type) or _is_list_view(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_supported_type(arrow_type.value_type)))
    return arrow_type


def _is_list_view(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(arrow_type) or pa.types.is_large_list_view(arrow_type))


def _lists_of_views(views: pa.Array) -> pa.Array:
    """Arrow 26 casts views that it read from Parquet by the offsets of lists, which they do not have."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(views.sizes.to_numpy())]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, views.flatten(), pa.list_(views.type.value_field), mask=views.is_null())


def _nothing(rows: int) -> pa.RecordBatch:
    """Rows without columns; Arrow needs a column to carry their number."""
    return pa.record_batch({"_": pa.nulls(rows)})


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow types that this module returns for a schema: plain strings, binaries and lists, not the large ones."""
    fields = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(field.name, _with_small_offsets(field.type), field.nullable) for field in fields])


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table of this schema without rows. `empty_table` fails where a uuid is inside of another type: Arrow makes no
    empty array of those.
    """
    return pa.Table.from_batches([], schema=schema)


def _with_small_offsets(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(arrow_type):
        return pa.string()
    if pa.types.is_large_binary(arrow_type):
        return pa.binary()
    if pa.types.is_large_list(arrow_type) or pa.types.is_list(arrow_type):
        return pa.list_(
            pa.field("element", _with_small_offsets(arrow_type.value_type), arrow_type.value_field.nullable)
        )
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_with_small_offsets(field.type)) for field in arrow_type])
    if pa.types.is_map(arrow_type):
        key, item = arrow_type.key_field, arrow_type.item_field
        return pa.map_(key.with_type(_with_small_offsets(key.type)), item.with_type(_with_small_offsets(item.type)))
    return arrow_type
