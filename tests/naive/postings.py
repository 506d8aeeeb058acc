"""Slow and obvious: what lists have in common."""

from collections.abc import Sequence


def common(lists: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[int]:
    """The rows that all of the chosen lists have, ascending."""
    return sorted(set.intersection(*(set(lists[number]) for number in chosen)))
