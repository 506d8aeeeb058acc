"""Checks over real versions: lag counts snapshots, integrity sees one flipped bit, live recall reads reports."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.execution.context.invocation import DirectAssetCheckExecutionContext
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.types import FloatType, ListType

from examples.demo.local_sensor import tick
from icepuffin.assets.checks import (
    freshness_check,
    integrity_check,
    integrity_result,
    is_late,
    live_recall_check,
    sketches_check,
)
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import TableSettings
from icepuffin.assets.tables import table_asset
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.freshness import FreshnessLag, index_lag
from icepuffin.ops.model import Action
from icepuffin.ops.recall.recall_reports import RecallReporter, RecallReports
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.settings import load
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import Lake, make_lake, make_rows

ENGINE = Engine(spark_conf={}, threads=2, driver_only_rows=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path, snapshots=2)


@pytest.fixture
def catalogs(lake: Lake) -> Catalogs:
    return catalogs_of(load(lake.settings_file))


@pytest.fixture
def spec(lake: Lake, catalogs: Catalogs) -> TableSpec:
    return found_spec(load(lake.settings_file).tables["packages"], catalogs)


def indexed(lake: Lake, spec: TableSpec) -> Path:
    """Index the head. Returns the file of the version."""
    refresh_index(ENGINE.run_on(lake.table, lake.head()), spec.indexes[0], lake.head())
    return Path(index_versions(lake.table, "embedding")[-1].puffin_path.removeprefix("file://"))


def result(check: dg.AssetChecksDefinition, catalogs: Catalogs) -> dg.AssetCheckResult:
    found: Any = check(dg.build_asset_check_context(resources={"icepuffin_catalogs": catalogs}))
    assert isinstance(found, dg.AssetCheckResult)
    return found


def freshness(
    spec: TableSpec,
    catalogs: Catalogs,
    instance: dg.DagsterInstance | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.AssetCheckResult:
    with instance or dg.DagsterInstance.ephemeral() as opened:
        check: Any = freshness_check(spec, spec.indexes[0])
        resources = {"icepuffin_catalogs": catalogs}
        of_run = dg.build_op_context(resources=resources, instance=opened, run_tags=tags)
        found = check(DirectAssetCheckExecutionContext(of_run))
    assert isinstance(found, dg.AssetCheckResult)
    return found


def number(found: dg.AssetCheckResult, key: str) -> Any:
    return found.metadata[key].value


def test_lag_is_counted_in_snapshots(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    before = freshness(spec, catalogs)
    assert (before.passed, number(before, "lag (snapshots)"), number(before, "snapshots with a version (share)")) == (
        False,
        2,
        0.0,
    )
    indexed(lake, spec)
    at_head = freshness(spec, catalogs)
    assert (
        at_head.passed,
        number(at_head, "lag (snapshots)"),
        number(at_head, "snapshots with a version (share)"),
    ) == (
        True,
        0,
        0.5,
    )
    lake.append()
    assert freshness(spec, catalogs).passed, "one snapshot behind is allowed"
    lake.append()
    late = freshness(spec, catalogs)
    assert (late.passed, late.severity, number(late, "lag (snapshots)")) == (False, dg.AssetCheckSeverity.WARN, 2)


@pytest.mark.parametrize(
    ("snapshots", "minutes", "late"), [(2, 999.0, False), (3, 9.9, False), (3, 10.0, True), (9, 0.0, False)]
)
def test_an_index_is_late_over_its_lag_and_from_its_minutes_on(snapshots: int, minutes: float, late: bool) -> None:
    spec: Any = SimpleNamespace(
        settings=TableSettings(catalog="c", name="n.t", max_freshness_lag=2, max_freshness_minutes=10)
    )
    assert is_late(spec, FreshnessLag(snapshots, minutes, 0.5, "1")) == late


def test_a_snapshot_in_which_a_run_found_nothing_does_not_count(lake: Lake, catalogs: Catalogs) -> None:
    lake.write_settings(max_freshness_lag=0)
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    key, head = spec.index_key("embedding"), str(lake.head())
    for actions, passed in (((Action.EMPTY,), True), ((Action.EMPTY, Action.BUILT), False)):
        with dg.DagsterInstance.ephemeral() as instance:
            for found in actions:
                metadata = {"action": str(found)}
                instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata, partition=head))
            assert freshness(spec, catalogs, instance).passed is passed, "the last run counts"


def test_an_index_whose_ref_does_not_exist_is_not_fresh(lake: Lake, catalogs: Catalogs) -> None:
    lake.write_settings(watched_refs=("prod", "main"))
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    missing = freshness(spec, catalogs)
    assert (missing.passed, missing.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "no branch or tag 'prod'" in missing.metadata["why"].value
    sketches = result(sketches_check(spec), catalogs)
    assert (sketches.passed, sketches.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "no branch or tag 'prod'" in number(sketches, "why")
    lake.table.manage_snapshots().create_branch(lake.head(), "prod").commit()
    assert number(freshness(spec, catalogs), "lag (snapshots)") == 2


def test_a_late_index_says_to_switch_the_sensor_on_where_it_is_off(lake: Lake, catalogs: Catalogs) -> None:
    for running in (False, True):
        lake.write_settings(sensor_running=running)
        spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
        late = freshness(spec, catalogs)
        assert not late.passed
        assert ("what to do" in late.metadata) is not running


def test_a_switch_in_the_ui_wins_over_the_settings(lake: Lake, catalogs: Catalogs, tmp_path: Path) -> None:
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("icepuffin"), "__repository__")
    for status, change in (
        (InstigatorStatus.RUNNING, dg.DagsterInstance.add_instigator_state),
        (InstigatorStatus.STOPPED, dg.DagsterInstance.update_instigator_state),
    ):
        lake.write_settings(sensor_running=status is InstigatorStatus.STOPPED)
        spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
        origin = RemoteInstigatorOrigin(repository, spec.sensor_name)
        instance = open_instance(tmp_path / "home")
        change(instance, InstigatorState(origin, InstigatorType.SENSOR, status, SensorInstigatorData()))
        late = freshness(spec, catalogs, instance)
        assert not late.passed
        assert ("what to do" in late.metadata) is (status is InstigatorStatus.STOPPED)


def test_the_switch_of_another_sensor_or_code_location_is_not_that_of_the_run(
    lake: Lake, catalogs: Catalogs, tmp_path: Path
) -> None:
    """As where a trial watches a table of the same name in a catalog of its own."""
    lake.write_settings(sensor_running=False)
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    instance = open_instance(tmp_path / "home")
    for location, name, status in (
        ("icepuffin", spec.sensor_name, InstigatorStatus.STOPPED),
        ("icepuffin", "watch_another", InstigatorStatus.RUNNING),
        ("trial", spec.sensor_name, InstigatorStatus.RUNNING),
    ):
        repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__")
        origin = RemoteInstigatorOrigin(repository, name)
        instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, status, SensorInstigatorData()))
    tags = {".dagster/repository": "__repository__@icepuffin"}
    assert "what to do" in freshness(spec, catalogs, instance, tags).metadata


def test_the_table_says_what_to_switch_on_where_its_sensor_starts_off(lake: Lake, catalogs: Catalogs) -> None:
    descriptions = {}
    for running in (False, True):
        lake.write_settings(sensor_running=running)
        descriptions[running] = str(
            table_asset(found_spec(load(lake.settings_file).tables["packages"], catalogs)).description
        )
    assert "**The sensor `watch_demo_demo_packages` is off until you switch it on**" in descriptions[False]
    assert "is off" not in descriptions[True]


def test_the_steps_of_the_verify_job_begin_with_the_names_of_the_checks(spec: TableSpec) -> None:
    checks = [check(spec, spec.indexes[0]) for check in (freshness_check, integrity_check)]
    assert [check.node_def.name for check in checks] == [
        "check_freshness__demo__demo__packages__ann_index__embedding",
        "check_integrity__demo__demo__packages__ann_index__embedding",
    ]
    assert len({check.node_def.description for check in checks}) == 2


def test_a_table_that_was_emptied_is_not_late(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    indexed(lake, spec)
    for _ in range(3):
        lake.append()
        lake.table.delete(AlwaysTrue())
    lake.table.append(make_rows(0, 1).slice(0, 0))
    found = freshness(spec, catalogs)
    assert (found.passed, number(found, "lag (snapshots)")) == (True, 0)


def test_snapshots_before_the_column_are_not_behind(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=0)
    plain = lake.catalog.create_table("demo.plain", pa.schema([("id", pa.int64())]))
    for number_ in range(3):
        plain.append(pa.table({"id": [number_]}))
    with plain.update_schema() as change:
        change.add_column("embedding", ListType(9, FloatType(), element_required=False))
    definition = IndexDefinition(name="embedding", column="embedding")
    assert index_lag(plain.refresh(), definition, "main").snapshots == 0
    plain.append(pa.table({"id": [3], "embedding": pa.array([[1.0, 2.0]], pa.list_(pa.float32()))}))
    assert index_lag(plain.refresh(), definition, "main").snapshots == 1
    plain.update_schema(allow_incompatible_changes=True).delete_column("embedding").commit()
    plain.refresh().append(pa.table({"id": [4]}))
    assert index_lag(plain.refresh(), definition, "main").snapshots == 5, "the column is gone: somebody has to look"


def test_snapshots_whose_vectors_are_all_null_are_not_behind_after_a_run(
    tmp_path: Path,
) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    lake.write_settings(max_freshness_lag=0)
    settings = load(lake.settings_file)
    spec, catalogs = found_spec(settings.tables["packages"], catalogs_of(settings)), catalogs_of(settings)
    lake.table.delete(AlwaysTrue())
    rows = make_rows(0, 5)
    lake.table.append(rows.set_column(2, "embedding", pa.array([None] * 5, pa.list_(pa.float32()))))
    with dg.DagsterInstance.ephemeral() as instance:
        assert not freshness(spec, catalogs, instance).passed, "nobody has looked"
    with dg.DagsterInstance.ephemeral() as instance:
        assert all(run.succeeded for run in tick(settings, instance))
        assert freshness(spec, catalogs, instance).passed


def test_an_undamaged_file_passes(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    path = indexed(lake, spec)
    found = integrity_result(spec, spec.indexes[0], catalogs)
    assert found.passed, number(found, "faults")
    assert 0 < number(found, "bytes read") < path.stat().st_size


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_one_flipped_bit_is_found(lake: Lake, catalogs: Catalogs, spec: TableSpec, share: float) -> None:
    path = indexed(lake, spec)
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)
    found = integrity_result(spec, spec.indexes[0], catalogs)
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.ERROR
    assert "icepuffin refresh" in number(found, "what to do")


def test_a_version_that_only_a_later_release_reads_is_a_warning(
    lake: Lake, catalogs: Catalogs, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_json = IndexDefinition.to_json
    with monkeypatch.context() as patch:
        patch.setattr(IndexDefinition, "to_json", lambda self: f'{to_json(self)[:-1]},"of_tomorrow":1}}')
        indexed(lake, spec)
    found = integrity_result(spec, spec.indexes[0], catalogs)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "install the one that wrote it" in number(found, "what to do")


def test_a_broken_file_is_deleted_and_made_again(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    """As docs/operations.md tells who is on call."""
    path = indexed(lake, spec)
    published = path.read_bytes()
    path.unlink()
    again = indexed(lake, spec)
    assert again.read_bytes() == published
    assert integrity_result(spec, spec.indexes[0], catalogs).passed


def test_a_file_that_is_gone_is_a_fault_and_no_crash(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    path = indexed(lake, spec)
    path.unlink()
    found = integrity_result(spec, spec.indexes[0], catalogs)
    assert not found.passed
    assert path.name in number(found, "faults")


def test_sketches_that_cannot_be_read_are_found(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    check = sketches_check(spec)
    before = result(check, catalogs)
    assert (before.passed, before.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert number(before, "why") == "there are no sketches yet"
    report = count_theta_sketches(ENGINE.run_on(lake.table, lake.head()), lake.head()).publish()
    assert result(check, catalogs).passed
    lake.table.refresh().manage_snapshots().create_branch(lake.table.metadata.snapshots[0].snapshot_id, "old").commit()
    lake.write_settings(watched_refs=("old", "main"))
    of_old = sketches_check(found_spec(load(lake.settings_file).tables["packages"], catalogs))
    assert number(result(of_old, catalogs), "why") == "there are no sketches yet", "of the first ref"
    path = Path((report.statistics_path or "").removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    damaged = result(check, catalogs)
    assert (damaged.passed, damaged.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert number(damaged, "what to do") == f"icepuffin refresh demo.packages --snapshot {lake.head()} --verify"
    path.unlink()
    assert path.name in number(result(check, catalogs), "why")


def test_the_integrity_check_of_an_index_that_was_never_built_is_a_warning(catalogs: Catalogs, spec: TableSpec) -> None:
    found = integrity_result(spec, spec.indexes[0], catalogs)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "no version" in number(found, "why")


@pytest.mark.parametrize(
    ("queries", "share", "target", "passed"),
    [(0, 1.0, 0.9, True), (10, 0.8, 0.9, True), (2000, 0.8, 0.9, False), (2000, 0.95, 0.9, True), (9, 1.0, 1.0, True)],
)
def test_live_recall_fails_where_it_is_certainly_below_the_target(
    lake: Lake, catalogs: Catalogs, tmp_path: Path, queries: int, share: float, target: float, passed: bool
) -> None:
    """Ten queries of .8 are too few to tell whether it is .9."""
    folder = f"file://{tmp_path}/recall"
    lake.write_settings(recall_reports=folder)
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    indexed(lake, spec)
    lake.append()
    indexed(lake, spec)
    older, newest = (version.index_snapshot_id for version in index_versions(lake.table, "embedding"))
    reporter = RecallReporter(
        RecallReports(folder, storage_of(lake.table), lake.table.metadata.table_uuid), "embedding"
    )
    reporter.report(older, queries=5, recall_sum=0.0, left_out=0)
    reporter.report(newest, queries=queries, recall_sum=queries * share, left_out=1)
    checked = result(live_recall_check(spec, replace(spec.indexes[0], target_recall=target)), catalogs)
    assert (checked.passed, checked.severity) == (passed, dg.AssetCheckSeverity.WARN)
    assert ("what to do" in checked.metadata) is not passed
    assert number(checked, "queries") == queries
    if queries:
        numbers = (number(checked, name) for name in ("recall", "readers", "not measured"))
        assert tuple(numbers) == (share, 1, 1)
    else:
        assert "no live query of the newest version could be measured" in number(checked, "why")


def test_live_recall_is_that_of_the_version_at_the_tag_however_many_are_newer(
    lake: Lake, catalogs: Catalogs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a rollback."""
    lake.write_settings(recall_reports=str(tmp_path / "recall"))
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    indexed(lake, spec)
    older = index_versions(lake.table, "embedding")[-1]
    reports = RecallReports(str(tmp_path / "recall"), storage_of(lake.table), lake.table.metadata.table_uuid)
    RecallReporter(reports, "embedding").report(older.index_snapshot_id, queries=9, recall_sum=9.0, left_out=0)
    lake.append()
    indexed(lake, spec)
    monkeypatch.setattr("icepuffin.assets.checks.tagged_version", lambda *_: older)
    assert number(result(live_recall_check(spec, spec.indexes[0]), catalogs), "queries") == 9


def test_live_recall_warns_where_the_reports_cannot_be_read(
    lake: Lake, catalogs: Catalogs, spec: TableSpec, tmp_path: Path
) -> None:
    indexed(lake, spec)
    lake.write_settings(recall_reports=str(tmp_path))
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    (version,) = index_versions(lake.table, "embedding")
    reports = RecallReports(str(tmp_path), storage_of(lake.table), lake.table.metadata.table_uuid)
    reports.create(f"embedding/{version.index_snapshot_id}/{32 * '0'}-1.json", {})
    damaged = result(live_recall_check(spec, spec.indexes[0]), catalogs)
    assert (damaged.passed, damaged.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "is no report of live recall" in number(damaged, "why")
    lake.write_settings(recall_reports="ftp://host/recall")
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    checked = result(live_recall_check(spec, spec.indexes[0]), catalogs)
    assert (checked.passed, checked.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "'ftp' is not supported" in number(checked, "why")


def test_live_recall_of_an_index_that_was_never_built_has_no_query(
    lake: Lake, catalogs: Catalogs, tmp_path: Path
) -> None:
    lake.write_settings(recall_reports=str(tmp_path / "recall"))
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    checked = result(live_recall_check(spec, spec.indexes[0]), catalogs)
    assert (checked.passed, number(checked, "queries")) == (True, 0)
    assert "no live query of the newest version" in number(checked, "why")
