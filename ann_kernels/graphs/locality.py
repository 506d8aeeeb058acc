"""An order of vectors in which near ones lie near in memory, so that a walk through a graph over them stays in caches.

Source of the idea: graph reordering for ANN search (Coleman et al., arXiv 2104.03221). They reorder by the finished
graph; here it is done before, by a shallow tree of k-means, so that vectors are moved once and in place.
"""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I64
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.compilation import kernel

MIN_SPLIT = 256
"""Number of vectors that keep their order: they lie near enough"""
_FAN_OUT = 64
_DEPTH = 4
"""Largest number of levels: clusters that k-means cannot split keep their order"""
_SAMPLED_PER_CENTROID = 32
_ITERATIONS = 3
_ROWS_PER_BLOCK = 8_192


def locality_order(vectors: F32, *, seed: int = 0, threads: int = 1) -> I64:
    """int64[N]: a permutation of the rows of f32[N, D]; the same for any number of threads."""
    order = np.arange(len(vectors))
    with one_blas_thread:  # once: setting it takes longer than a small cluster
        _arrange(vectors, order, None, 0, seed, threads)
    return order


def _arrange(vectors: F32, order: I64, previous: F32 | None, depth: int, seed: int, threads: int) -> None:
    """Rearrange the rows in `order`, in place, cluster by cluster; the first cluster is near `previous` f32[D]."""
    count = len(order)
    if count < 2 * MIN_SPLIT or depth == _DEPTH:
        return
    clusters = min(_FAN_OUT, -(-count // MIN_SPLIT))
    sample = vectors[order[:: max(1, count // (clusters * _SAMPLED_PER_CENTROID))]]
    centroids = kmeans.train(sample, clusters, seed=seed, iterations=_ITERATIONS, threads=threads)
    centroids = centroids[_chain(centroids, centroids[0] if previous is None else previous)]
    labels = np.empty(count, np.int32)
    for start in range(0, count, _ROWS_PER_BLOCK):  # a copy of a whole cluster would be one of a build's large arrays
        block = slice(start, start + _ROWS_PER_BLOCK)
        labels[block] = kmeans.assign(vectors[order[block]], centroids, threads=threads)[0]
    order[:] = order[np.argsort(labels, kind="stable")]
    ends = np.cumsum(np.bincount(labels, minlength=clusters))
    for start, end, neighbor in zip([0, *ends], ends, [previous, *centroids], strict=False):
        _arrange(vectors, order[start:end], neighbor, depth + 1, seed, threads)


def _chain(centroids: F32, previous: F32) -> I64:
    """An order int64[k] of centroids: the one nearest to `previous`, then each time the nearest that is left."""
    remaining = np.arange(len(centroids))
    chain = np.empty(len(centroids), np.int64)
    for index in range(len(chain)):
        nearest = int(((centroids[remaining] - previous) ** 2).sum(axis=1).argmin())
        chain[index], previous = remaining[nearest], centroids[remaining[nearest]]
        remaining = np.delete(remaining, nearest)
    return chain


def reorder(vectors: F32, order: I64) -> None:
    """`vectors[:] = vectors[order]` of f32[N, D] without a second array; `order` int64[N] is a permutation."""
    _permute_rows(vectors, order.copy(), np.empty(vectors.shape[1], np.float32))


@kernel
def _permute_rows(vectors: F32, source: I64, scratch: F32) -> None:
    """Move rows cycle by cycle: source int64[N] says which row comes where, -1 once it is there; scratch is f32[D]."""
    for start in range(source.size):
        if source[start] == start or source[start] < 0:
            continue
        for d in range(scratch.size):
            scratch[d] = vectors[start, d]
        row = start
        while source[row] != start:
            following = source[row]
            for d in range(scratch.size):
                vectors[row, d] = vectors[following, d]
            source[row] = -1
            row = following
        for d in range(scratch.size):
            vectors[row, d] = scratch[d]
        source[row] = -1
