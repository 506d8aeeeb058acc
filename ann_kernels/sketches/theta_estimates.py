"""Estimates of the number of distinct values from a theta sketch (`theta`). Needs no compiled kernels."""

import math

from icepuffin.ann_kernels.errors import KernelError

DEFAULT_K = 4096
"""Nominal entries: what Iceberg, Spark and Trino use. Relative standard error about 1 / sqrt(k) = 1.6 %."""
MAX_THETA = 2**63 - 1
"""Theta of a sketch that has dropped nothing."""


def estimate(theta: int, count: int) -> float:
    """The number of distinct values; exact while theta is `MAX_THETA`. The same double as datasketches-java gives."""
    return float(count) if theta == MAX_THETA else count * (2.0**63 / theta)


def bounds(theta: int, count: int, deviations: int = 2) -> tuple[float, float]:
    """(lower, upper) bound of the number of distinct values at 1, 2 or 3 standard deviations (68, 95, 99.7 %).

    Normal approximation of the binomial with continuity correction, which is what datasketches uses over 120 hashes.
    """
    if deviations not in (1, 2, 3):
        raise KernelError(f"bounds are given for 1, 2 or 3 standard deviations, not {deviations}")
    if theta == MAX_THETA:
        return float(count), float(count)
    share = theta / 2.0**63
    spread = deviations * math.sqrt((1 - share) / share)

    def end(corrected: float, side: int) -> float:
        guess = max(corrected, 0.0) / share
        return guess + spread * spread / 2 + side * spread / 2 * math.sqrt(spread * spread + 4 * guess)

    return max(float(count), end(count - 0.5, -1) - 0.5), end(count + 0.5, 1) + 0.5
