"""What a materialised index shows of itself in the UI."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
from dagster import serialize_value
from pyiceberg.table import Table

from examples.demo.local_sensor import tick
from icepuffin.assets import ann_index
from icepuffin.assets.ann_index import _summary, _version, layout_result, version_drawings, version_metadata
from icepuffin.assets.newest_snapshots import SKETCHES, time_line
from icepuffin.assets.report.svg_charts import shards_chart
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import TableSettings
from icepuffin.assets.theta_sketches import sketches_metadata
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import Measurement, RecallMeasurement, recall_drift, recall_history
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport, VersionRecall
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import Action, How, ShardId, SnapshotId
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.search.overview import Overview, ShardState
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import is_sketched
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.settings import load
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import make_lake

SUMMARIZED = IndexReport(
    table="t", index="e", snapshot_id=SnapshotId(1), action=Action.REFRESHED, reason="", build_id="", files=1,
    seconds=1.0, stage_seconds={}, index_snapshot_id=SnapshotId(2), recall=0.97,
    recall_basis=VersionRecall(queries=100, rows_here=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Metadata of the second version of an index: a refresh after a build."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=2)
    settings = load(lake.settings_file)
    catalogs = catalogs_of(settings)
    spec = found_spec(settings.tables["packages"], catalogs)
    engine = Engine(spark_conf={}, threads=2, driver_only_rows=1)
    table, index = lake.table, spec.indexes[0]
    for snapshot in table.metadata.snapshots:
        run = engine.run_on(table, snapshot.snapshot_id)
        report = refresh_index(run, index, snapshot.snapshot_id)
    drawings, since_build = version_drawings(run, index, _version(run, index, report))
    return {**{name: item.value for name, item in drawings.items()}, "since build": since_build}


def test_a_version_is_seen_without_a_click(shown: dict[str, object]) -> None:
    assert str(shown["at a glance"]).startswith("![index embedding at a glance](<data:image/svg+xml,%3Csvg ")
    assert len(str(shown["at a glance"])) < 1000
    drawn = unquote(str(shown["at a glance"]))
    assert "recall@10 by distances per query" in drawn
    assert "rows of 1 shard" in drawn


def spec_of(*indexes: IndexDefinition) -> TableSpec:
    return TableSpec(TableSettings(catalog="demo", name="db.t"), indexes)


def numbers_of(metadata: Mapping[str, dg.MetadataValue[Any]]) -> list[str]:
    """Labels that the UI plots."""
    plotted = dg.IntMetadataValue | dg.FloatMetadataValue
    assert all(value.value for value in metadata.values() if isinstance(value, plotted)), "no zero"
    return [name for name, value in metadata.items() if isinstance(value, plotted)]


def test_shards_that_were_written_come_first_where_a_table_leaves_some_out(table_factory: Callable[..., Table]) -> None:
    table, definition = table_factory(), replace(DEFINITION, shards=105)
    table.append(make_rows(0, 2_100))
    index_head(table, definition)
    table.append(make_rows(2_100, 2_130))
    report = index_head(table, definition)
    assert [shard.how for shard in report.shard_reports] == [How.COPIED] * 105 + [How.BUILT]
    metadata = version_metadata(RunContext(table.refresh(), STORAGE), definition, report, spec_of(definition))
    listed: Any = metadata["details"].value
    for rows in (listed["shard_reports"], listed["estimate"]["shards"]):
        assert [row["how"] for row in rows[:100]] == ["built", *["copied"] * 99]
    assert (listed["shard_reports"][100:], listed["estimate"]["shards"][100:]) == (["6 more"], ["6 more"])
    recalls = [row["recall"] for row in listed["shard_reports"][1:100]]
    assert recalls == sorted(recalls)


@pytest.mark.parametrize("late", [0, 1, 400])
def test_thousands_of_shards_are_drawn_by_their_means(late: int) -> None:
    """Bar by bar 6,199 shards would be 400 KB, in every run."""
    count = 6_199
    shards = tuple(
        ShardState(ShardId(number), 100, 90, 10, 0.97, 500, routed=number < count - late) for number in range(count)
    )
    ids = [SnapshotId(1)] * 3
    view = Overview("db.t", "e", *ids, 90 * count, 90 * count, shards, (), ())
    drawn = shards_chart(view)
    assert len(drawn) < 40_000
    assert "each bar: the mean of 52" in drawn
    assert drawn.count('class="b"') == (late > 0)


def test_an_index_without_graphs_is_shown_as_one(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    definition = replace(DEFINITION, method="centroid")
    report = index_head(table, definition)
    metadata = version_metadata(RunContext(table.refresh(), STORAGE), definition, report, spec_of(definition))
    assert "answers are exact" in str(metadata["summary"].value)
    assert metadata["rows"].value == 60
    assert numbers_of(metadata) == ["rows", "bytes", "seconds"]
    drawn = unquote(str(metadata["at a glance"].value))
    assert "no graphs: 3 balls around the vectors of 1 file" in drawn


def test_recall_since_the_last_build_is_told(shown: dict[str, object]) -> None:
    assert isinstance(shown["since build"], float)
    assert abs(shown["since build"]) < 0.1
    texts = [
        _summary(DEFINITION, SUMMARIZED, change)["recall@10"].removesuffix("; at least 0.8 is required")
        for change in (0.0, 0.00001, -0.0123)
    ]
    measured = "0.9700 (0.915 to 0.990); 100% of the rows measured here"
    assert texts == [measured, measured, f"{measured}, -0.0123 since it was built anew"]


def test_a_run_stores_little(tmp_path: Path) -> None:
    """Dagster keeps each event for ever, and a picture in a materialisation twice and more."""
    lake = make_lake(tmp_path, snapshots=1)
    with dg.DagsterInstance.ephemeral() as instance:
        (run,) = tick(load(lake.settings_file), instance)
        assert run.succeeded
        assert sum(len(serialize_value(entry)) for entry in instance.all_logs(run.run_id)) < 120_000


def test_drift_is_counted_from_the_last_build() -> None:
    versions = [(Action.BUILT, 0.99), (Action.REFRESHED, 0.97), (Action.BUILT, 0.98), (Action.REFRESHED, 0.975)]
    history = [RecallMeasurement(number, number, action, recall) for number, (action, recall) in enumerate(versions)]
    assert recall_drift(history) == pytest.approx(-0.005)
    assert recall_drift(history[1:2]) == 0.0
    assert recall_drift([history[1], history[3]]) == pytest.approx(0.005), "from the oldest where none was built"
    assert recall_drift([]) == 0.0


def test_the_change_of_recall_of_a_version_does_not_count_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of an older snapshot is made anew when its partition is materialised again."""
    measured = {1: (Action.BUILT, 0.9), 2: (Action.REFRESHED, 0.95), 3: (Action.REFRESHED, 0.5)}
    versions = [
        DerivedVersion(BlobKind.INDEX, "e", number, 10 * number, "", "p", number, 1, number, (), text)
        for number, (action, recall) in measured.items()
        for text in [Measurement("LocalRunner", 1, 1.0, {}, action, recall).text()]
    ]
    monkeypatch.setattr(ann_index, "versions_of", lambda *_: tuple(versions))
    monkeypatch.setattr(ann_index, "overview", lambda *_, **__: None)
    table: Any = None
    for number, drift in ((1, 0.0), (2, 0.05), (3, -0.4)):
        version = next(one for one in versions if one.index_snapshot_id == number)
        assert version_drawings(RunContext(table, STORAGE), DEFINITION, version) == ({}, pytest.approx(drift))


def test_the_history_is_in_the_order_of_the_data_snapshots_whenever_their_versions_were_made() -> None:
    """Of two versions of one snapshot, in that of their commits; those without a measured recall are left out."""
    recalls = {1: 0.91, 2: 0.92, 3: 0.93, 4: None}
    texts = {n: Measurement("LocalRunner", 1, 1.0, {}, Action.BUILT, recall).text() for n, recall in recalls.items()}
    places = {1: (5, 9, 3), 2: (5, 9, 2), 3: (6, 1, 1), 4: (2, 2, 1)}  # its own number, its time, that of its data
    versions = [
        DerivedVersion(BlobKind.INDEX, "e", number, 10 * number, "", "p", *places[number], (), texts[number])
        for number in texts
    ]
    history = recall_history(versions)
    assert [(one.index_snapshot_id, one.base_snapshot_id, one.recall) for one in history] == [
        (3, 30, 0.93),
        (2, 20, 0.92),
        (1, 10, 0.91),
    ]
    later = replace(versions[0], index_snapshot_id=SnapshotId(7), sequence_number=6, timestamp_ms=1)
    assert [one.index_snapshot_id for one in recall_history([later, versions[0]])] == [1, 7]


def test_a_page_has_fifteen_rows_and_that_of_an_empty_snapshot_few(table_factory: Callable[..., Table]) -> None:
    table, spec = table_factory(), spec_of(DEFINITION)
    table.append(ROWS.empty_table())
    empty = version_metadata(RunContext(table.refresh(), STORAGE), DEFINITION, index_head(table), spec)
    assert list(empty) == ["time line", "summary", "action"]
    table.append(make_rows(0, 60))
    report = index_head(table)
    full = version_metadata(RunContext(table.refresh(), STORAGE), DEFINITION, report, spec)
    assert len(full) <= 15
    assert list(full)[:4] == ["time line", "at a glance", "summary", "action"], "the pictures first"
    assert numbers_of(full) == ["recall", "rows", "bytes", "seconds"], "what is plotted"
    assert replace(report, tombstones=20).tombstone_ratio == 0.25
    dead = version_metadata(RunContext(table, STORAGE), DEFINITION, replace(report, tombstones=20), spec)
    assert numbers_of(dead) == ["recall", "rows", "bytes", "seconds", "tombstones"]
    assert dead["tombstones"] == dg.MetadataValue.float(0.25)
    assert " 0 " not in str(full["summary"].value), "no zero"


def test_a_time_line_of_several_indexes_has_the_lowest_recall(table_factory: Callable[..., Table]) -> None:
    table, lame = table_factory(), replace(DEFINITION, name="lame")
    table.append(make_rows(0, 60))
    index_head(table)
    report = index_head(table, lame)
    snapshot = table.refresh().snapshot_by_id(report.index_snapshot_id or 0)
    assert snapshot is not None
    assert snapshot.summary is not None
    properties = snapshot.summary.additional_properties
    key = next(key for key, value in properties.items() if "recall=" in value)
    properties[key] = re.sub(r"recall=\S+", "recall=0.5", properties[key])
    seconds = []
    for indexes, recall in (((DEFINITION,), 1.0), ((lame,), 0.5), ((DEFINITION, lame), 0.5), ((lame, DEFINITION), 0.5)):
        (point,) = time_line(table, spec_of(*indexes))
        assert point.recall == recall
        seconds.append(point.seconds or 0)
    assert min(seconds) > 0
    assert seconds[2:] == [pytest.approx(seconds[0] + seconds[1])] * 2


def test_the_time_line_of_an_index_and_of_sketches_has_what_was_made_and_what_it_took(
    table_factory: Callable[..., Table],
) -> None:
    """Each on its own page, whoever writes the table; the table's own has all."""
    table, spec = table_factory(), spec_of(DEFINITION)
    for start in (0, 60):
        table.append(make_rows(start, start + 60))
    old, new = (SnapshotId(snapshot.snapshot_id) for snapshot in table.metadata.snapshots)
    run = RunContext(table, STORAGE)
    sketched = count_theta_sketches(run, new).publish()
    built = materialize_index(run, DEFINITION, old)
    table.refresh()
    index, sketches = (time_line(table, spec, name=name, here=old) for name in (DEFINITION.name, SKETCHES))
    assert [(one.made, one.recall, one.is_here) for one in index] == [
        ("", None, False),
        ("built", pytest.approx(built.recall, abs=1e-4), True),
    ]
    assert [(one.made, one.recall) for one in sketches] == [("sketches", None), ("", None)]
    assert 0 < (index[1].seconds or 0) <= built.seconds + 0.01
    assert 0 < (sketches[0].seconds or 0) <= sketched.seconds + 0.01
    assert [one.made for one in time_line(table, spec)] == ["sketches", DEFINITION.name]
    (entry,) = (entry for entry in table.metadata.statistics if entry.snapshot_id == new)
    assert [is_sketched(find_snapshot(table, snapshot), entry) for snapshot in (old, new)] == [False, True]
    shown = str(version_metadata(run, DEFINITION, built, spec)["time line"].value)
    assert re.findall(r"(\w+), (\d+) rows.*\n│ (\d+)", shown) == [
        ("append", "120", str(new)),
        ("append", "60", str(old)),
    ]
    assert f"{old} built, recall" in shown
    found = materialize_index(run, DEFINITION, old)
    assert found.action is Action.REUSED
    assert found.seconds < (index[1].seconds or 0), "the run had nothing to do"
    for action in (Action.REUSED, Action.RETAGGED):
        again = version_metadata(run, DEFINITION, replace(found, action=action), spec)
        assert again["seconds"].value == pytest.approx(index[1].seconds, abs=1e-3), "of the run that made the version"
    nothing = sketches_metadata(run, replace(sketched, ndv={"id": 0}), spec)
    assert list(nothing) == ["time line", "summary", "outcome"]
    page = sketches_metadata(run, sketched, spec)
    assert list(page)[:4] == ["time line", "distinct values", "summary", "outcome"]
    assert numbers_of(page) == ["rows", "ndv/id", "ndv/name", "ndv/section", "bytes", "seconds"]
    assert len(page) <= 15


def test_a_snapshot_that_is_older_than_the_newest_is_on_its_own_time_line(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    for start in range(22):
        table.append(make_rows(start, start + 1))
    first, second, *later = (SnapshotId(snapshot.snapshot_id) for snapshot in table.metadata.snapshots)
    ids = [one.entry.snapshot_id for one in time_line(table, spec_of(), here=first)]
    assert ids == [*reversed(later), first]
    assert second not in ids
    assert len(time_line(table, spec_of(), here=later[0])) == 20


def test_what_to_do_about_a_layout_depends_on_what_no_longer_fits() -> None:
    """Shards out of balance are built anew by the next refresh, which may have too many rows for that."""
    report: Any = SimpleNamespace(fit=LayoutFit(balance=9.0))
    uneven = layout_result(report)
    far = layout_result(SimpleNamespace(fit=LayoutFit(distance=9.0, built_distance=1.0)))  # type: ignore[arg-type]
    assert (uneven.passed, far.passed) == (False, False)
    assert {uneven.severity, far.severity} == {dg.AssetCheckSeverity.WARN}
    assert str(uneven.metadata["what to do"].value).startswith("raise build_anew_rows")
    assert str(far.metadata["what to do"].value).startswith("nothing while recall is good")
    for fit in (LayoutFit(), LayoutFit(balance=3.0), LayoutFit(distance=1.5, built_distance=1.0), None):
        assert layout_result(SimpleNamespace(fit=fit)).passed  # type: ignore[arg-type]
