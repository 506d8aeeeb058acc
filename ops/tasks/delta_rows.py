"""Moving the rows of a delta shard to the shards that their partitions belong to, as new rows are."""

import contextlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import grouped_centroids
from icepuffin.ops.model import ShardId, StorageConfig, StoredRun
from icepuffin.ops.process.large_arrays import as_floats
from icepuffin.ops.shards.shard_reader import RunsReader
from icepuffin.ops.shards.vector_runs import runs_of_nodes
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.staged_blocks import Block, BlockWriters, StagedBlock, read_in_order


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


@dataclass(frozen=True, slots=True)
class PassedRows:
    """Rows of a delta shard that go to one other shard, and whose vectors stay where they lie."""

    destination: ShardId
    block: Block
    """Addresses and content hashes, in the order of the vectors"""
    runs: tuple[StoredRun, ...]

    @property
    def count(self) -> int:
        return self.block[1]

    def addresses(self, storage: StorageConfig) -> VectorRows:
        """The rows without their vectors, in the order of these. Raises StorageError."""
        return read_in_order(storage, [self.block], 0)

    def with_vectors(self, addresses: VectorRows, storage: StorageConfig, dims: int) -> VectorRows:
        """The rows of `addresses` with their vectors, f32[N, dims]. Raises StorageError, PuffinError."""
        dtype = "<f2" if self.runs[0].row_bytes == 2 * dims else "<f4"
        vectors = RunsReader(self.runs, storage).read().view(dtype).reshape(-1, dims)
        return replace(addresses, vectors=as_floats(vectors))


@dataclass(frozen=True, slots=True)
class DissolvedDelta:
    """Where the live rows of a delta shard are now."""

    blocks: tuple[StagedBlock, ...]
    """Rows that are staged with their vectors, by the shards that they go to"""
    passed: tuple[PassedRows, ...]
    """Rows whose vectors stay where they lie"""


def scatter_delta(task: DeltaRowsTask) -> DissolvedDelta:
    """Stage the live rows of a delta shard by the shards that they go to.

    Vectors that lie in a few pieces for a shard, as they do where the delta was ordered by these shards, stay there.
    Memory: the shard's vectors.
    """
    reader = task.base.reader()
    rows, is_live = task.base.rows(reader), task.base.is_live(reader)
    labels, _ = grouped_centroids.assign(rows.vectors, task.codebook, threads=task.threads)
    destinations, runs = task.partition_to_shard[labels], task.base.stored.runs
    storage, stem = open_storage(task.staging, task.storage), f"{task.staging}/delta-{task.shard_id}"
    passed: dict[int, tuple[StoredRun, ...]] = {}
    with contextlib.ExitStack() as stack:
        writers = BlockWriters(stem, rows.vectors.shape[1], storage, stack)
        addresses = BlockWriters(f"{stem}-addresses", 0, storage, stack)
        without_vectors = replace(rows, vectors=rows.vectors[:, :0])
        for shard_id in np.unique(destinations[is_live]).tolist():
            nodes = np.flatnonzero(is_live & (destinations == shard_id))
            own_runs = runs_of_nodes(runs, nodes, rows.vectors)
            if own_runs is None:
                writers.write(rows.take(nodes), destinations[nodes])
            else:
                passed[shard_id] = own_runs
                addresses.write(without_vectors.take(nodes), destinations[nodes])
    staged = ((ShardId(shard_id), (path, count)) for shard_id, path, count in addresses.blocks())
    return DissolvedDelta(writers.blocks(), tuple(PassedRows(to, block, passed[to]) for to, block in staged))
