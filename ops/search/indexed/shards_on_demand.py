"""Shards of an index version that are loaded when a search first needs them."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

import numpy as np

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import FileNumber, ShardId
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.shards.masked_shards import MaskedShard, ShardMasker
from icepuffin.ops.storage import StorageError
from icepuffin.puffin.errors import BadBlobError, PuffinError

_log = logging.getLogger(__name__)


class ShardsOnDemand(Sequence[MaskedShard]):
    """All shards of a version. Each is loaded once, and checked against the routing blob, which was trusted till then.
    A search that loads one does not wait for its codes, which later searches have.

    Thread-safe. Its methods raise IndexUnavailableError for a shard that cannot be read, or is not what the routing
    blob says: then what was covered by it is not known.
    """

    def __init__(self, opened: OpenVersion, masker: ShardMasker, covered: frozenset[FileNumber]) -> None:
        self._opened = opened
        self._masker = masker
        self._covered = covered
        """Live files all of whose live rows have a node, as the routing blob says"""
        self._rounded = opened.definition.vectors != "f32"
        self._shards: list[MaskedShard | None] = [None] * len(opened.shards)
        self._locks = [ProcessLock() for _ in opened.shards]
        self._counting = ProcessLock()
        self._nodes = masker.nodes_by_file(())
        self._uncounted = len(opened.shards)
        self._fetching: threading.Thread | None = None
        self._unfetched: set[int] = set()
        """Places of shards that could not be fetched in the background"""

    def cold(self, places: Sequence[int]) -> list[int]:
        """The places of shards that this process would have to read from the store, out of some; without shards that
        it could not read before.
        """
        return [
            place
            for place in places
            if self._shards[place] is None
            and place not in self._unfetched
            and not self._masker.is_at_hand(ShardId(place))
        ]

    def live_rows(self) -> I64:
        """int64[shards]: live nodes of each, as the routing blob says."""
        return np.array([entry.live_rows for entry in self._opened.routing.shards], np.int64)

    def fetch_in_background(self, places: Sequence[int]) -> None:
        """Load the shards at some places, one after the other, while searches go on; nothing where that is under way.

        One that cannot be read is left to the next search that needs it, which reports that.
        """
        with self._counting:
            if self._fetching is None or not self._fetching.is_alive():
                # a process that ends does not wait for it: what it leaves unfinished in the cache is never found
                self._fetching = threading.Thread(
                    target=self._fetch, args=(places,), name="icepuffin-fetch", daemon=True
                )
                self._fetching.start()

    def _fetch(self, places: Sequence[int]) -> None:
        for place in places:
            try:
                self._loaded(place)
            except IndexUnavailableError as error:
                _log.warning("a shard could not be fetched in the background: %s", error)
                self._unfetched.add(place)
            except RuntimeError as error:
                # executors refuse new work before the main thread has stopped
                if "shutdown" not in str(error) and threading.main_thread().is_alive():
                    raise
                return  # the process ends, and no thread starts any more

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, place: int) -> MaskedShard: ...
    @overload
    def __getitem__(self, place: slice) -> list[MaskedShard]: ...

    def __getitem__(self, place: int | slice) -> MaskedShard | list[MaskedShard]:
        if isinstance(place, slice):
            return self.take(range(len(self))[place])
        return self._loaded(range(len(self))[place])

    def take(self, places: Sequence[int], *, threads: int = 1) -> list[MaskedShard]:
        """The shards at some places; those that are not loaded yet, side by side."""
        missing = [place for place in places if self._shards[place] is None]
        if len(missing) > 1 and threads > 1:
            with ThreadPoolExecutor(min(threads, len(missing))) as pool:
                list(pool.map(self._loaded, missing))
        return [self._loaded(place) for place in places]

    def _loaded(self, place: int) -> MaskedShard:
        shard = self._shards[place]
        if shard is not None and shard.is_complete:
            return shard
        with self._locks[place]:
            shard = self._shards[place]
            if shard is not None:
                self._shards[place] = shard = shard.completed()
            else:
                try:
                    shard = self._masker.read(ShardId(place), early=True)
                    self._require_as_routed(place, shard)
                    self._count(place, shard)
                except (PuffinError, StorageError) as error:
                    path = self._opened.shards[place].path
                    raise IndexUnavailableError(f"{path} cannot be read: {error}") from error
            return shard

    def _require_as_routed(self, place: int, shard: MaskedShard) -> None:
        """Raises BadBlobError where other nodes are live than the routing blob says, or its vectors are others."""
        tombstones = self._opened.routing.shards[place].tombstones
        if not np.array_equal(np.flatnonzero(~shard.is_live), tombstones) or shard.shard.rounded != self._rounded:
            raise BadBlobError(f"shard {place} has other live rows than its routing blob says, or rounded vectors")

    def _count(self, place: int, shard: MaskedShard) -> None:
        """Keep a shard. With the last one all nodes are counted: raises BadBlobError where they do not cover the files
        that the routing blob says.
        """
        with self._counting:
            nodes = self._nodes + self._masker.nodes_by_file((shard,))
            if self._uncounted == 1 and self._masker.covered(nodes) != self._covered:
                raise BadBlobError("its shards cover other files than its routing blob says")
            self._shards[place], self._nodes = shard, nodes
            self._uncounted -= 1
