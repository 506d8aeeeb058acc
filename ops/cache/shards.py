"""The shard cache: memory first, then disk, then the store."""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from icepuffin.ops.cache.disk import DiskCache
from icepuffin.ops.cache.ready import ReadyShard, ready
from icepuffin.ops.cache.settings import CacheSettings
from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import open_storage, principal
from icepuffin.puffin.blobs import shard as shard_blob
from icepuffin.puffin.blobs.routing import UNKNOWN_SHA256
from icepuffin.puffin.errors import ChecksumError
from icepuffin.puffin.varint import load_decoders

_log = logging.getLogger(__name__)
_LAYOUT = 2
"""Of what is kept, and of the rules by which it was chosen: which codes of one byte are good enough to search by. Files
of other layouts are never looked for"""


@dataclass(frozen=True, slots=True)
class ShardKey:
    """One shard blob, as a principal may read it.

    Where the routing blob says what bytes it has, it is known by these, and they are checked when it enters: then a
    refresh leaves all shards in the cache that it did not touch. Otherwise, as in files of older releases, it is known
    by where it lies and by the snapshot that its version is: a name may be taken again when its file was deleted, such
    a snapshot never comes again.
    """

    where: ObjectRange
    sha256: bytes
    """Of the blob's bytes; zeros where that is not known"""
    version: int
    """Id of the index snapshot"""

    @property
    def is_known(self) -> bool:
        """Whether the blob's bytes are."""
        return self.sha256 != UNKNOWN_SHA256

    @property
    def name(self) -> str:
        where = self.where
        what = self.sha256.hex() if self.is_known else f"{where.path}\0{where.offset}\0{where.length}\0{self.version}"
        return hashlib.sha256(f"{_LAYOUT}\0{self.is_known}\0{what}".encode()).hexdigest()


class ShardCache:
    """Ready shards by (principal, blob). Thread-safe. What one principal's credentials fetched serves no other's.

    A shard that was fetched is handed out at once and written to the disk behind the answer: at most one waits for
    that, so that memory is not held by a slow disk.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self._disk = DiskCache.opened(settings.folder, settings.disk_bytes) if settings.disk_bytes else None
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], ReadyShard] = OrderedDict()
        self._bytes = 0
        self._written = threading.Semaphore()

    @property
    def held_bytes(self) -> int:
        """In memory; mapped arrays count whole."""
        return self._bytes

    def holds(self, key: ShardKey, storage: StorageConfig) -> bool:
        """Whether the shard is in this process's memory."""
        with self._lock:
            return (principal(key.where.path, storage), key.name) in self._held

    def shard(self, key: ShardKey, storage: StorageConfig, *, threads: int = 1) -> ReadyShard:
        """The shard, from wherever is nearest. Raises StorageError, PuffinError as reading and decoding it does."""
        owner, name = principal(key.where.path, storage), key.name
        found = self._from_memory(owner, name)
        if found is None and self._disk is not None:
            found = self._disk.get(owner, name)
        if found is None:
            found = self._fetched(owner, name, key, storage, threads)
        self._hold(owner, name, found)
        return found

    def flush(self) -> None:
        """Return when the disk has all that was fetched."""
        with self._written:
            pass

    def _fetched(self, owner: str, name: str, key: ShardKey, storage: StorageConfig, threads: int) -> ReadyShard:
        if self._disk is None:
            return _fetch(key, storage, threads)
        with ExitStack() as lock:
            lock.enter_context(self._disk.fetching(owner, name))
            found = self._disk.get(owner, name)
            if found is not None:  # another process was first
                return found
            found = _fetch(key, storage, threads)
            self._hold(owner, name, found)
            self._written.acquire()
            writing = self._disk, owner, name, found, lock.pop_all()
            try:
                threading.Thread(target=self._write, args=writing).start()
            except RuntimeError as error:  # the system gives no more threads
                _log.warning("a shard is written to disk before it is searched: %s", error)
                self._write(*writing)
            return found

    def _write(self, disk: DiskCache, owner: str, name: str, shard: ReadyShard, lock: ExitStack) -> None:
        """Keep a shard on disk, and in memory the mapped one, which all processes share."""
        try:
            with lock:
                disk.put(owner, name, shard)
                mapped = disk.get(owner, name)
            with self._lock:
                if mapped is not None and (owner, name) in self._held:
                    self._held[owner, name] = mapped
        finally:
            self._written.release()

    def _from_memory(self, owner: str, name: str) -> ReadyShard | None:
        with self._lock:
            found = self._held.get((owner, name))
            if found is not None:
                self._held.move_to_end((owner, name))
            return found

    def _hold(self, owner: str, name: str, shard: ReadyShard) -> None:
        with self._lock:
            if (owner, name) in self._held or shard.nbytes > self.settings.memory_bytes:
                return
            self._held[owner, name] = shard
            self._bytes += shard.nbytes
            while self._bytes > self.settings.memory_bytes:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.nbytes


def _fetch(key: ShardKey, storage: StorageConfig, threads: int) -> ReadyShard:
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(_checked_bytes, key, storage)
        load_decoders()  # takes a new process as long as 100 MB take a disk
        blob = coming.result()
    return ready(shard_blob.decode(blob, checksums=not key.is_known), threads=threads)


def _checked_bytes(key: ShardKey, storage: StorageConfig) -> bytes:
    where = key.where
    blob = open_storage(where.path, storage).read_range(where.path, where.offset, where.length)
    if key.is_known and hashlib.sha256(blob).digest() != key.sha256:
        raise ChecksumError(f"{where.path}: the shard at {where.offset} does not have the sha256 of the routing blob")
    return blob


class _Process:
    """The cache of this process, and what it was made for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chosen: CacheSettings | None = None
        self.made_for: tuple[int, CacheSettings] | None = None
        self.cache = ShardCache(CacheSettings.off())

    def forked(self) -> None:
        """Another thread of the parent may have held the lock."""
        self.lock = threading.Lock()


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


def use_settings(settings: CacheSettings | None) -> None:
    """What this process's cache is to be like; None: what the environment says."""
    _process.chosen = settings


def process_cache() -> ShardCache:
    """The cache of this process. Another one after a fork, or when the settings have changed."""
    wanted = os.getpid(), _process.chosen or CacheSettings.from_environment()
    with _process.lock:
        if _process.made_for != wanted:
            _process.cache, _process.made_for = ShardCache(wanted[1]), wanted
        return _process.cache
