"""Rows that equality deletes remove, as row positions of the data files.

A row is deleted where its values in the columns that a delete file compares are those of one of that file's rows
(Iceberg spec, "Equality Delete Files"). Null equals null. Floats are equal by their bits, as in Iceberg's own readers:
NaN equals NaN, -0.0 is not 0.0. Data files are read as a stream, and only the columns that are compared.

What was resolved is kept in the process, within a budget: a refresh needs the positions of a file several times, and
the next snapshot only brings some more deletes.

Executors import this: no dagster, no pyspark.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from icepuffin.ann_kernels.arrays import I64, Bool
from icepuffin.ops.model import DeleteFile, LiveFile
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.datafile import DataFile
from icepuffin.ops.storage import Storage, StorageError
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.live_files import EqualityDeletesError
from icepuffin.ops.table.shared_deletes import DeletePool, compares_keys, distinct_deletes, parts_of

_BUDGET = 64 << 20
"""Bytes of resolved positions that a process keeps"""
_SETS_PER_FILE = 3
"""Sets of deletes of one data file that are kept: those of the snapshots that are read in turn"""
_FILES_AT_ONCE = 16
"""Files that are read side by side, as every request waits for a distant store's answer"""
_ROWS_AT_ONCE = 1 << 16
_SMALL_FILE = 1 << 18
"""Rows up to which a data file's keys are read whole, ahead of their turn"""
_DIGEST_SIZE = 16


def deleted_by_equality(open_store: Callable[[str], Storage], files: Collection[LiveFile]) -> dict[str, I64]:
    """Row positions that equality deletes remove of each file, by path, int64, ascending, distinct. Paths are distinct.

    `open_store` gives the store of a path. Memory: the keys of the delete files twice over, a stream of the data files'
    keys, and one bit per delete file for each tuple of deletes. Raises EqualityDeletesError, DataFileError,
    StorageError.
    """
    numbered = _NumberedDeletes(files)
    matching: dict[str, list[I64]] = {}
    unresolved: list[tuple[LiveFile, _DeleteSet]] = []
    groups: dict[int, list[_FileDeletes]] = {}
    for file in files:
        deletes = numbered.set_of(file)
        resolution = _resolved.largest(_file_key(open_store(file.path), file), deletes)
        matching[file.path] = [resolution.positions]
        if resolution.count < deletes.count:
            unresolved.append((file, deletes))
            for columns, rest in deletes.after(resolution.count):
                groups.setdefault(columns, []).append(_FileDeletes(file, rest))
    for columns, group in groups.items():
        for path, rows in _matches(open_store, numbered, numbered.schemas[columns], group):
            matching[path].append(rows)
    positions = {
        path: parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts)) for path, parts in matching.items()
    }
    for file, deletes in unresolved:
        resolution = _Resolution(deletes.count, deletes.digest, positions[file.path])
        _resolved.keep(_file_key(open_store(file.path), file), resolution)
    return positions


class _NumberedDeletes:
    """The equality deletes of some data files, numbered by sequence number, then by path."""

    def __init__(self, files: Collection[LiveFile]) -> None:
        objects = distinct_deletes(files)
        compared = [delete for delete in objects if compares_keys(delete)]
        _require_keys(files, compared)
        by_name = {(delete.sequence_number, delete.path): delete for delete in compared}
        numbers = {name: number for number, name in enumerate(sorted(by_name))}
        self.files = [by_name[name] for name in numbers]
        self.schemas: list[Schema] = []
        """The columns that deletes compare, each once"""
        self._digests = np.frombuffer(b"".join(map(_name_digest, self.files)), np.uint8).reshape(-1, _DIGEST_SIZE)
        self._columns = np.array(self._number_columns(), np.int64)
        self._number_of = {id(delete): numbers[delete.sequence_number, delete.path] for delete in compared}
        self._of_pools: dict[DeletePool, I64] = {}
        self._sets: dict[int, _DeleteSet] = {}

    def _number_columns(self) -> list[int]:
        """The index in `schemas` of what each delete file compares."""
        of_ids: dict[frozenset[int], int] = {}
        of_keys: dict[int, int] = {}  # most delete files share one schema
        for delete in self.files:
            keys = delete.keys or Schema()
            if id(delete.keys) not in of_keys:
                ids = frozenset(keys.field_ids)
                if ids not in of_ids:
                    of_ids[ids] = len(self.schemas)
                    self.schemas.append(keys)
                of_keys[id(delete.keys)] = of_ids[ids]
        return [of_keys[id(delete.keys)] for delete in self.files]

    def set_of(self, file: LiveFile) -> "_DeleteSet":
        """The deletes of a file; one object for files that share one tuple of deletes."""
        key = id(file.deletes)
        if key not in self._sets:
            mask = np.zeros(len(self.files) + 1, np.bool_)  # the last index is that of other deletes
            unpooled, chosen = parts_of(file.deletes)
            mask[self._numbers(unpooled)] = True
            for part in chosen:
                mask[self._numbers_of_pool(part.pool)[part.mask()]] = True
            self._sets[key] = _DeleteSet(self, np.flatnonzero(mask[:-1]))
        return self._sets[key]

    def _numbers(self, deletes: Collection[DeleteFile]) -> I64:
        """Numbers of deletes; that of those that are not numbered is the number of all."""
        numbers = (self._number_of.get(id(delete), len(self.files)) for delete in deletes)
        return np.fromiter(numbers, np.int64, len(deletes))

    def _numbers_of_pool(self, pool: DeletePool) -> I64:
        if pool not in self._of_pools:
            self._of_pools[pool] = self._numbers(pool.deletes)
        return self._of_pools[pool]

    def digest(self, numbers: I64) -> bytes:
        """16 bytes, equal for equal deletes."""
        return hashlib.blake2b(self._digests[numbers].tobytes(), digest_size=_DIGEST_SIZE).digest()

    def by_columns(self, numbers: I64) -> Iterator[tuple[int, I64]]:
        """(index in `schemas`, those of the deletes that compare these columns)."""
        columns = self._columns[numbers]
        return ((int(index), numbers[columns == index]) for index in np.unique(columns))


class _DeleteSet:
    """Equality deletes that some data files share, as one bit per delete that is numbered: in a history of upserts no
    two data files share all, and each has thousands.
    """

    def __init__(self, numbered: _NumberedDeletes, numbers: I64) -> None:
        """`numbers` int64[n], ascending."""
        self._numbered = numbered
        mask = np.zeros(len(numbered.files), np.bool_)
        mask[numbers] = True
        self._bits = np.packbits(mask)
        self.count = len(numbers)
        self.digest = numbered.digest(numbers)
        self._beginnings: dict[tuple[int, bytes], bool] = {}
        self._after: dict[int, tuple[tuple[int, _DeleteSet], ...]] = {}

    def mask(self) -> Bool:
        """bool[deletes that are numbered]"""
        return np.unpackbits(self._bits, count=len(self._numbered.files)).astype(np.bool_)

    def begins_with(self, count: int, digest: bytes) -> bool:
        """Whether the first `count` deletes are those of a digest."""
        key = count, digest
        if key not in self._beginnings:
            is_shorter = count < self.count
            beginning = self._numbered.digest(np.flatnonzero(self.mask())[:count]) if is_shorter else self.digest
            self._beginnings[key] = beginning == digest
        return self._beginnings[key]

    def after(self, count: int) -> tuple[tuple[int, "_DeleteSet"], ...]:
        """(index in `schemas`, deletes that compare these columns) of all but the first `count` deletes."""
        if count not in self._after:
            parts = self._numbered.by_columns(np.flatnonzero(self.mask())[count:])
            self._after[count] = tuple((index, _DeleteSet(self._numbered, numbers)) for index, numbers in parts)
        return self._after[count]


@dataclass(frozen=True, slots=True)
class _Resolution:
    """Positions that the first deletes of a data file remove, by sequence number and path."""

    count: int
    """Number of deletes"""
    digest: bytes
    """Digest of their names"""
    positions: I64

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + _DIGEST_SIZE + 256


_NOTHING = _Resolution(0, b"", np.empty(0, np.int64))


def _name_digest(delete: DeleteFile) -> bytes:
    name = f"{delete.sequence_number}\0{delete.path}"
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST_SIZE).digest()


def _require_keys(files: Collection[LiveFile], deletes: Sequence[DeleteFile]) -> None:
    """Raises EqualityDeletesError, naming a file, where one of the deletes cannot be resolved."""
    unreadable = {id(delete) for delete in deletes if delete.keys is None}
    for file in files if unreadable else ():
        for delete in file.deletes:
            if id(delete) in unreadable:
                raise EqualityDeletesError(
                    f"{file.path}: equality deletes apply, and {delete.path} {delete.unreadable}; rewrite the file "
                    "first (rewrite_data_files)"
                )


class _Resolutions:
    """What was resolved in this process, by data file; those that were used last stay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._of_file = LruCache[tuple[object, ...], tuple[_Resolution, ...]](_BUDGET)

    def largest(self, key: tuple[object, ...], deletes: _DeleteSet) -> _Resolution:
        """The resolution of the most of these deletes, from the oldest on, and of no others."""
        with self._lock:
            kept = self._of_file.get(key) or ()
        kept = tuple(one for one in kept if deletes.begins_with(one.count, one.digest))
        return max(kept, key=lambda one: one.count, default=_NOTHING)

    def keep(self, key: tuple[object, ...], resolution: _Resolution) -> None:
        with self._lock:
            before = self._of_file.pop(key) or ()
            kept = (*(one for one in before if one.digest != resolution.digest), resolution)[-_SETS_PER_FILE:]
            self._of_file.put(key, kept, sum(one.nbytes for one in kept))


_resolved = _Resolutions()


def _file_key(storage: Storage, file: LiveFile) -> tuple[object, ...]:
    """Identity of a data file as one user reads it. A path may come again with other rows, by another commit."""
    user = None if isinstance(storage, LocalStorage) else storage  # one object per process and configuration
    return user, file.path, file.size, file.record_count, file.sequence_number, file.file_sequence_number, file.added_by


@dataclass(frozen=True, slots=True)
class _FileDeletes:
    """Deletes of a data file that compare the same columns."""

    file: LiveFile
    deletes: _DeleteSet


def _matches(
    open_store: Callable[[str], Storage], numbered: _NumberedDeletes, schema: Schema, group: Sequence[_FileDeletes]
) -> Iterator[tuple[str, I64]]:
    """(path, row positions) of rows that the deletes of their file remove, ascending per path."""
    masks = (deletes.mask() for deletes in {id(part.deletes): part.deletes for part in group}.values())
    numbers = np.flatnonzero(reduce(np.logical_or, masks))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        read = pool.map(
            lambda delete: _read_keys(open_store(delete.path), delete, schema), [numbered.files[n] for n in numbers]
        )
        keys = _KeySet(list(read))
        if not keys.count:
            return
        waiting: list[tuple[_FileDeletes, int, pa.Table]] = []
        rows = 0
        for part, start, table in _stream(pool, open_store, schema, group):
            waiting.append((part, start, table))
            rows += table.num_rows
            if rows >= max(_ROWS_AT_ONCE, keys.count):  # a look-up makes a hash table of all keys: not for a few rows
                yield from _look_up(keys, numbers, waiting)
                waiting, rows = [], 0
        yield from _look_up(keys, numbers, waiting)


def _look_up(
    keys: "_KeySet", numbers: I64, batches: Sequence[tuple[_FileDeletes, int, pa.Table]]
) -> Iterator[tuple[str, I64]]:
    """`numbers`: of the delete files whose keys these are."""
    if not batches:
        return
    codes = keys.find(pa.concat_tables([table for _, _, table in batches]))
    end = 0
    for part, start, table in batches:
        begin, end = end, end + table.num_rows
        rows = np.flatnonzero(codes[begin:end] >= 0)
        if len(rows):
            yield part.file.path, start + rows[keys.among(codes[begin + rows], part.deletes.mask()[numbers])]


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
        """`of_files`: the rows of each delete file, from the oldest on."""
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
            pairs = codes * len(distinct[number]) + _indices_in(rows.column(number), distinct[number])
            coded_pairs, codes = np.unique(pairs, return_inverse=True)
            self._columns.append((number, distinct[number], coded_pairs))
        codes, self._owners = np.divmod(
            np.unique(codes * self._files + np.repeat(np.arange(self._files), sizes)), self._files
        )
        self._starts = np.flatnonzero(np.diff(codes, prepend=-1, append=codes[-1] + 1))

    def among(self, codes: I64, chosen: Bool) -> Bool:
        """bool[n]: for which codes int64[n] one of the chosen files has the row. `chosen` bool[files], not all False.

        The newest file with the row decides where all files from one on are chosen, as a history of upserts has it.
        """
        newest = self._owners[self._starts[codes + 1] - 1]
        among = chosen[newest]
        unsure = np.flatnonzero(~among & (newest > chosen.argmax()))
        if len(unsure):
            among[unsure] = self._by_all_owners(codes[unsure], chosen)
        return np.asarray(among)

    def _by_all_owners(self, codes: I64, chosen: Bool) -> Bool:
        """`among`, by going through all files that have the row."""
        distinct, indices = np.unique(codes, return_inverse=True)
        counts = self._starts[distinct + 1] - self._starts[distinct]
        firsts = np.cumsum(counts) - counts
        owners = self._owners[np.repeat(self._starts[distinct] - firsts, counts) + np.arange(counts.sum())]
        return np.asarray(np.logical_or.reduceat(chosen[owners], firsts)[indices])

    def find(self, rows: pa.Table) -> I64:
        """int64[n], the code of each row; -1 where no delete file has it."""
        codes = np.zeros(rows.num_rows, np.int64)
        rest = np.arange(rows.num_rows)
        for number, values, coded_pairs in self._columns:
            column = rows.column(number)
            indices = _indices_in(column if len(rest) == rows.num_rows else column.take(pa.array(rest)), values)
            pairs = codes[rest] * len(values) + indices
            at = np.minimum(np.searchsorted(coded_pairs, pairs), len(coded_pairs) - 1)
            same = (indices >= 0) & (coded_pairs[at] == pairs)
            codes[rest] = np.where(same, at, -1)
            rest = rest[same]
        return codes


def _indices_in(column: pa.ChunkedArray, values: pa.Array) -> I64:
    """int64[n], index of each value in `values`; -1 where it is not among them. Null is a value."""
    indices = pc.index_in(column, value_set=values, skip_nulls=False)
    return np.asarray(indices.fill_null(-1).to_numpy()).astype(np.int64)
