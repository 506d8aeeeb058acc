"""Finding the nodes that have lost their rows. Only location maps are read, no graph and no vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ops.addresses import addresses_of
from icepuffin.ops.model import FileSlot, StorageConfig, StoredShard
from icepuffin.ops.shard_reader import open_shard
from icepuffin.puffin.blobs import deletion_vector


@dataclass(frozen=True, slots=True, eq=False)
class DeadNodesTask:
    """Shards of the base version whose nodes are to be checked."""

    shards: tuple[tuple[StoredShard, bytes], ...]
    """(shard, nodes that were dead before, as a deletion vector)"""
    emptied_slots: npt.NDArray[np.uint32]
    """File slots without any live row"""
    deleted: tuple[tuple[FileSlot, bytes], ...]
    """(file slot, deleted row positions as a deletion vector) of files whose deletes have changed"""
    storage: StorageConfig


@dataclass(frozen=True, slots=True, eq=False)
class DeadNodesResult:
    """Nodes of one shard without a row."""

    nodes: bytes
    """Nodes as a deletion vector, since neighbours are often deleted together; with those that were dead before"""
    removed_rows: tuple[tuple[FileSlot, int], ...]
    """(file slot, rows that were live before)"""
    slots: npt.NDArray[np.uint32]
    """File slots of all nodes, dead ones included"""


def mark_dead_nodes(task: DeadNodesTask) -> tuple[DeadNodesResult, ...]:
    """Find the nodes whose file slot is gone or whose row is deleted; one result per shard.

    Raises StorageError, PuffinError.
    """
    rows = [np.empty(0, np.int64)]
    for slot, vector in task.deleted:
        rows.append(addresses_of(slot, deletion_vector.decode(vector)))
    deleted = np.concatenate(rows)
    results = []
    for shard, before in task.shards:
        slots, positions = open_shard(shard, task.storage).read_locations()
        dead = np.isin(slots, task.emptied_slots)
        dead |= np.isin(addresses_of(slots, positions), deleted)
        dead_before = deletion_vector.decode(before)
        dead[dead_before] = False
        in_slot, counts = np.unique(slots[dead], return_counts=True)
        removed = tuple((FileSlot(slot), count) for slot, count in zip(in_slot.tolist(), counts.tolist(), strict=True))
        dead[dead_before] = True
        results.append(DeadNodesResult(deletion_vector.encode(np.flatnonzero(dead)), removed, np.unique(slots)))
    return tuple(results)
