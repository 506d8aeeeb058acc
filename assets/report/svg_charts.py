"""Charts of the report on a table, as SVG: the page styles them by class."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from icepuffin.assets.report.markup import Child, Markup, element, joined
from icepuffin.ops.messages import plural, readable_count, readable_share
from icepuffin.ops.search.overview import Overview

WIDTH, HEIGHT = 360, 190
"""Units of a chart: pixels, where it is not scaled"""
BARS = 120
"""Bars of a chart, at most; of more, each is the mean of some that lie side by side"""
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:var(--muted)}"
    ".axis{stroke:var(--line)}.floor{stroke:var(--bad);stroke-dasharray:4 3}"
    ".curve{stroke:var(--accent);stroke-width:2;fill:none}.range{stroke:var(--accent)}.dot,.a{fill:var(--accent)}"
    ".b{fill:var(--second)}.c{fill:var(--third)}.d{fill:var(--fourth)}.e{fill:var(--faint)}.over{fill:transparent}"
)
"""Rules of a style sheet, in colours that the page sets"""
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 14, 38
_CAPTION = 16
"""Units that a caption is high"""
_TICKS = 4
_LETTER = 7
"""Units that a letter is wide, about"""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line."""

    x: float
    y: float
    title: str
    """Text that is shown where somebody points at it"""
    label: str = ""
    """Text beside the point where there is room for one"""
    bounds: tuple[float, float] | None = None
    """Lower and upper end of its interval"""
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A vertical bar of parts, the lowest first."""

    title: str
    parts: tuple[tuple[str, float], ...]
    """Class and height of each part"""


@dataclass(frozen=True, slots=True)
class Axes:
    """Scales of a chart, and what is written beside them."""

    label: str
    """Description for who does not see the chart"""
    caption: str = ""
    """Text below the horizontal axis"""
    ends: tuple[str, str] | None = None
    """Texts at both ends of the horizontal axis; None: the numbers there"""
    is_log: bool = False
    floor: float | None = None
    """Height of a dashed line"""
    is_from_zero: bool = False


def line_chart(points: Sequence[Point], axes: Axes) -> Markup:
    """Points and the line through them, over numbers, or over their numbers where the axes have texts at the ends."""
    spread = [end for point in points for end in (point.y, *(point.bounds or ()))]
    ends_of_axis = [*([] if axes.floor is None else [axes.floor]), *([0.0] if axes.is_from_zero else [])]
    scale, grid = _heights([*spread, *ends_of_axis])
    xs = _positions([point.x for point in points], is_log=axes.is_log)
    corners = [(x, scale(point.y)) for x, point in zip(xs, points, strict=True)]
    line = element("polyline", class_="curve", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
    marks, labels, taken = [], [], list[tuple[float, float, float]]()
    for (x, y), point in zip(corners, points, strict=True):
        if point.bounds:
            low, high = map(scale, point.bounds)
            marks.append(element("path", class_="range", d=f"M{x:.1f} {low:.1f}V{high:.1f}"))
        title = element("title", point.title) if point.title else None
        marks.append(
            element("circle", title, class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5 if point.is_marked else 3)
        )
        width = _LETTER * len(point.label)
        start = min(x + 6, WIDTH - width)
        boxes = [(start, start + width, foot) for foot in (y + 15, y - 8) if 10 < foot < HEIGHT - _BOTTOM]
        free = [box for box in boxes if not any(_overlap(box, other) for other in taken)]
        if point.label and free:
            taken.append(free[0])
            labels.append(element("text", point.label, x=f"{start:.1f}", y=f"{free[0][2]:.1f}"))
    floor = None
    if axes.floor is not None:
        height = scale(axes.floor)
        floor = element("path", class_="floor", d=f"M{_LEFT} {height:.1f}H{WIDTH - _RIGHT}")
    ends = axes.ends or ((readable_count(points[0].x), readable_count(points[-1].x)) if points else ("", ""))
    return _chart(axes, ends, axes.caption, grid, floor, line, marks, labels)


def bar_chart(bars: Sequence[Bar], axes: Axes) -> Markup:
    """Vertical bars side by side; the mean of neighbours where there are more than `BARS`."""
    step = -(-len(bars) // BARS) or 1
    drawn = [_mean(bars[start : start + step]) for start in range(0, len(bars), step)]
    scale, grid = _heights([0.0, *(sum(height for _, height in bar.parts) for bar in drawn)])
    width = (WIDTH - _LEFT - _RIGHT) / max(len(drawn), 1)
    inner = min(max(width - 2, width * 0.7), 60)
    paths, over = dict[str, str](), []
    for number, bar in enumerate(drawn):
        x, base = _LEFT + number * width + (width - inner) / 2, 0.0
        for name, height in bar.parts:
            if height:
                foot, head = scale(base), scale(base + height)
                paths[name] = paths.get(name, "") + f"M{x:.1f} {foot:.1f}h{inner:.1f}V{head:.1f}h{-inner:.1f}z"
                base += height
        if bar.title:
            title = element("title", bar.title)
            size = {"x": f"{_LEFT + number * width:.1f}", "width": f"{width:.1f}"}
            over.append(element("rect", title, class_="over", y=_TOP, height=HEIGHT - _TOP - _BOTTOM, **size))
    marks = [element("path", class_=name, d=path) for name, path in paths.items()]
    caption = f"{axes.caption}; each bar: the mean of {step}" if step > 1 else axes.caption
    return _chart(axes, axes.ends or ("", ""), caption, grid, marks, over)


def recall_chart(view: Overview, target: float) -> Markup:
    """recall@10 of an index version that has a curve over distances per query, with a dashed line at the target."""
    points = [
        Point(
            it.distances,
            it.recall,
            f"L={it.search_list}, oversample {it.oversample}: recall {it.recall:.4f}, {it.distances:,.0f} distances",
            f"L={it.search_list}" + (f" x{it.oversample}" if it.oversample > 1 else ""),
        )
        for it in view.curve
    ]
    label = f"recall@10 from {points[0].y:.3f} to {points[-1].y:.3f} by distances per query"
    caption = "recall@10 by distances per query (log scale)"
    return line_chart(points, Axes(label, caption, is_log=True, floor=target))


def shards_chart(view: Overview) -> Markup:
    """Live rows and tombstones of each shard of an index version that has shards."""
    bars = [
        Bar(
            f"shard {it.shard}: {plural(it.live, 'row')}, {plural(it.tombstones, 'tombstone')}",
            (("a" if it.routed else "b", it.live), ("e", it.tombstones)),
        )
        for it in view.shards
    ]
    label = f"rows of {plural(len(bars), 'shard')}; grey: tombstones, {readable_share(view.tombstone_ratio)}"
    return bar_chart(bars, Axes(label, label, ends=("shard 0", f"shard {len(bars) - 1}")))


def _heights(values: Sequence[float]) -> tuple[Callable[[float], float], Markup]:
    """(the vertical scale of a chart, the lines across it with their numbers)."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high <= low:
        low, high = 0.0, high or 1.0
    step = _step((high - low) / _TICKS)
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)

    def scale(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    ticks = [(scale(value), readable_count(value)) for value in (step * number for number in range(first, last + 1))]
    lines = (element("path", class_="axis", d=f"M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}") for y, _ in ticks)
    numbers = (element("text", text, x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end") for y, text in ticks)
    return scale, joined(lines, numbers)


def _step(rough: float) -> float:
    """The next number of 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))


def _positions(values: Sequence[float], *, is_log: bool) -> list[float]:
    scaled = [math.log(max(value, 1e-9)) if is_log else value for value in values]
    low, span = min(scaled, default=0.0), max(scaled, default=0.0) - min(scaled, default=0.0)
    room = WIDTH - _LEFT - _RIGHT - 20
    return [_LEFT + 10 + room * ((value - low) / span if span else 0.5) for value in scaled]


def _mean(bars: Sequence[Bar]) -> Bar:
    if len(bars) == 1:
        return bars[0]
    names = dict.fromkeys(name for bar in bars for name, _ in bar.parts)
    sums = {name: sum(height for bar in bars for part, height in bar.parts if part == name) for name in names}
    title = f"{bars[0].title} … {bars[-1].title}" if bars[0].title else ""
    return Bar(title, tuple((name, total / len(bars)) for name, total in sums.items()))


def _overlap(box: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return box[0] < other[1] + 4 and other[0] < box[1] + 4 and abs(box[2] - other[2]) < 12


def _chart(axes: Axes, ends: tuple[str, str], caption: str, *marks: Child) -> Markup:
    """The marks with texts below them."""
    foot = HEIGHT - _BOTTOM + 15
    texts = (
        element("text", ends[0], x=_LEFT, y=foot),
        element("text", ends[1] if ends[1] != ends[0] else "", x=WIDTH - _RIGHT, y=foot, text_anchor="end"),
        element("text", caption, x=(WIDTH + _LEFT) / 2, y=HEIGHT - 6, text_anchor="middle"),
    )
    size = f"0 0 {WIDTH} {HEIGHT if caption else HEIGHT - _CAPTION}"
    return element("svg", *marks, *texts, viewBox=size, role="img", aria_label=axes.label)
