"""Rows of a snapshot for answers: footers are read once, and the row groups asked for last stay in memory.

A search returns few rows of many files; neighbours share row groups, and so do the searches of one user.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ops.datafile import DataFile, arrow_schema
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.storage import open_storage

DEFAULT_BUDGET = 64 << 20
_OPEN_FILES = 1024
_AT_ONCE = 16
"""Requests to a distant store"""

_FileKey = tuple[int, tuple[int, ...]]


class Meter:
    """Bytes that one search has read. Not shared between threads."""

    def __init__(self) -> None:
        self.bytes = 0


class RowReader:
    """Rows by (live file number, position). Thread-safe; holds at most `budget_bytes` of decoded row groups.

    Nothing in it is shared between readers, so nobody is served rows that their own credentials did not fetch.
    """

    def __init__(
        self, live: LiveFiles, schema: Schema, storage: StorageConfig, *, budget_bytes: int = DEFAULT_BUDGET
    ) -> None:
        self._live = live
        self._schema = schema
        self._storage = storage
        self._budget = budget_bytes
        self._near = live.location.startswith("file:")
        self._lock = threading.Lock()
        self._files: OrderedDict[_FileKey, tuple[DataFile, threading.Lock]] = OrderedDict()
        self._groups: OrderedDict[tuple[_FileKey, int], pa.Table] = OrderedDict()
        self._held = 0
        self._schemas: dict[tuple[int, ...], pa.Schema] = {}

    @property
    def held_bytes(self) -> int:
        return self._held

    def schema_of(self, field_ids: Sequence[int]) -> pa.Schema:
        """The Arrow types of these fields, in this order. Kept: a reader is asked for few choices of them."""
        key = tuple(field_ids)
        if key not in self._schemas:
            names = [str(self._schema.find_column_name(field_id)) for field_id in key]
            stored = arrow_schema(self._schema.select(*names))
            self._schemas[key] = pa.schema([stored.field(name) for name in names])
        return self._schemas[key]

    def take(
        self, number: int, field_ids: Sequence[int], positions: npt.NDArray[np.int64], meter: Meter | None = None
    ) -> pa.Table:
        """Rows of one live file, in the order of `positions`; `meter` counts what is read. Raises DataFileError."""
        key = (number, tuple(field_ids))
        file, lock = self._open(key)
        return file.take(positions, partial(self._group, key, file, lock, meter or Meter()))

    def take_all(
        self,
        wanted: Sequence[tuple[int, npt.NDArray[np.int64]]],
        field_ids: Sequence[int],
        meter: Meter | None = None,
    ) -> list[pa.Table]:
        """`take` of each (file number, positions): of a distant store side by side, as every request waits there."""
        if self._near or len(wanted) < 2:
            return [self.take(number, field_ids, positions, meter) for number, positions in wanted]
        meters = [Meter() for _ in wanted]
        asked = [
            self._pool.submit(self.take, number, field_ids, positions, own)
            for (number, positions), own in zip(wanted, meters, strict=True)
        ]
        found = [item.result() for item in asked]
        if meter is not None:
            meter.bytes += sum(own.bytes for own in meters)
        return found

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rows")

    def _open(self, key: _FileKey) -> tuple[DataFile, threading.Lock]:
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        live = self._live.files[key[0]]
        opened = DataFile(open_storage(live.path, self._storage), live, self._schema, key[1]), threading.Lock()
        with self._lock:
            self._files[key] = opened
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        return opened

    def _group(self, key: _FileKey, file: DataFile, lock: threading.Lock, meter: Meter, group: int) -> pa.Table:
        with self._lock:
            held = self._groups.get((key, group))
            if held is not None:
                self._groups.move_to_end((key, group))
                return held
        with lock:  # Arrow's readers are not for several threads
            rows = file.read_group(group)
        meter.bytes += file.stored_bytes(group)
        self._hold((key, group), rows)
        return rows

    def _hold(self, key: tuple[_FileKey, int], rows: pa.Table) -> None:
        if rows.nbytes > self._budget // 4:
            return
        with self._lock:
            if key in self._groups:
                return
            self._groups[key] = rows
            self._held += rows.nbytes
            while self._held > self._budget:
                _, dropped = self._groups.popitem(last=False)
                self._held -= dropped.nbytes
