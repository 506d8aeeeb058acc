"""Which nodes of a base's shards have lost their rows: only location maps are read, no graph and no vector."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ops.model import ObjectRange, StorageConfig
from ops.storage import PartSource, open_storage
from puffin.blobs import deletion_vector
from puffin.blobs.shard import ShardReader


@dataclass(frozen=True, slots=True, eq=False)
class MarkTask:
    """Some shards to be looked through."""

    shards: tuple[ObjectRange, ...]
    gone: npt.NDArray[np.uint32]
    """Slots whose rows are not live any more, none of them"""
    deleted: tuple[tuple[int, bytes], ...]
    """(slot, deleted row positions as a deletion vector) of files whose deletes have changed"""
    storage: StorageConfig


def mark(task: MarkTask) -> tuple[npt.NDArray[np.int64], ...]:
    """By shard: nodes, ascending, whose row lies in a slot that is gone, or is one of the deleted."""
    deleted = {slot: deletion_vector.decode(positions) for slot, positions in task.deleted}
    found = []
    for shard in task.shards:
        reader = ShardReader(PartSource(open_storage(shard.path, task.storage), shard))
        slots, positions = reader.read_locations()
        found.append(dead_nodes(slots, positions, task.gone, deleted))
    return tuple(found)


def dead_nodes(
    slots: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.int64],
    gone: npt.NDArray[np.uint32],
    deleted: dict[int, npt.NDArray[np.int64]],
) -> npt.NDArray[np.int64]:
    """Of nodes at u32[N] slots and int64[N] positions."""
    dead = np.isin(slots, gone)
    order = np.argsort(slots, kind="stable")
    wanted = np.array(sorted(deleted), np.uint32)
    starts = np.searchsorted(slots[order], wanted, side="left")
    ends = np.searchsorted(slots[order], wanted, side="right")
    for slot, start, end in zip(wanted, starts, ends, strict=True):
        nodes = order[start:end]
        dead[nodes] |= np.isin(positions[nodes], deleted[int(slot)])
    return np.flatnonzero(dead)
