"""The rows with the largest BM25 scores, beside sums over all rows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text import bm25
from icepuffin.ann_kernels.text.bm25 import best_rows, impacts, inverse_frequency


@given(
    seed=st.integers(0, 2**32 - 1), size=st.integers(1, 60_000), k=st.integers(0, 40),
    lists=st.integers(0, 4), has_condition=st.booleans(),
)  # fmt: skip
def test_the_best_rows_are_those_of_sums_over_all_rows(
    seed: int, size: int, k: int, lists: int, has_condition: bool
) -> None:
    """Few distinct scores, so that most tie; rows in several windows."""
    draws = np.random.default_rng(seed)
    rows = [
        np.sort(draws.choice(size, int(draws.integers(0, min(size, 900) + 1)), replace=False)) for _ in range(lists)
    ]
    parts = [draws.choice([0.25, 0.5, 1.0], len(own)) for own in rows]
    weights = draws.choice([1.0, 2.0, 0.3], lists).tolist()
    ties = draws.integers(0, 3, size).astype(np.uint32)
    allowed = draws.random(size) < 0.7 if has_condition else None
    sums = np.zeros(size)
    for own, part, weight in zip(rows, parts, weights, strict=True):
        sums[own] += weight * part
    having = np.flatnonzero((sums > 0) & (True if allowed is None else allowed))
    order = having[np.lexsort((having, ties[having], -sums[having]))][:k]
    pairs = [(own.astype(np.uint32), part) for own, part in zip(rows, parts, strict=True)]
    found, scores = best_rows(pairs, weights, ties, k, allowed)
    assert found.tolist() == order.tolist()
    assert scores.tolist() == sums[order].tolist()


def test_a_score_is_that_of_the_formula() -> None:
    counts, lengths = np.array([1, 3], np.uint32), np.array([4, 9], np.uint16)
    expected = [n / (n + 1.2 * (0.25 + 0.75 * length / 5.0)) for n, length in ((1, 4), (3, 9))]
    assert impacts(counts, lengths, 5.0).tolist() == pytest.approx(expected, rel=1e-15)
    assert inverse_frequency(10, 3) == pytest.approx(math.log(1 + 7.5 / 3.5), rel=1e-15)
    assert inverse_frequency(10, 10) > 0, "a term that all rows have still counts"


def test_lists_of_other_rows_are_refused() -> None:
    ties, rows = np.zeros(3, np.uint32), np.array([0, 3], np.uint32)
    with pytest.raises(KernelError, match="not of 3 rows"):
        best_rows([(rows, np.ones(2))], [1.0], ties, 1)
    with pytest.raises(KernelError, match="not of 3 rows"):
        best_rows([], [], ties, 1, np.ones(4, np.bool_))


def test_windows_are_smaller_than_the_rows_above() -> None:
    assert bm25._WINDOW < 60_000 // 2
