"""Rows that equality deletes remove, as row positions of the data files.

A row is deleted where its values in the columns that a delete file compares are those of one of that file's rows
(Iceberg spec, "Equality Delete Files"). Null equals null. Floats are equal by their bits, as in Iceberg's own readers:
NaN equals NaN, -0.0 is not 0.0. Data files are read as a stream, and only the columns that are compared.

What was resolved is kept in the process, within a budget: a refresh needs the positions of a file several times, and
the next snapshot only brings some more deletes.

Executors import this: no dagster, no pyspark.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from icepuffin.ann_kernels.arrays import I64, Bool
from icepuffin.ops.catalog.live_files import EqualityDeletesError
from icepuffin.ops.datafile import DataFile
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile
from icepuffin.ops.storage import Storage, StorageError
from icepuffin.ops.storage.local import LocalStorage

_BUDGET = 64 << 20
"""Bytes of resolved positions that a process keeps"""
_SETS_PER_FILE = 3
"""Sets of deletes of one data file that are kept: those of the snapshots that are read in turn"""
_FILES_AT_ONCE = 16
"""Files that are read side by side, as every request waits for a distant store's answer"""
_ROWS_AT_ONCE = 1 << 16
_SMALL_FILE = 1 << 18
"""Rows up to which a data file's keys are read whole, ahead of their turn"""

_DeleteName = tuple[str, int]
"""(path, sequence number) of a delete file"""


def deleted_by_equality(open_store: Callable[[str], Storage], files: Collection[LiveFile]) -> dict[str, I64]:
    """Row positions that equality deletes remove of each file, by path, int64, ascending, distinct. Paths are distinct.

    `open_store` gives the store of a path. Memory: the keys of the delete files twice over, and a stream of the data
    files' keys. Raises EqualityDeletesError, DataFileError, StorageError.
    """
    of_tuple: dict[int, _Deletes] = {}
    positions: dict[str, I64] = {}
    unresolved: list[_UnresolvedFile] = []
    for file in files:
        if id(file.deletes) not in of_tuple:  # equal ones are one object, as there may be thousands for each file
            of_tuple[id(file.deletes)] = _Deletes(_equality_deletes(file))
        deletes = of_tuple[id(file.deletes)]
        resolution = _resolved.largest(_file_key(open_store(file.path), file), deletes.names)
        positions[file.path] = resolution.positions
        if len(resolution.names) < len(deletes.names):
            unresolved.append(_UnresolvedFile(file, deletes, resolution))
    matching = {one.file.path: [one.resolution.positions] for one in unresolved}
    for schema, group in _by_keys(unresolved):
        for path, rows in _matches(open_store, schema, group):
            matching[path].append(rows)
    for one in unresolved:
        positions[one.file.path] = np.unique(np.concatenate(matching[one.file.path]))
        whole = _Resolution(one.deletes.names, positions[one.file.path])
        _resolved.keep(_file_key(open_store(one.file.path), one.file), whole)
    return positions


def _equality_deletes(file: LiveFile) -> dict[_DeleteName, DeleteFile]:
    deletes = [delete for delete in file.deletes if delete.kind is DeleteKind.EQUALITY]
    for delete in deletes:
        if delete.keys is None:
            raise EqualityDeletesError(
                f"{file.path}: equality deletes apply, and {delete.path} {delete.unreadable}; rewrite the file first "
                "(rewrite_data_files)"
            )
    return {(delete.path, delete.sequence_number): delete for delete in deletes}


class _Deletes:
    """Equality deletes that some data files share."""

    def __init__(self, by_name: Mapping[_DeleteName, DeleteFile]) -> None:
        self.by_name = by_name
        self.names = frozenset(by_name)


@dataclass(frozen=True, slots=True)
class _Resolution:
    """Positions that some deletes remove from a data file."""

    names: frozenset[_DeleteName]
    positions: I64

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + 16 * len(self.names) + 256


_NOTHING = _Resolution(frozenset(), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class _UnresolvedFile:
    """A data file with deletes of which some are not resolved yet."""

    file: LiveFile
    deletes: _Deletes
    resolution: _Resolution
    """What is resolved"""


class _Resolutions:
    """What was resolved in this process, by data file; those that were used last stay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_file: OrderedDict[tuple[object, ...], tuple[_Resolution, ...]] = OrderedDict()
        self._nbytes = 0

    def largest(self, key: tuple[object, ...], names: frozenset[_DeleteName]) -> _Resolution:
        """The resolution of most of these deletes, and of no others."""
        with self._lock:
            kept = self._of_file.get(key, ())
            if kept:
                self._of_file.move_to_end(key)
        return max((one for one in kept if one.names <= names), key=lambda one: len(one.names), default=_NOTHING)

    def keep(self, key: tuple[object, ...], resolution: _Resolution) -> None:
        with self._lock:
            before = self._of_file.pop(key, ())
            kept = (*(one for one in before if one.names != resolution.names), resolution)[-_SETS_PER_FILE:]
            self._of_file[key] = kept
            self._nbytes += sum(one.nbytes for one in kept) - sum(one.nbytes for one in before)
            while self._nbytes > _BUDGET:
                _, dropped = self._of_file.popitem(last=False)
                self._nbytes -= sum(one.nbytes for one in dropped)


_resolved = _Resolutions()


def _file_key(storage: Storage, file: LiveFile) -> tuple[object, ...]:
    """Identity of a data file as one user reads it. A path may come again with other rows, by another commit."""
    user = None if isinstance(storage, LocalStorage) else storage  # one object per process and configuration
    return user, file.path, file.size, file.record_count, file.sequence_number, file.file_sequence_number, file.added_by


@dataclass(frozen=True, slots=True)
class _FileDeletes:
    """Deletes of a data file that compare the same columns."""

    file: LiveFile
    deletes: _Deletes


def _by_keys(unresolved: Sequence[_UnresolvedFile]) -> Iterator[tuple[Schema, list[_FileDeletes]]]:
    """The deletes that are not resolved, grouped by the columns that they compare."""
    schemas: dict[frozenset[int], Schema] = {}
    groups: dict[frozenset[int], list[_FileDeletes]] = {}
    split: dict[tuple[int, frozenset[_DeleteName]], dict[frozenset[int], _Deletes]] = {}
    fields: dict[int, frozenset[int]] = {}
    for one in unresolved:
        shared = id(one.deletes), one.resolution.names
        if shared not in split:
            parts: dict[frozenset[int], dict[_DeleteName, DeleteFile]] = {}
            for name in one.deletes.names - one.resolution.names:
                delete = one.deletes.by_name[name]
                if id(delete.keys) not in fields:
                    schema = delete.keys or Schema()
                    fields[id(delete.keys)] = frozenset(schema.field_ids)
                    schemas.setdefault(fields[id(delete.keys)], schema)
                compared = fields[id(delete.keys)]
                parts.setdefault(compared, {})[name] = delete
            split[shared] = {compared: _Deletes(part) for compared, part in parts.items()}
        for compared, deletes in split[shared].items():
            groups.setdefault(compared, []).append(_FileDeletes(one.file, deletes))
    return ((schemas[compared], group) for compared, group in groups.items())


def _matches(
    open_store: Callable[[str], Storage], schema: Schema, group: Sequence[_FileDeletes]
) -> Iterator[tuple[str, I64]]:
    """(path, row positions) of rows that the deletes of their file remove, ascending per path."""
    shared = {id(part.deletes): part.deletes for part in group}
    deletes = {name: delete for each in shared.values() for name, delete in each.by_name.items()}
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        read = pool.map(lambda delete: _read_keys(open_store(delete.path), delete, schema), deletes.values())
        keys = _KeySet(list(read))
        if not keys.count:
            return
        numbers = {name: number for number, name in enumerate(deletes)}
        chosen = {place: np.zeros(len(numbers), np.bool_) for place in shared}
        for place, each in shared.items():
            chosen[place][[numbers[name] for name in each.names]] = True
        waiting: list[tuple[_FileDeletes, int, pa.Table]] = []
        rows = 0
        for part, start, table in _stream(pool, open_store, schema, group):
            waiting.append((part, start, table))
            rows += table.num_rows
            if rows >= max(_ROWS_AT_ONCE, keys.count):  # a look-up makes a hash table of all keys: not for a few rows
                yield from _look_up(keys, chosen, waiting)
                waiting, rows = [], 0
        yield from _look_up(keys, chosen, waiting)


def _look_up(
    keys: "_KeySet", chosen: Mapping[int, Bool], batches: Sequence[tuple[_FileDeletes, int, pa.Table]]
) -> Iterator[tuple[str, I64]]:
    if not batches:
        return
    codes = keys.find(pa.concat_tables([table for _, _, table in batches]))
    end = 0
    for part, start, table in batches:
        begin, end = end, end + table.num_rows
        rows = np.flatnonzero(codes[begin:end] >= 0)
        if len(rows):
            yield part.file.path, start + rows[keys.among(codes[begin + rows], chosen[id(part.deletes)])]


def _stream(
    pool: ThreadPoolExecutor, open_store: Callable[[str], Storage], schema: Schema, group: Sequence[_FileDeletes]
) -> Iterator[tuple[_FileDeletes, int, pa.Table]]:
    """(part, position of the first row, keys) in the order of the files and their rows. Small files are read ahead."""
    ahead: deque[tuple[_FileDeletes, Future[list[pa.Table]] | None]] = deque()

    def tables(file: LiveFile) -> Iterator[pa.Table]:
        return _data_keys(open_store(file.path), file, schema)

    def of_next() -> Iterator[tuple[_FileDeletes, int, pa.Table]]:
        part, read = ahead.popleft()
        start = 0
        for table in tables(part.file) if read is None else read.result():
            yield part, start, table
            start += table.num_rows

    for part in group:
        is_small = part.file.record_count <= _SMALL_FILE
        ahead.append((part, pool.submit(lambda file: list(tables(file)), part.file) if is_small else None))
        if len(ahead) == _FILES_AT_ONCE:
            yield from of_next()
    while ahead:
        yield from of_next()


def _data_keys(storage: Storage, file: LiveFile, schema: Schema) -> Iterator[pa.Table]:
    opened = DataFile(storage, file, schema, [field.field_id for field in schema.fields])
    if not opened.has_field_ids:
        raise EqualityDeletesError(
            f"{file.path}: equality deletes apply, which compare columns by field id, and the file's columns have none "
            "(it was imported); rewrite the file first (rewrite_data_files)"
        )
    return (_comparable(opened.conform(batch), schema) for batch in opened.batches(_ROWS_AT_ONCE))


def _read_keys(storage: Storage, delete: DeleteFile, schema: Schema) -> list[pa.Table]:
    """The keys of a delete file."""
    file = LiveFile(delete.path, delete.size, delete.record_count, delete.sequence_number, "PARQUET")
    opened = DataFile(storage, file, schema, [field.field_id for field in schema.fields])
    leaves = {field_id for field_id in schema.field_ids if not isinstance(schema.find_type(field_id), StructType)}
    if missing := leaves - opened.stored_field_ids:
        raise StorageError(f"{delete.path} is an equality delete file without the columns of ids {sorted(missing)}")
    return [_comparable(opened.conform(batch), schema) for batch in opened.batches(_ROWS_AT_ONCE)]


def _comparable(batch: pa.RecordBatch, schema: Schema) -> pa.Table:
    """The columns and the fields of structs, as Arrow compares them: with floats as their bits."""
    columns: list[pa.Array] = []
    for column, field in zip(batch.columns, schema.fields, strict=True):
        columns += (_by_value(leaf) for leaf in _leaves(column, field.field_type))
    return pa.table(columns, names=[str(number) for number in range(len(columns))])


def _leaves(column: pa.Array, field_type: object) -> Iterator[pa.Array]:
    """The column, or the fields inside of a struct: null where the struct is."""
    if not isinstance(field_type, StructType):
        yield column
        return
    for number, field in enumerate(field_type.fields):
        yield from _leaves(pc.struct_field(column, [number]), field.field_type)


def _by_value(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa.types.is_floating(column.type):
        bits = np.dtype(f"i{column.type.bit_width // 8}")
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)  # NaN has many bit patterns
        return pa.array(values.view(bits), mask=np.asarray(column.is_null()))
    return column


class _KeySet:
    """Rows of delete files that compare the same columns. Equal rows have one code."""

    def __init__(self, of_files: Sequence[Sequence[pa.Table]]) -> None:
        """`of_files`: the rows of each delete file."""
        sizes = [sum(table.num_rows for table in tables) for tables in of_files]
        self._files = len(sizes)
        self.count = sum(sizes)
        if not self.count:
            return
        rows = pa.concat_tables([table for tables in of_files for table in tables])
        distinct = [column.unique() for column in rows.columns]
        # the column with most values comes first: then few rows of the data are looked at again
        order = sorted(range(len(distinct)), key=lambda number: -len(distinct[number]))
        self._columns: list[tuple[int, pa.Array, I64]] = []
        """(number of a column, its values, codes of pairs: of the columns before, and of this one's value)"""
        codes = np.zeros(self.count, np.int64)
        for number in order:
            pairs = codes * len(distinct[number]) + _places(rows.column(number), distinct[number])
            coded_pairs, codes = np.unique(pairs, return_inverse=True)
            self._columns.append((number, distinct[number], coded_pairs))
        codes, self._owners = np.divmod(
            np.unique(codes * self._files + np.repeat(np.arange(self._files), sizes)), self._files
        )
        self._starts = np.flatnonzero(np.diff(codes, prepend=-1, append=codes[-1] + 1))

    def among(self, codes: I64, chosen: Bool) -> Bool:
        """bool[n]: for which codes int64[n] one of the chosen files has the row. `chosen` bool[files]."""
        distinct, places = np.unique(codes, return_inverse=True)
        counts = self._starts[distinct + 1] - self._starts[distinct]
        firsts = np.cumsum(counts) - counts
        owners = self._owners[np.repeat(self._starts[distinct] - firsts, counts) + np.arange(counts.sum())]
        return np.asarray(np.logical_or.reduceat(chosen[owners], firsts)[places])

    def find(self, rows: pa.Table) -> I64:
        """int64[n], the code of each row; -1 where no delete file has it."""
        codes = np.zeros(rows.num_rows, np.int64)
        rest = np.arange(rows.num_rows)
        for number, values, coded_pairs in self._columns:
            column = rows.column(number)
            places = _places(column if len(rest) == rows.num_rows else column.take(pa.array(rest)), values)
            pairs = codes[rest] * len(values) + places
            at = np.minimum(np.searchsorted(coded_pairs, pairs), len(coded_pairs) - 1)
            same = (places >= 0) & (coded_pairs[at] == pairs)
            codes[rest] = np.where(same, at, -1)
            rest = rest[same]
        return codes


def _places(column: pa.ChunkedArray, values: pa.Array) -> I64:
    """int64[n], place of each value in `values`; -1 where it is not among them. Null is a value."""
    places = pc.index_in(column, value_set=values, skip_nulls=False)
    return np.asarray(places.fill_null(-1).to_numpy()).astype(np.int64)
