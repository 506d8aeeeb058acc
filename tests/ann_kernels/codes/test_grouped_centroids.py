"""Assignment to thousands of centroids, beside that which compares all."""

import numpy as np
import pytest

from icepuffin.ann_kernels.codes import grouped_centroids, kmeans
from icepuffin.ann_kernels.codes.grouped_centroids import CentroidGroups

DIMS = 24


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few centroids are many that a test is quick."""
    monkeypatch.setattr(kmeans, "MANY", 99)


def clustered(count: int, seed: int, offset: float = 0.0) -> np.ndarray:
    """Vectors f32[count, DIMS] around 40 points."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(99).standard_normal((40, DIMS))
    rows = points[rng.integers(0, 40, count)] + 0.8 * rng.standard_normal((count, DIMS))
    return (rows + offset).astype(np.float32)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_labels_are_of_near_centroids_and_distances_are_their_own(offset: float) -> None:
    vectors, centroids = clustered(3_000, 1, offset), clustered(900, 2, offset)
    labels, squared = CentroidGroups.from_centroids(centroids).assign(vectors)
    _, least = kmeans.assign(vectors, centroids)
    own = np.square(vectors.astype(float) - centroids[labels]).sum(axis=1)
    np.testing.assert_allclose(squared, own, rtol=1e-5)
    assert (own >= least * (1 - 1e-5)).all()
    assert np.isclose(own, least, rtol=1e-5).mean() > 0.99
    assert np.sqrt(own).mean() < 1.02 * np.sqrt(least).mean()


@pytest.mark.usefixtures("few")
def test_all_groups_give_the_nearest_and_the_first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_centroids, "NEAR_GROUPS", 1_000)
    vectors, centroids = clustered(500, 1), np.repeat(clustered(120, 2), 2, axis=0)
    labels, _ = grouped_centroids.assign(vectors, centroids)
    assert (labels == kmeans.assign(vectors, centroids)[0]).all()
    assert (labels % 2 == 0).all()


@pytest.mark.usefixtures("few")
def test_the_result_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_centroids, "_ROWS_AT_ONCE", 64)
    vectors, centroids = clustered(700, 1), clustered(300, 2)
    one, two = (grouped_centroids.assign(vectors, centroids, threads=threads) for threads in (1, 3))
    assert (one[0] == two[0]).all()
    assert (one[1] == two[1]).all()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("length", [1e18, 3e20, 3e38])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_vectors_whose_distances_overflow_get_a_label(length: float) -> None:
    vectors = clustered(200, 1) * np.float32(length / 10)
    labels, _ = grouped_centroids.assign(vectors, vectors[:150])
    assert ((labels >= 0) & (labels < 150)).all()


def test_up_to_so_many_centroids_the_nearest_is_found() -> None:
    vectors, centroids = clustered(300, 1), clustered(200, 2)
    labels, squared = grouped_centroids.assign(vectors, centroids)
    expected = kmeans.assign(vectors, centroids)
    assert (labels == expected[0]).all()
    assert (squared == expected[1]).all()


@pytest.mark.usefixtures("few")
def test_many_centroids_are_trained_about_as_well_as_by_comparing_all() -> None:
    sample = clustered(2_000, 3)
    grouped, whole = (
        kmeans.train(sample, 200, seed=0, iterations=8, nearest=nearest) for nearest in (grouped_centroids.assign, None)
    )
    spreads = [np.sqrt(kmeans.assign(sample, centroids)[1]).mean() for centroids in (grouped, whole)]
    assert spreads[0] < 1.03 * spreads[1]
    assert len(np.unique(grouped, axis=0)) == 200
