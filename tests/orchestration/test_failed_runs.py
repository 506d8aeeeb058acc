"""Runs that fail: what could pass is tried again, what could not is not, and the message says what to do."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster import DagsterEventType
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from examples.demo.local_sensor import LocalRun, tick
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import load
from tests.orchestration.lake import DIMS, Lake, make_lake, make_rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake", snapshots=1)


def failed_run(lake: Lake, instance: dg.DagsterInstance) -> tuple[LocalRun, int]:
    """(the one run of a tick, how often its steps were tried again)."""
    (run,) = tick(load(lake.settings_file), instance)
    assert not run.succeeded
    again = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_UP_FOR_RETRY)
    return run, len(again)


def test_a_target_that_is_missed_is_not_tried_again(lake: Lake, instance: dg.DagsterInstance) -> None:
    narrow = lake.settings(retries=2).replace("search_list = 32", "search_list = 8\ntarget_recall = 1.0")
    lake.settings_file.write_text(narrow.replace("max_degree = 16", "max_degree = 4"), encoding="utf-8")
    run, again = failed_run(lake, instance)
    assert again == 0
    assert run.message.startswith("demo.packages, index embedding, snapshot ")
    assert "raise max_degree or search_list" in run.message


def test_a_vector_that_no_index_takes_is_not_tried_again(lake: Lake, instance: dg.DagsterInstance) -> None:
    bad = make_rows(60, 1).set_column(2, "embedding", pa.array([[0.0] * DIMS], pa.list_(pa.float32())))
    lake.table.append(bad)
    lake.write_settings(retries=2, snapshots="newest")
    run, again = failed_run(lake, instance)
    assert again == 0
    assert "row 0" in run.message


def test_a_file_that_may_come_back_is_tried_again(lake: Lake, instance: dg.DagsterInstance) -> None:
    (path,) = lake.table.inspect.files()["file_path"].to_pylist()
    Path(path.removeprefix("file://")).unlink()
    lake.write_settings(retries=2, statistics={"ndv": "off"})
    run, again = failed_run(lake, instance)
    assert again == 2
    assert path in run.message
    assert "icepuffin.ops." not in run.message, "the error speaks for itself"


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            {"tags": {ASSET_PARTITION_RANGE_START_TAG: "1", ASSET_PARTITION_RANGE_END_TAG: "2"}},
            "names several snapshots",
        ),
        ({}, "names no snapshot"),
        ({"partition_key": "yesterday"}, "the partition 'yesterday' is no id of a snapshot"),
        ({"partition_key": "2"}, "no snapshot 2: it has expired"),
        ({"partition_key": "-2"}, "no snapshot -2: it has expired"),
    ],
)
def test_a_run_that_is_not_for_one_snapshot_of_the_table_fails_at_once(
    lake: Lake, instance: dg.DagsterInstance, run: dict[str, Any], message: str
) -> None:
    definitions = build(load(lake.write_settings(retries=2)))
    instance.add_dynamic_partitions("snapshots/demo/demo/packages", ["1", "2", "-2", "yesterday"])
    job = definitions.resolve_job_def("refresh_demo_demo_packages")
    result = job.execute_in_process(instance=instance, raise_on_error=False, **run)
    failures = [event for event in result.all_events if event.is_step_failure]
    assert len(failures) == 2
    assert all(message in str(event.step_failure_data.error) for event in failures)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert not result.get_asset_materialization_events()
