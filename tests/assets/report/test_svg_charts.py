"""Charts: what lies where, what is written beside it, and nothing over anything else."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from icepuffin.assets.report.markup import element
from icepuffin.assets.report.svg_charts import BARS, HEIGHT, WIDTH, Axes, Bar, Point, bar_chart, line_chart

LETTER = 6.0
"""Pixels of a letter of 11 pixels, about"""


def drawn(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  our own


def texts(svg: ET.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter("text")]


def test_a_line_goes_through_its_points_on_a_scale_that_holds_them() -> None:
    points = [Point(10**place, recall, f"point {place}") for place, recall in enumerate((0.9, 0.95, 1.0))]
    svg = drawn(line_chart(points, Axes("recall", is_log=True)))
    xs, ys = ([float(dot.get(name, "")) for dot in svg.iter("circle")] for name in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2), "logarithms"
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert HEIGHT > ys[0] > ys[1] > ys[2] > 0
    assert texts(svg)[:3] == ["0.9", "0.95", "1"], "numbers that people would take, and none above the highest"
    assert [title.text for title in svg.iter("title")] == ["point 0", "point 1", "point 2"]


def test_labels_lie_within_the_chart_and_beside_each_other() -> None:
    """Of points that lie close together some have none: the table has them all."""
    points = [Point(100 + place * 3**place, 1 - 0.1 / (1 + place), "", f"L={10 << place} x3") for place in range(14)]
    svg = drawn(line_chart(points, Axes("recall", is_log=True, floor=0.8)))
    boxes = []
    for text in svg.iter("text"):
        if (label := "".join(text.itertext())).startswith("L="):
            x, y = float(text.get("x", "")), float(text.get("y", ""))
            boxes.append((x, x + LETTER * len(label), y - 9, y + 2))
    assert 3 <= len(boxes) < 14
    (dashes,) = (path.get("d", "") for path in svg.iter("path") if path.get("class") == "floor")
    lowest = max(float(dot.get("cy", "")) for dot in svg.iter("circle"))
    assert lowest < float(re.findall(r" ([\d.]+)H", dashes)[0]) < HEIGHT - 15, "within the axes, below all points"
    for place, (left, right, top, bottom) in enumerate(boxes):
        assert 0 <= left < right <= WIDTH
        assert 0 <= top < bottom <= HEIGHT
        for other in boxes[:place]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top


def test_bars_of_many_values_are_means_of_neighbours() -> None:
    bars = [Bar(f"shard {number}", (("a", 100.0), ("e", float(number % 2)))) for number in range(2 * BARS)]
    svg = drawn(bar_chart(bars, Axes("shards", "rows")))
    paths = {path.get("class"): path.get("d", "") for path in svg.iter("path")}
    assert (paths["a"].count("M"), paths["e"].count("M")) == (BARS, BARS)
    assert "rows; each bar: the mean of 2" in texts(svg)
    spans = [(float(x), float(x) + float(width)) for x, width in re.findall(r"M(\S+) \S+h([\d.]+)", paths["a"])]
    assert all(one[1] < other[0] for one, other in pairwise(spans)), "beside each other"
    assert 0 < spans[0][0] < spans[-1][1] < WIDTH
    (foot,) = {float(foot) for foot in re.findall(r"M\S+ ([\d.]+)h", paths["a"])}
    assert {float(rect.get("y", "")) + float(rect.get("height", "")) for rect in svg.iter("rect")} == {foot}
    assert next(svg.iter("title")).text == "shard 0 … shard 1"


@pytest.mark.parametrize("value", [0.0, 7.0, 1e-9, 3e12])
def test_one_value_is_a_chart(value: float) -> None:
    line = drawn(line_chart([Point(0, value, "")], Axes("one", ends=("first", "last"))))
    bar = drawn(bar_chart([Bar("", (("a", value),))], Axes("one")))
    for svg in (line, bar):
        assert 2 <= len([text for text in texts(svg) if re.match(r"[\d.]", text)]) <= 6


def test_a_line_without_points_has_its_axes() -> None:
    svg = drawn(line_chart([], Axes("none")))
    assert [text for text in texts(svg) if text] == ["0", "0.5", "1"]


def test_what_is_no_markup_is_escaped() -> None:
    made = element("p", "a & <b>", element("br"), None, ["'", '"'], title='"x"', class_=None, data_v=3)
    assert made == '<p title="&quot;x&quot;" data-v="3">a &amp; &lt;b&gt;<br/>&#x27;&quot;</p>'
