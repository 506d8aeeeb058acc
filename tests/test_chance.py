import math

import numpy as np
import pytest

from tests.chance import largest_gap, most_hits


@pytest.mark.parametrize(("trials", "probability"), [(1, 0.5), (25, 0.5), (1200, 5e-7), (2_000, 0.02), (300, 0.9)])
@pytest.mark.parametrize("alarm", [0.01, 1e-5])
def test_the_bound_is_the_least_that_chance_breaks_so_rarely(trials: int, probability: float, alarm: float) -> None:
    masses = [
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
            + hits * math.log(probability) + (trials - hits) * math.log1p(-probability)
        )
        for hits in range(trials + 1)
    ]  # fmt: skip
    bound = most_hits(trials, probability, alarm)
    assert math.fsum(masses[bound + 1 :]) <= alarm
    assert bound == 0 or math.fsum(masses[bound:]) > alarm


def test_draws_of_a_distribution_are_nearer_to_it_than_the_gap_but_for_the_alarm() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(101) / 100
    gaps = []
    for _ in range(20_000):
        values = np.sort(rng.random(100))
        gaps.append(max(np.abs(values - steps[1:]).max(), np.abs(values - steps[:-1]).max()))
    assert 0.005 < np.mean(np.array(gaps) > largest_gap(100, 0.01)) < 0.01


def test_too_many_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="take fewer"):
        most_hits(100_000, 0.5)
