"""Recall of answers, beside every choice among rows that are equally far."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.distances.recall import recalls_of
from tests.naive import recall as naive

ROUNDING = 0.1


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[int], list[float], int]:
    """(rows of an answer, distances of all rows, k); most rows are as far as others."""
    distances = draw(st.lists(st.integers(-1, 2).map(float), max_size=8))
    rows = draw(st.sets(st.sampled_from(range(len(distances))))) if distances else set()
    return sorted(rows), distances, draw(st.integers(1, 6))


def padded(values: list[float], size: int) -> np.ndarray:
    return np.array([[*values, *[np.inf] * size][:size]])


@given(answers(), st.data())
def test_a_tie_is_a_hit_only_where_the_truth_has_ties(
    drawn: tuple[list[int], list[float], int], data: st.DataObject
) -> None:
    rows, distances, k = drawn
    expected = naive.recall(rows, distances, k)
    exact = padded(sorted(distances), k)
    own = [distances[row] for row in rows]
    assert recalls_of(padded(own, 8), exact)[0] == pytest.approx(expected)
    off = st.floats(-0.99 * ROUNDING, 0.99 * ROUNDING)
    rounded = [distance + data.draw(off) for distance in own]
    assert recalls_of(padded(rounded, 8), exact, ROUNDING)[0] == pytest.approx(expected)


def test_each_query_has_a_recall_and_a_rounding_of_its_own() -> None:
    exact = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, np.inf], [5.0, 5.0, 9.0]])
    found = np.array([[1.0, 1.0, 1.0], [0.0, 1.01, 3.0], [5.0, 9.0, 5.0]])
    assert recalls_of(found, exact).tolist() == [2 / 3, 1 / 2, 1.0]
    assert recalls_of(found, exact, np.array([0.0, 0.02, 0.0])).tolist() == [2 / 3, 1.0, 1.0]


def test_true_rows_that_differ_by_less_than_roundings_are_ties() -> None:
    """One of the three places belongs to a nearer row; the two others to any rows that are about as far."""
    exact, found = np.array([[0.0, 0.95, 1.0]]), np.array([[1.0, 1.0, 1.05]])
    assert recalls_of(found, exact, ROUNDING).tolist() == [2 / 3]
    assert recalls_of(found, exact).tolist() == [1 / 3]


def test_the_nearest_rows_are_all_there_however_their_distances_are_rounded() -> None:
    """The second row seems nearly as far as the third, and is no tie of it."""
    exact, found = np.array([[0.0, 0.85, 1.0]]), np.array([[0.05, 0.94, 1.0]])
    assert recalls_of(found, exact, ROUNDING).tolist() == [1.0]
