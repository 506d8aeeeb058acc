"""The shard cache: memory first, then disk, then the store."""

import hashlib
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, TypeVar

from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.cache.disk import DiskCache, DraftFile
from icepuffin.ops.cache.fetching import Claim, FetchedShard, Memory, Room, Scratch, fetch
from icepuffin.ops.cache.ready_shard import Completion, NodeAddresses, ReadyShard, from_arrays
from icepuffin.ops.model import ObjectRange, StorageConfig, StoredAddresses, StoredShard
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.shards.shard_reader import read_addresses
from icepuffin.ops.storage import principal
from icepuffin.puffin.blobs import addresses_blob

_log = logging.getLogger(__name__)
_SCRATCH_BYTES = 256 << 20
"""Memory that shards take while they are decoded, those of all threads together: enough for two of 700,000 x 128,
which is as many as a build puts into one by itself"""
_MAX_UNFINISHED = 6
"""Number of fetched shards that are not on the disk yet, at most: each has a file"""
_LONGEST_PAUSE = 10.0
"""Seconds that codes wait for fetches, at most: others wait for the codes, and a store may hang"""
SOURCES = ("memory", "disk", "store")
"""Sources of a shard, the nearest first"""
T = TypeVar("T", ReadyShard, NodeAddresses)
_LAYOUT = 9
"""Version of the files' layout, and of the rules by which codes are kept for searches. It is part of the
names of files, so those of other versions are never read"""


@dataclass(frozen=True, slots=True)
class ShardKey:
    """Identity of one shard: of its blob, and of the addresses that replace those in the blob, if any do.

    The sha256 of the blob is its identity, with those of the vectors that lie apart from it, and is checked when it
    enters the cache: shards that a refresh only copied stay in the cache. So do those that it gave new addresses, which
    are an entry of their own.
    """

    stored: StoredShard
    sha256: bytes
    """sha256 of the blob"""
    compact: bool = False
    """Whether the shard is kept in the compact layout"""

    @property
    def where(self) -> ObjectRange:
        """Where the blob lies."""
        return self.stored.blob

    @property
    def name(self) -> str:
        """Name of the entry of the blob."""
        layout = f"{_LAYOUT}-compact" if self.compact else str(_LAYOUT)
        blobs = (self.sha256, *(run.sha256 for run in self.stored.runs))
        return hashlib.sha256("\0".join((layout, *(sha256.hex() for sha256 in blobs))).encode()).hexdigest()


def _name_of(addresses: StoredAddresses) -> str:
    """Name of the entry of an addresses blob."""
    return hashlib.sha256(f"{_LAYOUT}\0addresses\0{addresses.sha256.hex()}".encode()).hexdigest()


def _names_of(key: ShardKey, storage: StorageConfig) -> list[tuple[str, str]]:
    """(owner, name) of the entries of a shard: of its blob, and of its addresses where they lie apart."""
    names = [(principal(key.where.path, storage), key.name)]
    if (moved := key.stored.addresses) is not None:
        names.append((principal(moved.blob.path, storage), _name_of(moved)))
    return names


class ShardCache:
    """Ready shards by (principal, blob), and the addresses of moved rows likewise. Thread-safe. Neither is ever served
    to another principal than its fetcher.

    A fetched shard is decoded into a file of the disk cache and returned at once; the file is checked and published in
    the background, one after the other. A few may wait for that. Where there is no room on the disk, a shard is decoded
    into memory.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self._disk = DiskCache.opened(settings.folder, settings.disk_bytes) if settings.disk_bytes else None
        self._lock = threading.Lock()
        self._entries = LruCache[tuple[str, str], ReadyShard | NodeAddresses](settings.memory_bytes)
        self._unfinished = threading.BoundedSemaphore(_MAX_UNFINISHED)
        self._coding = threading.Lock()
        self._finishing = threading.Lock()
        self._flushing = threading.Lock()
        self._fetches = _Reservations(math.inf)  # one of each fetch under way
        self._scratch = _Reservations(_SCRATCH_BYTES)  # bytes of decoders at work
        self._reads = dict.fromkeys(SOURCES, 0)

    @property
    def reads(self) -> dict[str, int]:
        """Number of shards that were opened so far, by each of `SOURCES`."""
        with self._lock:
            return dict(self._reads)

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the entries in memory; mapped arrays count in full."""
        return self._entries.weight

    def holds(self, key: ShardKey, storage: StorageConfig) -> bool:
        """Whether the shard is in this process's memory."""
        names = _names_of(key, storage)
        with self._lock:
            return all(name in self._entries for name in names)

    def is_at_hand(self, key: ShardKey, storage: StorageConfig) -> bool:
        """Whether the shard is in memory or on disk: the store need not be read, unless a file is damaged."""
        disk = self._disk
        names = _names_of(key, storage)
        with self._lock:
            missing = [name for name in names if name not in self._entries]
        return all(disk is not None and disk.has(*name) for name in missing)

    def shard(self, key: ShardKey, storage: StorageConfig, *, threads: int = 1, early: bool = False) -> ReadyShard:
        """The shard, from memory, from disk or from the store. Raises StorageError, PuffinError for what it reads.

        `early`: whether it may be one that still waits for its codes.
        """
        owner, name = principal(key.where.path, storage), key.name
        source, ready_shard = self._nearest(owner, name)
        if ready_shard is None:
            source, ready_shard = "store", self._fetched(owner, name, key, storage, threads, early=early)
        elif ready_shard.completion is not None and not early:
            ready_shard.completion.ended.wait()
        ready_shard = ready_shard.completed()
        with self._lock:
            self._reads[source] += 1
        self._hold(owner, name, ready_shard)
        if (moved := key.stored.addresses) is None:
            return ready_shard
        return ready_shard.relocated(self._addresses(moved, ready_shard.count, storage))

    def find(self, key: ShardKey, storage: StorageConfig) -> ReadyShard | None:
        """The shard, with the addresses in its blob, where it is in memory or on disk; the store is not read."""
        return self._nearest(principal(key.where.path, storage), key.name)[1]

    def _nearest(self, owner: str, name: str) -> tuple[str, ReadyShard | None]:
        """(source, shard); the shard is None where neither memory nor disk has it."""
        ready_shard = self._from_memory(owner, name, ReadyShard)
        if ready_shard is not None or self._disk is None:
            return "memory", ready_shard
        return "disk", self._disk.get(owner, name, from_arrays)

    def _addresses(self, moved: StoredAddresses, count: int, storage: StorageConfig) -> NodeAddresses:
        owner, name = principal(moved.blob.path, storage), _name_of(moved)
        addresses = self._from_memory(owner, name, NodeAddresses)
        if addresses is None and self._disk is not None:
            addresses = self._disk.get(owner, name, NodeAddresses.from_arrays)
        if addresses is None:
            addresses = NodeAddresses(*addresses_blob.decode(read_addresses(moved, storage), count))
            if self._disk is not None:
                self._disk.put(owner, name, addresses.to_arrays(), {})
                addresses = self._disk.get(owner, name, NodeAddresses.from_arrays) or addresses  # mapped
        self._hold(owner, name, addresses)
        return addresses

    def unnamed_file(self) -> BinaryIO:
        """A new file in the folder, for this process alone: it is deleted when nobody has it open or mapped. Raises
        OSError, also where nothing is kept on disk.
        """
        if self._disk is None:
            raise OSError("the shard cache keeps nothing on disk")
        return self._disk.unnamed_file()

    def flush(self) -> None:
        """Wait until all fetched shards are on the disk."""
        with self._flushing:  # two that have some of the permits each would wait for each other
            for _ in range(_MAX_UNFINISHED):
                self._unfinished.acquire()
            self._unfinished.release(_MAX_UNFINISHED)

    def _fetched(
        self, owner: str, name: str, key: ShardKey, storage: StorageConfig, threads: int, *, early: bool
    ) -> ReadyShard:
        disk, scratch = self._disk, self._scratch.reserve
        if disk is None:
            return from_arrays(*_fetch(key, storage, lambda _: Memory(), scratch).with_codes(threads, scratch))
        with ExitStack() as permit, ExitStack() as owned:
            owned.enter_context(disk.fetching(owner, name))
            ready_shard = disk.get(owner, name, from_arrays)
            if ready_shard is not None:  # another process was first
                return ready_shard
            drafts: list[DraftFile] = []

            def claim(size: int) -> Room:
                if draft := disk.draft(owner, name, size):
                    owned.callback(draft.discard)
                    drafts.append(draft)
                    return draft.arrays
                return Memory()

            with self._fetches.reserve(1):
                fetched = _fetch(key, storage, claim, scratch)
            if not drafts:
                return from_arrays(*fetched.with_codes(threads, scratch))
            waits = early and fetched.lacks_codes
            _, values = fetched.without_codes() if waits else fetched.with_codes(threads, scratch)
            ready_shard = from_arrays(drafts[0].arrays.private(values), values)
            completion = Completion() if waits else None
            if completion is not None:
                owned.callback(completion.ended.set)
                ready_shard = replace(ready_shard, completion=completion)
            self._hold(owner, name, ready_shard)
            permit.enter_context(self._unfinished)
            permit.push(owned.pop_all())
            finish = partial(self._finish, owner, name, drafts[0], fetched, values, completion, permit.pop_all())
            try:
                threading.Thread(target=finish).start()
            except RuntimeError as error:  # the system gives no more threads
                _log.warning("a shard is written to disk before it is searched: %s", error)
                finish()
            return ready_shard

    def _finish(
        self,
        owner: str,
        name: str,
        draft: DraftFile,
        fetched: FetchedShard,
        values: dict[str, Any],
        completion: Completion | None,
        owned: ExitStack,
    ) -> None:
        """Give a shard its codes, where this process searches it without them; then let other processes find its file.

        Codes are made of one shard at a time, and when no shard is fetched, so that an answer that needs several does
        not wait for them; in one thread, since a process that ends waits for it, and starts no others then.

        `owned`: what is given back at the end: the file, unless it is published, the lock under which no other process
        fetches the shard, whoever waits for its codes, and last its permit to be unfinished.
        """
        with owned:
            try:
                if completion is not None:
                    with self._coding:
                        self._fetches.wait_for_none(_LONGEST_PAUSE)
                        values = self._complete(owner, name, draft, fetched, completion)
                with self._finishing:
                    draft.publish(values)
            except Exception:
                _log.exception("a shard is not kept on disk, and is searched without codes that it does not have yet")

    def _complete(
        self, owner: str, name: str, draft: DraftFile, fetched: FetchedShard, completion: Completion
    ) -> dict[str, Any]:
        """Make the codes; returns the plain values of the shard with them."""
        _, values = fetched.with_codes(1, self._scratch.reserve)
        completion.shard = from_arrays(draft.arrays.private(values), values)
        with self._lock:  # in place of the one that waited for its codes, unless that has had to go
            if (owner, name) in self._entries:
                self._entries.put((owner, name), completion.shard, completion.shard.nbytes)
        return values

    def _from_memory(self, owner: str, name: str, kind: type[T]) -> T | None:
        with self._lock:
            entry = self._entries.get((owner, name))
            return entry if isinstance(entry, kind) else None

    def _hold(self, owner: str, name: str, entry: ReadyShard | NodeAddresses) -> None:
        with self._lock:
            if (owner, name) not in self._entries:
                self._entries.put((owner, name), entry, entry.nbytes)


def _fetch(key: ShardKey, storage: StorageConfig, claim: Claim, scratch: Scratch) -> FetchedShard:
    return fetch(key.stored, key.sha256, storage, compact=key.compact, claim=claim, scratch=scratch)


class _Reservations:
    """What is reserved of a budget at present."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._reserved = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Wait until `size` is within the budget, or nothing else is reserved; it is reserved for the body."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reserved or self._reserved + size <= self._budget)
            self._reserved += size
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= size
                self._changed.notify_all()

    def wait_for_none(self, seconds: float) -> None:
        """Wait until nothing is reserved, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reserved, seconds)


class _ProcessCache:
    """The cache of this process, with the process and settings that it was made for."""

    def __init__(self) -> None:
        self.lock = ProcessLock()
        self.chosen: CacheSettings | None = None
        self.created_for: tuple[int, CacheSettings] | None = None
        self.cache = ShardCache(CacheSettings.off())


_process = _ProcessCache()


def use_settings(settings: CacheSettings | None) -> None:
    """Choose the settings of this process's cache; None: those of the environment."""
    _process.chosen = settings


def process_cache() -> ShardCache:
    """The cache of this process: a new one after a fork, or when the settings have changed."""
    current = os.getpid(), _process.chosen or CacheSettings.from_environment()
    with _process.lock:
        if _process.created_for != current:
            _process.cache, _process.created_for = ShardCache(current[1]), current
        return _process.cache
