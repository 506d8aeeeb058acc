"""An order of vectors in which near ones lie near in memory, so that a walk through a graph over them stays in caches.

Source of the idea: graph reordering for ANN search (Coleman et al., arXiv 2104.03221). They reorder by the finished
graph; here it is done before, by a shallow tree of k-means, so that vectors are moved once and in place.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels import kmeans
from icepuffin.ann_kernels.blas_threads import one_blas_thread

FEWEST_SPLIT = 256
"""Vectors that stay as they are: they lie near enough"""
_FAN = 64
_DEPTH = 4
"""Levels, at most: clusters that k-means cannot split are left"""
_SAMPLED_A_CENTROID = 32
_ITERATIONS = 3
_ROWS_A_BLOCK = 8_192


def locality_order(vectors: npt.NDArray[np.float32], *, seed: int = 0, threads: int = 1) -> npt.NDArray[np.int64]:
    """int64[N]: a permutation of the rows of f32[N, D]; the same for any number of threads."""
    order = np.arange(len(vectors))
    with one_blas_thread:  # once: setting it takes longer than a small cluster
        _arrange(vectors, order, None, 0, seed, threads)
    return order


def _arrange(
    vectors: npt.NDArray[np.float32],
    order: npt.NDArray[np.int64],
    before: npt.NDArray[np.float32] | None,
    depth: int,
    seed: int,
    threads: int,
) -> None:
    """Put the rows in `order`, which is written to, cluster by cluster; the first near `before` f32[D]."""
    count = len(order)
    if count < 2 * FEWEST_SPLIT or depth == _DEPTH:
        return
    clusters = min(_FAN, -(-count // FEWEST_SPLIT))
    sample = vectors[order[:: max(1, count // (clusters * _SAMPLED_A_CENTROID))]]
    centroids = kmeans.train(sample, clusters, seed=seed, iterations=_ITERATIONS, threads=threads)
    centroids = centroids[_chain(centroids, centroids[0] if before is None else before)]
    labels = np.empty(count, np.int32)
    for start in range(0, count, _ROWS_A_BLOCK):  # a copy of all of a cluster would be one of a build's large arrays
        block = slice(start, start + _ROWS_A_BLOCK)
        labels[block] = kmeans.assign(vectors[order[block]], centroids, threads=threads)[0]
    order[:] = order[np.argsort(labels, kind="stable")]
    ends = np.cumsum(np.bincount(labels, minlength=clusters))
    for start, end, nearby in zip([0, *ends], ends, [before, *centroids], strict=False):
        _arrange(vectors, order[start:end], nearby, depth + 1, seed, threads)


def _chain(centroids: npt.NDArray[np.float32], before: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """int64[k]: the one nearest to `before`, then always the nearest of those that are left."""
    left = np.arange(len(centroids))
    chain = np.empty(len(centroids), np.int64)
    for place in range(len(chain)):
        nearest = int(((centroids[left] - before) ** 2).sum(axis=1).argmin())
        chain[place], before = left[nearest], centroids[left[nearest]]
        left = np.delete(left, nearest)
    return chain


def reorder(vectors: npt.NDArray[np.float32], order: npt.NDArray[np.int64]) -> None:
    """`vectors[:] = vectors[order]` of f32[N, D] without a second array; `order` is a permutation."""
    _move(vectors, order.copy(), np.empty(vectors.shape[1], np.float32))


@njit(nogil=True, cache=True)
def _move(vectors, source, held):  # type: ignore[no-untyped-def]
    """Cycle by cycle: source int64[N] says which row comes where, -1 once it is there; held f32[D] is scratch."""
    for start in range(source.size):
        if source[start] == start or source[start] < 0:
            continue
        held[:] = vectors[start]
        at = start
        while source[at] != start:
            following = source[at]
            vectors[at] = vectors[following]
            source[at] = -1
            at = following
        vectors[at] = held
        source[at] = -1
