import numpy as np
import pytest

from icepuffin.ann_kernels.graphs.locality import MIN_SPLIT, locality_order, reorder
from tests.ann_kernels.data import apart, widely_spread

MANY = 5 * MIN_SPLIT


@pytest.mark.parametrize("rows", [0, 1, MIN_SPLIT, MANY])
def test_an_order_has_each_row_once_whatever_the_threads(rows: int) -> None:
    vectors = widely_spread(rows, 40)
    order = locality_order(vectors, threads=1)
    assert np.sort(order).tolist() == list(range(rows))
    assert (locality_order(vectors, threads=2) == order).all()


def test_rows_of_a_cluster_come_together() -> None:
    mixed = np.random.default_rng(0).permutation(MANY)
    clusters = mixed * 4 // MANY
    ordered = clusters[locality_order(apart(MANY, 40, 4)[mixed])]
    assert np.count_nonzero(np.diff(ordered)) == 3 < np.count_nonzero(np.diff(clusters))


@pytest.mark.parametrize("value", [0.0, 1.0, 1e18])
def test_rows_that_cannot_be_told_apart_keep_an_order(value: float) -> None:
    order = locality_order(np.full((MANY, 3), value, np.float32))
    assert np.sort(order).tolist() == list(range(MANY))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 200])
def test_rows_are_put_in_order_in_place(rows: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    order = np.random.default_rng(1).permutation(rows)
    expected = vectors[order]
    reorder(vectors, order)
    np.testing.assert_array_equal(vectors, expected)
