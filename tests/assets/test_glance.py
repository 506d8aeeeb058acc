"""Pictures that the UI shows without a click."""

import base64
from xml.etree import ElementTree as ET

import pytest

from icepuffin.assets.glance import INLINE_CHARACTERS, value_bars, version_glance
from icepuffin.ops.recall.curves import Width
from icepuffin.ops.search.overview import Overview, ShardState

SVG = "{http://www.w3.org/2000/svg}"


def drawing(markdown: str | None) -> ET.Element:
    assert markdown is not None
    assert len(markdown) <= INLINE_CHARACTERS
    image = base64.b64decode(markdown.partition("data:image/svg+xml;base64,")[2].rstrip(")"))
    return ET.fromstring(image)  # noqa: S314  our own


def texts(svg: ET.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


def seen(shards: int, *, tombstones: int = 0, curve: int = 4) -> Overview:
    return Overview(
        table="demo.packages",
        index="embedding",
        base_snapshot_id=1,
        index_snapshot_id=2,
        head_snapshot_id=1,
        rows=90 * shards,
        rows_covered=90 * shards,
        shards=tuple(
            ShardState(number, 90 + tombstones, 90, tombstones, 0.97, 10_000, routed=True) for number in range(shards)
        ),
        curve=tuple(Width(16 << number, 1, 0.9 + 0.02 * number, 100.0 * 3**number) for number in range(curve)),
        routing=(),
    )


def test_distinct_values_are_bars_with_a_labelled_log_scale() -> None:
    svg = drawing(value_bars("distinct values", ["id", "<name>"], [60_000, 7]))
    assert texts(svg) == ["id60,000", "<name>7", "log scale"]


def test_too_many_values_are_not_drawn_inline() -> None:
    assert value_bars("distinct values", [f"column {number}" for number in range(50)], [7] * 50) is None


def test_values_without_a_logarithm_have_no_bar() -> None:
    assert texts(drawing(value_bars("distinct values", ["id", "name"], [0, 0]))) == ["id0", "name0", "log scale"]


@pytest.mark.parametrize("shards", [0, 1, 4, 24, 1000])
@pytest.mark.parametrize("tombstones", [0, 10])
def test_a_version_is_drawn_inline_however_many_shards_it_has(shards: int, tombstones: int) -> None:
    shown = texts(drawing(version_glance(seen(shards, tombstones=tombstones))))
    assert shown[:5] == ["0.900", "0.960", "100", "2,700", "recall@10, distances per query (log scale)"]


def test_shards_are_drawn_with_their_tombstones() -> None:
    svg = drawing(version_glance(seen(4, tombstones=10)))
    assert [path.get("stroke") for path in svg.iter(f"{SVG}path")] == ["#4f43dd", "#d0d0d8"]
    assert texts(svg)[-1] == "rows of 4 shards; grey: tombstones"
    assert len(list(drawing(version_glance(seen(4))).iter(f"{SVG}path"))) == 1


def test_a_glance_reports_a_curve_that_was_not_measured() -> None:
    assert texts(drawing(version_glance(seen(1, curve=0))))[0] == "recall by cost: not measured"
