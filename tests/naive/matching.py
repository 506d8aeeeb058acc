"""Slow and obvious: equal values, one to one."""

import numpy as np


def pairs(left: np.ndarray, right: np.ndarray) -> list[int]:
    """For each of `left` the place of its partner in `right`, or -1: the n-th of equals with the n-th."""
    waiting: dict[int, list[int]] = {}
    for place, value in enumerate(right.tolist()):
        waiting.setdefault(value, []).append(place)
    return [waiting[value].pop(0) if waiting.get(value) else -1 for value in left.tolist()]
