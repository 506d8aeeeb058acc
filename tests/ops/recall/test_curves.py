"""Knobs from a measured curve: the cheapest that reach the target, and the widest where none does."""

import math
from dataclasses import replace

import numpy as np
import pytest

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.recall.curves import (
    Choice,
    Foresight,
    Reach,
    ShardCentroids,
    Width,
    at_most,
    choose,
    combined,
    encode,
    foresee,
    longer_list,
    reaches,
    widths,
)

CURVE = (Width(10, 1, 0.90, 100), Width(40, 1, 0.96, 300), Width(160, 1, 0.99, 900))


def test_a_curve_survives_being_written() -> None:
    assert widths(encode(CURVE)) == CURVE
    ways = (Reach(0.0, 1.0, 0.5), Reach(0.25, 3.5, 0.97))
    assert reaches(encode(ways)) == ways


def test_a_curve_is_lowered_to_the_best_recall_of_another_one_for_ten_rows_and_for_a_hundred() -> None:
    wide = (Width(100, 1, 0.95, 500, 100), Width(200, 1, 0.99, 900, 100))
    curve = encode((*CURVE, *wide))
    lowered = at_most(curve, encode((Width(40, 1, 0.97, 2), Width(20, 1, 0.5, 1), Width(100, 1, 0.96, 3, 100))))
    assert [point.recall for point in widths(lowered)] == [0.90, 0.96, 0.97]
    assert [point.recall for point in widths(lowered, 100)] == [0.95, 0.96]
    without = at_most(curve, "")
    assert (widths(without), widths(without, 100)) == (CURVE, wide)
    assert at_most("", curve) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[[1]]",
        "[1, 2]",
        "[[0, 1, 0.5, 3]]",
        "[" * 100_000,
        "[[10, 1, 7.0, 3]]",
        "[[10, 1, NaN, 3]]",
        "x",
        "[[10, 0, 0.5, 3]]",
        "[[10, 1, -0.1, 3]]",
        "[[10, 1, 0.5, Infinity]]",
        f"[[10, 1, 0.5, 1{'0' * 400}]]",
    ],
)
def test_an_invalid_curve_is_ignored(text: str) -> None:
    assert widths(text) == ()


@pytest.mark.parametrize("text", ["[[-0.1, 1, 0.5]]", "[[0, 0.9, 0.5]]", "[[0, 1, 1.1]]", "[[Infinity, 1, 0.5]]"])
def test_an_invalid_curve_of_probed_shards_is_ignored(text: str) -> None:
    assert reaches(text) == ()


def test_a_curve_may_have_found_none_and_all() -> None:
    points = (Width(10, 1, 0.0, 1.0), Width(20, 1, 1.0, 2.0))
    assert widths(encode(points)) == points
    ways = (Reach(0.0, 1.0, 0.0), Reach(1.0, 2.0, 1.0))
    assert reaches(encode(ways)) == ways


@pytest.mark.parametrize(
    ("target", "low", "high"), [(0.5, 10, 10), (0.9, 10, 10), (0.93, 19, 21), (0.96, 40, 40), (0.99, 160, 160)]
)
def test_the_narrowest_list_that_reaches_the_target_is_chosen(target: float, low: int, high: int) -> None:
    chosen = choose(target, 10, CURVE, (), 1)
    assert chosen is not None
    assert low <= chosen.search_list <= high
    assert chosen.recall >= target
    assert chosen.probe_slack == math.inf


def test_a_target_over_the_curve_takes_its_best_point_with_the_recall_expected() -> None:
    chosen = choose(0.999, 10, CURVE, (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.recall) == (160, 0.99)
    assert choose(0.9, 10, (), (), 1) is None


def test_of_equal_recalls_below_the_target_the_widest_list_is_taken() -> None:
    chosen = choose(0.99, 10, (Width(10, 1, 0.9, 100), Width(40, 1, 0.9, 300)), (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.recall) == (40, 0.9)


def test_a_width_with_less_recall_than_a_narrower_one_is_passed_over() -> None:
    """Between the two beside it, recall is taken as linear in the logarithm of L."""
    chosen = choose(0.93, 10, (Width(10, 1, 0.90, 100), Width(20, 1, 0.85, 200), Width(40, 1, 0.96, 300)), (), 1)
    assert chosen is not None
    assert chosen.search_list in (20, 21)


def test_more_rows_take_a_longer_list() -> None:
    chosen = choose(0.96, 100, CURVE, (), 1)
    assert chosen is not None
    assert chosen.search_list == 130


def test_a_list_of_candidates_that_are_ranked_again_grows_by_twice_as_many_as_there_are_more() -> None:
    assert [longer_list(k, 1) for k in (1, 10, 11, 100)] == [0, 0, 1, 90]
    assert [longer_list(k, 3) for k in (1, 10, 11, 100)] == [0, 0, 6, 540]
    assert longer_list(150, 3, measured_k=100) == 300


def test_between_two_widths_recall_and_cost_are_linear_in_the_logarithm_of_the_list() -> None:
    foreseen = [foresee(Choice(width, 1, math.inf, 0.0), 10, CURVE, (), 2) for width in (40, 80, 9, 161, 10, 160)]
    assert foreseen[2:4] == [None, None], "nothing was measured there"
    assert foreseen[:2] == [Foresight(0.96, 300, 2.0), Foresight(pytest.approx(0.975), pytest.approx(600), 2.0)]
    assert foreseen[4:] == [Foresight(0.90, 100, 2.0), Foresight(0.99, 900, 2.0)]


def test_a_search_of_some_shards_finds_what_lies_in_them_at_their_cost() -> None:
    ways = (Reach(0.1, 2.0, 0.25), Reach(0.2, 4.0, 0.5))
    assert foresee(Choice(40, 1, 0.2, 0.0), 10, CURVE, ways, 16) == Foresight(0.48, 75, 4.0)
    assert foresee(Choice(40, 1, 0.3, 0.0), 10, CURVE, ways, 16) is None, "that slack was not measured"


def test_a_search_for_more_rows_or_fewer_is_foreseen_to_find_what_it_was_chosen_for() -> None:
    more = foresee(Choice(130, 1, math.inf, 0.0), 100, CURVE, (), 2)
    assert more == Foresight(0.96, pytest.approx(300 + 600 * math.log(130 / 40) / math.log(4)), 2.0)
    coded = (Width(100, 5, 0.95, 300),)
    fewer = choose(0.9, 1, coded, (), 1)
    assert fewer is not None
    assert foresee(fewer, 1, coded, (), 1) == Foresight(0.95, 300, 1.0)


def test_inner_products_with_centroids_are_those_from_the_origin() -> None:
    codebook = np.array([[1.0], [3.0], [2.0]], np.float32)
    centroids = ShardCentroids.from_codebook(codebook, np.array([0, 1, 0], np.uint32), Metric.INNER_PRODUCT)
    assert centroids.distances(np.array([[2.0], [-1.0]], np.float32)).tolist() == [[-4.0, -6.0], [1.0, 3.0]]


def test_of_centroids_only_equal_ones_are_one() -> None:
    codebook = np.array([[0.0], [-0.0], [1e-9], [2e-9]], np.float32)
    centroids = ShardCentroids.from_codebook(codebook, np.arange(4, dtype=np.uint32))
    assert centroids.shards.tolist() == [0, 2, 3]


def test_fewer_rows_take_no_shorter_list() -> None:
    chosen = choose(0.9, 1, CURVE, (), 1)
    assert chosen is not None
    assert chosen.search_list == 10


def test_fewer_rows_are_chosen_from_as_many_candidates() -> None:
    """Of shards without vectors: by codes the nearest row is among 50, and not so often among 5."""
    coded = (Width(100, 5, 0.95, 300),)
    for k, oversample in ((1, 50), (3, 17), (9, 6), (10, 5), (100, 5)):
        chosen = choose(0.9, k, coded, (), 1)
        assert chosen is not None
        assert chosen.oversample == oversample
        assert chosen.search_list >= k * oversample


@pytest.mark.parametrize("target", [0.9, 0.93, 0.96])
def test_a_narrower_list_that_costs_more_than_a_wider_one_is_passed_over(target: float) -> None:
    """Among rows that tie a narrow beam ends in comparing them all."""
    tied = (Width(10, 1, 0.95, 1_148), Width(16, 1, 0.97, 1_100), Width(24, 1, 0.99, 352), Width(40, 1, 0.99, 500))
    chosen = choose(target, 10, tied, (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.recall) == (24, 0.99)
    equal = choose(target, 10, (Width(10, 1, 0.97, 1_148), Width(16, 1, 0.97, 352)), (), 1)
    assert equal is not None
    assert equal.search_list == 16


@pytest.mark.parametrize("target", [0.89, 0.95, 0.985])
def test_no_width_is_chosen_beside_one_that_is_passed_over(target: float) -> None:
    """Lists of 16 to 30 compare all of 6,000 binary rows: one of 23 is as dear as those."""
    tied = (Width(10, 1, 0.887, 307), Width(40, 1, 0.993, 687), Width(25, 1, 0.985, 1_009), Width(16, 1, 0.974, 3_649))
    chosen = choose(target, 10, tied, (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.recall) == (40, 0.993)
    narrow = choose(0.9, 10, (*tied[:2], Width(50, 1, 0.993, 3_649)), (), 1)
    assert narrow is not None
    assert 10 < narrow.search_list < 16


def test_fewer_shards_are_probed_where_that_is_cheaper() -> None:
    ways = (Reach(0.0, 1.0, 0.6), Reach(0.2, 4.0, 0.98))
    cheap = choose(0.95, 10, CURVE, ways, 16)
    assert cheap is not None
    assert cheap.probe_slack == 0.2
    assert cheap.recall >= 0.95
    costly = choose(0.985, 10, CURVE, ways, 16)
    assert costly is not None
    assert costly.probe_slack == math.inf


def test_shards_count_by_their_rows() -> None:
    good, bad = (Width(10, 1, 1.0, 50),), (Width(10, 1, 0.5, 100), Width(20, 1, 0.9, 200))
    (point,) = combined([(good, 300), (bad, 100), ((), 5)])
    assert point == Width(10, 1, 0.875, 150)
    assert combined([((), 10)]) == ()
    assert combined([(good, 300), (bad, 0)]) == good, "it has no row that is live"
    across = combined([(CURVE, 7)], {(10, 1): 0.5, (160, 1): 1.5})
    assert [point.recall for point in across] == [0.45, 0.96, 1.0]


def test_points_of_several_k_are_kept_in_one_text() -> None:
    wide = Width(130, 1, 0.97, 900.0, 100)
    text = encode([wide, *CURVE])
    assert widths(text) == CURVE
    assert widths(text, 100) == (wide,)
    assert widths(encode(CURVE)) == CURVE
    assert not widths(encode(CURVE), 100)
    assert not widths(encode([Width(130, 1, 0.97, 900.0, 50)]), 100)
    assert not reaches(encode([Reach(0.0, 1.0, 0.5, 50)]), 100)


def test_widths_of_two_oversamples_are_not_joined_by_a_line() -> None:
    chosen = choose(0.85, 10, (Width(60, 3, 0.8, 300), Width(100, 5, 0.9, 400)), (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.oversample, chosen.recall) == (100, 5, 0.9)


def test_a_curve_for_a_hundred_rows_says_what_a_hundred_take() -> None:
    points = (Width(100, 1, 0.9, 800.0, 100), Width(190, 1, 0.99, 1_500.0, 100))
    assert combined([(points, 5), (points, 5)]) == (
        replace(points[0], distances=1_600.0),
        replace(points[1], distances=3_000.0),
    )
    chosen = choose(0.99, 100, points, (), 1)
    assert chosen is not None
    assert (chosen.search_list, chosen.oversample) == (190, 1)
    more = choose(0.99, 150, points, (), 1)
    assert more is not None
    assert more.search_list == 240
