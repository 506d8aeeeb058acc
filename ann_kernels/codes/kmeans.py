"""Lloyd's k-means, seeded by k-means++ on a part of the sample. Deterministic for a seed.

The nearest centroid comes from a matrix product. For vectors so narrow that a product is mostly overhead (the parts of
product quantization), it comes from one kernel that keeps a row's scores in the first-level cache.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, U8, read_only
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.compilation import fast_kernel, kernel
from icepuffin.ann_kernels.distances.distance_computers import squared_l2
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.simd.codegen import LANES
from icepuffin.ann_kernels.simd.nearest_lanes import nearest_of_lanes

MANY = 4_096
"""Centroids up to which all are compared with each other: beyond, seeds are drawn evenly"""
NARROW = 32
"""Dimensions up to which distances are computed without a matrix product"""
_LARGEST_OFFSET = 64
"""Ratio of the centroids' squared norms to squared distances from their mean, up to which rounding does not matter"""
_SEEDING_ROWS = 16
"""Vectors per centroid among which seeding chooses"""
_BLOCK_BYTES = 1024**2
"""Size of the scores of a block of vectors, which stay in the cache until they are read"""
_MOVED_BYTES = 16 * 1024**2
"""Size of a block of vectors, at most"""


class Assign(Protocol):
    """A function as `assign`."""

    def __call__(self, vectors: F32, centroids: F32, /, *, threads: int) -> tuple[I32, F32]: ...


class CenteredCentroids(NamedTuple):
    """Centroids prepared for nearest-centroid scores |c|^2 - 2 x c."""

    center: F32
    """Offset f32[D] subtracted from vectors and centroids; f32[0] where none is needed"""
    doubled: F32
    """-2 times the centroids, f32[k, D]"""
    norms: F32
    """Squared norms of the centroids, f32[k]"""


def train(
    sample: F32, k: int, *, seed: int, iterations: int = 20, threads: int = 1, nearest: Assign | None = None
) -> F32:
    """k centroids f32[k, D] of sample f32[N, D]; fewer distinct points than k give repeated centroids.

    A centroid that loses all its points moves to the point that is farthest from its own. `nearest`: another way to
    assign points than `assign`. Raises KernelError.
    """
    nearest = nearest or assign
    if k < 1 or not len(sample):
        raise KernelError(f"k-means needs at least one centroid and one vector, not {k} and {len(sample)}")
    rng = np.random.default_rng(seed)
    centroids = _seed_centroids(sample, k, rng)
    previous = np.full(len(sample), -1, np.int32)
    for _ in range(iterations):
        labels, squared = nearest(sample, centroids, threads=threads)
        if (labels == previous).all():
            break
        previous = labels
        centroids = _means(sample, labels, squared, centroids)
    return centroids


def assign(vectors: F32, centroids: F32, *, threads: int = 1) -> tuple[I32, F32]:
    """(label int32[N] of the nearest centroid, squared distance f32[N] to it) of vectors f32[N, D].

    Ties go to the smaller label.
    """
    labels = np.empty(len(vectors), np.int32)
    squared = np.empty(len(vectors), np.float32)
    narrow = vectors.shape[1] <= NARROW
    rows = max(64, min(_BLOCK_BYTES // (4 * len(centroids)), _MOVED_BYTES // (4 * vectors.shape[1])))
    bounds = _block_bounds(len(vectors), rows, max(1, threads))

    def assign_part(low: int, high: int) -> None:
        part = slice(low, high)
        if narrow:
            _assign_narrow(vectors[part], centroids, labels[part], squared[part])
        else:
            _assign_by_product(vectors[part], centroids, rows, labels[part], squared[part])

    with one_blas_thread:
        if threads > 1 and len(vectors) > rows:
            with ThreadPoolExecutor(threads) as executor:
                list(executor.map(assign_part, bounds, bounds[1:]))
        else:  # a thread would take longer to start than the work
            assign_part(0, len(vectors))
    return labels, squared


def _assign_by_product(vectors: F32, centroids: F32, rows: int, labels: I32, squared: F32) -> None:
    center, doubled, norms = centered(centroids)
    doubled = np.ascontiguousarray(doubled.T)
    scores = np.empty((rows, len(centroids)), np.float32)
    moved = np.empty((min(rows, len(vectors)) if len(center) else 0, vectors.shape[1]), np.float32)
    for start in range(0, len(vectors), rows):
        part = slice(start, start + rows)
        points = vectors[part]
        if len(center):
            points = np.subtract(points, center, out=moved[: len(points)])
        block_scores = np.dot(points, doubled, out=scores[: len(points)])
        block_scores += norms
        labels[part] = block_scores.argmin(axis=1)
        squared_to_own(read_only(vectors[part]), read_only(centroids), labels[part], squared[part])


def _assign_narrow(vectors: F32, centroids: F32, labels: I32, squared: F32) -> None:
    nearest_narrow(read_only(vectors), 0, centered(centroids), labels)
    squared_to_own(read_only(vectors), read_only(centroids), labels, squared)


def centered(centroids: F32) -> CenteredCentroids:
    """Centroids f32[k, D] prepared for scores.

    |c|^2 - 2 x c ranks centroids. Where most of a vector is an offset that all share, only rounding would be left of
    the ranking: then the mean is subtracted first.
    """
    mean = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
    moved = centroids - mean
    norms, spread = np.einsum("ij,ij->i", centroids, centroids), np.einsum("ij,ij->i", moved, moved)
    if norms.sum(dtype=np.float64) <= _LARGEST_OFFSET * spread.sum(dtype=np.float64):
        return CenteredCentroids(np.empty(0, np.float32), np.ascontiguousarray(-2 * centroids), norms)
    return CenteredCentroids(mean, np.ascontiguousarray(-2 * moved), spread)


@kernel
def nearest_narrow(vectors: F32, first: int, centroids: CenteredCentroids, labels: I32 | U8) -> None:
    """Labels of the centroids nearest to vectors[:, first : first + D], of vectors f32[N, ..].

    Ties go to the smaller label.
    """
    center, doubled, norms = centroids.center, centroids.doubled, centroids.norms
    points = np.zeros((doubled.shape[1], LANES), np.float32)
    nearest = np.empty(LANES, np.int32)
    for start in range(0, vectors.shape[0], LANES):
        count = min(LANES, vectors.shape[0] - start)
        for lane in range(count):
            for d in range(doubled.shape[1]):
                points[d, lane] = vectors[start + lane, first + d]
        for d in range(center.size):
            for lane in range(LANES):
                points[d, lane] -= center[d]
        nearest_of_lanes(points, doubled, norms, nearest)
        for lane in range(count):
            labels[start + lane] = nearest[lane]


@fast_kernel
def squared_to_own(vectors: F32, centroids: F32, labels: I32, squared: F32) -> None:
    """Squared distance of each vector to the centroid of its label."""
    for row in range(vectors.shape[0]):
        squared[row] = squared_l2(centroids, labels[row], vectors[row])


def _block_bounds(count: int, rows: int, parts: int) -> list[int]:
    """Ends of parts that are whole blocks: the rows that BLAS multiplies together must not depend on the threads."""
    blocks = -(-count // rows)
    return [min(count, rows * (blocks * part // parts)) for part in range(parts)] + [count]


def _seed_centroids(sample: F32, k: int, rng: np.random.Generator) -> F32:
    """k-means++ seeding: each next centroid is drawn in proportion to its squared distance to the ones before.

    Of more than `MANY` each is drawn evenly: k-means++ compares k^2 vectors.
    """
    if k > MANY:
        return np.asarray(sample[rng.choice(len(sample), k, replace=k > len(sample))])
    drawn = sample[rng.choice(len(sample), min(len(sample), _SEEDING_ROWS * k), replace=False)]
    rows = np.empty(k, np.int64)
    _draw_seeds(read_only(np.ascontiguousarray(drawn)), rng.random(k), rows)
    return np.asarray(drawn[rows])


@fast_kernel
def _draw_seeds(vectors: F32, uniform: F64, rows: I64) -> None:
    """Rows int64[k] of the seeds; uniform f64[k] puts each in the running total of squared distances."""
    nearest = np.ones(vectors.shape[0], np.float64)  # the first is drawn evenly
    for seed in range(rows.size):
        total = nearest.sum()
        if total > 0:
            running, row, target = nearest[0], 0, uniform[seed] * total
            while running <= target and row + 1 < nearest.size:
                row += 1
                running += nearest[row]
        else:
            row = int(uniform[seed] * nearest.size)
        rows[seed] = row
        if seed == 0:
            nearest[:] = np.inf
        for other in range(nearest.size):
            nearest[other] = min(nearest[other], np.float64(squared_l2(vectors, other, vectors[row])))


def _means(sample: F32, labels: I32, squared: F32, previous: F32) -> F32:
    """The mean of the points of each label; labels without points take the points farthest from their centroids."""
    k = len(previous)
    counts = np.bincount(labels, minlength=k)
    nonempty = np.flatnonzero(counts)
    out = previous.copy()
    sums = np.zeros(previous.shape)
    _add_by_label(read_only(sample), labels, sums)
    out[nonempty] = (sums[nonempty] / counts[nonempty, None]).astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        farthest = np.argsort(-squared, kind="stable")[: len(empty)]
        out[empty[: len(farthest)]] = sample[farthest]
    return out


@kernel
def _add_by_label(sample: F32, labels: I32, sums: F64) -> None:
    for row in range(sample.shape[0]):
        total = sums[labels[row]]
        for d in range(sample.shape[1]):
            total[d] += sample[row, d]
