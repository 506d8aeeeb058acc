"""Choosing among points that a user's queries measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.recall.measured_points import (
    SHARES,
    MeasuredPoint,
    choose_point,
    front,
    front_grids,
    margin_of,
    points_for,
    points_to_keep,
    reached_of,
)


def point(
    search_list: int, recall: float, distances: float, *, slack: float = math.inf, **others: float
) -> MeasuredPoint:
    return MeasuredPoint(
        int(others.get("k", 10)), search_list, int(others.get("oversample", 1)), slack, recall,
        others.get("margin", 0.0), distances, 1.0 if slack < math.inf else 8.0,
    )  # fmt: skip


NEAR = (point(10, 0.80, 100, slack=0.1), point(40, 0.88, 180, slack=0.1))
FAR = (point(10, 0.84, 700), point(40, 0.96, 1_100), point(160, 0.99, 2_000))


@pytest.mark.parametrize(
    ("target", "slack", "search_list", "distances"),
    [(0.5, 0.1, 10, 100), (0.84, 0.1, 20, 140), (0.88, 0.1, 40, 180), (0.9, math.inf, 20, 900)],
)
def test_the_fewest_distances_that_reach_a_target_are_chosen(
    target: float, slack: float, search_list: int, distances: float
) -> None:
    """Between two widths recall and cost are linear in the logarithm of L."""
    chosen = choose_point((*NEAR, *FAR), target)
    assert chosen is not None
    assert (chosen.probe_slack, chosen.search_list) == (slack, search_list)
    assert chosen.distances == pytest.approx(distances)
    assert chosen.recall == pytest.approx(max(target, 0.8))


def test_the_best_point_is_chosen_where_none_reaches_the_target() -> None:
    assert choose_point((*NEAR, *FAR), 0.999) == FAR[-1]
    assert choose_point((), 0.9) is None


def test_of_points_that_find_as_much_below_the_target_the_cheapest_is_chosen() -> None:
    equal = [point(160, 0.9, 2_000), point(40, 0.9, 1_000), point(80, 0.9, 1_500)]
    for points in (equal, equal[::-1]):
        assert choose_point(points, 0.99) == equal[1]
    assert choose_point([], 0.99) is None


def test_few_queries_have_to_find_more_than_the_target() -> None:
    """Others of their kind miss it by .01 at most: what the interval has beyond that is added to the target."""
    sure, unsure = point(40, 0.90, 500, margin=0.01), point(40, 0.90, 500, margin=0.03)
    better = point(64, 0.93, 800, margin=0.03)
    assert choose_point((sure, better), 0.9) == sure
    chosen = choose_point((unsure, better), 0.9)
    assert chosen is not None
    assert chosen.recall - chosen.margin == pytest.approx(0.89)
    assert 40 < chosen.search_list <= 64


def test_the_larger_of_two_widths_that_find_as_much_bounds_the_target() -> None:
    """Else a width between them that was measured, and finds no more than the smaller one, is chosen for ever."""
    measured = (point(100, 0.8996, 504), point(101, 0.8996, 507), point(160, 0.92, 635))
    chosen = choose_point(measured, 0.9)
    assert chosen is not None
    assert chosen.search_list > 101


def test_between_two_widths_beside_each_other_is_the_larger_one_as_it_was_measured() -> None:
    measured = (point(100, 0.80, 500), point(101, 0.90, 510))
    assert choose_point(measured, 0.85) == measured[1]


def test_a_target_is_reached_whatever_its_last_digit_is_rounded_to() -> None:
    assert point(40, 0.3, 500).reaches(0.1 + 0.2)
    assert not point(40, 0.3, 500).reaches(0.300001)


def test_a_narrower_width_that_costs_more_than_a_wider_one_is_passed_over() -> None:
    """Among rows that tie a narrow beam ends in comparing them all."""
    tied = (point(10, 0.97, 828), point(16, 1.0, 1_102), point(24, 1.0, 352), point(40, 1.0, 455))
    assert choose_point(tied, 0.9) == tied[2]
    assert tied[2] in points_to_keep(tied)


def test_no_width_is_chosen_beside_one_that_is_passed_over() -> None:
    """Lists of 16 to 30 compare all of 6,000 binary rows. Readers know it, too, who have the kept points alone."""
    tied = (
        point(10, 0.95, 275),
        point(16, 1.0, 5_677),
        point(25, 1.0, 3_029),
        point(40, 1.0, 661),
        point(64, 1.0, 886),
    )
    for points in (tied, points_to_keep(tied)):
        assert [choose_point(points, target) for target in (0.95, 0.96, 0.99)] == [tied[0], tied[3], tied[3]]
    falling = (point(10, 0.95, 275), point(16, 0.96, 5_677), point(25, 0.94, 300), point(40, 1.0, 661))
    assert choose_point(falling, 0.97) == falling[3]
    after_it = (*tied[:2], point(25, 0.97, 500), tied[3])
    chosen = choose_point(after_it, 0.98)
    assert chosen is not None
    assert 25 < chosen.search_list < 40


def test_a_narrower_width_that_finds_more_than_a_cheaper_wider_one_is_chosen() -> None:
    points = (point(10, 0.95, 828), point(16, 0.9, 500), point(40, 0.96, 2_000))
    assert choose_point(points, 0.93) == points[0]


def test_a_wider_width_that_finds_enough_for_less_is_chosen() -> None:
    """A list that has all rows compared finds all of them, and wider ones that do not compare find a little less."""
    points = (
        point(130, 0.9675, 2_023),
        point(190, 0.9997, 9_184),
        point(280, 0.9981, 3_427),
        point(400, 0.9994, 4_242),
    )
    assert choose_point(points, 0.99) == choose_point(points_to_keep(points), 0.99) == points[2]


def test_oversamples_are_not_interpolated() -> None:
    lean = (point(60, 0.8, 300, oversample=3), point(100, 0.9, 300, oversample=5))
    assert choose_point(lean, 0.85) == lean[1]


@pytest.mark.parametrize(("k", "count"), [(1, 5), (10, 5), (11, 2), (100, 2), (101, 1)])
def test_points_hold_for_as_many_rows_as_were_measured(k: int, count: int) -> None:
    """For more rows every shard is probed."""
    wide = (point(100, 0.9, 400, slack=0.1, k=100), point(100, 0.99, 900, k=100))
    assert len(points_for((*NEAR, *FAR, *wide), k)) == count
    assert points_for((*NEAR, *FAR), 30) == list(FAR)


def test_the_points_that_are_kept_choose_as_all_do() -> None:
    rng = np.random.default_rng(0)
    many = [
        point(width, 1 - (1 - 0.02 * rank) * 8 / width, (3 + rank) * (40 + width), slack=slack, k=k)
        for rank, slack in enumerate((0.0, 0.1, 0.2, math.inf))
        for width in (10, 16, 25, 40, 64, 100, 160, 250, 2_000, 8_000, 20_000)
        for k in (10, 100)
    ]
    rng.shuffle(many)  # type: ignore[arg-type]
    kept = points_to_keep(many)
    assert len(kept) < len(many) / 2
    for k in (10, 50, 100, 200):
        for target in (0.3, 0.6, 0.9, 0.95, 0.99, 0.9984, 0.9993, 1.0):
            assert choose_point(points_for(kept, k), target) == choose_point(points_for(many, k), target)


def test_a_target_of_the_callers_is_kept_as_it_is() -> None:
    """One that lies between all others, where another series is the cheapest."""
    flat = (point(10, 0.0, 90), point(1_000, 0.4, 100))
    steep = (point(10, 0.3, 94, slack=0.1), point(40, 0.301, 95, slack=0.1))
    chosen = choose_point((*flat, *steep), 0.3005)
    assert chosen is not None
    assert chosen.probe_slack == 0.1
    assert not set(steep) & set(points_to_keep((*flat, *steep)))
    kept = points_to_keep((*flat, *steep), [0.3005])
    assert choose_point(kept, 0.3005) == choose_point((*flat, *steep), 0.3005)


def test_a_front_has_no_point_that_another_beats() -> None:
    assert front((*FAR, *NEAR, point(40, 0.85, 300, slack=0.2))) == [*NEAR, *FAR[1:]]
    assert front((point(40, 0.9, 300), point(64, 0.9, 301))) == [point(40, 0.9, 300)]
    assert front((point(40, 0.8, 300), point(64, 0.9, 300))) == [point(64, 0.9, 300)]


def test_there_is_a_table_of_the_front_for_each_k() -> None:
    grids = list(front_grids((*NEAR, *FAR, point(130, 0.97, 900, k=100, margin=0.02))))
    assert [[row[0] for row in grid.rows] for grid in grids] == [[10, 40, 40, 160], [130]]
    assert grids[1].rows[0][4] == "0.9500 to 0.9900"
    assert [grid.title.partition(" ")[0] for grid in grids] == ["recall@10", "recall@100"]


def test_a_sample_without_a_spread_has_a_margin() -> None:
    assert margin_of(np.ones(50)) == pytest.approx(0.02)
    recalls = np.random.default_rng(0).choice([0.8, 1.0], 400)
    assert margin_of(recalls) == pytest.approx(1.96 * 0.1 / 20 + 1 / 400, rel=0.01)


@pytest.mark.parametrize(
    ("recall", "margin", "interval"), [(0.9, 0.02, (0.88, 0.92)), (0.99, 0.02, (0.97, 1.0)), (0.01, 0.02, (0.0, 0.03))]
)
def test_the_interval_of_a_recall_lies_between_0_and_1(
    recall: float, margin: float, interval: tuple[float, float]
) -> None:
    assert point(10, recall, 100, margin=margin).interval == pytest.approx(interval)


@given(st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=400))
def test_what_a_share_reaches_is_the_highest_recall_that_enough_queries_have(recalls: list[float]) -> None:
    """The binomial distribution says how many are enough; of few queries not even all."""
    count = len(recalls)
    for share, reached in zip(SHARES, reached_of(np.array(recalls)), strict=True):
        least = share - 0.01
        chances = [math.comb(count, below) * (1 - least) ** below * least ** (count - below) for below in range(50)]
        allowed = [below for below in range(50) if sum(chances[: below + 1]) <= 0.025]
        enough = [level for level in recalls if sum(it < level for it in recalls) in allowed]
        at_most = max(level for level in recalls if sum(it >= level for it in recalls) >= share * count - 1e-6)
        assert reached == (min(max(enough), at_most) if allowed else 0)


def test_what_few_queries_tell_holds_for_others_of_their_kind() -> None:
    """In 97.5 of 100 draws, but for a hundredth of the others."""
    rng = np.random.default_rng(0)
    for count in (50, 182, 183, 300, 1_000):
        reached = np.array([reached_of(rng.beta(8, 1, count)) for _ in range(1_000)])
        holds = 1 - reached**8 >= np.array(SHARES) - 0.01  # the share of the distribution that is above
        assert (holds.mean(axis=0) > 0.965).all(), (count, holds.mean(axis=0))
        assert bool(reached[:, 2].any()) == (count >= 183), "fewer cannot tell what 99 of 100 have"


def test_no_more_is_told_than_the_queries_had() -> None:
    for count in (20_000, 100_000):
        for share, reached in zip(SHARES, reached_of(np.arange(count) / count), strict=True):
            assert reached == pytest.approx(1 - share), (count, share)


REACHED = ((0.7, 0.5, 0.1), (0.8, 0.6, 0.2), (0.7, 0.5, 0.3), (0.9, 0.9, 0.6), (1.0, 0.9, 0.9))
LOW = tuple(replace(it, reached=reached) for it, reached in zip((*NEAR, *FAR), REACHED, strict=True))


@pytest.mark.parametrize(
    ("target", "share", "distances"),
    [(0.5, 0.95, 100), (0.6, 0.95, 180), (0.7, 0.95, 1_100), (0.9, 0.95, 1_100), (0.9, 0.96, 2_000), (0.7, 0.5, 100),
     (0.7, 0.9, 100), (1.0, 0.9, 2_000), (0.95, 0.99, 2_000), (0.2, 0.99, 180)],
)  # fmt: skip
def test_by_a_share_the_cheapest_measured_point_at_which_so_many_queries_reach_the_target_is_chosen(
    target: float, share: float, distances: float
) -> None:
    chosen = choose_point(LOW, target, share)
    assert chosen is not None
    assert chosen.distances == distances


def test_the_points_that_are_kept_choose_by_shares_as_all_do() -> None:
    rng = np.random.default_rng(1)
    many = [
        replace(
            point(width, 1 - 2 / width, (3 + rank) * (40 + width), slack=slack, k=k),
            reached=tuple(np.sort(rng.integers(0, k + 1, 3) / k)[::-1].tolist()),
        )
        for rank, slack in enumerate((0.0, 0.1, math.inf))
        for width in (10, 16, 25, 40, 64, 100, 160)
        for k in (10, 100)
    ]
    kept = points_to_keep(many)
    for k in (10, 100, 200):
        of_kept, of_many = points_for(kept, k), points_for(many, k)
        for target in np.arange(0.05, 1.01, 0.05).tolist():
            for share in (0.5, *SHARES):
                assert choose_point(of_kept, target, share) == choose_point(of_many, target, share)


def test_a_width_between_two_promises_no_more_than_the_narrower_one_reached() -> None:
    chosen = choose_point(LOW, 0.9)
    assert chosen is not None
    assert (chosen.search_list, chosen.reached) == (20, LOW[2].reached)
