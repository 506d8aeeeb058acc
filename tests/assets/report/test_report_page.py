"""The page on a table says what the API says, escapes what others have named, and is written whole or not at all."""

import os
import re
import shlex
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from pyiceberg.table import Table

import icepuffin
from icepuffin.assets.report import report_file
from icepuffin.assets.report.page_style import DARK, LIGHT
from icepuffin.assets.report.report_page import report_page
from icepuffin.assets.report.table_report import MAX_SNAPSHOTS, Shortfall, TableReport, ndv_bounds
from icepuffin.ops.binding.bound_versions import BoundPack, index_versions
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.messages import readable_bytes
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.search.overview import overview
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION
from tests.ops.theta import foreign

HOSTILE = "<script>alert('&')</script>"


@dataclass
class ShownTable:
    """A table of a page."""

    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)
    exact: list[dict[str, str]] = field(default_factory=list)
    """Titles of the cells"""


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, ShownTable] = {}
        self.cells: list[tuple[str | None, str]] = []
        """Class and text of each"""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self._cells: list[list[str]] = []
        self._style: str | None = None
        self.feed(text)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag in {"th", "td"}:
            self._cells.append(["", dict(attrs).get("title") or ""])
            self._style = dict(attrs).get("class")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag != "tr":
            return
        texts, titles = zip(*self._cells, strict=True)
        table, self._cells = [*self.tables.values()][-1], []
        if table.columns:
            table.rows.append(dict(zip(table.columns, texts, strict=True)))
            table.exact.append(dict(zip(table.columns, titles, strict=True)))
        else:
            table.columns = [*texts]

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if tag not in {"script", "style"}:
            self.texts.append(data)
        if tag == "caption":
            assert data not in self.tables, "tables have names of their own"
            self.tables[data] = ShownTable()
        elif tag in {"th", "td"}:
            self._cells[-1][0] += data
            self.cells.append((self._style, data))
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append((tag, data))

    @property
    def state(self) -> str:
        """What the first screen says of the table."""
        return self.texts[self.texts.index(self.headings[0][1], 1) + 1]


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
    for first, last in ((0, 5_000), (5_000, 5_100), (5_100, 5_200)):
        append(new, first, last)
        if last < 5_200:
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


def test_the_time_line_has_what_the_metadata_has(table: Table, page: Page) -> None:
    lines, exact = page.tables["Snapshots"].rows, page.tables["Snapshots"].exact
    snapshots = data_snapshots(table)
    assert [line["snapshot"] for line in lines] == [str(it.snapshot_id) for it in reversed(snapshots)]
    assert [line["operation"] for line in lines] == ["append"] * 3
    assert [line["rows"] for line in exact] == ["5,200", "5,100", "5,000"]
    assert [line["made"] for line in lines] == ["", "theta_sketches, e", "theta_sketches, e"]
    assert [line["missing"] for line in lines] == ["theta_sketches, e", "", ""]
    assert [line["refs"] for line in lines] == ["main", "", HOSTILE]
    lists = [text for style, text in page.cells if style == "list"]
    assert lists == ["theta_sketches, e", "main", "theta_sketches, e", "theta_sketches, e", HOSTILE], "they may wrap"
    for line, cells, version in zip(lines[:0:-1], exact[:0:-1], index_versions(table, "e"), strict=True):
        measured = Measurement.parse(version.measurement)
        assert measured is not None
        assert (cells["e: recall"], cells["e: time"]) == (str(measured.recall), f"{measured.seconds:,} s")
        assert line["e: bytes"] == readable_bytes(version.file_size or 0)
    assert lines[0]["e: recall"] == "-"


def test_an_index_is_shown_as_its_overview_has_it(table: Table, page: Page) -> None:
    seen = overview(table, DEFINITION, STORAGE)
    assert seen is not None
    shards = page.tables["Shards of e"]
    assert [
        (int(cells["live"].replace(",", "")), row["recall@10"])
        for row, cells in zip(shards.rows, shards.exact, strict=True)
    ] == [(shard.live, f"{shard.recall:.4f}") for shard in seen.shards]
    points = page.tables["Recall by cost of e"]
    assert [(row["L"], row["k"], row["recall@k"]) for row in points.rows] == [
        (str(point.search_list), str(point.k), f"{point.recall:.4f}") for point in (*seen.curve, *seen.wide_curve)
    ]
    sizes = {part: readable_bytes(size) for part, size in seen.bytes_by_part.items() if size}
    assert len(sizes) >= 4
    for part, size in sizes.items():
        assert page.texts[page.texts.index(part) + 1] == size
    assert f"{seen.coverage:.1%} of 5,200 rows in files of the head, deleted ones included" in page.texts


def test_versions_that_were_built_anew_have_larger_dots(report: TableReport) -> None:
    dots = re.findall(
        r'<circle[^>]* r="(\d)"[^>]*><title>snapshot [^<]*, (built|refreshed)</title>', report_page(report)
    )
    assert dots == [("5", "built"), ("3", "refreshed")]


def test_the_first_screen_is_of_the_head_and_of_the_version_at_the_tag(report: TableReport) -> None:
    """Whatever was made last, as by a backfill, and however many snapshots of other branches are newer."""
    (index,), head = report.indexes, report.snapshots[0]
    assert index.overview is not None
    assert index.overview.recall is not None
    older = replace(index.versions[0], measurement="action=built runner=r threads=1 seconds=1 recall=0.5")
    assert Measurement.parse(older.measurement), "its recall is that of the column, and not of the tile"
    backfilled = replace(index, versions=(index.versions[1], older))
    ahead = replace(head, committed=report.made + timedelta(hours=2))
    page = report_page(replace(report, indexes=(backfilled,), head=ahead, snapshots=report.snapshots[1:]))
    texts = Page(page).texts
    assert texts[texts.index("recall@10, e") + 1] == f"{index.overview.recall:.4f}"
    assert texts[texts.index("rows") + 1] == "5,000"
    assert "newest 0 s ago" in texts


def test_an_unknown_number_of_rows_is_no_zero(report: TableReport) -> None:
    first, *others = report.snapshots
    texts = Page(report_page(replace(report, snapshots=(replace(first, rows=None), *others)))).texts
    assert [text for text in texts if text.endswith("append: number of rows unknown")]


def test_distinct_values_are_those_of_the_statistics_with_their_bounds(table: Table, page: Page) -> None:
    newest = data_snapshots(table)[1].snapshot_id
    shown = page.tables["Distinct values by column"]
    assert page.texts[page.texts.index("section", page.texts.index("Distinct values")) + 2] == " (exact)"
    for row, cells in zip(shown.rows, shown.exact, strict=True):
        ndv = icepuffin.read_ndv(table, newest).entries[row["column"]].ndv
        low, high = ndv_bounds(ndv)
        assert [cells[name] for name in ("distinct values", "at least", "at most")] == [
            f"{it:,}" for it in (ndv, low, high)
        ]
        assert row["counted for snapshot"] == str(newest)
    assert {row["column"]: row["at most"] == row["at least"] for row in shown.rows} == {
        "id": False, "name": False, "section": True, HOSTILE: False
    }  # fmt: skip


def test_filter_columns_have_the_rows_of_their_values(page: Page) -> None:
    shown = page.texts[page.texts.index("Values of section") + 1 :]
    assert shown[0] == "5 values in 5,100 live rows; 1 data file left out, whose values the version lacks"
    for number in range(5):
        assert f"section {number}: 1,020 rows" in shown
        assert shown[shown.index(f"section {number}") + 1] == "1,020"


def test_a_row_that_is_missing_is_missing_in_the_shares(report: TableReport) -> None:
    (index,) = report.indexes
    assert index.overview is not None
    seen = replace(index.overview, rows=100_000, rows_covered=99_999)
    texts = Page(report_page(replace(report, indexes=(replace(index, overview=seen),)))).texts
    assert ">99.9% of 100,000 rows in files of the head, deleted ones included" in texts
    assert [texts[texts.index(name) + 2] for name in ("in the version", "scanned by searches")] == [", >99%", ", <1%"]


def test_rows_that_no_bar_shows_are_counted_beside_them(report: TableReport) -> None:
    (shown,) = report.values["e"]
    other = replace(
        shown, rows=90, distinct=1, nulls=7, not_finite=1_003, counts=(("", 0), ("4 to 5", 3)), unread_files=0
    )
    texts = Page(report_page(replace(report, values={"e": (other,)}))).texts
    assert "1 value in 90 live rows, 7 of them without a value; 1,003 of NaN or infinity are not drawn" in texts
    assert "no value: 0 rows" in texts


def test_an_estimate_is_about_a_share_of_the_rows_and_never_more_than_all(report: TableReport) -> None:
    counted = report.snapshots[1].snapshot_id
    distinct = {"above": {counted: 5_136}, "below": {counted: 4_500}, "exact": {counted: 510}}
    entries = tuple(replace(entry, rows=5_100) for entry in report.snapshots)
    shown = Page(report_page(replace(report, snapshots=entries, distinct=distinct))).tables["Distinct values by column"]
    assert [row["of the rows"] for row in shown.rows] == ["about 100%", "about 88%", "10.0%"]
    assert shown.exact[0]["of the rows"] == "5,136 of 5,100 rows"


def test_a_file_that_versions_share_counts_once(report: TableReport) -> None:
    (index,) = report.indexes
    pack = BoundPack(SnapshotId(7), "file:///lake/pack.puffin", 1_000, is_kept=True)
    sharing = replace(index, versions=tuple(replace(version, packs=(pack,)) for version in index.versions))
    assert len(sharing.versions) == 2
    shown = replace(report, indexes=(sharing,))
    assert shown.index_bytes == report.index_bytes + 1_000
    cells = Page(report_page(shown)).tables["Snapshots"].exact[:0:-1]
    sizes = [(version.file_size or 0) + 1_000 for version in sharing.versions]
    assert [cell["e: bytes"] for cell in cells] == [f"{size:,} bytes" for size in sizes], "of each all that it needs"


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
    counted = count_theta_sketches(run, SnapshotId(head.snapshot_id), columns=["id"]).publish()
    assert counted.merged_columns == ("name",)
    assert icepuffin.write_report(table, tmp_path / "t.html").distinct == {"id": {head.snapshot_id: 100}}


def test_the_bounds_of_an_estimate_hold_for_nearly_all_sketches() -> None:
    assert ndv_bounds(4_096) == (4_096, 4_096)
    low, high = ndv_bounds(1_000_000)
    assert (round(low, -3), round(high, -3)) == (969_000, 1_032_000), "two deviations of 1.6 %"


def test_what_is_behind_stands_first_with_the_command_that_mends_it(report: TableReport, page: Page) -> None:
    assert page.state == "1 snapshot behind"
    assert [name for _, name in page.headings[:3]] == ["db.t", "What is behind", "Time line"]
    assert "Index e is 1 snapshot behind, the oldest of " in " ".join(page.texts)
    assert "; 100 rows in files that searches scan." in " ".join(page.texts)
    assert page.texts.count("icepuffin refresh db.t") == 1, "one command for all"
    assert {shortfall.command for shortfall in report.shortfalls} == {"icepuffin refresh db.t"}
    fault = Shortfall("Broken", "It is damaged.", is_fault=True)
    broken = Page(report_page(replace(report, shortfalls=(*report.shortfalls, fault))))
    assert broken.state == "Broken", "what waiting does not mend comes first"
    states = [
        attributes["class"]
        for shown in (page, broken)
        for _, attributes in shown.elements
        if (attributes.get("class") or "").startswith("state ")
    ]
    assert states == ["state late", "state bad"]
    current = Page(report_page(replace(report, shortfalls=())))
    assert current.state == "Up to date"
    assert "What is behind" not in [name for _, name in current.headings]


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
    assert "Rows of 3 snapshots, 5,200 rows at last" in {picture["aria-label"] for picture in pictures}
    assert all(attributes.get("scope") == "col" for tag, attributes in page.elements if tag == "th")
    levels = [int(tag[1]) for tag, _ in page.headings]
    assert all(level <= before + 1 for before, level in pairwise(levels)), "no level is left out"
    assert all(table.columns and table.rows for table in page.tables.values())


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
    assert len(page.tables[f"Snapshots, the newest {MAX_SNAPSHOTS} of 1,000"].rows) == MAX_SNAPSHOTS


def test_a_table_without_snapshots_or_an_index_says_so(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    empty = Page(report_page(icepuffin.write_report(table, tmp_path / "t.html")))
    assert empty.state == "No snapshot yet"
    assert empty.tables == {}
    append(table, 0, 60)
    written = Page(report_page(icepuffin.write_report(table, tmp_path / "t.html")))
    assert written.state == "No index"
    assert "icepuffin index create db.t --name NAME --column COLUMN" in written.texts
    assert [*written.tables] == ["Snapshots"]
    icepuffin.create_index(table, DEFINITION)
    defined = Page(report_page(icepuffin.write_report(table, tmp_path / "t.html")))
    assert defined.state == "1 snapshot behind"
    assert "Index e has no version yet." in defined.texts
    behind = icepuffin.write_report(table, tmp_path / "audit.html", ref="audit").shortfalls
    assert "the table has no branch or tag 'audit'" in behind[0].text


def test_a_command_names_the_table_as_a_shell_takes_it(tmp_path: Path) -> None:
    name = "db.it's $(a) table"
    rows = make_rows(0, 60)
    table = table_in(tmp_path).catalog.create_table(name, rows.schema)
    table.append(rows)
    created, refreshed = (
        shlex.split(it.command) for it in icepuffin.write_report(table, tmp_path / "t.html").shortfalls
    )
    assert created == ["icepuffin", "index", "create", name, "--name", "NAME", "--column", "COLUMN"]
    assert refreshed == ["icepuffin", "refresh", name]


def test_what_others_have_committed_since_the_table_was_loaded_is_on_the_page(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    append(table, 0, 60)
    append(table.catalog.load_table("db.t"), 60, 70)
    report = icepuffin.write_report(table, tmp_path / "t.html")
    assert report.snapshot_count == 2
    assert repr(report) == "TableReport('db.t', 2 snapshots, 0 indexes)", "a notebook shows it"


def test_a_version_that_cannot_be_read_is_a_fault_on_the_page(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    append(table, 0, 60)
    icepuffin.create_index(table, replace(DEFINITION, shards=1))
    icepuffin.refresh(table, threads=1)
    (version,) = index_versions(table.refresh(), "e")
    path = Path(version.puffin_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-40])
    page = Page(report_page(icepuffin.write_report(table, tmp_path / "t.html")))
    assert page.state == "Something of an index cannot be read"
    assert f"icepuffin refresh db.t --snapshot {version.base_snapshot_id} --verify" in page.texts
    assert [text for text in page.texts if path.name in text]
    assert page.tables["Snapshots"].rows[0]["made"] == "theta_sketches, e", "the rest is there"


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
    assert page.state == "Something of an index cannot be read"
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
