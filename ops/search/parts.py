"""Shards of a version, one by one, as a snapshot sees them: which nodes are rows that are live there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ops.cache import ReadyShard, ShardKey, process_cache
from icepuffin.ops.catalog.row_deletes import deleted_by_file, fingerprint
from icepuffin.ops.index.version_reader import OpenVersion, same_files
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.rows import by_slot
from icepuffin.puffin.errors import BadBlobError


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One shard, and what its nodes are in the snapshot that is read."""

    shard: ReadyShard
    files: npt.NDArray[np.int64]
    """int64[N]: number of the live file; -1 for files that are not live"""
    live: npt.NDArray[np.bool_]
    """bool[N]: whether the node's row is live"""

    def within(self, covered: frozenset[int]) -> "Part":
        """The same, where nodes of other files are not to be returned: those files are scanned."""
        return replace(self, live=self.live & np.isin(self.files, list(covered)))


class PartReader:
    """Reads shards of a version and masks them for a snapshot.

    A node may be returned when its row is live in `live`, whatever the version's own snapshot was.
    """

    def __init__(self, opened: OpenVersion, live: LiveFiles, storage: StorageConfig) -> None:
        self._opened = opened
        self._live = live
        self._storage = storage
        numbers = same_files(opened, live)
        self._slots = opened.routing.files
        self._slot_to_number = np.array(
            [numbers.get(slot.path, -1) if slot.present else -1 for slot in self._slots], np.int64
        )
        self._deleted = deleted_by_file(lambda path: open_storage(path, storage), live.files)

    def read(self, number: int, *, threads: int = 1) -> Part:
        """Shard `number`, out of the cache where it is there. Raises StorageError, PuffinError."""
        entry = self._opened.routing.shards[number]
        key = ShardKey(self._opened.shards[number], entry.sha256, self._opened.version.index_snapshot_id)
        shard = process_cache().shard(key, self._storage, threads=threads)
        if shard.count != entry.count or shard.searcher.metric is not self._opened.definition.metric_value:
            raise BadBlobError(
                f"shard {number} has {shard.count} nodes, the routing blob says {entry.count}, or a metric"
            )
        if shard.count and int(shard.file_slots.max()) >= len(self._slot_to_number):
            raise BadBlobError(f"shard {number} names a file that the routing blob does not have")
        files = self._slot_to_number[shard.file_slots] if shard.count else np.empty(0, np.int64)
        return Part(shard, files, self._live_mask(shard, files))

    def _live_mask(self, shard: ReadyShard, files: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        mask = files >= 0
        some = np.flatnonzero(mask)
        for number, places in by_slot(files[some]):
            file, nodes = self._live.files[number], some[places]
            positions = shard.row_positions[nodes]
            mask[nodes] = positions < file.record_count
            if len(deleted := self._deleted[file.path]):
                mask[nodes] &= ~np.isin(positions, deleted)
        return np.asarray(mask)

    def nodes_by_file(self, parts: Iterable[Part]) -> npt.NDArray[np.int64]:
        """int64[files]: live nodes of each live file."""
        nodes = np.zeros(len(self._live.files), np.int64)
        for part in parts:
            nodes += np.bincount(part.files[part.live], minlength=len(nodes)).astype(np.int64)
        return nodes

    def covered(self, nodes: npt.NDArray[np.int64]) -> frozenset[int]:
        """Files whose live rows all have a live node: counted, not assumed.

        How many of them have no vector, and so no node, the version knows for the deletes that it saw. Under others a
        file with such rows is not taken as covered.
        """
        files = self._live.files
        expected = np.array([file.record_count - len(self._deleted[file.path]) for file in files], np.int64)
        for slot, number in zip(self._slots, self._slot_to_number.tolist(), strict=True):
            if number >= 0 and slot.delete_fingerprint == fingerprint(files[number]):
                expected[number] = slot.live_rows
        return frozenset(np.flatnonzero(nodes == expected).tolist())
