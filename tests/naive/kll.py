"""Ranks and quantiles of a list by sorting it, and the capacity of a KLL sketch in exact fractions."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor


def rank(values: Sequence[int], limit: int) -> float:
    """The share of the values that are at most `limit`."""
    return sum(value <= limit for value in values) / max(1, len(values))


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest value at or below which that share of the values lies."""
    ordered = sorted(values)
    return next(value for i, value in enumerate(ordered, 1) if i >= share * len(ordered))


def capacity(k: int, levels: int) -> int:
    """k * (2/3)^d for each number d of levels above, cut to a multiple of a half, then rounded up; at least 8 each."""
    halves = (floor(2 * k * Fraction(2, 3) ** depth) for depth in range(levels))
    return sum(max(8, (half + 1) // 2) for half in halves)
