"""Slow and obvious: what lists have in common."""

from collections.abc import Sequence


def common(lists: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[int]:
    """The rows that all of the chosen lists have, ascending; -1 is a list without rows."""
    sets = [set(lists[number]) if number >= 0 else set() for number in chosen]
    return sorted(set.intersection(*sets))
