import numpy as np

from ops.tasks.rows import match


def test_equal_values_are_matched_one_to_one() -> None:
    left = np.array([1, 1, 1, 4, 7], np.uint64)
    right = np.array([1, 1, 5, 7, 7], np.uint64)
    ours, theirs = match(left, right)
    assert ours.tolist() == [0, 1, 4]
    assert theirs.tolist() == [0, 1, 3]
