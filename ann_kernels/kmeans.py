"""Lloyd's k-means, seeded by k-means++ on a part of the sample. Deterministic for a seed.

Which centroid is nearest comes from a matrix product, or, for vectors so narrow that a product is mostly overhead (the
parts of product quantization), from one kernel that keeps a row's scores in the first-level cache.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.distance_computers import FAST, frozen, squared_l2
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.simd import LANES, nearest_of_lanes

NARROW = 32
"""Dimensions up to which no matrix product is made"""
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
_COMMON = 64
"""Squared norms of centroids to squared distances from their mean: up to here rounding does not count"""
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
    narrow = vectors.shape[1] <= NARROW
    rows = max(64, _BLOCK_BYTES // (4 * len(centroids)))
    bounds = _bounds(len(vectors), rows, max(1, threads))

    def piece(low: int, high: int) -> None:
        if narrow:
            _narrow_stretch(vectors, centroids, low, high, labels, squared)
        else:
            _product_stretch(vectors, centroids, rows, low, high, labels, squared)

    with one_blas_thread:
        if threads > 1 and len(vectors) > rows:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(piece, bounds, bounds[1:]))
        else:  # a thread would take longer to start than the work
            piece(0, len(vectors))
    return labels, squared


def _product_stretch(
    vectors: Floats, centroids: Floats, rows: int, low: int, high: int, labels: Ints, squared: Floats
) -> None:
    middle, doubled, norms = moved_codebook(centroids)
    doubled = np.ascontiguousarray(doubled.T)
    scores = np.empty((rows, len(centroids)), np.float32)
    moved = np.empty((rows if len(middle) else 0, vectors.shape[1]), np.float32)
    for start in range(low, high, rows):
        some = part = vectors[start : min(start + rows, high)]
        if len(middle):
            part = np.subtract(part, middle, out=moved[: len(part)])
        near = np.dot(part, doubled, out=scores[: len(part)])
        near += norms
        end = start + len(part)
        labels[start:end] = near.argmin(axis=1)
        _squared_to(frozen(some), frozen(centroids), labels[start:end], squared[start:end])


def _narrow_stretch(vectors: Floats, centroids: Floats, low: int, high: int, labels: Ints, squared: Floats) -> None:
    part = frozen(vectors[low:high])
    nearest_narrow(part, 0, *moved_codebook(centroids), labels[low:high])
    _squared_to(part, frozen(centroids), labels[low:high], squared[low:high])


def moved_codebook(centroids: Floats) -> tuple[Floats, Floats, Floats]:
    """(what they are moved by, f32[D], or f32[0]; -2 times the centroids f32[k, D] so moved; squared norms of these).

    |c|^2 - 2 x c ranks centroids, but of what all vectors have in common, where that is most of them, it would leave
    nothing but rounding: so they are moved by their mean then.
    """
    middle = centroids.mean(axis=0, dtype=np.float64).astype(np.float32)
    moved = centroids - middle
    norms, spread = np.einsum("ij,ij->i", centroids, centroids), np.einsum("ij,ij->i", moved, moved)
    if norms.sum(dtype=np.float64) <= _COMMON * spread.sum(dtype=np.float64):
        return np.empty(0, np.float32), np.ascontiguousarray(-2 * centroids), norms
    return middle, np.ascontiguousarray(-2 * moved), spread


@njit(nogil=True, cache=True)
def nearest_narrow(vectors, first, middle, doubled, norms, labels):  # type: ignore[no-untyped-def]
    """Label of the centroid nearest to each vectors[:, first : first + D], of vectors f32[N, ..]; ties: the smaller.

    The others are those of `moved_codebook`.
    """
    points = np.zeros((doubled.shape[1], LANES), np.float32)
    found = np.empty(LANES, np.int32)
    for start in range(0, vectors.shape[0], LANES):
        count = min(LANES, vectors.shape[0] - start)
        for lane in range(count):
            for d in range(doubled.shape[1]):
                points[d, lane] = vectors[start + lane, first + d]
        for d in range(middle.size):
            for lane in range(LANES):
                points[d, lane] -= middle[d]
        nearest_of_lanes(points, doubled, norms, found)
        for lane in range(count):
            labels[start + lane] = found[lane]


@njit(nogil=True, cache=True, fastmath=FAST)
def _squared_to(vectors, centroids, labels, squared):  # type: ignore[no-untyped-def]
    for row in range(vectors.shape[0]):
        squared[row] = squared_l2(centroids, labels[row], vectors[row])


def _bounds(count: int, rows: int, pieces: int) -> list[int]:
    """Ends of pieces, whole blocks each: which rows BLAS multiplies together must not hang on the threads."""
    blocks = -(-count // rows)
    return [min(count, rows * (blocks * piece // pieces)) for piece in range(pieces)] + [count]


def _spread(sample: npt.NDArray[np.float32], k: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """k-means++ seeding: each next centroid is drawn in proportion to its squared distance to the ones before."""
    chosen = sample[rng.choice(len(sample), min(len(sample), _SEEDED_FROM * k), replace=False)]
    places = np.empty(k, np.int64)
    _draw(frozen(np.ascontiguousarray(chosen)), rng.random(k), places)
    return np.asarray(chosen[places])


@njit(nogil=True, cache=True, fastmath=FAST)
def _draw(vectors, uniform, places):  # type: ignore[no-untyped-def]
    """Places of k-means++ seeds; uniform f64[k] says where in the running total of distances each is."""
    nearest = np.ones(vectors.shape[0], np.float64)  # the first is drawn evenly
    for number in range(places.size):
        total = nearest.sum()
        if total > 0:
            running, place, wanted = nearest[0], 0, uniform[number] * total
            while running <= wanted and place + 1 < nearest.size:
                place += 1
                running += nearest[place]
        else:
            place = int(uniform[number] * nearest.size)
        places[number] = place
        if number == 0:
            nearest[:] = np.inf
        for row in range(nearest.size):
            nearest[row] = min(nearest[row], np.float64(squared_l2(vectors, row, vectors[place])))


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
