"""How far chance may take what a test counts: bounds that what is sound breaks in one of 100,000 runs, at most."""

import math

FALSE_ALARM = 1e-5
"""Probability that a bound is broken by chance"""


def most_hits(trials: int, probability: float, alarm: float = FALSE_ALARM) -> int:
    """The least count that independent trials, each a hit with a probability, exceed with at most that of an alarm.

    Of `n` tests of one run each has the `n`th part of the alarm.
    """
    odds = probability / (1 - probability)
    mass = math.exp(trials * math.log1p(-probability))
    if not mass:
        raise ValueError(f"{trials} trials of probability {probability} are too many to sum up: take fewer")
    beyond = [1 - mass]
    for hits in range(trials):
        mass *= odds * (trials - hits) / (hits + 1)
        beyond.append(beyond[-1] - mass)
    return next(hits for hits, chance in enumerate(beyond) if chance <= alarm)


def largest_gap(draws: int, alarm: float = FALSE_ALARM) -> float:
    """The largest difference of an empirical distribution function from the true one, of independent draws.

    Source: Massart, Annals of Probability 18 (1990), 1269-1283.
    """
    return math.sqrt(math.log(2 / alarm) / (2 * draws))
