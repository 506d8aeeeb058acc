"""Slow and obvious: answers of other shapes than the k nearest rows."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence


def limited(ranked: Sequence[int], group_of: Callable[[int], Hashable], k: int, limit: int) -> list[int]:
    """The first k of ranked rows, without those whose group is full."""
    taken: list[int] = []
    counts: Counter[Hashable] = Counter()
    for row in ranked:
        if len(taken) < k and counts[group_of(row)] < limit:
            counts[group_of(row)] += 1
            taken.append(row)
    return taken


def relevance_scores(
    near: Sequence[float], apart: Callable[[int, int], float], chosen: Sequence[int], diversity: float
) -> dict[int, float]:
    """Marginal relevance of each row that is not chosen yet, by distances in place of similarities."""
    return {
        row: -(1 - diversity) * near[row] + diversity * min(apart(row, other) for other in chosen)
        for row in range(len(near))
        if row not in chosen
    }
