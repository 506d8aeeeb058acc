"""The nightly schedule over a real table and a real instance: the newest snapshot is made, whatever happened before."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster import RunsFilter
from dagster._core.test_utils import create_run_for_test

from examples.demo.local_sensor import tick
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.table_settings import HIDDEN_TAGS
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.snapshots import rows_in_files
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.sensor.facts import TABLE_TAG
from icepuffin.orchestration.settings import load
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import Lake, make_lake, without_captured_output

NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
TABLE = dg.AssetKey(["demo", "demo", "packages"])
THETA = dg.AssetKey([*TABLE.path, "theta_sketches"])
INDEX = dg.AssetKey([*TABLE.path, "ann_index", "embedding"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = make_lake(tmp_path, snapshots=2)
    lake.write_settings(retries=0)
    return lake


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """In a folder: Dagster's context for a schedule takes no other."""
    with open_instance(without_captured_output(tmp_path / "dagster_home")) as opened:
        yield opened


def evaluated(
    lake: Lake, instance: dg.DagsterInstance, time: datetime = NIGHT, schedule: str = "nightly_demo_demo_packages"
) -> tuple[list[dg.RunRequest], str | None]:
    """Runs that the schedule requests at that time, and the reason where there are none."""
    settings = load(lake.settings_file)
    definitions = build(settings)
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=time,
        resources={"icepuffin_catalogs": catalogs_of(settings)},
        repository_def=definitions.get_repository_def(),
    )
    found = definitions.resolve_schedule_def(schedule).evaluate_tick(context)
    return list(found.run_requests or ()), found.skip_message


def carried_out(lake: Lake, instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """The run that was requested, as the daemon would launch it."""
    job = build(load(lake.settings_file)).resolve_job_def("refresh_demo_demo_packages")
    return job.execute_in_process(
        instance=instance, partition_key=request.partition_key, tags=request.tags, raise_on_error=False
    )


def test_the_newest_snapshot_is_recorded_requested_and_made(lake: Lake, instance: dg.DagsterInstance) -> None:
    ((request,), _) = evaluated(lake, instance)
    head = str(lake.head())
    assert request.partition_key == head
    assert request.tags[TABLE_TAG] == "demo/demo/packages"
    assert request.tags[f"{HIDDEN_TAGS}rows"] == str(rows_in_files(lake.table, SnapshotId(int(head)))), "what it needs"
    assert instance.get_materialized_partitions(TABLE) == {head}
    assert carried_out(lake, instance, request).success
    assert instance.get_materialized_partitions(INDEX) == instance.get_materialized_partitions(THETA) == {head}


def test_one_night_requests_one_run_and_the_next_night_another(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Dagster launches one run per run key."""
    keys = [evaluated(lake, instance, at)[0][0].run_key for at in (NIGHT, NIGHT, NIGHT.replace(day=22))]
    assert keys[0] == keys[1] != keys[2]
    hourly = [evaluated(lake, instance, NIGHT.replace(minute=minute))[0][0].run_key for minute in (0, 30)]
    assert hourly[0] != hourly[1], "a schedule may have several times in an hour"
    assert len(instance.fetch_materializations(TABLE, limit=9).records) == 1, "a snapshot is recorded once"


def test_a_night_without_news_writes_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    assert carried_out(lake, instance, evaluated(lake, instance)[0][0]).success
    before = lake.table.refresh().metadata_location
    (again,), _ = evaluated(lake, instance, NIGHT.replace(day=22))
    result = carried_out(lake, instance, again)
    assert result.success
    (made,) = result.asset_materializations_for_node("demo__demo__packages__ann_index__embedding")
    assert made.metadata["action"].value == "reused"
    assert lake.table.refresh().metadata_location == before


def test_a_snapshot_whose_run_failed_is_mended(lake: Lake, instance: dg.DagsterInstance) -> None:
    newest = to_path(lake.table.refresh().inspect.files()["file_path"].to_pylist()[0])
    newest.rename(newest.with_suffix(".away"))
    runs = tick(load(lake.settings_file), instance)
    assert [run.succeeded for run in runs] == [True, False]
    newest.with_suffix(".away").rename(newest)
    assert tick(load(lake.settings_file), instance) == [], "the sensor requests no second run"
    (request,), _ = evaluated(lake, instance)
    assert carried_out(lake, instance, request).success
    assert str(lake.head()) in instance.get_materialized_partitions(INDEX)
    failed = instance.get_runs(RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    assert {run.tags[TABLE_TAG] for run in failed} == {"demo/demo/packages"}


def test_every_watched_ref_has_its_newest_made(lake: Lake, instance: dg.DagsterInstance) -> None:
    oldest = lake.table.refresh().metadata.snapshots[0].snapshot_id
    lake.table.manage_snapshots().create_branch(oldest, "audit").commit()
    lake.write_settings(watched_refs=("main", "audit"))
    requests, _ = evaluated(lake, instance)
    assert [request.partition_key for request in requests] == [str(oldest), str(lake.head())]
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs_of(load(lake.settings_file)))
    assert list(instance.get_dynamic_partitions(partitions_name(spec))) == [str(oldest), str(lake.head())]


def test_a_table_without_snapshots_is_a_skip(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (tmp_path / "lake").mkdir()
    lake = make_lake(tmp_path / "lake", snapshots=0)
    requests, why = evaluated(lake, instance)
    assert requests == []
    assert "has no snapshot yet" in str(why)


def test_an_unreachable_table_is_a_skip_with_a_reason(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.catalog.rename_table("demo.packages", "demo.elsewhere")
    requests, why = evaluated(lake, instance)
    assert requests == []
    assert "there is no table demo.packages" in str(why)


@pytest.mark.parametrize("job", ["maintain_demo_demo_packages", "verify_demo_demo_packages"])
def test_maintenance_is_requested_once_per_week(lake: Lake, instance: dg.DagsterInstance, job: str) -> None:
    requests, _ = evaluated(lake, instance, schedule=f"{job}_schedule")
    assert len(requests) == 1
    schedule = build(load(lake.settings_file)).resolve_schedule_def(f"{job}_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == (job, "0 4 * * 0")


def test_the_recall_of_live_queries_is_checked_each_hour_where_readers_report_it(lake: Lake) -> None:
    name = "live_recall_demo_demo_packages"
    assert name not in {schedule.job_name for schedule in build(load(lake.settings_file)).schedules or ()}
    lake.write_settings(recall_reports="/srv/recall")
    definitions = build(load(lake.settings_file))
    assert definitions.resolve_schedule_def(f"{name}_schedule").cron_schedule == "0 * * * *"
    checks = {
        job: {key.name for key in definitions.resolve_job_def(job).asset_layer.asset_graph.asset_check_keys}
        for job in (name, "verify_demo_demo_packages", "refresh_demo_demo_packages")
    }
    refresh = checks.pop("refresh_demo_demo_packages")
    assert checks == {name: {"live_recall"}, "verify_demo_demo_packages": {"freshness", "integrity"}}
    assert "freshness" in refresh
    assert not refresh & {"live_recall", "integrity"}, "a new version has answered no query yet"
    lake.write_settings(recall_reports="/srv/recall", recall_check="off")
    assert f"{name}_schedule" not in {item.name for item in build(load(lake.settings_file)).schedules or ()}


def test_a_folder_of_reports_that_depends_on_the_working_directory_is_refused(lake: Lake) -> None:
    lake.write_settings(recall_reports="recall")
    with pytest.raises(SettingsError, match="'recall'; give a location such as"):
        load(lake.settings_file)


def test_a_schedule_that_is_off_is_not_there(lake: Lake) -> None:
    lake.write_settings(nightly="off", maintenance="off")
    assert list(build(load(lake.settings_file)).schedules or ()) == []


def test_a_run_that_was_killed_does_not_keep_the_pool(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Of a table whose sensor is off, nobody else frees its place."""
    pool, storage = "table_demo_demo_packages", instance.event_log_storage
    storage.set_concurrency_slots(pool, 1)
    killed, working = (create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED) for _ in range(2))
    for run in (killed, working):
        storage.claim_concurrency_slot(pool, run.run_id, "step")
    instance.report_run_failed(killed, "its process was killed")
    evaluated(lake, instance)
    assert storage.claim_concurrency_slot(pool, working.run_id, "step").is_claimed
    evaluated(lake, instance)
    assert storage.get_concurrency_info(pool).active_run_ids == {working.run_id}
