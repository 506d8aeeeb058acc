"""Lloyd's k-means over GEMM, seeded by k-means++ on a part of the sample. Deterministic for a seed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from numba import njit

from ann_kernels.blas import one_blas_thread
from ann_kernels.errors import KernelError
from ann_kernels.spaces import frozen

_SEEDED_FROM = 16
"""Vectors a centroid that seeding chooses from"""
_BLOCK_BYTES = 1024**2
"""Scores of a block of vectors stay in the cache until they are read"""


def train(
    sample: npt.NDArray[np.float32], k: int, *, seed: int, iterations: int = 20, threads: int = 1
) -> npt.NDArray[np.float32]:
    """k centroids f32[k, D] of sample f32[N, D]; fewer distinct points than k give repeated centroids.

    A centroid that loses all its points is moved to the point that is farthest from its own.
    """
    if k < 1 or not len(sample):
        raise KernelError(f"k-means needs at least one centroid and one vector, not {k} and {len(sample)}")
    rng = np.random.default_rng(seed)
    centroids = _spread(sample, k, rng)
    last = np.full(len(sample), -1, np.int32)
    for _ in range(iterations):
        labels, squared = assign(sample, centroids, threads=threads)
        if (labels == last).all():
            break
        last = labels
        centroids = _means(sample, labels, squared, centroids)
    return centroids


def assign(
    vectors: npt.NDArray[np.float32], centroids: npt.NDArray[np.float32], *, threads: int = 1
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """(label int32[N] of the nearest centroid, squared distance f32[N] to it); ties go to the smaller label."""
    labels = np.empty(len(vectors), np.int32)
    squared = np.empty(len(vectors), np.float32)
    norms = np.einsum("ij,ij->i", centroids, centroids)
    doubled = np.ascontiguousarray(-2 * centroids.T)
    rows = max(64, _BLOCK_BYTES // (4 * len(centroids)))

    def stretch(low: int, high: int) -> None:
        scores = np.empty((rows, len(centroids)), np.float32)
        for start in range(low, high, rows):
            part = vectors[start : min(start + rows, high)]
            near = np.dot(part, doubled, out=scores[: len(part)])
            near += norms
            best = near.argmin(axis=1)
            labels[start : start + len(part)] = best
            gap = part - centroids[best]
            squared[start : start + len(part)] = np.einsum("ij,ij->i", gap, gap)

    bounds = _bounds(len(vectors), rows, max(1, threads))
    with one_blas_thread, ThreadPoolExecutor(max(1, threads)) as pool:
        list(pool.map(stretch, bounds[:-1], bounds[1:]))
    return labels, squared


def _bounds(count: int, rows: int, pieces: int) -> list[int]:
    """Ends of pieces, whole blocks each: which rows BLAS multiplies together must not hang on the threads."""
    blocks = -(-count // rows)
    return [min(count, rows * (blocks * piece // pieces)) for piece in range(pieces)] + [count]


def _spread(sample: npt.NDArray[np.float32], k: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """k-means++ seeding: each next centroid is drawn in proportion to its squared distance to the ones before."""
    chosen = sample[rng.choice(len(sample), min(len(sample), _SEEDED_FROM * k), replace=False)]
    out = np.empty((k, sample.shape[1]), np.float32)
    out[0] = chosen[rng.integers(len(chosen))]
    nearest = np.full(len(chosen), np.inf)
    for number in range(1, k):
        gap = chosen - out[number - 1]
        nearest = np.minimum(nearest, np.einsum("ij,ij->i", gap, gap))
        total = nearest.sum()
        at = rng.choice(len(chosen), p=nearest / total) if total > 0 else rng.integers(len(chosen))
        out[number] = chosen[at]
    return out


def _means(
    sample: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int32],
    squared: npt.NDArray[np.float32],
    before: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    k = len(before)
    counts = np.bincount(labels, minlength=k)
    full = np.flatnonzero(counts)
    out = before.copy()
    sums = np.zeros(before.shape)
    _add_up(frozen(sample), labels, sums)
    out[full] = (sums[full] / counts[full, None]).astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        farthest = np.argsort(-squared, kind="stable")[: len(empty)]
        out[empty[: len(farthest)]] = sample[farthest]
    return out


@njit(nogil=True, cache=True)
def _add_up(sample, labels, sums):  # type: ignore[no-untyped-def]
    for row in range(sample.shape[0]):
        total = sums[labels[row]]
        for d in range(sample.shape[1]):
            total[d] += sample[row, d]
