"""Finding the nodes that have lost their rows. Only location maps are read, no graph and no vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.rows.dead_rows import DeadRows
from icepuffin.ops.model import FileSlot, StorageConfig, StoredShard
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.tasks.rows import live_nodes
from icepuffin.puffin.blobs import deletion_vector_blob


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
    rows = DeadRows(task.emptied_slots, {slot: deletion_vector_blob.decode(vector) for slot, vector in task.deleted})
    results = []
    for shard, before in task.shards:
        slots, positions = open_shard(shard, task.storage).read_locations()
        is_live = live_nodes(len(slots), deletion_vector_blob.decode(before))
        counts, removed = rows.remove(slots, positions, is_live)
        removed_rows = tuple((FileSlot(slot), int(removed[slot])) for slot in np.flatnonzero(removed).tolist())
        nodes = deletion_vector_blob.encode(np.flatnonzero(~is_live))
        results.append(DeadNodesResult(nodes, removed_rows, np.flatnonzero(counts).astype(np.uint32)))
    return tuple(results)
