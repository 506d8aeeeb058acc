"""Pictures that the UI shows without a click: Markdown of fewer than 1,000 characters. Longer Markdown is a link."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import dagster as dg

from icepuffin.assets.newest_snapshots import TimeLinePoint
from icepuffin.ops.messages import plural
from icepuffin.ops.presentation import printable
from icepuffin.ops.search.overview import Overview, ShardState
from icepuffin.ops.tasks.sketches.histogram_values import ValueHistogram, text_of

INLINE_CHARACTERS = 999
"""The longest Markdown that Dagster's UI shows at once"""
_LIVE, _DEAD, _LINE = "#4f43dd", "#d0d0d8", "#999"
_LINE_CHARACTERS = 51
"""Characters of a line that the metadata column has room for, in a window of 1,400 pixels"""
_WIDTH = 430
"""Pixels of the metadata column in a window of 1,400 pixels, at least"""
_PLAIN = " !'()*,-./:;=@_~"
"""Characters of a drawing that its address has as they are, beside letters and digits"""
_BARS = 60
"""Bars of values, at most"""
_RANGES = 30
"""Bars of a histogram, at most"""
_SHARDS = 24
"""Shards that are drawn; of more, the first ones"""


def value_bars(title: str, values: Mapping[str, float]) -> str:
    """Horizontal bars on a logarithmic scale, each with its name and value, as Markdown; of many the largest alone, as
    the title says. Values below 1 have no bar.
    """
    if len(values) > _BARS:
        title = f"{title}, the largest {_BARS} of {len(values):,}"
        values = dict(sorted(values.items(), key=lambda item: -item[1])[:_BARS])
    span = max((math.log10(max(value, 1)) for value in values.values()), default=0.0) or 1.0
    widths = [round(200 * math.log10(max(value, 1)) / span) for value in values.values()]
    bars = "".join(f"M100 {17 * row + 3}h{width}v11h-{width}z" for row, width in enumerate(widths))
    texts = "".join(
        f"<text y='{17 * row + 13}'>{html.escape(printable(label, 15))}"
        f"<tspan x='{104 + width}'>{value:,.0f}</tspan></text>"
        for row, ((label, value), width) in enumerate(zip(values.items(), widths, strict=True))
    )
    height = 17 * len(values) + 17
    scale = f"<text x='100' y='{height - 4}' fill='{_LINE}'>log scale</text>"
    return _picture(title, height, f"<path d='{bars}' fill='{_LIVE}'/>{texts}{scale}")


def histogram_bars(histogram: ValueHistogram) -> str:
    """The values of a column as bars side by side, with the values at both ends, as Markdown. There are values."""
    bars = histogram.bars(_RANGES)
    highest, width = max(bar.share for bar in bars) or 1.0, 400 // len(bars)
    heights = [round(64 * bar.share / highest) for bar in bars]
    drawn = "".join(f"M{width * place} 72v-{height}h{width}V72" for place, height in enumerate(heights))
    low, high = (html.escape(printable(text_of(value), 20)) for value in (bars[0].low, bars[-1].high))
    texts = f"<text y='88'>{low}</text><text x='{width * len(bars)}' y='88' text-anchor='end'>{high}</text>"
    return _picture("the middle 99 % of the values", 94, f"<path d='{drawn}' fill='{_LIVE}'/>{texts}")


def version_glance(overview: Overview) -> str | None:
    """Recall by cost, and the live nodes and tombstones of each shard, as Markdown. Tombstones, then shards are left
    out where it would be too long to be shown at once.
    """
    title = f"index {overview.index} at a glance"
    parts = [_curve(overview), *_shards(overview.shards)]
    for count in range(len(parts), 0, -1):
        drawn = _picture(title, 102, "".join(parts[:count]))
        if len(drawn) <= INLINE_CHARACTERS:
            return drawn
    return None


def time_line_metadata(points: Sequence[TimeLinePoint]) -> dict[str, dg.MetadataValue[Any]]:
    """The newest snapshots as a time line, newest first: as many as can be shown at once, and the one that it is about
    in any case. Empty where there is none. Drawn in characters, so that ids can be copied: partition keys are ids, and
    people search by time and operation.
    """
    nothing = "nothing made" if any(point.is_here for point in points) else "nothing made when this was recorded"
    for count in range(len(points), 0, -1):
        last = next((point for point in points[count - 1 :] if point.is_here), points[count - 1])
        more = "\n⋮ all of them: icepuffin snapshots" if count < len(points) else ""
        drawn = "\n".join(_point(point, nothing) for point in [*points[: count - 1], last])
        if len(text := f"```\n{drawn}{more}\n```") <= INLINE_CHARACTERS:
            return {"time line": dg.MetadataValue.md(text)}
    return {}


def _point(point: TimeLinePoint, nothing: str) -> str:
    """A dot, filled where anything was made, with time, operation and rows; then id, what was made and figures, in one
    line where they fit.
    """
    entry, dot = point.entry, "●" if point.made else "○"
    rows = "" if entry.rows is None else f", {plural(entry.rows, 'row')}"
    here = " ← this one" if point.is_here else ""
    made = f"{entry.snapshot_id} {point.figures or nothing}"
    if len(made) > _LINE_CHARACTERS:
        made = made.replace(" ", "\n│ ", 1)
    return f"{dot} {entry.committed:%Y-%m-%d %H:%M} {entry.operation}{rows}{here}\n│ {made}"


def _curve(overview: Overview) -> str:
    """recall@10 over distances per query, on a logarithmic scale; the ends of the curve are labelled."""
    points = overview.curve
    if not points:
        return f"<text y='40'>{overview.without_graphs or 'recall by cost: not measured'}</text>"
    costs = [math.log(max(point.distances, 1.0)) for point in points]
    recalls = [point.recall for point in points]
    xs = [round(36 + 150 * _share(cost, costs)) for cost in costs]
    ys = [round(66 - 56 * _share(recall, recalls)) for recall in recalls]
    line = " ".join(f"{x},{y}" for x, y in zip(xs, ys, strict=True))
    return (
        f"<polyline points='{line}' fill='none' stroke='{_LIVE}'/>"
        f"<text y='70'>{min(recalls):.3f}</text><text y='14'>{max(recalls):.3f}</text>"
        f"<text x='36' y='82'>{points[0].distances:,.0f}</text><text x='166' y='82'>{points[-1].distances:,.0f}</text>"
        f"<text y='98'>recall@10 by distances per query (log)</text>"
    )


def _shards(shards: Sequence[ShardState]) -> list[str]:
    """[live nodes per shard with its title, tombstones above them where there are any]."""
    drawn = shards[:_SHARDS]
    if not drawn:
        return []
    most = max(shard.nodes for shard in drawn) or 1
    step = 190 // len(drawn)
    live_bars, dead_bars = "", ""
    for number, shard in enumerate(drawn):
        x = 235 + step * number + step // 2
        high, above = round(64 * shard.live / most), round(64 * shard.tombstones / most)
        live_bars += f"M{x} 72v-{high}"
        dead_bars += f"M{x} {72 - high}v-{above}" if above else ""
    width = max(step - 2, 1)
    count = plural(len(shards), "shard")
    count = count if len(shards) <= _SHARDS else f"{_SHARDS} of {count}"
    dead = "; grey: tombstones" if dead_bars else ""
    title = f"<text x='235' y='98'>rows of {count}{dead}</text>"
    bars = [f"<path d='{live_bars}' stroke='{_LIVE}' stroke-width='{width}'/>{title}"]
    return [*bars, f"<path d='{dead_bars}' stroke='{_DEAD}' stroke-width='{width}'/>"] if dead_bars else bars


def _share(value: float, values: Sequence[float]) -> float:
    span = max(values) - min(values)
    return (value - min(values)) / span if span else 1.0


def _picture(title: str, height: int, body: str) -> str:
    """Markdown with a drawing on white, as the UI may be dark."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' font-size='11'"
    svg = f"{head} style='background:#fff'>{body}</svg>"
    return f"![{title}](<data:image/svg+xml,{quote(svg, safe=_PLAIN)}>)"
