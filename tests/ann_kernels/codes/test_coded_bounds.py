"""Bounds by codes are never over the true distance, and hardly under it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.codes.coded_bounds import CodedBounds


@given(
    seed=st.integers(0, 2**32), dims=st.sampled_from([1, 3, 64, 130, 700]), scale=st.sampled_from([1e-12, 1.0, 1e12]),
    offset=st.sampled_from([0.0, 1.0, 1e5]), spread=st.sampled_from([0.0, 1e-6, 1.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_bound_is_over_the_true_distance(seed: int, dims: int, scale: float, offset: float, spread: float) -> None:
    """Also of vectors that are far out: one value beyond the scale of the others, which its code cannot hold."""
    rng = np.random.default_rng(seed)
    vectors = (scale * (offset + spread * rng.standard_normal((30, dims)))).astype(np.float32)
    vectors[3, 0] *= 50
    bounds = CodedBounds.from_vectors(vectors)
    assert bounds is not None
    near = vectors[5].astype(np.float64)
    for query in (near, near + 1e-9 * scale, scale * (offset + 3 * rng.standard_normal(dims))):
        true = np.sqrt(np.square(vectors.astype(np.longdouble) - query).sum(axis=1))
        assert (bounds.least_distances(query) <= true).all()


@pytest.mark.parametrize("dims", [64, 768])
def test_a_bound_is_close(dims: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, dims)).astype(np.float32)
    bounds = CodedBounds.from_vectors(vectors)
    assert bounds is not None
    query = rng.standard_normal(dims)
    true = np.linalg.norm(vectors - query, axis=1)
    assert np.median(bounds.least_distances(query) / true) > 0.98


def test_nothing_and_vectors_without_codes_have_no_bounds() -> None:
    assert CodedBounds.from_vectors(np.empty((0, 4), np.float32)) is None
    tiny = np.random.default_rng(0).standard_normal((3, 4)) * 1e-42
    assert CodedBounds.from_vectors(tiny.astype(np.float32)) is None
    far_apart = np.full((4, 3), -3e38, np.float32)
    far_apart[0, 1] = 3e38
    assert CodedBounds.from_vectors(far_apart) is None
    assert CodedBounds.from_vectors(far_apart / 8) is not None
