"""Which nodes of a base's shards have lost their rows: only location maps are read, no graph and no vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ops.addresses import pack
from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import PartSource, open_storage
from icepuffin.puffin.blobs import deletion_vector
from icepuffin.puffin.blobs.shard import ShardReader


@dataclass(frozen=True, slots=True, eq=False)
class DeadNodesTask:
    """Some shards to be looked through."""

    shards: tuple[tuple[ObjectRange, bytes], ...]
    """(blob, nodes that were dead before as a deletion vector)"""
    gone: npt.NDArray[np.uint32]
    """Slots whose rows are not live any more, none of them"""
    deleted: tuple[tuple[int, bytes], ...]
    """(slot, deleted row positions as a deletion vector) of files whose deletes have changed"""
    storage: StorageConfig


@dataclass(frozen=True, slots=True, eq=False)
class ShardDeadNodes:
    """Nodes of one shard that have no row."""

    nodes: bytes
    """As a deletion vector, since runs of rows die together; those that were dead before, too"""
    lost: tuple[tuple[int, int], ...]
    """(slot, how many lay there that were not)"""
    slots: npt.NDArray[np.uint32]
    """All that its nodes lie in, dead ones too"""


def mark_dead_nodes(task: DeadNodesTask) -> tuple[ShardDeadNodes, ...]:
    """By shard: what lies in a slot that is gone, or is one of the deleted."""
    rows = [np.empty(0, np.int64)]
    for slot, vector in task.deleted:
        rows.append(pack(slot, deletion_vector.decode(vector)))
    deleted = np.concatenate(rows)
    found = []
    for shard, before in task.shards:
        reader = ShardReader(PartSource(open_storage(shard.path, task.storage), shard))
        slots, positions = reader.read_locations()
        dead = np.isin(slots, task.gone)
        dead |= np.isin(pack(slots, positions), deleted)
        known = deletion_vector.decode(before)
        dead[known] = False
        in_slot, counts = np.unique(slots[dead], return_counts=True)
        lost = tuple(zip(in_slot.tolist(), counts.tolist(), strict=True))
        dead[known] = True
        found.append(ShardDeadNodes(deletion_vector.encode(np.flatnonzero(dead)), lost, np.unique(slots)))
    return tuple(found)
