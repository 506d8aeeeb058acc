"""What commands say of a report, an estimate or an event, part by part. No table is read."""

import io
import math
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from rich.console import Console

from icepuffin.assets.newest_snapshots import SnapshotEntry
from icepuffin.assets.table_settings import TableSettings
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.planning.index_report import Estimate, GcReport, IndexReport, ShardEstimate, VersionRecall
from icepuffin.ops.index.upkeep.freshness import FreshnessLag
from icepuffin.ops.index.upkeep.retention_plan import ExpiredVersion
from icepuffin.ops.index.versions.tuning_record import TuningRecord
from icepuffin.ops.model import MIB, Action, How, ShardId, SnapshotId
from icepuffin.ops.presentation import Grid
from icepuffin.ops.recall.curves import Width
from icepuffin.ops.recall.measured_points import MeasuredPoint
from icepuffin.ops.recall.recall_reports import ReportedRecall
from icepuffin.ops.runs.refresh_plan import RefreshPlan
from icepuffin.ops.search.measured import tuning_run
from icepuffin.ops.search.overview import IncludedState, Overview, PackState, ShardState
from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaOutcome, ThetaReport
from icepuffin.orchestration.cli import index, output, snapshots, stats, tune
from icepuffin.orchestration.cli.session import Session

ESTIMATE = Estimate(
    action=Action.REFRESHED,
    reason="two files came",
    inserted=1_500,
    remapped=20,
    tombstoned=3,
    merged=40,
    shards_rebuilt=1,
    shards_copied=2,
    bytes_read=3 * MIB,
    bytes_written=MIB // 2,
    seconds=1_000.0,
    rates="default rates, 2 threads",
    shards=(ShardEstimate(ShardId(4), How.REBUILT, "it is full", 1_000, 500, 21, 8, 2 * MIB, MIB, 7 * MIB),),
)
REPORT = IndexReport(
    table="db.t",
    index="e",
    snapshot_id=SnapshotId(1),
    index_snapshot_id=SnapshotId(9),
    action=Action.REFRESHED,
    reason="two files came",
    build_id="b",
    puffin_path="s3://lake/e.puffin",
    files=3,
    rows=1_200,
    without_vector=4,
    inserted=50,
    remapped=60,
    tombstones=7,
    gone=8,
    shards=5,
    deltas=2,
    merged=30,
    shards_rebuilt=1,
    shards_copied=3,
    recall=0.96,
    recall_basis=VersionRecall(queries=400, wide=0.93, wide_queries=10, rows_here=3, rows_unchanged=1),
    bytes_total=3 * MIB,
    bytes_written=MIB,
    bytes_shared=2 * MIB,
    seconds=1_234.5,
    stage_seconds={"read": 0.05, "plan": 0.04},
    estimate=ESTIMATE,
)


def printed(show: Any, *arguments: Any) -> list[str]:
    """The lines that a function prints, in a wide terminal."""
    console = Console(file=io.StringIO(), width=160)
    show(console, *arguments)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def words(lines: list[str]) -> str:
    """The words of some lines, which a title is folded to."""
    return " ".join(" ".join(lines).split())


def test_a_refresh_says_all_that_its_report_counts() -> None:
    assert REPORT.fields() == {
        "action": "refreshed: two files came",
        "rows": "1,200 in 3 files, 50 inserted, 60 moved, 8 gone, 30 merged from deltas, 4 without a vector",
        "tombstones": "7, 0.6% of the nodes",
        "shards": "5 in all, 2 for later rows, 1 rebuilt, 3 kept",
        "recall@10": "0.9600 (0.936 to 0.975); recall@100 0.9300; 75% of the rows measured here, 25% of the rows in "
        "shards unchanged since they were measured",
        "bytes": "3.0 MiB, 1.0 MiB newly written, 2.0 MiB shared with other versions",
        "time": "20.6 min (read 0.05 s); 16.7 min expected (default rates, 2 threads)",
        "version": "9",
        "file": "s3://lake/e.puffin",
    }


def test_a_refresh_is_silent_on_what_there_is_none_of() -> None:
    none = {"without_vector": 0, "merged": 0, "recall": None, "recall_basis": None, "bytes_shared": 0, "estimate": None}
    shards = {"deltas": 0, "shards_rebuilt": 0, "shards_copied": 0, "tombstones": 0, "inserted": 0}
    fields = replace(REPORT, **none, **shards, stage_seconds={}).fields()  # type: ignore[arg-type]
    assert fields["rows"] == "1,200 in 3 files, 60 moved, 8 gone"
    assert fields["shards"] == "5 in all"
    assert fields["bytes"] == "3.0 MiB, 1.0 MiB newly written"
    assert fields["time"] == "20.6 min"
    assert fields.keys().isdisjoint({"recall@10", "tombstones"})
    without_graphs = replace(REPORT, shards=0, deltas=0, shards_rebuilt=0, shards_copied=0).fields()["shards"]
    assert without_graphs == "none: answers are exact, by balls around the vectors of each file"
    assert replace(REPORT, index_snapshot_id=None).fields() == {"action": "nothing to publish: two files came"}


def test_a_refresh_says_what_sketches_took() -> None:
    report = ThetaReport(
        table="db.t",
        snapshot_id=SnapshotId(1),
        statistics_path="s3://lake/s.puffin",
        ndv={"id": 1_200, "name": 7},
        fresh=True,
        files_sketched=1,
        files_reused=2_000,
        bytes_written=3 * MIB,
        seconds=2.0,
        outcome=ThetaOutcome.WRITTEN,
        estimate=ThetaEstimate(ThetaOutcome.WRITTEN, seconds=3.0, rates="default rate, 2 threads"),
        note="a file was gone",
    )
    fields = {
        "action": "written: 1 file read, 2,000 known from before",
        "distinct": "id 1,200, name 7",
        "bytes": "3.0 MiB written",
        "time": "2.0 s; 3.0 s expected (default rate, 2 threads)",
        "file": "s3://lake/s.puffin",
        "note": "a file was gone",
    }
    assert report.fields() == fields
    bare = replace(report, statistics_path=None, ndv={}, estimate=None, note="")
    assert bare.fields() == {
        "action": fields["action"], "bytes": "3.0 MiB written", "time": "2.0 s",
    }  # fmt: skip
    for files_sketched, files_reused, text in ((3, 0, "3 files read"), (0, 9, "9 known from before")):
        some = replace(report, files_sketched=files_sketched, files_reused=files_reused)
        assert some.fields()["action"] == f"written: {text}", "no zero"
    assert replace(report, files_sketched=0, files_reused=0).fields()["action"] == "written: no file to read"


def test_a_plan_says_what_is_read_and_written() -> None:
    plan = RefreshPlan("db.t", SnapshotId(1), None, {"e": ESTIMATE})
    fields, _ = plan.grids()
    assert dict(fields.rows) == {
        "action": "refresh: two files came",
        "rows": "1,500 to insert, 20 moved, 3 gone, 40 to merge from deltas",
        "shards": "1: 1 to rebuild, 2 kept",
        "bytes": "3.0 MiB to read, 512.0 KiB to write",
        "time": "16.7 min (default rates, 2 threads)",
    }
    built = replace(ESTIMATE, action=Action.BUILT, merged=0).fields()
    assert (built["action"], built["shards"]) == ("build: two files came", "1: all to build")
    assert built["rows"].endswith("3 gone")
    assert replace(ESTIMATE, shards=(), bytes_written=0).fields() == {"action": "refresh: two files came"}


def test_a_plan_has_a_line_for_each_shard() -> None:
    _, shards = ESTIMATE.grids()
    heading, *_, line = filter(str.strip, printed(output.print_grid, shards))
    assert heading.split() == ["shard", "nodes", "insert", "remap", "gone", "MiB", "read", "written", "what"]
    assert line.split() == ["4", "1,000", "500", "21", "8", "2.0", "1.0", "rebuilt:", "it", "is", "full"]
    assert len([*replace(ESTIMATE, shards=()).grids()]) == 1


def test_a_plan_says_why_no_sketches_are_made() -> None:
    reasons = {
        ThetaOutcome.CURRENT: "these sketches are registered",
        ThetaOutcome.NO_COLUMNS: "no column is to have a sketch",
        ThetaOutcome.OFF: "sketches are switched off",
    }
    for outcome, reason in reasons.items():
        assert ThetaEstimate(outcome).fields() == {"action": f"nothing to do: {reason}"}
    work = ThetaEstimate(ThetaOutcome.WRITTEN, columns=1, files_sketched=2, files_reused=5, values=3_000)
    fields = work.fields()
    assert (fields["files"], fields["values"]) == ("2 to sketch, 5 known", "3,000 to read, of 1 column")


def test_an_index_that_is_behind_says_by_how_much_and_why() -> None:
    lag = FreshnessLag(1, 61.5, 0.5, "9")
    assert lag.in_words == "1 snapshot behind, the oldest of 61.5 min ago"
    assert replace(lag, why="its layout was given up").in_words.endswith("min ago; its layout was given up")
    assert replace(lag, snapshots=0).in_words == "up to date"


def test_a_garbage_collection_names_what_it_does_or_would_do() -> None:
    retired = ExpiredVersion("e", SnapshotId(1), SnapshotId(2), "s3://lake/e", "there are 2 newer ones")
    report = GcReport("db.t", False, ("s3://lake/a",), 3 * MIB // 2, 4, 5, (retired,), ("ann_e-1",), ("busy",))
    assert list(report.lines()) == [
        "expired e's version of snapshot 1: there are 2 newer ones",
        "tag ann_e-1: its snapshot is tagged",
        "deleted s3://lake/a",
        "db.t: expired versions: 1, deleted files: 1, 1.5 MiB",
        "left for the next time: busy",
        "to go after the grace period: versions: 5, files: 4",
    ]
    would = list(replace(report, dry_run=True).lines())
    assert [line.partition(" ")[0] for line in would] == ["would", "would", "would", "db.t:", "left", "to"]
    assert would[1] == "would tag ann_e-1: its snapshot is tagged"
    for later, young in ((0, 1), (1, 0)):
        last = [*replace(report, retired_later=later, kept_young=young).lines()][-1]
        assert last == f"to go after the grace period: versions: {later}, files: {young}"
    assert "grace" not in [*replace(report, retired_later=0, kept_young=0).lines()][-1]
    many = replace(report, retired=(retired,) * 21, pinned=("t",) * 21, deleted=("f",) * 21, refused=("b",) * 21)
    assert [*many.lines(brief=True)].count("and 1 more") == 4
    assert "and 1 more" not in [*many.lines()]


def test_who_drops_an_index_reads_what_searches_will_be_answered_by() -> None:
    """Another index answers only where it is of the same column and of the same metric."""
    dropped = IndexDefinition(name="a", column="v", metric="l2")
    others = [replace(dropped, name="b", metric="cosine"), replace(dropped, name="c", column="w")]
    context: Any = SimpleNamespace(index=lambda _: dropped, indexes=[dropped, *others])
    assert index._after_drop(context, "a") == "Searches of column v by l2 will be exact scans"
    context.indexes += [replace(dropped, name="d"), replace(dropped, name="e")]
    assert index._after_drop(context, "a") == "Searches of column v by l2 will be answered by index d or e"

    def wrong(_: str) -> None:
        raise DefinitionError("no such metric")

    context.index = wrong
    assert index._after_drop(context, "a") == "Its properties are wrong, and go, too"


OPTIONS: dict[str, Any] = {
    "index": None, "queries": None, "column": None, "snapshot": None, "target": (), "dry_run": False, "forget": True,
    "spark": False,
}  # fmt: skip


def test_a_tuning_is_forgotten_without_what_measures_one() -> None:
    tune.TuningArguments(**OPTIONS).check()
    for wrong in ({"queries": Path("q")}, {"forget": False}):
        with pytest.raises(click.UsageError, match=r"give --queries, or --forget"):
            tune.TuningArguments(**{**OPTIONS, **wrong}).check()
    for name, value in (("column", "c"), ("snapshot", "1"), ("target", (0.9,)), ("dry_run", True), ("spark", True)):
        with pytest.raises(click.UsageError, match=f"--{name.replace('_', '-')} goes with --queries"):
            tune.TuningArguments(**{**OPTIONS, name: value}).check()
        tune.TuningArguments(**{**OPTIONS, "forget": False, "queries": Path("q"), name: value}).check()


def test_a_measured_point_of_every_shard_has_no_slack_in_json() -> None:
    point = MeasuredPoint(10, 40, 2, math.inf, 0.9, 0.02, 3_000.4, 1.5)
    document = tune._point(point)
    assert (document["probe_slack"], document["search_list"]) == (None, 40)
    assert document["interval"] == [pytest.approx(0.88), pytest.approx(0.92)]
    assert tune._point(replace(point, probe_slack=0.25))["probe_slack"] == 0.25
    assert tuning_run._cells(point) == (40, "1.5", "3,000", "0.9000")


def test_a_tuning_is_told_with_what_was_measured_and_what_is_to_be_known() -> None:
    before = MeasuredPoint(10, 40, 2, math.inf, 0.9, 0.02, 3_000.0, 1.5)
    record = TuningRecord((before,), 1_000, SnapshotId(9), SnapshotId(1), 0, {})
    target = tuning_run.TunedTarget(10, 0.95, before, replace(before, search_list=80, recall=0.99))
    report = tuning_run.TuningReport("db.t", "e", record, (before,), (target,), 2_500, False, ("few queries",))
    document = tune._document(report)
    assert (document["table"], document["index"], document["kept"], document["warnings"]) == (
        "db.t", "e", False, ["few queries"],
    )  # fmt: skip
    assert (document["queries"], document["offered_queries"]) == (1_000, 2_500)
    assert (document["index_snapshot_id"], document["base_snapshot_id"]) == ("9", "1")
    (chosen,) = document["targets"]  # type: ignore[misc]
    assert (chosen["by_curves"]["search_list"], chosen["tuned"]["search_list"], chosen["reached"]) == (40, 80, True)
    shown = printed(tune._show, report)
    assert shown[0] == "index e of db.t, measured by 1,000 of 2,500 queries, evenly"
    assert shown[-2:] == ["warning: few queries", "nothing was kept (--dry-run)"]


def test_stats_are_silent_on_the_recall_of_live_queries_where_none_was_measured() -> None:
    state = SimpleNamespace(definition=SimpleNamespace(name="e"), versions=(SnapshotId(1), SnapshotId(2)), lag=None)
    live = ReportedRecall(SnapshotId(9), 1_200, 2_000, 0.95, 0.94, 0.96, 3)
    shown = printed(stats._show_index, state, SnapshotId(2), live, "")
    assert shown == [
        "index e: 2 versions; it has a version for this snapshot",
        "  recall of live queries, newest version: 0.9500 (0.9400 to 0.9600); 2,000 measured, by 1,200 readers",
    ]
    assert printed(stats._show_index, state, SnapshotId(2), replace(live, queries=0, recall=None), "") == shown[:1]
    assert stats._index_document(state, SnapshotId(2), None, "why")["live_recall_why"] == "why"  # type: ignore[arg-type]


def test_a_missing_index_whose_layout_was_given_up_is_listed_as_that() -> None:
    counts = {"rows_added": 1, "rows_removed": 0, "rows": 1}
    entry = SnapshotEntry(
        SnapshotId(1), datetime(2026, 11, 30, tzinfo=UTC), "append", refs=(), theta_sketches=False, indexes=(),
        missing=("theta_sketches", "a", "b"), given_up=("a",), **counts,
    )  # fmt: skip
    assert snapshots._missing(entry) == "theta_sketches, a (layout given up), b"


def test_values_that_json_lacks_are_texts_and_long_ones_are_cut() -> None:
    assert output.json_value([math.inf, -math.inf, math.nan, 1.5, b"\x01", None]) == [
        "Infinity", "-Infinity", "NaN", 1.5, "01", None,
    ]  # fmt: skip
    assert [output.cell(text, 3).plain for text in ("abc", "abcd", "a\x1bc")] == ["abc", "ab…", "a c"]
    assert output._with_text_ids({"base_snapshot_id": [1, 2], "rows": 3, "snapshot_id": None}, "") == {
        "base_snapshot_id": ["1", "2"], "rows": 3, "snapshot_id": None,
    }  # fmt: skip
    assert output.json_value({"at": datetime(2026, 1, 2, 3, 4, 5), "of": (np.arange(2), np.float32(0.5))}) == {  # noqa: DTZ001
        "at": "2026-01-02T03:04:05", "of": [[0, 1], 0.5],
    }  # fmt: skip


def test_a_pipe_is_wide_unless_the_environment_says_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output.open_console().width == 160
    monkeypatch.setenv("COLUMNS", "55")
    assert output.open_console().width == 55


def test_lines_and_fields_are_as_they_are() -> None:
    assert printed(output.print_lines, "[red]a[/red]", "b") == ["[red]a[/red]", "b"]
    console = Console(file=io.StringIO(), width=160)
    output.print_fields(console, {"a": 1, "bc": 2}, width=4)
    assert console.file.getvalue() == "   a  1\n  bc  2\n"  # type: ignore[attr-defined]


def test_a_table_is_folded_beside_its_first_columns_and_cut_at_a_width() -> None:
    grid = Grid("the title is not cut", [("1" * 12, "a" * 30, 7), ("2" * 12, "b", 10)], ("snapshot", "name", "r" * 30))
    console = Console(file=io.StringIO(), width=34)
    output.print_grid(console, grid, width=14)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the title is not cut" in words(shown.splitlines())
    assert {"1" * 12, "2" * 12} <= set(shown.split()), "nobody copies an id from two lines"
    assert (shown.count("a") - "the title is not cut".count("a") - "snapshot name".count("a"), shown.count("r")) == (
        13,
        13,
    )
    numbers = [line.rstrip() for line in shown.splitlines() if line.rstrip().endswith(("7", "10"))]
    assert len(numbers) == 2
    assert len(numbers[0]) == len(numbers[1]), "to the right"


class Terminal(io.StringIO):
    """One at which somebody sits."""

    def isatty(self) -> bool:
        return True


def test_who_says_no_at_a_terminal_is_not_told_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, kind in ((Terminal("n\n"), click.Abort), (io.StringIO("n\n"), click.UsageError)):
        monkeypatch.setattr(sys, "stdin", answer)
        with pytest.raises(kind):
            output.confirm("drop it?", "nothing is dropped")


SHARD = ShardState(ShardId(0), nodes=40, live=30, tombstones=10, recall=0.95, bytes=2_048, routed=True)
OVERVIEW = Overview(
    table="db.t",
    index="e",
    base_snapshot_id=SnapshotId(1),
    index_snapshot_id=SnapshotId(9),
    head_snapshot_id=SnapshotId(1),
    rows=200,
    rows_covered=100,
    shards=(SHARD,),
    curve=(),
    routing=(),
    file_bytes=2 * MIB,
)


def shown_grids(overview: Overview) -> list[str]:
    return [line for grid in index.version_grids(overview) for line in printed(output.print_grid, grid)]


def test_an_index_is_shown_with_the_bytes_that_it_shares_and_those_that_it_does_not() -> None:
    assert index._storage(OVERVIEW) == "2.0 MiB by itself"
    moved = replace(OVERVIEW, shards=(replace(SHARD, addresses_bytes=MIB // 2),))
    assert index._storage(moved) == "2.0 MiB by itself (512.0 KiB for new addresses)"
    packs = (PackState("own", MIB, 1), PackState("shared", 3 * MIB, 2), PackState("shared, too", MIB, 3))
    shared = index._storage(replace(OVERVIEW, packs=packs))
    assert shared == "3.0 MiB by itself, and 4.0 MiB in 2 packs that other versions use, too"
    one = index._storage(replace(OVERVIEW, packs=packs[1:2]))
    assert one.endswith("and 3.0 MiB in 1 pack that other versions use, too")
    assert index._included(OVERVIEW) == ""
    columns = (IncludedState("name", MIB, 3, 0), IncludedState("tags", MIB // 2, 3, 1))
    stored = index._included(replace(OVERVIEW, included=columns))
    assert stored.startswith("name 1.0 MiB, tags 512.0 KiB (1 of 3 files left out): rows of answers")


def test_an_index_is_shown_with_what_it_covers_of_the_head() -> None:
    covers = index._coverage(OVERVIEW)
    assert covers.startswith("50.0%, 100 of 200 rows in files of the head")
    assert "the head is" not in covers
    behind = index._coverage(replace(OVERVIEW, head_snapshot_id=SnapshotId(7)))
    assert behind.endswith("; the head is snapshot 7")


def test_the_shards_of_an_index_are_shown_with_what_marks_them() -> None:
    later = replace(SHARD, shard=ShardId(1), nodes=20, live=20, tombstones=0, routed=False, changed=3)
    shown = shown_grids(replace(OVERVIEW, shards=(SHARD, later)))
    assert "* before it lost rows" in words(shown)
    first, second = (next(line for line in shown if line.split()[:1] == [number]) for number in "01")
    assert first.split() == ["0", "40", "30", "25.0%", "0.9500", "2"]
    assert "0.9500*" in second
    assert second.rstrip().endswith("later rows, always probed")
    assert "* before" not in words(shown_grids(OVERVIEW))


def test_a_curve_is_shown_point_by_point() -> None:
    points = tuple(Width(20 * number, 1, 0.9 + 0.04 * number, 1_000.0 * number) for number in (1, 2))
    shown = shown_grids(replace(OVERVIEW, curve=points))
    assert "recall@10 by the width of the search" in words(shown)
    lines = [line.split() for line in shown if line.split()[:1] in (["20"], ["40"])]
    assert lines == [["20", "1", "1,000", "0.9400"], ["40", "1", "2,000", "0.9800"]]


def test_the_entry_of_a_table_wins_over_a_pattern_that_it_matches() -> None:
    session = Session()
    tables = {
        "alike": TableSettings(catalog="y", name="db.t*", retries=9),
        "pages": TableSettings(catalog="x", name="db.*", retries=7),
        "own": TableSettings(catalog="y", name="db.t", retries=1),
    }
    session.__dict__["settings"] = SimpleNamespace(tables=tables, catalogs={"z": None, "x": None, "y": None})
    session.__dict__["settings_file"] = Path("icepuffin.toml")
    names = {table: session.catalog_name(None, table) for table in ("db.t", "db.u", "other.t")}
    assert names == {"db.t": "y", "db.u": "x", "other.t": "z"}
    own, by_pattern = session.table_settings(None, "db.t")
    assert (own.retries, by_pattern) == (1, False)
    matched, by_pattern = session.table_settings("x", "db.t")
    assert (matched.retries, matched.name, by_pattern) == (7, "db.t", True)
    tables["twice"] = TableSettings(catalog="x", name="db.t", retries=3)
    own, by_pattern = session.table_settings("x", "db.t")
    assert (own.retries, by_pattern) == (3, False)
    with pytest.raises(click.UsageError, match=r"has db\.t in several catalogs: name one with --catalog: y, x"):
        session.catalog_name(None, "db.t")
    assert session.catalog_name("x", "db.t") == "x"
