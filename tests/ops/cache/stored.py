"""Shards in a store, for tests: what a cache reads."""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes.rotated_quantization import center_of, encode
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph import Graph
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import ReadyShard, ShardCache, ShardKey
from icepuffin.ops.cache.ready_shard import NodeAddresses
from icepuffin.ops.model import ObjectRange, StorageConfig, StoredRun, StoredShard
from icepuffin.ops.shards.shard_codes import as_kernels_take, as_stored
from icepuffin.puffin.blobs import shard_blob
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.ann_kernels.data import packed
from tests.puffin.samples import ApartVectors

ROWS = 60
_BEFORE = b"before" * 200
"""Bytes before a run of vectors in its file: more than a piece of a test"""
DIMS = 16
STORAGE = StorageConfig({})


class BusyDisk(threading.BoundedSemaphore):
    """Permits of unfinished shards, at which a caller who waits for one is interrupted."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    __enter__ = acquire


def random_shard(seed: int = 0, rows: int = ROWS, dims: int = DIMS) -> Shard:
    """A small shard with vectors; its row positions tell which one it is."""
    vectors = np.random.default_rng(seed).standard_normal((rows, DIMS)).astype(np.float32)
    if dims != DIMS:  # the same distances in more dimensions
        vectors = vectors @ np.random.default_rng(seed).standard_normal((DIMS, dims)).astype(np.float32)
    params = vamana.VamanaParams(max_degree=8, search_list=16)
    graph = vamana.build(vectors, Metric.L2, params)
    shard = Shard(
        metric=Metric.L2.code, dims=vectors.shape[1], max_degree=8, search_list=16, alpha=1.2, medoid=graph.medoid,
        neighbors=graph.neighbors, degrees=graph.degrees, file_slots=np.zeros(rows, np.uint32),
        row_positions=np.arange(rows) + 1000 * seed, content_hashes=np.zeros(rows, np.uint64), vectors=vectors,
    )  # fmt: skip
    return decoded(b"".join(bytes(chunk) for chunk in shard_blob.encode(shard)), shard)


def decoded(blob: bytes, shard: Shard) -> Shard:
    """The shard in the bytes, with the vectors of `shard`."""
    return shard_blob.decode(blob, ApartVectors(shard))


def lean(shard: Shard) -> Shard:
    """The same with PQ codes instead of vectors."""
    codebook = np.random.default_rng(0).standard_normal((4, 256, shard.dims // 4)).astype(np.float32)
    codes = np.random.default_rng(1).integers(0, 256, (shard.count, 4), dtype=np.uint8)
    return replace(shard, vectors=None, pq_codebook=codebook, pq_codes=codes)


def ready(shard: Shard, *, compact: bool = False) -> ReadyShard:
    """A decoded shard as the cache has it."""
    graph = Graph(shard.neighbors, shard.degrees, shard.medoid)
    pq = shard.pq_codebook, shard.pq_codes
    return ReadyShard.from_graph(
        packed(graph) if compact else graph,
        Metric.of_code(shard.metric),
        NodeAddresses(shard.file_slots, shard.row_positions),
        vectors=None if shard.vectors is None else np.ascontiguousarray(shard.vectors, np.float32),
        pq=pq if shard.vectors is None and pq[0] is not None and pq[1] is not None else None,
        rotated=as_kernels_take(shard.codes),
        rounded=shard.rounded,
    ).with_codes()


def coded(shard: Shard, bits: int) -> Shard:
    """The same with rotated codes instead of vectors."""
    vectors = np.asarray(shard.vectors, np.float32)
    return replace(shard, vectors=None, codes=as_stored(encode(vectors, bits, center_of(vectors), seed=5)))


def stored(
    folder: Path,
    shard: Shard,
    name: str = "shard",
    *,
    runs: Sequence[int] = (),
) -> ShardKey:
    """Write a shard, and return its key. `runs`: numbers of vectors that lie in a file of their own each; else all lie
    in one.
    """
    blob = b"".join(bytes(chunk) for chunk in shard_blob.encode(shard))
    if shard.vectors is not None and shard.count and not runs:
        runs = (shard.count,)
    path = folder / name
    path.write_bytes(blob)
    where = ObjectRange(f"file://{path}", 0, len(blob))
    pieces = np.split(np.asarray(shard.vectors), np.cumsum(runs)[:-1]) if runs else []
    places = tuple(_run(folder / f"{name}-{number}", piece) for number, piece in enumerate(pieces))
    return ShardKey(StoredShard(where, runs=places), hashlib.sha256(blob).digest())


def _run(path: Path, vectors: npt.NDArray[Any]) -> StoredRun:
    data = bytes(shard_blob.stored_vectors(vectors))
    path.write_bytes(_BEFORE + data + b"after")
    where = ObjectRange(f"file://{path}", len(_BEFORE), len(data))
    return StoredRun(where, len(vectors), hashlib.sha256(data).digest())


def kept_by(cache: ShardCache, key: ShardKey) -> ReadyShard:
    """What the cache gives, when it has also been written."""
    found = cache.shard(key, STORAGE)
    cache.flush()
    return found


def answers(shard: ReadyShard) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Rows and distances that a search of it gives."""
    query_vectors = np.random.default_rng(7).standard_normal((5, shard.searcher.dims)).astype(np.float32)
    nodes, distances, _ = shard.searcher.search(query_vectors, 5, search_list=20)
    return shard.row_positions[nodes], distances
