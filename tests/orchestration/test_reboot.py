"""A machine that loses its power in the middle of a run: the next evaluation ends the run; its work is repeated."""

import os
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.processes import process_of
from tests.orchestration.deployment import deployed
from tests.orchestration.lake import Lake, make_lake
from tests.selection import nightly

INDEX = dg.AssetKey(["demo", "demo", "packages", "ann_index", "embedding"])

pytestmark = [pytest.mark.timeout(600), nightly]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    lake.write_settings(snapshots="newest", sensor_running=True, sensor_interval_seconds=1)
    return lake


def runs(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Oldest first."""
    return list(reversed(instance.get_runs()))


def test_a_run_that_a_power_cut_has_ended_is_failed_by_the_next_evaluation_and_tried_again(lake: Lake) -> None:
    (path,) = [Path(item.removeprefix("file://")) for item in lake.table.inspect.files()["file_path"].to_pylist()]
    path.rename(path.with_suffix(".away"))
    os.mkfifo(path)  # who reads it waits
    with deployed(lake.settings_file, lake.directory) as deployment, open_instance(deployment.home) as instance:
        deployment.wait_for("the run", lambda: any(process_of(run) for run in runs(instance)))
        deployment.kill()
        (lost,) = runs(instance)
    assert lost.status == DagsterRunStatus.STARTED, "nobody was left to say otherwise"
    path.unlink()
    path.with_suffix(".away").rename(path)
    with deployed(lake.settings_file, lake.directory) as deployment, open_instance(deployment.home) as instance:
        deployment.wait_for("its end", lambda: runs(instance)[0].status == DagsterRunStatus.FAILURE, 90)
        deployment.wait_for("another run", lambda: len(runs(instance)) > 1 and runs(instance)[1].is_success)
        assert instance.get_materialized_partitions(INDEX) == {str(lake.head())}
