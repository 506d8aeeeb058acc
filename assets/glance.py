"""Pictures that the UI shows without a click: SVG in Markdown of fewer than 1,000 characters.

Longer Markdown, such as a PNG of a few kilobytes, is a link in the UI that opens it.
"""

import base64
import html
import math
from collections.abc import Sequence

from icepuffin.ops.search.overview import Overview, ShardState

INLINE_CHARACTERS = 999
"""The longest Markdown that Dagster's UI shows at once"""
_LIVE, _DEAD, _LINE = "#4f43dd", "#d0d0d8", "#999"
_WIDTH = 370
"""Pixels of the metadata column in a window of 1,400 pixels"""
_SHARDS = 24
"""Shards that are drawn; of more, the first ones"""


def value_bars(title: str, labels: Sequence[str], values: Sequence[float]) -> str | None:
    """Horizontal bars on a logarithmic scale, each with its value, as Markdown; None where it is too long to be shown
    at once. Values below 1 have no bar.
    """
    span = max((math.log10(max(value, 1)) for value in values), default=0.0) or 1.0
    widths = [round(150 * math.log10(max(value, 1)) / span) for value in values]
    bars = "".join(f"M90 {14 * row + 3}h{width}v9h-{width}z" for row, width in enumerate(widths))
    texts = "".join(
        f"<text y='{14 * row + 11}'>{html.escape(_cut(label, 15))}<tspan x='{94 + width}'>{value:,.0f}</tspan></text>"
        for row, (label, value, width) in enumerate(zip(labels, values, widths, strict=True))
    )
    height = 14 * len(values) + 14
    scale = f"<text x='90' y='{height - 3}' fill='{_LINE}'>log scale</text>"
    return _inline(title, 320, height, f"<path d='{bars}' fill='{_LIVE}'/>{texts}{scale}")


def version_glance(overview: Overview) -> str | None:
    """Recall by cost, and the live nodes and tombstones of each shard, as Markdown. Tombstones, then shards are left
    out where it would be too long to be shown at once.
    """
    title = f"index {overview.index} at a glance"
    parts = [_curve(overview), *_shards(overview.shards)]
    for count in range(len(parts), 0, -1):
        if drawn := _inline(title, _WIDTH, 84, "".join(parts[:count])):
            return drawn
    return None


def _curve(overview: Overview) -> str:
    """recall@10 over distances per query, on a logarithmic scale; the ends of the curve are labelled."""
    points = overview.curve
    if not points:
        return f"<text y='40'>{overview.without_graphs or 'recall by cost: not measured'}</text>"
    costs = [math.log(max(point.distances, 1.0)) for point in points]
    recalls = [point.recall for point in points]
    xs = [round(28 + 110 * _share(cost, costs)) for cost in costs]
    ys = [round(56 - 46 * _share(recall, recalls)) for recall in recalls]
    line = " ".join(f"{x},{y}" for x, y in zip(xs, ys, strict=True))
    return (
        f"<polyline points='{line}' fill='none' stroke='{_LIVE}'/>"
        f"<text y='60'>{min(recalls):.3f}</text><text y='14'>{max(recalls):.3f}</text>"
        f"<text x='28' y='70'>{points[0].distances:,.0f}</text><text x='125' y='70'>{points[-1].distances:,.0f}</text>"
        f"<text y='82'>recall@10, distances per query (log scale)</text>"
    )


def _shards(shards: Sequence[ShardState]) -> list[str]:
    """[live nodes per shard with its title, tombstones above them where there are any]."""
    drawn = shards[:_SHARDS]
    if not drawn:
        return []
    most = max(shard.nodes for shard in drawn) or 1
    step = 150 // len(drawn)
    live_bars, dead_bars = "", ""
    for number, shard in enumerate(drawn):
        x = 215 + step * number + step // 2
        high, above = round(54 * shard.live / most), round(54 * shard.tombstones / most)
        live_bars += f"M{x} 62v-{high}"
        dead_bars += f"M{x} {62 - high}v-{above}" if above else ""
    width = max(step - 2, 1)
    count = "1 shard" if len(shards) == 1 else f"{len(shards):,} shards"
    count = count if len(shards) <= _SHARDS else f"{_SHARDS} of {count}"
    title = f"<text x='210' y='82'>rows of {count}; grey: tombstones</text>"
    bars = [f"<path d='{live_bars}' stroke='{_LIVE}' stroke-width='{width}'/>{title}"]
    return [*bars, f"<path d='{dead_bars}' stroke='{_DEAD}' stroke-width='{width}'/>"] if dead_bars else bars


def _share(value: float, values: Sequence[float]) -> float:
    span = max(values) - min(values)
    return (value - min(values)) / span if span else 1.0


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _inline(title: str, width: int, height: int, body: str) -> str | None:
    """Markdown with the drawing; None where it is longer than what the UI shows at once."""
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' font-size='9'>{body}</svg>"
    text = f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
    return text if len(text) <= INLINE_CHARACTERS else None
