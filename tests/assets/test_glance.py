"""Pictures that the UI shows without a click."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from icepuffin.assets.glance import INLINE_CHARACTERS, time_line_metadata, value_bars, version_glance
from icepuffin.assets.newest_snapshots import SnapshotEntry, TimeLinePoint
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.curves import Width
from icepuffin.ops.search.overview import Overview, ShardState

SVG = "{http://www.w3.org/2000/svg}"


def drawing(markdown: str | None) -> ET.Element:
    assert markdown is not None
    assert len(markdown) <= INLINE_CHARACTERS
    return image_of(markdown)


def image_of(markdown: str) -> ET.Element:
    address = markdown.partition("](<data:image/svg+xml,")[2].removesuffix(">)")
    assert not set(address) & set('<>&#"\\\n'), "nothing that Markdown or an address takes for its own"
    return ET.fromstring(unquote(address))  # noqa: S314  our own


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
    svg = drawing(value_bars("distinct values", {"id": 60_000, "<name> of a column": 7}))
    assert texts(svg) == ["id60,000", "<name> of a co…7", "log scale"]
    assert [text.get("y") for text in svg.iter(f"{SVG}text")] == ["13", "30", "47"]


def test_of_many_values_the_largest_are_drawn_and_the_ui_shows_a_link() -> None:
    """Of 3,000 columns a chart would be a megabyte of the event log."""
    columns = {f"column {number}": float(number) for number in range(200)}
    markdown = value_bars("distinct values", columns)
    assert markdown.startswith("![distinct values, the largest 60 of 200](")
    assert INLINE_CHARACTERS < len(markdown) < 10_000
    assert value_bars("distinct values", dict([*columns.items()][:60])).startswith("![distinct values](")
    assert texts(image_of(markdown)) == [*(f"column {number}{number}" for number in range(199, 139, -1)), "log scale"]


def test_values_without_a_logarithm_have_no_bar() -> None:
    assert texts(drawing(value_bars("distinct values", {"id": 0, "name": 0}))) == ["id0", "name0", "log scale"]


@pytest.mark.parametrize("shards", [0, 1, 4, 24, 1000])
@pytest.mark.parametrize("tombstones", [0, 10])
def test_a_version_is_drawn_inline_however_many_shards_it_has(shards: int, tombstones: int) -> None:
    shown = texts(drawing(version_glance(seen(shards, tombstones=tombstones))))
    assert shown[:5] == ["0.900", "0.960", "100", "2,700", "recall@10 by distances per query (log)"]
    count = {0: [], 1: ["1 shard"], 1000: ["24 of 1,000 shards"]}.get(shards, [f"{shards} shards"])
    assert [text.partition(";")[0] for text in shown[5:]] == [f"rows of {each}" for each in count]


def test_shards_are_drawn_with_their_tombstones() -> None:
    svg = drawing(version_glance(seen(4, tombstones=10)))
    assert [path.get("stroke") for path in svg.iter(f"{SVG}path")] == ["#4f43dd", "#d0d0d8"]
    assert {path.get("stroke-width") for path in svg.iter(f"{SVG}path")} == {"45"}, "2 pixels apart"
    live, dead = (path.get("d", "") for path in svg.iter(f"{SVG}path"))
    tops = [(x, 72 - int(height)) for x, height in re.findall(r"M(\d+) 72v-(\d+)", live)]
    assert tops == [(x, int(foot)) for x, foot in re.findall(r"M(\d+) (\d+)v-\d+", dead)], "each on top of its own"
    assert texts(svg)[-1] == "rows of 4 shards; grey: tombstones"
    undamaged = drawing(version_glance(seen(4)))
    assert len(list(undamaged.iter(f"{SVG}path"))) == 1
    assert texts(undamaged)[-1] == "rows of 4 shards"


def test_a_glance_reports_a_curve_that_was_not_measured() -> None:
    unmeasured = seen(1, curve=0)
    assert texts(drawing(version_glance(unmeasured)))[0] == "recall by cost: not measured"
    exact = replace(unmeasured, shards=(), balls=5, files=1)
    assert texts(drawing(version_glance(exact))) == ["no graphs: 5 balls around the vectors of 1 file"]


def point(number: int, *, made: str = "refreshed", rows: int | None = 4_935, is_here: bool = False) -> TimeLinePoint:
    """The snapshot that was written `number` hours before the newest."""
    written = datetime(2026, 11, 29, 23, 12, tzinfo=UTC) - timedelta(hours=number)
    counts = {"rows_added": 1, "rows_removed": 0, "rows": rows}
    entry = SnapshotEntry(
        SnapshotId(3_051_729_675_574_597_004 + number), written, "append", refs=(), theta_sketches=True, indexes=("e",),
        missing=(), given_up=(), **counts,
    )  # fmt: skip
    recall, seconds = (0.9912, 1.23) if made else (None, None)
    return TimeLinePoint(entry, made, recall, seconds, is_here=is_here)


def drawn(points: Sequence[TimeLinePoint]) -> list[str]:
    text = str(time_line_metadata(points)["time line"].value)
    assert len(text) <= INLINE_CHARACTERS
    assert (text[:4], text[-4:]) == ("```\n", "\n```"), "Markdown shows it as it is"
    return text.splitlines()[1:-1]


def test_each_snapshot_of_a_time_line_has_its_time_and_its_id() -> None:
    points = [point(0, made=""), point(1, made="sketches, e"), point(2, rows=None)]
    assert drawn(points) == [
        "○ 2026-11-29 23:12 append, 4,935 rows",
        "│ 3051729675574597004",
        "│ nothing made when this was recorded",
        "● 2026-11-29 22:12 append, 4,935 rows",
        "│ 3051729675574597005",
        "│ sketches, e, recall 0.9912, 1.2 s",
        "● 2026-11-29 21:12 append",
        "│ 3051729675574597006 refreshed, recall 0.9912, 1.2 s",
    ]
    assert drawn([replace(point(0), seconds=668.5)])[-1].endswith("refreshed, recall 0.9912, 11.1 min")
    lines = drawn([replace(point(0, made=""), is_here=True)])
    assert lines == ["○ 2026-11-29 23:12 append, 4,935 rows ← this one", "│ 3051729675574597004 nothing made"]


@pytest.mark.parametrize("here", [0, 3, 19])
def test_a_long_time_line_has_the_newest_snapshots_and_its_own(here: int) -> None:
    *shown, more = drawn([point(number, is_here=number == here) for number in range(20)])
    ids = [int(line.split()[1]) - 3_051_729_675_574_597_004 for line in shown[1::2]]
    assert len(ids) >= 9, "as many as fit"
    assert ids == [*range(len(ids) - 1), max(here, len(ids) - 1)]
    (own,) = (number for number, line in enumerate(shown[::2]) if line.endswith("append, 4,935 rows ← this one"))
    assert ids[own] == here
    assert more == "⋮ all of them: icepuffin snapshots"


def test_a_table_without_snapshots_has_no_time_line() -> None:
    assert time_line_metadata([]) == {}
