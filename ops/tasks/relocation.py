"""Relocation: addresses blobs for shards whose rows have only moved. Of the shards nothing else is read."""

import hashlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import ObjectRange, ShardId, StorageConfig, StoredAddresses
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.puffin.blobs import addresses_blob


@dataclass(frozen=True, slots=True, eq=False)
class RelocateTask:
    """Shards whose addresses are to be written."""

    shards: tuple[tuple[ShardId, BaseShard], ...]
    """(shard id in the new version, shard of the base version)"""
    staging: str
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class RelocatedShard:
    """A shard of the base version with new addresses."""

    shard_id: ShardId
    """Id in the new version"""
    addresses: StoredAddresses
    slots: npt.NDArray[np.uint32]
    """File slots of all nodes, dead ones included"""


def relocate(task: RelocateTask) -> tuple[RelocatedShard, ...]:
    """Write the new addresses of all shards into one staged object. Raises StorageError, PuffinError."""
    path = f"{task.staging}/moved-{uuid.uuid4().hex}.bin"
    results, offset = [], 0
    with (
        open_storage(task.staging, task.storage).open_output(path, durable=False) as sink,
        ThreadPoolExecutor(task.threads) as threads,
    ):
        blobs = threads.map(_encoded, (base for _, base in task.shards))
        for (shard_id, _), (data, slots) in zip(task.shards, blobs, strict=True):
            sink.write(data)
            where = ObjectRange(path, offset, len(data))
            results.append(RelocatedShard(shard_id, StoredAddresses(where, hashlib.sha256(data).digest()), slots))
            offset += len(data)
    return tuple(results)


def _encoded(base: BaseShard) -> tuple[bytes, npt.NDArray[np.uint32]]:
    """(addresses blob of the shard as it is in the new snapshot, file slots of its nodes)."""
    slots, positions = base.locations(base.reader())
    return addresses_blob.encode(slots, positions), np.unique(slots)
