"""What a person sees of a value: numbers rounded, nothing that a browser would run, one line where one is due."""

import pyarrow as pa
import pytest

from icepuffin.ops.index.planning.index_report import Estimate, GcReport, IndexReport, ShardEstimate
from icepuffin.ops.model import Action, How, ShardId, SnapshotId
from icepuffin.ops.presentation import SHOWN_ROWS, Grid, Presentation, plain_rows, printable
from icepuffin.ops.runs.refresh_plan import RefreshPlan
from icepuffin.ops.runs.snapshot import RefreshReport
from icepuffin.ops.theta.theta_report import ColumnNdv, ThetaEstimate, ThetaOutcome, ThetaReport, ThetaStatistics

SNAPSHOT = SnapshotId(6170229538723520381)
REASON = "the table's <first> snapshot & index"
ESTIMATE = Estimate(
    action=Action.BUILT,
    reason=REASON,
    inserted=6000,
    remapped=0,
    tombstoned=0,
    merged=0,
    shards_rebuilt=1,
    shards_copied=0,
    bytes_read=3 << 20,
    bytes_written=2 << 20,
    seconds=1.5,
    rates="by default rates",
    shards=(ShardEstimate(ShardId(0), How.BUILT, "it is new", 0, 6000, 0, 0, 3 << 20, 2 << 20, 0),),
)
REPORT = IndexReport(
    table="demo.packages",
    index="embedding",
    snapshot_id=SNAPSHOT,
    index_snapshot_id=SnapshotId(1),
    action=Action.BUILT,
    reason=REASON,
    build_id="b" * 64,
    puffin_path="file:///lake/" + 100 * "x",
    files=2,
    rows=6000,
    shards=1,
    recall=0.98765,
    bytes_total=2 << 20,
    bytes_written=2 << 20,
    seconds=3.21,
    stage_seconds={"build": 3.0},
    estimate=ESTIMATE,
)
SKETCHES = ThetaReport("demo.packages", SNAPSHOT, "s", {"id": 6000}, True, 2, 0, 1 << 20, 0.5, ThetaOutcome.WRITTEN)
PRESENTED: tuple[Presentation, ...] = (
    RefreshReport("demo.packages", SNAPSHOT, SKETCHES, {"embedding": REPORT}),
    REPORT,
    SKETCHES,
    RefreshPlan("demo.packages", SNAPSHOT, ThetaEstimate(ThetaOutcome.WRITTEN, 3, 2), {"embedding": ESTIMATE}),
    ThetaStatistics("demo.packages", SNAPSHOT, {"id": ColumnNdv("id", 1, 6000, False, REASON, True)}, None),
    GcReport("demo.packages", True, tuple(f"file{number}" for number in range(99)), 5 << 20, 1),
)


@pytest.mark.parametrize("value", PRESENTED, ids=lambda value: type(value).__name__)
def test_a_report_is_a_short_line_in_a_shell_and_tables_of_the_same_figures_in_a_notebook(value: Presentation) -> None:
    line, page = repr(value), value._repr_html_()
    assert line.startswith(f"{type(value).__name__}(")
    assert len(line) < 200
    assert "\n" not in line
    assert "demo.packages" in page
    assert 0 < page.count("<tr>") < 60
    assert page.count("<table") == page.count("</table>")
    assert "<first>" not in page


def test_what_a_report_says_in_a_notebook_is_what_the_shell_prints() -> None:
    page = RefreshReport("demo.packages", SNAPSHOT, SKETCHES, {"embedding": REPORT})._repr_html_()
    fields = REPORT.fields()
    assert fields["time"] == "3.2 s (build 3.0 s); 1.5 s expected (by default rates)"
    assert fields["shards"] == "1 in all"
    assert all(text in page for name, text in fields.items() if name != "action")


def test_distances_have_four_decimals_and_other_floats_six_digits() -> None:
    rows = pa.table(
        {
            "distance": [4.26e-16, -1e-17, 0.36821098832068644],
            "weight": pa.array([0.1, -1_234_567.25, None], pa.float32()),
            "score": [0.30000001192092896, 4.2612345678e-16, 1764436588.123],
            "embedding": pa.array([[0.1], [0.2], [0.3]], pa.list_(pa.float32())),
            "id": [1, 2, 3],
        }
    )
    grid = Grid.of_rows("", rows)
    assert grid.rows[0] == ("0.0000", 0.1, 0.3, [0.1], 1)
    assert [row[0] for row in grid.rows] == ["0.0000", "0.0000", "0.3682"]
    assert [row[1] for row in grid.rows] == [0.1, -1_234_567.25, None]
    assert [row[2] for row in grid.rows] == [0.3, 4.26123e-16, 1764436588.123]
    assert grid.is_numeric(2)
    assert Grid.of_rows("", rows, 1).more == 2
    assert "and 2 more" in Grid.of_rows("", rows, 1).html()
    page = Grid("", [(number,) for number in range(SHOWN_ROWS + 3)], more=4).html()
    assert "and 7 more" in page
    assert page.count("<tr>") == SHOWN_ROWS
    assert "<tr>" not in Grid("", []).html()


def test_a_time_that_python_lacks_is_a_text() -> None:
    rows = pa.table({"at": pa.array([0, 2**60]).cast(pa.timestamp("us")), "id": [1, 2]})
    shown = "<value out of range: 1152921504606846976>"
    assert [row[0] for row in Grid.of_rows("", rows).rows] == ["1970-01-01 00:00:00.000000", shown]
    assert plain_rows(rows)[1] == {"at": shown, "id": 2}
    assert plain_rows(rows.slice(0, 1)) == rows.slice(0, 1).to_pylist()


def test_a_cell_is_cut_escaped_and_has_no_control_characters() -> None:
    grid = Grid("<b>", [(["0" * 500], "\x1b[31m<script>")], ("a", "<th>"))
    page = grid.html()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "<th>" not in page.replace("<th style", "")
    assert "…" in page
    assert printable("a\nb", 10) == "a b"
    assert printable("abcdef", 3) == "ab…"
    assert printable(b"\x00\xff", 10) == "00ff"
    assert [printable(value, 10) for value in (None, "", "None")] == ["NULL", "", "None"]


def test_numbers_stand_at_the_right_of_their_column() -> None:
    grid = Grid("", [("a", "1,234.5", "12 %"), ("b", 7, "-")], ("name", "rows", "share"))
    assert [grid.is_numeric(place) for place in range(3)] == [False, True, False]
    assert not Grid("", [], ("name",)).is_numeric(0)
    assert "text-align:right" in grid.html()


def test_a_notebook_table_has_the_colors_of_its_page() -> None:
    """Light or dark: none is set but that of thin lines, which is half transparent."""
    page = Grid("title", [("a", 1)], ("name", "rows")).html()
    assert "background" not in page
    assert "color:" not in page.replace("color:inherit", "")
    assert page.count("#") == page.count("border-bottom:1px solid #8886") == 4
    assert "<style" not in page
