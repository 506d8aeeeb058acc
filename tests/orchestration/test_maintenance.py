"""The maintenance job in a real instance: it rebuilds shards full of tombstones and sweeps leftovers, no more."""

import os
import re
import time
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from dagster import RunsFilter

from examples.demo.local_sensor import tick
from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import DerivedVersion, TagTakenError, index_versions
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.storage.local_storage import LocalStorage, to_path
from icepuffin.orchestration import jobs
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.sensor.facts import TABLE_TAG
from icepuffin.orchestration.settings import load
from tests.orchestration.lake import DIMS, Lake, make_lake

STORAGE = StorageConfig({})
JOB = "maintain_demo_demo_packages"
HOUR = 3600


@pytest.fixture(scope="module")
def tombstoned(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two snapshots; the second deletes 40 % of the rows. Its version has them as tombstones: no refresh rebuilds."""
    lake = make_lake(tmp_path_factory.mktemp("tombstoned") / "lake", snapshots=1)
    set_ratio(lake, 1.0)
    with dg.DagsterInstance.ephemeral() as instance:
        run_tick(lake, instance)
        (path,) = lake.table.refresh().inspect.files()["file_path"].to_pylist()
        append_position_deletes(lake.table, {path: np.arange(24, dtype=np.int64)})
        run_tick(lake, instance)
    lake.keep()
    return lake


@pytest.fixture
def lake(tombstoned: Lake) -> Lake:
    tombstoned.restore()
    return tombstoned


def set_ratio(lake: Lake, ratio: float) -> None:
    lake.settings_file.write_text(f"{lake.settings(retries=0)}rebuild_ratio = {ratio}\n", encoding="utf-8")


def run_tick(lake: Lake, instance: dg.DagsterInstance) -> None:
    assert all(run.succeeded for run in tick(load(lake.settings_file), instance))


def maintain(lake: Lake, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = build(load(lake.settings_file)).resolve_job_def(JOB)
    return job.execute_in_process(instance=instance, raise_on_error=False)


def newest(lake: Lake) -> DerivedVersion:
    return index_versions(lake.table.refresh(), "embedding")[-1]


def dead_nodes(lake: Lake) -> int:
    return sum(len(shard.tombstones) for shard in open_version(newest(lake), STORAGE).routing.shards)


def answers(lake: Lake) -> tuple[list[int], list[int]]:
    """Ids that the index finds, and the true ones."""
    table = lake.table.refresh()
    queries = np.random.default_rng(5).normal(size=(4, DIMS)).astype(np.float32)
    result = open_index(table, "embedding", storage=STORAGE).search(queries, 10, columns=["id"])
    true = open_exact(table, "embedding", Metric.COSINE, storage=STORAGE).search(queries, 10, columns=["id"])
    assert result.coverage == "exact-version"
    return result.rows["id"].to_pylist(), true.rows["id"].to_pylist()


def leave_behind(lake: Lake, name: str, age_hours: float) -> Path:
    """A file as a failed attempt leaves it."""
    file = to_path(lake.table.location()) / "metadata" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"left behind")
    then = time.time() - age_hours * HOUR
    os.utime(file, (then, then))
    return file


def test_shards_full_of_tombstones_are_rebuilt_and_the_tag_moves(lake: Lake, instance: dg.DagsterInstance) -> None:
    before, head = newest(lake), lake.head()
    assert dead_nodes(lake) == 24
    set_ratio(lake, 0.2)
    result = maintain(lake, instance)
    assert result.success
    after = newest(lake)
    assert after.index_snapshot_id != before.index_snapshot_id
    assert after.base_snapshot_id == head
    assert lake.table.metadata.refs["ann_embedding"].snapshot_id == after.index_snapshot_id
    assert dead_nodes(lake) == 0
    found, true = answers(lake)
    assert found == true
    assert lake.head() == head
    assert to_path(before.puffin_path).exists(), "the old file belongs to its snapshot until that expires"


def test_maintenance_done_twice_writes_nothing_more(lake: Lake, instance: dg.DagsterInstance) -> None:
    set_ratio(lake, 0.2)
    assert maintain(lake, instance).success
    once = lake.table.refresh().metadata_location
    assert maintain(lake, instance).success
    assert lake.table.refresh().metadata_location == once


def test_shards_under_the_ratio_are_left_alone(lake: Lake, instance: dg.DagsterInstance) -> None:
    before = newest(lake)
    set_ratio(lake, 0.5)
    assert maintain(lake, instance).success
    assert newest(lake) == before


def test_leftovers_of_failed_attempts_are_deleted_when_they_are_old(lake: Lake, instance: dg.DagsterInstance) -> None:
    old = [
        leave_behind(lake, name, age_hours=25) for name in ("_icepuffin/x/shard-0.dann", "ann-embedding-snap-1.puffin")
    ]
    young = leave_behind(lake, "_icepuffin/y/shard-0.dann", age_hours=1)
    foreign = leave_behind(lake, "20200101-somebody.stats", age_hours=25)
    kept = [to_path(item.puffin_path) for item in index_versions(lake.table.refresh(), "embedding")]
    assert maintain(lake, instance).success
    assert not any(file.exists() for file in old)
    assert young.exists()
    assert foreign.exists()
    assert all(file.exists() for file in kept)


def test_the_log_of_a_run_names_the_first_files_and_counts_the_others(lake: Lake, instance: dg.DagsterInstance) -> None:
    """A line is a row in the instance's database, and a failed build may leave 100,000 files."""
    for number in range(50):
        leave_behind(lake, f"_icepuffin/x/shard-{number}.dann", age_hours=25)
    assert maintain(lake, instance).success
    (run,) = instance.get_runs(RunsFilter(job_name=JOB))
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert sum(line.startswith("deleted ") for line in messages) == 20
    assert "and 30 more" in messages
    assert any("deleted files: 50, " in line for line in messages)


def test_the_run_is_kept_with_its_table_and_its_report(lake: Lake, instance: dg.DagsterInstance) -> None:
    set_ratio(lake, 0.2)
    maintain(lake, instance)
    (run,) = instance.get_runs(RunsFilter(job_name=JOB))
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert run.tags[TABLE_TAG] == "demo/demo/packages"
    assert "dagster/max_runtime" in run.tags
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert any(re.search(r"index embedding: \d of \d shards rebuilt: .*tombstones", line) for line in messages)
    assert any("demo.packages: expired versions: 0, deleted files: 0, 0 bytes" in line for line in messages)


def test_a_failed_maintenance_changes_nothing_and_says_why(lake: Lake, instance: dg.DagsterInstance) -> None:
    set_ratio(lake, 0.2)
    job = build(load(lake.settings_file)).resolve_job_def(JOB)
    before = lake.table.refresh().metadata_location
    lake.catalog.rename_table("demo.packages", "demo.elsewhere")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    lake.catalog.rename_table("demo.elsewhere", "demo.packages")
    assert not result.success
    failures = [event for event in result.all_events if event.is_step_failure]
    assert "there is no table demo.packages" in failures[0].step_failure_data.error_display_string
    assert lake.table.refresh().metadata_location == before


def test_an_index_that_cannot_be_rebuilt_keeps_neither_the_others_nor_the_garbage(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    create_index(lake.table, IndexDefinition(name="a", column="embedding"))
    set_ratio(lake, 0.2)
    job = build(load(lake.settings_file)).resolve_job_def(JOB)
    with lake.table.transaction() as transaction:
        transaction.set_properties({"ann.index.a.metric": "none such"})
    old = leave_behind(lake, "ann-embedding-snap-1.puffin", age_hours=25)
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    failures = [event for event in result.all_events if event.is_step_failure]
    assert [event.step_key for event in failures] == ["rebuild_tombstoned_shards_demo_demo_packages"]
    assert "index a: metric is 'none such'" in failures[0].step_failure_data.error_display_string
    assert dead_nodes(lake) == 0
    assert not old.exists()
    steps = [event.step_key for event in result.all_events if event.is_step_start]
    assert steps == ["rebuild_tombstoned_shards_demo_demo_packages", "sweep_demo_demo_packages"]


@pytest.mark.parametrize("of_passing", ["a", "embedding"])
def test_of_several_errors_one_that_a_retry_may_mend_decides(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, of_passing: str
) -> None:
    create_index(lake.table, IndexDefinition(name="a", column="embedding"))

    errors = {True: BindingError("try again"), False: TagTakenError("it is taken")}

    def fail(_: object, definition: IndexDefinition) -> None:
        raise errors[definition.name == of_passing]

    monkeypatch.setattr(jobs, "rebuild_tombstoned_shards", fail)
    (failure,) = (event for event in maintain(lake, instance).all_events if event.is_step_failure)
    message = failure.step_failure_data.error_display_string
    assert "BindingError: try again" in message
    assert "it is taken" not in message


def test_the_job_sweeps_by_all_that_the_settings_say(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, object]] = []

    def sweep(*_: object, **arguments: object) -> GcReport:
        asked.append(arguments)
        return GcReport("demo.packages", dry_run=True, deleted=(), bytes_freed=0, kept_young=0)

    monkeypatch.setattr(jobs, "collect_table_garbage", sweep)
    own = f'recall_reports = "{tmp_path}/reports"\nkeep = {{ versions = "tagged", last = 3 }}\n'
    head, _, index = lake.settings(retries=0).partition("[tables.packages.indexes.")
    retention = "[retention]\ndry_run = true\ngarbage_grace_hours = 7.5\n"
    index = f"[tables.packages.indexes.{index}keep = {{ days = 2.5 }}\n"
    lake.settings_file.write_text(f"{head}{own}{index}{retention}", encoding="utf-8")
    assert maintain(lake, instance).success
    (arguments,) = asked
    assert {name: value for name, value in arguments.items() if name != "storage"} == {
        "retentions": {"embedding": RetentionPolicy(days=2.5)},
        "default": RetentionPolicy(RetentionScope.TAGGED, last=3),
        "grace_hours": 7.5,
        "dry_run": True,
        "recall_reports": f"{tmp_path}/reports",
    }


def age_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two days pass for the store, by whose clock versions and files are old."""
    now = LocalStorage.now_ms
    monkeypatch.setattr(LocalStorage, "now_ms", lambda store, folder: now(store, folder) + 48 * HOUR * 1000)


@pytest.mark.parametrize("dry_run", [True, False])
def test_versions_that_the_policy_does_not_keep_are_expired(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    old, kept = index_versions(lake.table.refresh(), "embedding")
    settings = lake.settings(retries=0) + 'keep = { versions = "newest" }\nrebuild_ratio = 1.0\n'
    lake.settings_file.write_text(f"{settings}[retention]\ndry_run = {str(dry_run).lower()}\n", encoding="utf-8")
    age_everything(monkeypatch)
    assert maintain(lake, instance).success
    (run,) = instance.get_runs(RunsFilter(job_name=JOB))
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert any("only the newest version is kept" in line for line in messages)
    left = index_versions(lake.table.refresh(), "embedding")
    assert left == ((old, kept) if dry_run else (kept,))
    assert to_path(old.puffin_path).exists() is dry_run
    assert to_path(kept.puffin_path).exists()
    assert answers(lake)[0] == answers(lake)[1]
