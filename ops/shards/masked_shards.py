"""Shards of an index version, masked for the snapshot that is read."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I64, Bool
from icepuffin.ann_kernels.distances.exact_distances import lengths
from icepuffin.ann_kernels.distances.top_k import Neighbors
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.cache import ReadyShard, process_cache
from icepuffin.ops.index.versions.version_reader import OpenVersion, same_files
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.shards.shard_keys import shard_keys
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.row_deletes import deleted_by_file, fingerprint
from icepuffin.ops.table.shared_deletes import DeleteFilter, compares_keys
from icepuffin.ops.tasks.rows import by_file
from icepuffin.puffin.errors import BadBlobError


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class MaskedShard:
    """One shard, and what its nodes are in the snapshot that is read."""

    shard: ReadyShard
    slot_to_number: I64
    """int64[slots]: file number of each file slot of the version; -1 where the file is not live"""
    live: Bitmap
    """Nodes that a search may return"""
    searcher: Searcher
    """Searcher that returns live nodes only"""

    @classmethod
    def from_shard(cls, shard: ReadyShard, slot_to_number: I64, live: Bitmap) -> "MaskedShard":
        return cls(shard, slot_to_number, live, shard.searcher.masked(live))

    @property
    def is_complete(self) -> bool:
        """Whether it has its codes, or gets none."""
        return self.shard.completion is None

    def completed(self) -> "MaskedShard":
        """The same shard with its codes, if it has been waiting for them and they are made."""
        shard = self.shard.completed()
        return self if shard is self.shard else MaskedShard.from_shard(shard, self.slot_to_number, self.live)

    @property
    def nodes(self) -> int:
        """Number of nodes, whether live or not."""
        return self.live.size

    @property
    def is_live(self) -> Bool:
        """bool[N]: nodes that a search may return. Made anew: bits take an eighth of the memory."""
        return self.live.marked()

    @property
    def file_numbers(self) -> I64:
        """int64[N]: file number of each node; -1 where the file is not live. Made anew: slots take half the memory, and
        lie in the shard's file.
        """
        return self.slot_to_number[self.shard.file_slots]

    @property
    def vectors(self) -> F32 | None:
        """f32[N, D] prepared; None in a lean shard."""
        return self.shard.vectors

    def longest_vector(self) -> float:
        """Length of the longest vector, of rows that are not live as well; 0 in a lean shard."""
        return 0.0 if self.vectors is None else float(lengths(self.vectors).max(initial=0.0))

    @property
    def positions(self) -> I64:
        """int64[N]: row position of each node."""
        return self.shard.row_positions

    def restricted(self, allowed: Bitmap) -> "MaskedShard":
        """The same shard with only those live nodes that `allowed` has."""
        live = allowed if self.live.count() == self.nodes else self.live & allowed
        return MaskedShard.from_shard(self.shard, self.slot_to_number, live)

    def restricted_to_files(self, files: frozenset[FileNumber]) -> "MaskedShard":
        """The same shard with only those live nodes that lie in `files`. The other files are scanned."""
        return self.restricted(Bitmap.from_mask(np.isin(self.file_numbers, list(files))))

    def candidates(self, nodes: I64, distances: F64) -> Candidates:
        """Nodes int64[Q, k] (-1 and infinitely far where there are fewer) as rows of the table."""
        files, positions = self.slot_to_number[self.shard.file_slots[nodes]], self.shard.row_positions[nodes]
        missing = nodes < 0
        if np.count_nonzero(missing):  # `any` would take four times as long for a few
            files[missing], positions[missing] = -1, -1
        return Candidates(files, positions, distances)

    def compare(self, queries: F64, k: int) -> Neighbors:
        """(addresses of rows int64[Q, k], distances) of the k nearest live nodes, by comparing every one.

        They are in order, ties by address; -1 and inf where there are fewer.
        """
        slots, numbers = self.shard.file_slots, self.slot_to_number
        return self.searcher.compare(
            queries, k, ids=lambda nodes: addresses_of(numbers[slots[nodes]], self.positions[nodes])
        )


class ShardMasker:
    """Reads shards of a version and masks them for a snapshot.

    A node may be returned when its row is live in the snapshot `live`, whatever the version's own snapshot was.
    """

    def __init__(self, opened: OpenVersion, live: LiveFiles, storage: StorageConfig) -> None:
        self._opened = opened
        self._live = live
        self._storage = storage
        self._keys = shard_keys(opened)
        numbers = same_files(opened, live)
        self._covered_files = opened.routing.files
        self._slot_to_number = np.array(
            [numbers.get(file.path, -1) if file.present else -1 for file in self._covered_files], np.int64
        )
        # equality deletes take reading the keys of whole files: where the version knows them, it has resolved them
        keyed = DeleteFilter(compares_keys)
        self._resolved = frozenset(
            number
            for covered_file, number in zip(self._covered_files, self._slot_to_number.tolist(), strict=True)
            if number >= 0
            and keyed.select(live.files[number].deletes)
            and covered_file.delete_fingerprint == fingerprint(live.files[number])
        )
        others = [file for number, file in enumerate(live.files) if number not in self._resolved]
        self._deleted = deleted_by_file(lambda path: open_storage(path, storage), others)
        self._record_counts = np.array([*(file.record_count for file in live.files), 0], np.int64)
        """Rows of each live file, and at the end, for the number -1, of those that are not"""
        self._has_deletes = np.array(
            [number in self._resolved or len(self._deleted[file.path]) > 0 for number, file in enumerate(live.files)],
            np.bool_,
        )

    def read(self, shard_id: ShardId, *, threads: int = 1, early: bool = False) -> MaskedShard:
        """One shard, out of the cache where the cache has it. Raises StorageError, PuffinError.

        `early`: whether it may be one that still waits for its codes.
        """
        entry = self._opened.routing.shards[shard_id]
        shard = process_cache().shard(self._keys[shard_id], self._storage, threads=threads, early=early)
        metric = self._opened.definition.metric
        if shard.count != entry.count or shard.searcher.metric is not metric:
            raise BadBlobError(
                f"shard {shard_id} has {shard.count} nodes and metric {shard.searcher.metric.name}, "
                f"the routing blob says {entry.count} and {metric.name}"
            )
        if shard.count and int(shard.file_slots.max()) >= len(self._slot_to_number):
            raise BadBlobError(f"shard {shard_id} names a file that the routing blob does not have")
        is_live = self._live_nodes(shard, self._slot_to_number[shard.file_slots], entry.tombstones)
        return MaskedShard.from_shard(shard, self._slot_to_number, Bitmap.from_mask(is_live))

    def _live_nodes(self, shard: ReadyShard, file_numbers: I64, tombstones: I64) -> Bool:
        """bool[N]: whether the row of each node is live."""
        is_live = np.asarray(shard.row_positions < self._record_counts[file_numbers])
        if not self._has_deletes.any():
            return is_live
        candidates = np.flatnonzero(is_live)
        candidates = candidates[self._has_deletes[file_numbers[candidates]]]
        for number, rows in by_file(file_numbers[candidates]):
            nodes = candidates[rows]
            if number in self._resolved:
                is_live[nodes] = ~np.isin(nodes, tombstones)
            else:
                deleted = self._deleted[self._live.files[number].path]
                is_live[nodes] = ~np.isin(shard.row_positions[nodes], deleted)
        return is_live

    def live_numbers(self, shard_id: ShardId, nodes: I64, file_slots: I64, row_positions: I64) -> I64:
        """int64[n]: file numbers of some nodes of a shard that was not read; -1 where the row is not live.

        Where `covered_by_routing` tells what is covered: then tombstones tell what is live. Raises BadBlobError.
        """
        if len(file_slots) and not 0 <= file_slots.min() <= file_slots.max() < len(self._slot_to_number):
            raise BadBlobError(f"shard {shard_id} names a file that the routing blob does not have")
        numbers = np.where(
            np.isin(nodes, self._opened.routing.shards[shard_id].tombstones), -1, self._slot_to_number[file_slots]
        )
        counts = np.array([file.record_count for file in self._live.files], np.int64)
        live = np.flatnonzero(numbers >= 0)
        positions = row_positions[live]
        if ((positions < 0) | (positions >= counts[numbers[live]])).any():
            raise BadBlobError(f"shard {shard_id} names a row that its file does not have")
        return numbers

    def is_at_hand(self, shard_id: ShardId) -> bool:
        """Whether the shard is in the cache, in memory or on disk."""
        return process_cache().is_at_hand(self._keys[shard_id], self._storage)

    def nodes_by_file(self, shards: Iterable[MaskedShard]) -> I64:
        """int64[files]: number of live nodes of each live file."""
        nodes = np.zeros(len(self._live.files), np.int64)
        for shard in shards:
            nodes += np.bincount(shard.file_numbers[shard.is_live], minlength=len(nodes)).astype(np.int64)
        return nodes

    def covered(self, nodes: I64) -> frozenset[FileNumber]:
        """Files whose live rows all have a live node: counted, not assumed. `nodes` as `nodes_by_file` gives them.

        Rows without a vector have no node. The version knows their number for the deletes that it saw; under other
        deletes a file with such rows does not count as covered.
        """
        files = self._live.files
        deleted = (len(self._deleted.get(file.path, ())) for file in files)
        expected = np.array([file.record_count - number for file, number in zip(files, deleted, strict=True)], np.int64)
        for covered_file, number in zip(self._covered_files, self._slot_to_number.tolist(), strict=True):
            if number >= 0 and covered_file.delete_fingerprint == fingerprint(files[number]):
                expected[number] = covered_file.live_rows
        return frozenset(map(FileNumber, np.flatnonzero(nodes == expected).tolist()))

    def covered_by_routing(self) -> frozenset[FileNumber] | None:
        """What `covered` says of all nodes, by the routing blob alone. None where it does not tell: the snapshot lacks
        a file of the version's own, or has it under other deletes.
        """
        nodes, rows = np.zeros(len(self._live.files), np.int64), 0
        for covered_file, number in zip(self._covered_files, self._slot_to_number.tolist(), strict=True):
            if not covered_file.present:
                continue
            if number < 0 or covered_file.delete_fingerprint != fingerprint(self._live.files[number]):
                return None
            nodes[number] = covered_file.live_rows
            rows += covered_file.live_rows
        consistent = rows == sum(entry.live_rows for entry in self._opened.routing.shards)
        return self.covered(nodes) if consistent else None

    def revived(self, shard_id: ShardId, shard: MaskedShard) -> frozenset[FileNumber]:
        """Files of the shard with rows that are live in the snapshot and were not live in the version's own."""
        tombstones = self._opened.routing.shards[shard_id].tombstones
        revived = tombstones[shard.is_live[tombstones]]
        return frozenset(map(FileNumber, shard.slot_to_number[shard.shard.file_slots[revived]].tolist()))
