"""Slow and obvious: recall where rows are equally far."""

from collections.abc import Collection, Sequence
from itertools import combinations


def recall(answer: Collection[int], distances: Sequence[float], k: int) -> float:
    """The most that an answer has in common with k rows of which none is farther than a row that is not among them."""
    rows = range(len(distances))
    k = min(k, len(distances))
    if not k:
        return 1.0
    smallest = sum(sorted(distances)[:k])
    truths = [truth for truth in combinations(rows, k) if sum(distances[row] for row in truth) == smallest]
    return max(len(set(truth) & set(answer)) for truth in truths) / k
