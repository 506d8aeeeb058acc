"""Lists in messages: of many lines the first ones, as one per data file may be 100,000."""

from collections.abc import Sequence

MOST_LISTED = 20


def listed(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and one that says how many more there are."""
    rest = len(lines) - MOST_LISTED
    return (*lines[:MOST_LISTED], *((f"and {rest:,} more",) if rest > 0 else ()))
