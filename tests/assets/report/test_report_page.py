"""The page on a table says what the API says, escapes what others have named, and is written whole or not at all."""

import os
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.table import Table

import icepuffin
from icepuffin.assets.report import report_file
from icepuffin.assets.report.page_style import DARK, LIGHT
from icepuffin.assets.report.report_page import report_page
from icepuffin.assets.report.table_report import MAX_SNAPSHOTS, TableReport
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.ndv import ndv_bounds
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION
from tests.ops.theta import foreign

HOSTILE = "<script>alert('&')</script>"


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}
        """Lines of each table, that of its columns among them"""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "tr":
            self.lines[[*self.lines][-1]] += 1

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if tag not in {"script", "style"}:
            self.texts.append(data)
        if tag == "caption":
            assert data not in self.lines, "tables have names of their own"
            self.lines[data] = 0
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append((tag, data))


def table_in(folder: Path) -> Table:
    """A new table of a catalog in a folder, with a column whose name is markup."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    catalog = open_catalog("test", {"type": "sql", "uri": uri, "warehouse": warehouse})
    catalog.create_namespace("db")
    rows = make_rows(0, 1)
    return catalog.create_table("db.t", rows.append_column(HOSTILE, rows["name"]).schema)


def append(table: Table, first: int, last: int) -> None:
    rows = make_rows(first, last)
    table.append(rows.append_column(HOSTILE, rows["name"]))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two snapshots with sketches and versions, and one without; a tag whose name is markup."""
    new = table_in(tmp_path_factory.mktemp("lake"))
    icepuffin.create_index(new, replace(DEFINITION, shards=2, filters=("section",)))
    for first, last in ((0, 500), (500, 510), (510, 520)):
        append(new, first, last)
        if last < 520:
            icepuffin.refresh(new, threads=1)
            new.refresh()
    new.manage_snapshots().create_tag(data_snapshots(new)[0].snapshot_id, HOSTILE).commit()
    return new.refresh()


@pytest.fixture(scope="module")
def report(table: Table, tmp_path_factory: pytest.TempPathFactory) -> TableReport:
    return icepuffin.write_report(table, tmp_path_factory.mktemp("page") / "t.html")


@pytest.fixture(scope="module")
def page(report: TableReport) -> Page:
    return Page(report_page(report))


def test_distinct_values_that_others_have_counted_are_left_out(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    append(table, 0, 100)
    head = table.refresh().current_snapshot()
    assert head is not None
    field = table.schema().find_field("name")
    names = table.scan(selected_fields=("name",)).to_arrow()["name"]
    foreign.stamp(table, head, {field.field_id: foreign.sketch(names, str(field.field_type))})
    others = icepuffin.write_report(table, tmp_path / "t.html")
    assert others.head is not None
    assert (others.head.theta_sketches, others.head.missing, others.distinct) == (False, ("theta_sketches",), {})
    run = RunContext(table.refresh(), STORAGE, LocalRunner(1))
    counted = count_theta_sketches(
        run, SnapshotId(head.snapshot_id), requested=RequestedStatistics(ndv=("id",))
    ).publish()
    assert counted.merged_columns == ("name",)
    assert icepuffin.write_report(table, tmp_path / "t.html").distinct == {"id": {head.snapshot_id: 100}}


def test_the_bounds_of_an_estimate_hold_for_nearly_all_sketches() -> None:
    assert ndv_bounds(4_096, 0) == (4_096, 4_096)
    assert ndv_bounds(1_000_000, 1_010_000)[1] == 1_010_000, "there are no more values than rows"
    assert ndv_bounds(1_000_000, 900_000)[1] == 1_000_000, "a summary may be wrong"
    low, high = ndv_bounds(1_000_000, 0)
    assert (round(low, -3), round(high, -3)) == (969_000, 1_032_000), "two deviations of 1.6 %"


def test_names_are_no_markup(report: TableReport, page: Page) -> None:
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert HOSTILE in page.texts
    assert HOSTILE not in report_page(report)
    hostile = Page(report_page(replace(report, table=HOSTILE, location='"><img src=x>')))
    assert hostile.headings[0] == ("h1", HOSTILE)
    assert "img" not in [tag for tag, _ in hostile.elements]


def test_a_page_needs_no_other_file(report: TableReport, page: Page) -> None:
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "image", "use", "base"}
    assert not {name for _, attributes in page.elements for name in attributes} & {"src", "href", "style", "onclick"}
    assert not re.search(r"url\(|@import|https?:", report_page(report))


def test_who_does_not_see_the_charts_is_told_what_they_show(page: Page) -> None:
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(pictures) > 10
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert "Rows of 3 snapshots, 520 rows at last" in {picture["aria-label"] for picture in pictures}
    assert all(attributes.get("scope") == "col" for tag, attributes in page.elements if tag == "th")
    levels = [int(tag[1]) for tag, _ in page.headings]
    assert all(level <= before + 1 for before, level in pairwise(levels)), "no level is left out"
    assert all(lines > 1 for lines in page.lines.values())


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_texts_are_legible(colors: dict[str, str]) -> None:
    """Contrast of WCAG 2.2: 4.5 for texts, 3 for shapes."""

    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        dark, light = sorted((luminance(colors[one]), luminance(colors[other])))
        return (light + 0.05) / (dark + 0.05)

    texts = [(text, back) for text in ("text", "muted") for back in ("back", "card")]
    for text, back in (*texts, ("good", "good-back"), ("late", "late-back"), ("bad", "bad-back")):
        assert contrast(text, back) >= 4.5, (text, back)
    for shape in ("accent", "second", "third", "fourth", "faint"):
        assert contrast(shape, "card") >= 3, shape


def test_a_table_of_many_snapshots_is_a_page_of_the_newest(report: TableReport) -> None:
    entries = tuple(replace(report.snapshots[0], snapshot_id=SnapshotId(number)) for number in range(MAX_SNAPSHOTS))
    long = replace(report, snapshots=entries, snapshot_count=2 * MAX_SNAPSHOTS, distinct={})
    start = time.process_time()
    page = Page(report_page(long))
    assert time.process_time() - start < 10
    assert page.lines[f"Snapshots, the newest {MAX_SNAPSHOTS} of 1,000"] == 1 + MAX_SNAPSHOTS


def test_what_others_have_committed_since_the_table_was_loaded_is_on_the_page(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    append(table, 0, 60)
    append(table.catalog.load_table("db.t"), 60, 70)
    report = icepuffin.write_report(table, tmp_path / "t.html")
    assert report.snapshot_count == 2
    assert repr(report) == "TableReport('db.t', 2 snapshots, 0 indexes)", "a notebook shows it"


def test_deletes_that_cannot_be_read_are_a_fault_on_the_page(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    append(table, 0, 60)
    icepuffin.create_index(table, replace(DEFINITION, shards=1, filters=("section",)))
    icepuffin.refresh(table, threads=1)
    known = {*tmp_path.rglob("*.parquet")}
    delete_where_id_is(table, 7)
    for path in {*tmp_path.rglob("*.parquet")} - known:
        path.unlink()
    page = Page(report_page(icepuffin.write_report(table, tmp_path / "t.html")))
    assert "Something of an index cannot be read" in page.texts
    assert [text for text in page.texts if "is missing, although the snapshot's manifests name it" in text]
    assert not [text for text in page.texts if "--verify" in text], "no version mends that"
    assert "Recall by cost" in page.texts, "the rest is there"


def test_a_page_is_written_whole_or_not_at_all(
    report: TableReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.html"
    report_file.write_page(report, path)
    before = path.read_text(encoding="utf-8")
    with path.open(encoding="utf-8") as reader:
        report_file.write_page(replace(report, table="db.other"), path)
        assert reader.read() == before, "who reads it meanwhile reads the whole of it"
    monkeypatch.setattr(report_file, "report_page", lambda _: "half a page \ud800")
    with pytest.raises(UnicodeEncodeError):
        report_file.write_page(report, path)
    assert "db.other" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["t.html"]


def test_a_page_that_cannot_be_written_is_named(report: TableReport) -> None:
    with pytest.raises(icepuffin.errors.ArgumentError, match=r"^/proc/t\.html cannot be written: "):
        report_file.write_page(report, Path("/proc/t.html"))


def test_a_report_is_replaced_and_no_other_file(table: Table, tmp_path: Path) -> None:
    path, other = tmp_path / "t.html", tmp_path / "mine.html"
    icepuffin.write_report(table, path)
    icepuffin.write_report(table, str(path))
    other.write_text("<html>mine</html>", encoding="utf-8")
    with pytest.raises(icepuffin.errors.ArgumentError, match=r"mine\.html is there and is no report"):
        icepuffin.write_report(table, other)
    assert other.read_text(encoding="utf-8") == "<html>mine</html>"
    with pytest.raises(icepuffin.errors.ArgumentError, match="there is no folder"):
        icepuffin.write_report(table, tmp_path / "absent" / "t.html")
    with pytest.raises(icepuffin.errors.ArgumentError, match="is a folder: name a file in it"):
        icepuffin.write_report(table, tmp_path)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(icepuffin.errors.ArgumentError, match=r"pipe is there and is no report"):
        icepuffin.write_report(table, pipe)
