"""What a materialised index shows of itself in the UI."""

import base64
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import serialize_value
from pyiceberg.table import Table

from icepuffin.assets import ann_index
from icepuffin.assets.ann_index import layout_result, version_drawings, version_metadata
from icepuffin.assets.charts import render
from icepuffin.assets.checks import recall_so_far
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.index.upkeep.recall_history import RecallMeasurement, recall_drift, recall_history
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import Action, How, ShardId, SnapshotId
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.search.overview import Overview, ShardState
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.orchestration.discovery import table_spec
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.sensor.local_sensor import LocalRun, tick
from icepuffin.orchestration.settings import load
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.orchestration.lake import make_lake


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Metadata of the second version of an index: a refresh after a build."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=2)
    settings = load(lake.settings_file)
    catalogs = catalogs_of(settings)
    spec = table_spec(settings.tables["packages"], catalogs)
    engine = Engine(spark_conf={}, threads=2, driver_only_rows=1)
    table, index = lake.table, spec.indexes[0]
    for snapshot in table.metadata.snapshots:
        run = engine.run_on(table, snapshot.snapshot_id)
        report = refresh_index(run, index, snapshot.snapshot_id)
    return {name: item.value for name, item in version_drawings(run, index, report).items()}


def png(text: object) -> bytes:
    image = base64.b64decode(str(text).partition("base64,")[2].rstrip(")"))
    assert image.startswith(b"\x89PNG")
    return image


def test_a_version_is_drawn_in_its_metadata(shown: dict[str, object]) -> None:
    assert str(shown["picture"]).startswith("![index embedding](data:image/png;base64,")
    assert len(png(shown["picture"])) < 10_000


def test_a_version_is_seen_without_a_click(shown: dict[str, object]) -> None:
    assert str(shown["at a glance"]).startswith("![index embedding at a glance](data:image/svg+xml;base64,")
    assert len(str(shown["at a glance"])) < 1000


def records_of(table: object) -> list[dg.TableRecord]:
    assert isinstance(table, dg.TableMetadataValue)
    return [*table.records]


def test_shards_that_were_written_come_first_where_a_table_leaves_some_out(table_factory: Callable[..., Table]) -> None:
    table, definition = table_factory(), replace(DEFINITION, shards=105)
    table.append(make_rows(0, 2_100))
    index_head(table, definition)
    table.append(make_rows(2_100, 2_130))
    report = index_head(table, definition)
    assert [shard.how for shard in report.shard_reports] == [How.COPIED] * 105 + [How.BUILT]
    metadata = version_metadata(RunContext(table.refresh(), STORAGE), definition, report)
    shown = [record.data for record in records_of(metadata["shards"])]
    listed: Any = metadata["details"].value
    for rows in (shown, listed["shard_reports"], listed["estimate"]["shards"]):
        assert [row["how"] for row in rows[:100]] == ["built", *["copied"] * 99]
    assert (listed["shard_reports"][100:], listed["estimate"]["shards"][100:]) == (["6 more"], ["6 more"])
    recalls = [row["recall"] for row in shown[1:]]
    assert recalls == sorted(recalls)


@pytest.mark.parametrize("late", [0, 1, 400])
def test_thousands_of_shards_are_drawn_as_one_outline(late: int) -> None:
    """Bar by bar 6,199 shards took 9 s of CPU, in every run."""
    count = 6_199
    shards = tuple(
        ShardState(ShardId(number), 100, 90, 10, 0.97, 500, routed=number < count - late) for number in range(count)
    )
    ids = [SnapshotId(1)] * 3
    view = Overview("db.t", "e", *ids, 90 * count, 90 * count, shards, (), ())
    start = time.process_time()
    assert len(render(view, "png", dpi=64)) < 10_000
    assert time.process_time() - start < 5


def test_an_index_without_graphs_is_shown_as_one(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    definition = replace(DEFINITION, method="centroid")
    report = index_head(table, definition)
    metadata = version_metadata(RunContext(table.refresh(), STORAGE), definition, report)
    assert "answers are exact" in str(metadata["summary"].value)
    assert metadata["rows"].value == 60
    assert not [name for name in metadata if "recall" in name]
    drawn = base64.b64decode(str(metadata["at a glance"].value).partition("base64,")[2].rstrip(")")).decode()
    assert "no graphs: 3 balls around the vectors of 1 file" in drawn
    assert png(metadata["picture"].value)


def test_recall_since_the_last_build_is_a_number_that_plots(shown: dict[str, object]) -> None:
    assert isinstance(shown["recall since build"], float)
    assert abs(shown["recall since build"]) < 0.1


def test_recall_is_drawn_over_the_versions() -> None:
    history = [RecallMeasurement(1, 1, Action.BUILT, 0.99), RecallMeasurement(2, 2, Action.REFRESHED, 0.97)]
    drawing = recall_so_far(history, 0.9)["recall so far"].value
    assert str(drawing).startswith("![recall@10 of the last 2 versions")
    assert len(png(drawing)) < 5_000


def test_a_run_stores_little(tmp_path: Path) -> None:
    """Dagster keeps each event for ever, and a picture in a materialisation twice and more."""
    lake = make_lake(tmp_path, snapshots=1)
    with dg.DagsterInstance.ephemeral() as instance:
        (run,) = [event for event in tick(load(lake.settings_file), instance) if isinstance(event, LocalRun)]
        assert run.succeeded
        assert sum(len(serialize_value(entry)) for entry in instance.all_logs(run.run_id)) < 120_000


def test_drift_is_counted_from_the_last_build() -> None:
    versions = [(Action.BUILT, 0.99), (Action.REFRESHED, 0.97), (Action.BUILT, 0.98), (Action.REFRESHED, 0.975)]
    history = [RecallMeasurement(number, number, action, recall) for number, (action, recall) in enumerate(versions)]
    assert recall_drift(history) == pytest.approx(-0.005)
    assert recall_drift(history[1:2]) == 0.0
    assert recall_drift([history[1], history[3]]) == pytest.approx(0.005), "from the oldest where none was built"
    assert recall_drift([]) == 0.0
    assert recall_so_far([], 0.9) == {}


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
        report: Any = SimpleNamespace(index_snapshot_id=number)
        drawings = version_drawings(RunContext(table, STORAGE), DEFINITION, report)
        assert drawings == {"recall since build": dg.MetadataValue.float(drift)}


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


def test_a_page_has_fifteen_rows_and_that_of_an_empty_snapshot_three(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(ROWS.empty_table())
    empty = version_metadata(RunContext(table.refresh(), STORAGE), DEFINITION, index_head(table))
    assert list(empty) == ["summary", "committed", "action"]
    table.append(make_rows(0, 60))
    report = index_head(table)
    full = version_metadata(RunContext(table.refresh(), STORAGE), DEFINITION, report)
    assert len(full) <= 15
    assert next(iter(full)) == "at a glance", "the picture first"
    numbers = [name for name, value in full.items() if isinstance(value.value, int | float) and name != "committed"]
    assert numbers == ["recall", "recall since build", "rows", "bytes", "seconds", "tombstones"], "what is plotted"
    assert replace(report, tombstones=20).tombstone_ratio == 0.25
    dead = version_metadata(RunContext(table, STORAGE), DEFINITION, replace(report, tombstones=20))
    assert dead["tombstones"] == dg.MetadataValue.float(0.25)


def test_what_to_do_about_a_layout_depends_on_what_no_longer_fits() -> None:
    """Shards out of balance are built anew by the next refresh, which may have too many rows for that."""
    report: Any = SimpleNamespace(fit=LayoutFit(balance=9.0))
    uneven = layout_result(report)
    far = layout_result(SimpleNamespace(fit=LayoutFit(distance=9.0, built_distance=1.0)))  # type: ignore[arg-type]
    assert (uneven.passed, far.passed) == (False, False)
    assert str(uneven.metadata["what to do"].value).startswith("raise build_anew_rows")
    assert str(far.metadata["what to do"].value).startswith("nothing while recall is good")
    for fit in (LayoutFit(), None):
        assert layout_result(SimpleNamespace(fit=fit)).passed  # type: ignore[arg-type]
