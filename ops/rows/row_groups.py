"""Decoded row groups of data files: in memory those that were read last, on disk those that were read again.

PyArrow decodes a column chunk from its start, which for a row group of 250,000 rows takes longer than a search.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import finalize, ref

import pyarrow as pa

from icepuffin.ops.cache import process_cache
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.private_map import advise_random
from icepuffin.ops.process.process_budget import ROWS_ON_DISK
from icepuffin.ops.process.process_lock import ProcessLock

_log = logging.getLogger(__name__)
_MAX_FILES = 4_096
"""Files of all readers: each counts as this part of the budget at least. A process may map some 65,000"""


@dataclass(frozen=True, slots=True)
class KeptRowGroups:
    """Row groups by their keys, and sizes of those that were decoded last."""

    in_memory: Mapping[Any, pa.Table]
    on_disk: Mapping[Any, pa.Table]
    remembered: Mapping[Any, int]

    @property
    def keys(self) -> frozenset[Any]:
        """The keys of all."""
        return frozenset().union(self.in_memory, self.on_disk, self.remembered)

    def renamed(self, rename: Callable[[Any], Hashable | None]) -> "KeptRowGroups":
        """The same under the keys that `rename` gives; None leaves one out."""
        parts = (self.in_memory, self.on_disk, self.remembered)
        pairs = ([(rename(key), value) for key, value in part.items()] for part in parts)
        return KeptRowGroups(*({key: value for key, value in part if key is not None} for part in pairs))


class RowGroups:
    """Row groups by a key. Thread-safe.

    `budget_bytes`: memory for those that were read once, of at most a fourth of it each. One that is decoded again is
    written to a file, within the budget that all readers of the process share; but not where so much was decoded since
    the last time that it would have had to make room. The file has no name, so no other process reads it, and the
    system deletes it when it is mapped no more.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._lock = ProcessLock()
        self._in_memory = LruCache[Hashable, pa.Table](budget_bytes)
        self._on_disk: OrderedDict[Hashable, pa.Table] = OrderedDict()
        self._remembered = LruCache[Hashable, int](0)
        """Row groups that were decoded last, with their sizes, which are within the budget on disk"""
        self._can_write = True

    def get(self, key: Hashable) -> pa.Table | None:
        """The row group, where it is kept."""
        with self._lock:
            if key in self._on_disk:
                self._on_disk.move_to_end(key)
                return self._on_disk[key]
            return self._in_memory.get(key)

    def keep(self, key: Hashable, rows: pa.Table) -> None:
        """Keep a row group that has been decoded, if budgets allow. A full disk is a warning, not an error."""
        if not self._remember(key, rows.nbytes) or not self._write(key, rows):
            self._keep_in_memory(key, rows)

    def kept(self) -> "KeptRowGroups":
        """What is kept now, the least recently used first."""
        with self._lock:
            return KeptRowGroups(dict(self._in_memory.items()), dict(self._on_disk), dict(self._remembered.items()))

    def take_over(self, kept: "KeptRowGroups") -> None:
        """Keep, before any other, what another one keeps."""
        budget = ROWS_ON_DISK.budget
        with self._lock:
            self._remembered.budget = budget
            self._on_disk.update(kept.on_disk)
            for key, size in kept.remembered.items():
                self._remembered.put(key, size, size)
        for key, rows in kept.in_memory.items():
            self._keep_in_memory(key, rows)

    def _remember(self, key: Hashable, size: int) -> bool:
        """Remember that a row group was decoded. Returns whether that was remembered before."""
        budget = ROWS_ON_DISK.budget
        counted = _counted(size, budget)
        with self._lock:
            self._remembered.budget = budget
            before = self._remembered.pop(key)
            self._remembered.put(key, counted, counted)
        return before is not None

    def _keep_in_memory(self, key: Hashable, rows: pa.Table) -> None:
        if rows.nbytes > self._in_memory.budget // 4:
            return
        with self._lock:
            if key not in self._in_memory and key not in self._on_disk:
                self._in_memory.put(key, rows, rows.nbytes)

    def _write(self, key: Hashable, rows: pa.Table) -> bool:
        """Move a row group to the disk. Returns whether it is there now."""
        with self._lock:
            if key in self._on_disk:  # another thread has decoded it, too
                return True
        size = _counted(_stored_bytes(rows), ROWS_ON_DISK.budget)
        if not self._can_write or not self._reserve(size):
            return False
        try:
            mapped = _mapped(rows, size)
        except OSError as error:
            self._can_write = False  # a warning per reader is enough
            _log.warning("decoded rows are not kept on disk: %s", error)
            return False
        with self._lock:
            self._on_disk[key] = mapped
            self._in_memory.pop(key)
        return True

    def _reserve(self, size: int) -> bool:
        """Reserve room on the disk; this reader's row groups that were used longest ago make it."""
        if size > ROWS_ON_DISK.budget:
            return False
        while not ROWS_ON_DISK.reserve(size):
            if not self._drop_oldest():
                return False
        return True

    def _drop_oldest(self) -> bool:
        """Drop the row group on disk that was used longest ago, if there is one that makes room: not one that somebody
        else has, too, as the reader that this one is about to replace.
        """
        with self._lock:
            for key in tuple(self._on_disk):
                elsewhere = ref(self._on_disk.pop(key))
                if (rows := elsewhere()) is None:
                    return True
                self._on_disk[key] = rows
        return False


def _stored_bytes(rows: pa.Table) -> int:
    counter = pa.MockOutputStream()
    with pa.ipc.new_file(counter, rows.schema) as writer:
        writer.write_table(rows)
    return int(counter.size())


def _counted(size: int, budget: int) -> int:
    return max(size, budget // _MAX_FILES)


class _Pages:
    """A mapped file, which whoever has some of its bytes refers to."""

    def __init__(self, pages: pa.Buffer) -> None:
        self.pages = pages


def _mapped(rows: pa.Table, reserved: int) -> pa.Table:
    """The rows out of a file, whose room of `reserved` bytes is released when nobody refers to them. Raises OSError."""
    try:
        with process_cache().unnamed_file() as stream:
            with pa.ipc.new_file(pa.PythonFile(stream, "w"), rows.schema) as writer:
                writer.write_table(rows)
            stream.flush()
            # unlike those of `mmap`, Arrow's maps need no open file: a process may have only 1,024, sockets included
            with pa.memory_map(f"/proc/self/fd/{stream.fileno()}") as opened:
                owner = _Pages(opened.read_buffer())
    except BaseException:
        ROWS_ON_DISK.release(reserved)
        raise
    finalize(owner, ROWS_ON_DISK.release, reserved)
    advise_random(owner.pages.address, owner.pages.size)
    return pa.ipc.open_file(pa.foreign_buffer(owner.pages.address, owner.pages.size, owner)).read_all()
