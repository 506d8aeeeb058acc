import numpy as np
import pytest

from icepuffin.ops.recall.confidence import confidence_interval


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.5, 10, (0.2366, 0.7634)), (1.0, 64, (0.9434, 1.0)), (0.0, 64, (0.0, 0.0566)), (0.9, 100, (0.8256, 0.9448))],
)
def test_wilson_s_interval_is_that_of_the_tables(share: float, count: int, interval: tuple[float, float]) -> None:
    """Figures by R's binom.wilson, and by hand from the formula."""
    assert confidence_interval(share, count) == pytest.approx(interval, abs=1e-4)


def test_no_sample_says_nothing() -> None:
    assert confidence_interval(1.0, 0) == (0.0, 1.0)


def test_the_share_lies_within_its_interval() -> None:
    for count in range(1, 500):
        for share in (0.0, 1 / count, 1.0):
            low, high = confidence_interval(share, count)
            assert 0.0 <= low <= share <= high <= 1.0


def test_nineteen_of_twenty_samples_lie_within() -> None:
    rng = np.random.default_rng(0)
    hits = rng.binomial(100, 0.93, 2_000)
    within = [low <= 0.93 <= high for low, high in (confidence_interval(hit / 100, 100) for hit in hits)]
    assert 0.92 <= np.mean(within) <= 0.98
