"""Texts of messages: counts with their nouns, and lists of many lines."""

from collections.abc import Sequence

MAX_LISTED = 20


def listed(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and one that says how many more there are."""
    rest = len(lines) - MAX_LISTED
    return (*lines[:MAX_LISTED], *((f"and {rest:,} more",) if rest > 0 else ()))


def plural(count: float, noun: str) -> str:
    """A count and its noun, such as `1 query` and `2,000 queries`; a float with as many digits as it needs."""
    number = f"{count:,g}" if isinstance(count, float) else f"{count:,}"
    if count == 1:
        return f"{number} {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("ry") else f"{number} {noun}s"
