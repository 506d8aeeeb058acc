import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icepuffin.ann_kernels.rows.matching import pair_equal
from tests.naive import matching

few_values = hnp.arrays(np.uint64, st.integers(0, 40), elements=st.sampled_from([0, 1, 8, 9, 64, 2**63, 2**64 - 1]))
any_values = hnp.arrays(np.uint64, st.integers(0, 40))


@settings(deadline=None)
@given(few_values | any_values, few_values | any_values)
def test_equal_values_are_paired_one_to_one_in_their_order(left: np.ndarray, right: np.ndarray) -> None:
    assert pair_equal(left, right).tolist() == matching.pairs(left, right)


def test_many_hashes_are_paired_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, 100_000, dtype=np.uint64)
    order = rng.permutation(len(values))
    assert np.array_equal(values[order][pair_equal(values, values[order])], values)
    assert (pair_equal(values, ~values) == -1).all()


def test_more_values_than_an_int32_counts_are_refused() -> None:
    many = np.broadcast_to(np.uint64(1), (2**31,))
    with pytest.raises(ValueError, match="at most 2,147,483,647 values"):
        pair_equal(np.empty(0, np.uint64), many)
