"""The page on a table, whole, in several states that are made here; charts and style sheet beside it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from icepuffin.assets.newest_snapshots import SnapshotEntry
from icepuffin.assets.report import report_page, svg_charts
from icepuffin.assets.report.index_description import IndexDescription
from icepuffin.assets.report.page_style import style_sheet
from icepuffin.assets.report.svg_charts import Axes, Bar, Point, bar_chart, line_chart
from icepuffin.assets.report.table_report import Shortfall, TableReport
from icepuffin.assets.report.value_counts import ValueCounts
from icepuffin.ops.binding.bound_versions import BoundPack, DerivedVersion
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.freshness import FreshnessLag
from icepuffin.ops.index.versions.tuning_record import TuningRecord
from icepuffin.ops.model import ShardId, SnapshotId
from icepuffin.ops.recall.curves import Width
from icepuffin.ops.recall.measured_points import MeasuredPoint
from icepuffin.ops.search.overview import Overview, PackState, ShardState
from icepuffin.ops.table.blob_kind import BlobKind
from tests.recorded import by_element, recorded

ODD = '<b>"it\'s" & \u2603</b>'
KEPT = BoundPack(SnapshotId(70), "s3://lake/70.puffin", 3_000_000, is_kept=True)
OWN = BoundPack(SnapshotId(71), "s3://lake/71.puffin", 5_000_000, is_kept=True)


def entry(number: int, operation: str, rows: int | None, **changes: object) -> SnapshotEntry:
    """The snapshot of a day in March."""
    known = SnapshotEntry(
        snapshot_id=SnapshotId(100 + number),
        committed=datetime(2026, 3, number, 7, 8, 9, 12_345, UTC),
        operation=operation,
        rows_added=10 * number,
        rows_removed=number,
        rows=rows,
        refs=(),
        theta_sketches=True,
        indexes=("e", "flat"),
        missing=(),
        given_up=(),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def version(
    number: int, measurement: str, sequence: int, *packs: BoundPack, size: int | None = 2_048
) -> DerivedVersion:
    return DerivedVersion(
        kind=BlobKind.INDEX,
        name="e",
        index_snapshot_id=SnapshotId(200 + number),
        base_snapshot_id=SnapshotId(100 + number),
        build_id="b",
        puffin_path=f"s3://lake/e{number}.puffin",
        sequence_number=sequence,
        timestamp_ms=1_000 * sequence,
        base_sequence_number=number,
        tags=(),
        measurement=measurement,
        packs=packs,
        file_size=size,
    )


SHARDS = (
    ShardState(ShardId(0), 12_000, 11_000, 1_000, 0.97, 5_000_000, routed=True, pack=1, changed=7),
    ShardState(ShardId(1), 6_000, 6_000, 0, 0.96, 2_500_000, routed=True),
    ShardState(ShardId(2), 900, 899, 1, 0.999, 9_999, routed=False, addresses_bytes=99),
)
SEEN = Overview(
    table="db.t",
    index="e",
    base_snapshot_id=SnapshotId(104),
    index_snapshot_id=SnapshotId(204),
    head_snapshot_id=SnapshotId(105),
    rows=100_000,
    rows_covered=99_999,
    shards=SHARDS,
    curve=(Width(16, 1, 0.8123, 321.5), Width(32, 3, 0.91, 700.0), Width(64, 3, 0.9765, 15_000.25)),
    routing=(),
    file_bytes=2_048,
    packs=(PackState("p", 3_000_000, 2), PackState("q", 1_500_000, 1)),
    wide_curve=(Width(200, 1, 0.93, 2_000.0, 100),),
    across=0.99,
    bytes_by_part={"vectors": 4_000_000, "graphs": 400_000, "codes": 0, "attributes": 40_000, "routing": 4_000},
)
DEFINITION = IndexDefinition(name="e", column=ODD, metric="l2", vectors="rq4", target_recall=0.95)
TUNING = TuningRecord(
    (MeasuredPoint(10, 50, 4, 0.25, 0.9456, 0.01, 1_234.5, 2.0),), 400, SnapshotId(203), SnapshotId(103),
    1_772_700_000_000, {},
)  # fmt: skip
E = IndexDescription(
    definition=DEFINITION,
    versions=(  # a backfill was made last
        version(2, "action=built runner=LocalRunner threads=2 seconds=12.5 recall=0.94", 20, KEPT),
        version(4, "action=refreshed runner=LocalRunner threads=2 seconds=200 recall=0.96", 40, KEPT, OWN),
        version(3, "", 50, KEPT, size=None),
        version(3, "action=refreshed runner=LocalRunner threads=2 seconds=9 recall=0.97", 49),
        version(1, "action=built runner=LocalRunner threads=2 seconds=0.04", 60),
    ),
    overview=SEEN,
    warnings=(),
    tuning=TUNING,
    lag=FreshnessLag(1, 10.0, 0.75, "105"),
)
FLAT = IndexDescription(
    definition=IndexDefinition(name="flat", column="v", method="centroid"),
    versions=(version(5, "action=built runner=SparkRunner threads=8 seconds=5000", 70),),
    overview=replace(
        SEEN, index="flat", shards=(), curve=(), wide_curve=(), packs=(), rows=0, rows_covered=0, bytes_by_part={}
    ),
    warnings=(),
    tuning=None,
    lag=FreshnessLag(0, 0.0, 1.0, "105"),
)
UNMADE = replace(
    FLAT,
    definition=IndexDefinition(name="new", column="v", target_recall=0.999),
    versions=(),
    overview=None,
    warnings=("its file is <gone>", "its record of tuning is no JSON"),
)
LOST = replace(E, definition=replace(DEFINITION, name="lost"), overview=None, tuning=None)
SNAPSHOTS = (
    entry(1, "append", 9_999, refs=("audited", ODD), indexes=("e",)),
    entry(2, "overwrite", 10_000, theta_sketches=False, missing=("theta_sketches", "flat"), indexes=("e",)),
    entry(3, "replace", 1_234_567, rows_added=None, rows_removed=None),
    entry(4, "delete", 0, theta_sketches=False, indexes=()),
    entry(5, "unknown", None, refs=("main",), indexes=("flat",), missing=("e",)),
)
BY_VALUE = ValueCounts("section", 5_100, 7, 9, tuple((f"s{number}", 90 - number) for number in range(9)), 0, None, 2)
BY_RANGE = ValueCounts(ODD, 1, 0, 1, (("0 to 4", 3), ("", 0), ("9 to 11", 1_000)), 1_012, ("0", "11"), 0)
WHOLE = TableReport(
    table="db.t",
    location="s3://lake/db/t",
    made=datetime(2026, 3, 5, 9, 38, 10, tzinfo=UTC),
    head=SNAPSHOTS[2],
    snapshots=SNAPSHOTS,
    snapshot_count=7,
    indexes=(E, FLAT),
    values={"e": (BY_VALUE, BY_RANGE), "flat": ()},
    distinct={
        "id": {SnapshotId(101): 4_000, SnapshotId(103): 1_000_000},
        ODD: {SnapshotId(101): 4_096},
        "unknown": {SnapshotId(105): 5},
        "all": {SnapshotId(101): 9_999},
        "most": {SnapshotId(101): 12_000},
    },
    rows_in_files={it.snapshot_id: it.rows or 0 for it in SNAPSHOTS},
    statistics=None,
    shortfalls=(
        Shortfall("1 snapshot behind", "Index e is 1 snapshot behind.", "icepuffin refresh db.t"),
        Shortfall("Nothing to follow", "There is no branch."),
        Shortfall("Sketches are missing", "It has none.", "icepuffin refresh db.t"),
    ),
)
BROKEN = replace(
    WHOLE,
    table=ODD,
    head=replace(SNAPSHOTS[0], rows=None),
    made=datetime(2026, 2, 1, tzinfo=UTC),
    snapshots=SNAPSHOTS[:1],
    snapshot_count=1,
    indexes=(UNMADE, LOST),
    values={},
    distinct={},
    shortfalls=(*WHOLE.shortfalls[:1], Shortfall("Something cannot be read", "It is <broken>.", is_fault=True)),
)
EMPTY = replace(WHOLE, head=None, snapshots=(), snapshot_count=0, indexes=(), values={}, distinct={}, shortfalls=())


def body(report: TableReport) -> str:
    """What differs between pages."""
    return report_page.report_page(report).partition("<body>")[2].partition("<script>")[0]


def test_the_page_of_a_table_without_anything() -> None:
    recorded("report_empty.txt", by_element(report_page.report_page(EMPTY).replace(style_sheet(), "")))


def test_the_page_of_a_table_with_all_that_a_page_can_have() -> None:
    recorded("report_whole.txt", by_element(body(WHOLE)))


def test_the_page_of_a_table_whose_index_cannot_be_read() -> None:
    recorded("report_broken.txt", by_element(body(BROKEN)))


def test_the_page_of_a_table_of_which_a_page_has_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "MAX_SHARDS", 2)
    monkeypatch.setattr(report_page, "MAX_COLUMNS", 1)
    monkeypatch.setattr(svg_charts, "BARS", 3)
    few = {name: WHOLE.distinct[name] for name in (ODD, "all")}
    state = replace(WHOLE, indexes=(replace(E, versions=(), tuning=None),), snapshots=SNAPSHOTS[:1], values={})
    page = body(replace(state, distinct=few)).partition('aria-label="Index e"')[2]
    recorded("report_cut.txt", by_element(page))


def test_the_style_sheet() -> None:
    recorded("report_style.txt", style_sheet().replace("}", "}\n"))


def test_charts_of_odd_points_and_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg_charts, "BARS", 8)
    close = [Point(x, 0.9, f"point {x}", f"L={x}") for x in (0, 0, 0, 21, 60, 77, 278)]
    charts = {
        "labels beside points that lie close": line_chart(close, Axes("a", "x", floor=0.8)),
        "labels of a recall by cost": line_chart(
            [Point(100 + place * 3**place, 1 - 0.1 / (1 + place), "", f"L={place}") for place in range(9)],
            Axes("r", "x", is_log=True),
        ),
        "no point": line_chart([], Axes("b", floor=0.5)),
        "one point": line_chart([Point(0, 7.0, "", "over the edge " * 3)], Axes("c", "one", ends=("same", "same"))),
        "below nothing": line_chart([Point(0, -3, ""), Point(5, -1.5, "", bounds=(-2, 4))], Axes("d")),
        "an interval": line_chart([Point(9, 90, "", bounds=(80, 120))], Axes("e", "at 9", is_from_zero=True)),
        "a logarithm of nothing": line_chart([Point(0, 0.5, ""), Point(1, 0.75, "")], Axes("l", is_log=True)),
        "no bar": bar_chart([], Axes("f")),
        "bars of parts": bar_chart(
            [Bar("", (("a", 0), ("b", 2.5))), Bar("two", (("a", 1), ("b", 9), ("c", 0)))], Axes("g", "bars")
        ),
        "means": bar_chart(
            [Bar(str(number) * (number < 16), (("ab"[number % 2], 6.0),)) for number in range(17)], Axes("h", "many")
        ),
    }
    texts = (f"{name}\n{by_element(chart)}" for name, chart in charts.items())
    recorded("report_charts.txt", "\n\n".join(texts))
