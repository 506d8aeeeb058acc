import tracemalloc

import numpy as np
import pytest

from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.codes.product_quantization import PqCodebook
from icepuffin.ann_kernels.errors import KernelError


@pytest.mark.parametrize("rows", [1, 16, 500])
@pytest.mark.parametrize("dims", [1, 6, kmeans.NARROW, kmeans.NARROW + 1])
def test_each_vector_goes_to_its_nearest_centroid(dims: int, rows: int) -> None:
    rng = np.random.default_rng(0)
    vectors, centroids = (rng.standard_normal((count, dims)).astype(np.float32) for count in (rows, 9))
    labels, squared = kmeans.assign(vectors, centroids, threads=2)
    gaps = np.square(vectors[:, None] - centroids[None]).sum(axis=2)
    assert (labels == gaps.argmin(axis=1)).all()
    np.testing.assert_allclose(squared, gaps.min(axis=1), rtol=1e-4)


@pytest.mark.parametrize("threads", range(1, 8))
def test_threads_take_whole_blocks_so_that_products_are_those_of_one_thread(threads: int) -> None:
    """BLAS adds up in another order where it multiplies another number of rows, which may change a label."""
    for count in (1, 99, 100, 101, 1_234):
        bounds = kmeans._block_bounds(count, 100, threads)
        assert bounds == sorted(bounds)
        assert bounds[0] == 0
        assert bounds[-1] == count
        assert all(bound % 100 == 0 for bound in bounds if bound < count)


@pytest.mark.parametrize("dims", [3, kmeans.NARROW + 1])
def test_the_first_of_equal_centroids_is_taken(dims: int) -> None:
    centroids = np.repeat(np.eye(2, dims, dtype=np.float32), 3, axis=0)
    labels, _ = kmeans.assign(centroids, centroids)
    assert labels.tolist() == [0, 0, 0, 3, 3, 3]


def test_well_parted_clusters_are_found() -> None:
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((6, 4)) * 50
    vectors = np.concatenate([center + rng.standard_normal((80, 4)) for center in centers]).astype(np.float32)
    found = kmeans.train(vectors, 6, seed=0)
    assert np.square(found[:, None] - centers[None]).sum(axis=2).min(axis=0).max() < 1.0


def test_centroids_come_nearer_to_their_vectors_with_each_round() -> None:
    vectors = np.random.default_rng(4).standard_normal((400, 3)).astype(np.float32)
    rounds = [kmeans.train(vectors, 7, seed=0, iterations=count) for count in (0, 1)]
    squared = [kmeans.assign(vectors, found)[1].sum() for found in (*rounds, kmeans.train(vectors, 7, seed=0))]
    assert squared[0] > squared[1] > 1.01 * squared[2]


def test_a_centroid_without_vectors_moves_to_the_farthest() -> None:
    sample = np.array([[0], [4], [9], [2]], np.float32)
    squared = np.array([1, 9, 64, 1], np.float32)
    means = kmeans._means(sample, np.zeros(4, np.int32), squared, np.array([[1], [50], [60]], np.float32))
    assert means.tolist() == [[3.75], [9], [4]]


def test_many_centroids_may_be_more_than_there_are_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "MANY", 3)
    assert kmeans.train(np.eye(4, dtype=np.float32), 5, seed=0).shape == (5, 4)


def test_training_depends_on_the_seed_alone() -> None:
    vectors = np.random.default_rng(2).standard_normal((400, 5)).astype(np.float32)
    first, second = (kmeans.train(vectors, 7, seed=3, threads=threads) for threads in (1, 2))
    assert (first == second).all()


def test_centroids_without_points_move_to_the_points_farthest_from_theirs() -> None:
    points, previous = np.array([[0.0], [1.0], [9.0], [5.0]], np.float32), np.array([[2.0], [40.0], [50.0]], np.float32)
    labels, squared = kmeans.assign(points, previous)
    assert kmeans._means(points, labels, squared, previous).tolist() == [[3.75], [9.0], [5.0]]


def test_more_centroids_than_distinct_points_are_allowed() -> None:
    assert kmeans.train(np.ones((5, 3), np.float32), 4, seed=0).shape == (4, 3)


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(KernelError):
        kmeans.train(np.empty((0, 3), np.float32), 2, seed=0)


@pytest.mark.parametrize("dims", [6, kmeans.NARROW + 8])
@pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
def test_what_all_vectors_have_in_common_does_not_blur_the_nearest_centroid(dims: int, offset: float) -> None:
    """At a mean of 10,000 labels were those of rounding."""
    rng = np.random.default_rng(0)
    vectors, centroids = ((offset + rng.standard_normal((count, dims))).astype(np.float32) for count in (400, 20))
    labels, squared = kmeans.assign(vectors, centroids)
    gaps = np.square(vectors[:, None].astype(float) - centroids[None]).sum(axis=2)
    chosen = np.take_along_axis(gaps, labels[:, None].astype(int), axis=1)[:, 0]
    np.testing.assert_allclose(chosen, gaps.min(axis=1), rtol=1e-5)
    np.testing.assert_allclose(squared, gaps.min(axis=1), rtol=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_tables_of_codewords_hold_their_distances_at_any_offset(offset: float) -> None:
    rng = np.random.default_rng(0)
    codebook = (offset + rng.standard_normal((4, 256, 3))).astype(np.float32)
    queries = (offset + rng.standard_normal((5, 12))).astype(np.float32)
    tables = PqCodebook(codebook).tables(queries, inner_product=False)
    gaps = queries.reshape(5, 4, 1, 3).astype(float) - codebook[None]
    np.testing.assert_allclose(tables, np.square(gaps).sum(axis=3), rtol=1e-4, atol=1e-5)


def test_a_few_vectors_of_many_dimensions_take_little_memory() -> None:
    """A block had as many rows as scores of one centroid filled it: 64 GiB of the longest vectors."""
    vectors = np.random.default_rng(0).standard_normal((12, 8_192)).astype(np.float32) + 100
    tracemalloc.start()
    try:
        labels, _ = kmeans.assign(vectors, vectors[:1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert labels.tolist() == [0] * 12
    assert peak < 16 * vectors.nbytes
