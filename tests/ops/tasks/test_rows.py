import numpy as np
import pytest

from ops.tasks.rows import match, permute


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 200])
def test_rows_are_put_in_order_in_place(rows: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    order = np.random.default_rng(1).permutation(rows)
    expected = vectors[order]
    permute(vectors, order)
    np.testing.assert_array_equal(vectors, expected)


def test_equal_values_are_matched_one_to_one() -> None:
    left = np.array([1, 1, 1, 4, 7], np.uint64)
    right = np.array([1, 1, 5, 7, 7], np.uint64)
    ours, theirs = match(left, right)
    assert ours.tolist() == [0, 1, 4]
    assert theirs.tolist() == [0, 1, 3]
