"""Moving the rows of a delta shard to the shards that their partitions belong to, as new rows are."""

import contextlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels import grouped_centroids
from icepuffin.ops.model import ShardId, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.staged_blocks import BlockWriters, StagedBlock


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRowsTask:
    """One delta shard that is to be dissolved."""

    shard_id: ShardId
    base: BaseShard
    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    partition_to_shard: npt.NDArray[np.uint32]
    staging: str
    storage: StorageConfig
    threads: int = 1


def scatter_delta(task: DeltaRowsTask) -> tuple[StagedBlock, ...]:
    """Stage the live rows of a delta shard by the shards that they go to. Returns the blocks.

    Memory: the shard's vectors.
    """
    rows = task.base.live_rows(task.base.reader())
    labels, _ = grouped_centroids.assign(rows.vectors, task.codebook, threads=task.threads)
    with contextlib.ExitStack() as stack:
        stem = f"{task.staging}/delta-{task.shard_id}"
        writers = BlockWriters(stem, rows.vectors.shape[1], open_storage(task.staging, task.storage), stack)
        writers.write(rows, task.partition_to_shard[labels])
    return writers.blocks()
