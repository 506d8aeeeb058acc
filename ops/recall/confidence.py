"""Confidence intervals of shares that were measured by a sample."""

import math

DEVIATIONS = 1.959963984540054
"""Standard deviations on either side that hold 95 % of a normal distribution"""


def confidence_interval(share: float, count: int) -> tuple[float, float]:
    """(low, high): Wilson's score interval, 95 %, of a share that `count` samples had; (0, 1) without samples.

    A mean of `count` values between 0 and 1, as recall per query is, varies less than a share: for it the interval is
    too wide rather than too narrow. Source: Wilson, JASA 22 (1927), 209-212.
    """
    if not count:
        return 0.0, 1.0
    square = DEVIATIONS**2 / count
    center = (share + square / 2) / (1 + square)
    reach = DEVIATIONS / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    # rounding may put a bound on the wrong side of a share of 0 or 1
    return max(0.0, min(share, center - reach)), min(1.0, max(share, center + reach))
