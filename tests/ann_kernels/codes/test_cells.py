import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from icepuffin.ann_kernels.codes import cells
from icepuffin.ann_kernels.distances.distance import prepare, prepare_exact
from icepuffin.ann_kernels.metric import Metric
from tests.ann_kernels.data import clustered
from tests.naive import cells as naive

METRICS = (Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT)
_VALUES = st.floats(-1e6, 1e6, width=32)
_SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 9))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 513, 3_000])
def test_each_row_is_in_one_cell_and_no_cell_is_large(count: int) -> None:
    parts = cells.partition(clustered(count, 12), seed=0, threads=1)
    assert sorted(np.concatenate([*parts, np.empty(0, np.int64)]).tolist()) == list(range(count))
    assert all(0 < len(part) <= 2 * cells.ROWS and (np.diff(part) > 0).all() for part in parts)


def test_equal_rows_are_cut_into_cells_too() -> None:
    assert {len(part) for part in cells.partition(np.ones((2_048, 4), np.float32), seed=0, threads=1)} == {256}


def test_cells_are_the_same_for_any_number_of_threads() -> None:
    vectors = clustered(5_000, 24)
    one, two = (cells.partition(vectors, seed=7, threads=threads) for threads in (1, 2))
    assert all(np.array_equal(*pair) for pair in zip(one, two, strict=True))


@given(arrays.arrays(np.float32, _SHAPES, elements=_VALUES), st.sampled_from([4, 8]))
def test_codes_are_the_nearest_levels(vectors: np.ndarray, bits: int) -> None:
    coded = cells.encode(vectors, bits)
    assert coded.codes.shape == (len(vectors), -(-vectors.shape[1] * bits // 8))
    largest = np.abs(vectors).max(axis=0)
    half = (vectors.max(axis=0).astype(float) - vectors.min(axis=0)) / (2**bits - 1) / 2
    read = cells.decode(coded, bits)
    assert (np.abs(read - vectors.astype(float)) <= half * (1 + 1e-4) + 1e-6 * largest + 1e-37).all()
    slow = np.array(naive.decoded(vectors, bits))
    assert (np.abs(read - slow) <= 2 * half * (np.abs(read - vectors) > half * 0.99) + 1e-6 * largest + 1e-37).all()


@pytest.mark.parametrize("metric", [*METRICS, Metric.HAMMING])
def test_distances_are_those_of_the_metric(metric: Metric) -> None:
    vectors = prepare(clustered(50, 11, seed=1), metric)
    query = prepare_exact(clustered(1, 11, seed=2), metric)[0]
    read = cells.decode(cells.encode(vectors, 4), 4)
    expected = [naive.distance(query.tolist(), vector, metric) for vector in read.astype(float).tolist()]
    assert np.allclose(cells.distances(query, read, metric), expected, rtol=1e-9, atol=1e-9)


def test_a_vector_that_codes_have_made_zero_has_a_distance() -> None:
    assert cells.distances(np.array([1.0, 0.0]), np.zeros((1, 2), np.float32), Metric.COSINE).tolist() == [1.0]


@pytest.mark.parametrize("metric", METRICS)
def test_cells_are_ranked_by_their_centers(metric: Metric) -> None:
    centers = prepare(clustered(40, 16, seed=3) + np.float32(30), metric).astype(np.float64)
    coded = cells.encode_centers(centers)
    step = coded.scales[:, None].astype(np.float64)
    read = coded.origin + coded.differences().astype(np.float64)
    assert (np.abs(read - centers) <= step / 2 * (1 + 1e-4) + 1e-6 * np.abs(centers)).all()
    query = prepare_exact(clustered(1, 16, seed=4) + 30, metric)[0]
    order, scores = coded.ranked(query, metric)
    slow = -(read @ query) if metric is Metric.INNER_PRODUCT else ((read - query) ** 2).sum(axis=1)
    assert order.tolist() == np.argsort(slow, kind="stable").tolist()
    assert np.allclose(scores, np.sort(slow), rtol=1e-6)


def test_centers_far_from_the_others_take_nothing_from_these() -> None:
    centers = np.concatenate([clustered(30, 8).astype(float), np.full((1, 8), 1e9)])
    coded = cells.encode_centers(centers - np.median(centers, axis=0))
    assert np.isfinite(coded.scales).all()
    assert coded.codes.min() >= -127
