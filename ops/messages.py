"""Texts of messages: counts with their nouns, amounts in units that people read, and lists of many lines."""

from collections.abc import Mapping, Sequence

MAX_LISTED = 20
_KILO = 1024


def listed(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and one that says how many more there are."""
    rest = len(lines) - MAX_LISTED
    return (*lines[:MAX_LISTED], *((f"and {rest:,} more",) if rest > 0 else ()))


def plural(count: float, noun: str) -> str:
    """A count and its noun, such as `1 query` and `2,000 queries`; a float with as many digits as it needs."""
    number = f"{count:,g}" if isinstance(count, float) else f"{count:,}"
    if count == 1:
        return f"{number} {noun}"
    if noun.endswith("ry"):
        return f"{number} {noun.removesuffix('y')}ies"
    return f"{number} {noun}es" if noun.endswith("x") else f"{number} {noun}s"


def counted(counts: Mapping[str, int]) -> str:
    """`5 in all, 2 rebuilt`, of counts by what they count; those of zero are left out."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def readable_bytes(count: float) -> str:
    """`14.9 KiB`."""
    if count < _KILO:
        return plural(round(count), "byte")
    for unit in ("KiB", "MiB", "GiB"):
        count /= _KILO
        if round(count, 1) < _KILO:
            return f"{count:,.1f} {unit}"
    return f"{count / _KILO:,.1f} TiB"


def readable_share(share: float, digits: int = 1) -> str:
    """`98.5%`; `>99.9%` where a little is missing from all, `<0.1%` where it is a little more than nothing."""
    least, text = 10.0 ** -(digits + 2), f"{share:.{digits}%}"
    if share < 1 and text == f"{1:.{digits}%}":
        return f">{1 - least:.{digits}%}"
    return f"<{least:.{digits}%}" if share > 0 and text == f"{0:.{digits}%}" else text


def readable_count(count: float) -> str:
    """`9,999`, `60.3 k`, `1.2 M`, `0.985`."""
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(count) >= least * (1 - 5e-5):  # rounded it is the next unit's
            return f"{f'{count / size:,.1f}'.removesuffix('.0')} {unit}"
    return f"{count:,.0f}" if count == int(count) else f"{count:,.4g}"


def readable_seconds(seconds: float) -> str:
    """`0.04 s`, `5.0 s`, `12 s`, `3.4 min`, `2.1 h`, `5 days`."""
    for least, size, unit in ((172_800, 86_400, "days"), (5_400, 3_600, "h"), (90, 60, "min")):
        if seconds >= least:
            return f"{f'{seconds / size:,.1f}'.removesuffix('.0')} {unit}"
    return f"{seconds:.1g} s" if seconds < 0.1 else f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
