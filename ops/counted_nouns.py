"""Counts in messages: `1 file`, `2 files`."""


def plural(count: float, noun: str) -> str:
    """A count and its noun, such as `1 query` and `2,000 queries`; a float with as many digits as it needs."""
    number = f"{count:,g}" if isinstance(count, float) else f"{count:,}"
    if count == 1:
        return f"{number} {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("ry") else f"{number} {noun}s"
