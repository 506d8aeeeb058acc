"""Charts of an index version: PNG or SVG."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from icepuffin.ops.search.overview import Overview

_COLORS = 32
_BARS = 300
"""Bars that are drawn one by one: 6,000 take 9 s of CPU"""
_LIVE, _DEAD, _LATE = "#4f43dd", "#d0d0d8", "#1d9e75"


def render(view: Overview, file_format: str, milliseconds: Sequence[float] | None = None, *, dpi: int = 110) -> bytes:
    """The chart as bytes; `file_format` is `png` or `svg`."""
    from matplotlib.figure import Figure  # noqa: PLC0415  slow to import

    figure = Figure(figsize=(11, 3.6), dpi=dpi, layout="constrained")
    curve, shards, cover = figure.subplots(1, 3, width_ratios=(2, 2, 0.5))
    _draw_curve(curve, view, milliseconds)
    _draw_shards(shards, view)
    _draw_coverage(cover, view)
    title = f"{view.table}, index {view.index}, version of snapshot {view.base_snapshot_id}"
    figure.suptitle(drawable(title), fontsize=10)
    if file_format == "png":
        return as_png(figure)
    image = io.BytesIO()
    figure.savefig(image, format=file_format)
    return image.getvalue()


def as_png(figure: Any) -> bytes:
    """A Matplotlib figure as a PNG with a palette, a third of the size of a PNG in full colour."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  slow to import
    from PIL import Image  # noqa: PLC0415

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image = io.BytesIO()
    drawn.quantize(_COLORS, dither=Image.Dither.NONE).save(image, "PNG", optimize=True)
    return image.getvalue()


def drawable(text: str) -> str:
    """The text with a box for each character that Matplotlib's font lacks, such as Chinese ones. What stands between
    two dollars is no formula.
    """
    from matplotlib.font_manager import findfont, get_font  # noqa: PLC0415

    font = get_font(findfont("DejaVu Sans"))
    boxed = "".join(letter if font.get_char_index(ord(letter)) else "\u25a1" for letter in text)
    return boxed.replace("$", r"\$")


def _draw_curve(axes: Any, view: Overview, milliseconds: Sequence[float] | None) -> None:
    axes.set_title("recall@10 by cost", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if not view.curve:
        reason = "exact: all rows in reach are compared" if view.without_graphs else "not measured"
        axes.text(0.5, 0.5, reason, ha="center", transform=axes.transAxes)
        return
    costs = list(milliseconds) if milliseconds else [point.distances for point in view.curve]
    axes.plot(costs, [point.recall for point in view.curve], "o-", color=_LIVE, markersize=4)
    for cost, point in zip(costs, view.curve, strict=True):
        many = f" x{point.oversample}" if point.oversample > 1 else ""
        label = f"L={point.search_list}{many}"
        axes.annotate(label, (cost, point.recall), textcoords="offset points", xytext=(4, -9), fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds per query (log scale)" if milliseconds else "distances per query (log scale)")
    axes.grid(alpha=0.3)


def _draw_shards(axes: Any, view: Overview) -> None:
    if view.without_graphs:
        axes.text(0.5, 0.5, view.without_graphs.replace(": ", "\n"), ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.set_title(f"shards: live rows, tombstones ({view.tombstone_ratio:.1%})", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    numbers = [shard.shard for shard in view.shards]
    live_nodes = [shard.live for shard in view.shards]
    routed = sum(shard.routed for shard in view.shards)  # they come first
    for color, part in ((_LIVE, slice(routed)), (_LATE, slice(routed, None))):
        _draw_bars(axes, numbers[part], live_nodes[part], [0] * len(numbers[part]), color)
    _draw_bars(axes, numbers, [shard.tombstones for shard in view.shards], live_nodes, _DEAD)
    axes.set_xlabel("shard; green: rows that came after the codebook")


def _draw_bars(axes: Any, numbers: Sequence[int], heights: Sequence[int], bottoms: Sequence[int], color: str) -> None:
    """A bar per shard; of many shards one outline, as there is no room between bars."""
    if len(numbers) <= _BARS:
        axes.bar(numbers, heights, bottom=bottoms, color=color)
        return
    edges = np.arange(numbers[0], numbers[-1] + 2) - 0.5
    axes.stairs(np.add(bottoms, heights), edges, baseline=bottoms, fill=True, color=color)


def _draw_coverage(axes: Any, view: Overview) -> None:
    axes.set_title(f"covers {view.coverage:.1%}", loc="left", fontsize=10)
    axes.bar([0], [view.rows_covered], color=_LIVE)
    axes.bar([0], [view.rows - view.rows_covered], bottom=[view.rows_covered], color=_DEAD)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
