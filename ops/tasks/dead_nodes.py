"""Finding the nodes that have lost their rows. Only location maps are read, no graph and no vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import FileSlot, StorageConfig, StoredShard
from icepuffin.ops.shard_reader import open_shard
from icepuffin.ops.tasks.rows import by_file, live_nodes
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
    emptied = frozenset(task.emptied_slots.tolist())
    deleted = {slot: deletion_vector.decode(vector) for slot, vector in task.deleted}
    results = []
    for shard, before in task.shards:
        slots, positions = open_shard(shard, task.storage).read_locations()
        was_live = live_nodes(len(slots), deletion_vector.decode(before))
        is_dead = ~was_live
        distinct, removed = [], []
        for slot, nodes in by_file(slots):  # file by file: rows of one are looked up in a table of its positions
            distinct.append(slot)
            if slot in emptied:
                rowless = nodes
            elif slot in deleted:
                rowless = nodes[np.isin(positions[nodes], deleted[FileSlot(slot)])]
            else:
                continue
            is_dead[rowless] = True
            if count := int(was_live[rowless].sum()):
                removed.append((FileSlot(slot), count))
        dead = deletion_vector.encode(np.flatnonzero(is_dead))
        results.append(DeadNodesResult(dead, tuple(removed), np.array(distinct, np.uint32)))
    return tuple(results)
