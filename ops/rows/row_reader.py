"""Rows of a snapshot for answers: footers are read once, and decoded row groups are kept.

A search returns few rows of many files; neighbours share row groups, and so do the searches of one user.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icepuffin.ops.model import FileNumber, LiveFiles, StorageConfig
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.datafile import DataFile, arrow_schema
from icepuffin.ops.rows.included_values import IncludedColumns, IncludedMeter
from icepuffin.ops.rows.row_groups import KeptRowGroups, RowGroups
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import AccessError, open_storage, principal

DEFAULT_BUDGET = 64 << 20
_MAX_OPEN_FILES = 1024
_FEW_ROWS = 64
_FIRST = pa.array([0])
_CONCURRENT_READS = 16
"""Files of a remote store that are read side by side"""

_FileKey = tuple[FileNumber, tuple[int, ...]]
_Request = tuple[FileNumber, npt.NDArray[np.int64], tuple[int, ...]]
"""(file, positions of its rows, field ids)"""


def _is_same_user(path: str, first: StorageConfig, second: StorageConfig) -> bool:
    try:
        return principal(path, first) == principal(path, second)
    except AccessError:  # vended keys that have expired
        return False


def _fields(schema: Schema, field_ids: Sequence[int]) -> list[NestedField | None]:
    by_id = {field.field_id: field for field in schema.fields}
    return [by_id.get(field_id) for field_id in field_ids]


class Meter:
    """Bytes that one search has read. Not shared between threads."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of data files"""
        self.included = IncludedMeter()


class RowReader:
    """Rows by (file number, row position). Thread-safe; keeps at most `budget_bytes` of decoded row groups in memory.

    `included`: the columns that the index version stores, whose values are not read from data files.
    Nobody is served rows that their own credentials did not fetch.
    """

    def __init__(
        self,
        live: LiveFiles,
        schema: Schema,
        storage: StorageConfig,
        *,
        budget_bytes: int = DEFAULT_BUDGET,
        included: IncludedColumns | None = None,
    ) -> None:
        self._live = live
        self._schema = schema
        self._storage = storage
        self._included = included
        self._is_local = live.location.startswith("file:")
        self._lock = ProcessLock()
        self._files = LruCache[tuple[int, _FileKey], tuple[DataFile, ProcessLock]](_MAX_OPEN_FILES)
        """Open files, by process too: a fork has neither the connections nor the threads of its parent"""
        self._pools: dict[int, ThreadPoolExecutor] = {}
        """Threads that read side by side, by process"""
        self._groups = RowGroups(budget_bytes)
        self._schemas: dict[tuple[int, ...], pa.Schema] = {}

    def kept_for(self, live: LiveFiles, schema: Schema, storage: StorageConfig) -> KeptRowGroups:
        """What a reader of another snapshot of the table may take over: row groups of files that it reads alike, and as
        the same user. Deletes do not count, as all rows of a group are kept.
        """
        kept = self._groups.kept()
        paths = {self._live.files[number].path for ((number, _), _) in kept.keys}
        numbers = {
            replace(file, deletes=()): number
            for number, file in zip(live.numbers, live.files, strict=True)
            if file.path in paths
        }

        @cache
        def number_of(number: FileNumber) -> FileNumber | None:
            file = self._live.files[number]
            return numbers.get(replace(file, deletes=())) if _is_same_user(file.path, self._storage, storage) else None

        @cache
        def are_alike(field_ids: tuple[int, ...]) -> bool:
            return _fields(self._schema, field_ids) == _fields(schema, field_ids)

        def rename(key: tuple[_FileKey, int]) -> tuple[_FileKey, int] | None:
            (number, field_ids), group = key
            other = number_of(number) if are_alike(field_ids) else None
            return None if other is None else ((other, field_ids), group)

        return kept.renamed(rename if live.table_uuid == self._live.table_uuid else lambda _: None)

    def take_over(self, kept: KeptRowGroups) -> None:
        """Keep what `kept_for` another reader gives for this one."""
        self._groups.take_over(kept)

    def element_type(self, field_id: int) -> str:
        """Element type of a column of vectors."""
        return element_type_of(self._schema, field_id)

    def schema_of(self, field_ids: Sequence[int]) -> pa.Schema:
        """The Arrow types of these fields, in this order. Kept: searches of one reader return few combinations."""
        key = tuple(field_ids)
        if key not in self._schemas:
            names = [str(self._schema.find_column_name(field_id)) for field_id in key]
            stored = arrow_schema(self._schema.select(*names))
            self._schemas[key] = pa.schema([stored.field(name) for name in names])
        return self._schemas[key]

    def take(
        self, file: FileNumber, field_ids: Sequence[int], positions: npt.NDArray[np.int64], meter: Meter | None = None
    ) -> pa.Table:
        """Rows of one live file, in the order of `positions`; `meter` counts what is read. Raises DataFileError."""
        key = (file, tuple(field_ids))
        opened, lock = self._open(key)
        return opened.take(positions, partial(self._group, key, opened, lock, meter or Meter()))

    def take_all(
        self,
        requests: Sequence[tuple[FileNumber, npt.NDArray[np.int64]]],
        field_ids: Sequence[int],
        meter: Meter | None = None,
    ) -> list[pa.Table]:
        """Rows of several live files, each as of `take`; columns that the index version stores come from there.

        Data files are read side by side on a remote store, where every request waits. Raises DataFileError.
        """
        meter = meter or Meter()
        if self._included is None or not any(map(self._included.has, field_ids)):
            return self._take_stored([(*request, tuple(field_ids)) for request in requests], meter)
        included = self._included.values(requests, field_ids, meter.included)
        rest = [
            (number, positions, tuple(field_id for field_id in field_ids if field_id not in by_field))
            for (number, positions), by_field in zip(requests, included, strict=True)
        ]
        read = iter(self._take_stored([request for request in rest if request[2]], meter))
        schema, tables = self.schema_of(field_ids), []
        for by_field, (_, _, other_ids) in zip(included, rest, strict=True):
            table = next(read) if other_ids else None
            columns = [
                by_field[field_id] if field_id in by_field or table is None else table.column(name)
                for field_id, name in zip(field_ids, schema.names, strict=True)
            ]
            tables.append(pa.Table.from_arrays(columns, schema=schema))
        return tables

    def few_at_hand(
        self, files: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], field_ids: Sequence[int]
    ) -> pa.Table | None:
        """Up to 64 rows in this order, where their row groups are all kept decoded; None: `take_all` is for them.

        It copies one row after the other, which for a few takes a fourth of the time. Raises DataFileError.
        """
        ids = tuple(field_ids)
        if not 0 < len(files) <= _FEW_ROWS or (self._included is not None and any(map(self._included.has, ids))):
            return None
        rows: list[pa.Table] = []
        opened: dict[int, DataFile] = {}
        groups: dict[tuple[int, int], pa.Table] = {}
        for number, position in zip(files.tolist(), positions.tolist(), strict=True):
            key = FileNumber(number), ids
            if number not in opened:
                if (file := self._opened(key)) is None:
                    return None
                opened[number] = file[0]
            group, row = opened[number].locate(position)
            if (number, group) not in groups:
                if (kept := self._groups.get((key, group))) is None:
                    return None
                groups[number, group] = kept
            rows.append(groups[number, group].slice(row, 1))
        # a slice alone would keep its whole row group in memory
        return pa.concat_tables(rows).combine_chunks() if len(rows) > 1 else rows[0].take(_FIRST)

    def _take_stored(self, requests: Sequence[_Request], meter: Meter) -> list[pa.Table]:
        """`take` for each request: side by side on a remote store."""
        if self._is_local or len(requests) < 2:
            return [self.take(file, field_ids, positions, meter) for file, positions, field_ids in requests]
        meters = [Meter() for _ in requests]
        reads = [
            self._pool().submit(self.take, file, field_ids, positions, part)
            for (file, positions, field_ids), part in zip(requests, meters, strict=True)
        ]
        tables = [read.result() for read in reads]
        meter.bytes += sum(part.bytes for part in meters)
        return tables

    def _pool(self) -> ThreadPoolExecutor:
        pid = os.getpid()
        with self._lock:
            if pid not in self._pools:
                self._pools[pid] = ThreadPoolExecutor(_CONCURRENT_READS, thread_name_prefix="rows")
            return self._pools[pid]

    def _open(self, key: _FileKey) -> tuple[DataFile, ProcessLock]:
        if (opened := self._opened(key)) is not None:
            return opened
        file = self._live.files[key[0]]
        opened = DataFile(open_storage(file.path, self._storage), file, self._schema, key[1]), ProcessLock()
        with self._lock:
            self._files.put((os.getpid(), key), opened)
        return opened

    def _opened(self, key: _FileKey) -> tuple[DataFile, ProcessLock] | None:
        with self._lock:
            return self._files.get((os.getpid(), key))

    def _group(self, key: _FileKey, file: DataFile, lock: ProcessLock, meter: Meter, group: int) -> pa.Table:
        kept = self._groups.get((key, group))
        if kept is not None:
            return kept
        with lock:  # Arrow's readers are not for several threads
            rows = file.read_group(group)
        meter.bytes += file.stored_bytes(group)
        self._groups.keep((key, group), rows)
        return rows
