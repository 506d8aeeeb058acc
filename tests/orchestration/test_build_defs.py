"""`icepuffin.build_defs` beside what a project has: its executor, its resources, its assets, and other tables."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

import icepuffin
from icepuffin.assets import ann_index
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.processes import run_process_executor
from tests.orchestration.lake import Lake, make_lake

INDEX = {"column": "embedding", "pq_m": 4, "max_degree": 16, "search_list": 32}
TABLE = dg.AssetKey(["demo", "demo", "packages"])
POOL = "table_demo_demo_packages"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake", snapshots=2)


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """An instance without a `dagster.yaml`."""
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        yield instance


def catalog_of(lake: Lake) -> dict[str, str]:
    folder = lake.directory
    return {
        "name": "demo",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def definitions_of(lake: Lake, table: str = "demo.packages", **parameters: Any) -> dg.Definitions:
    defaults = {"indexes": {"embedding": INDEX}, "settings": {"retry_delay_seconds": 0}, "threads": 2}
    return icepuffin.build_defs(catalog_of(lake), table, **{**defaults, **parameters})


@dg.asset
def docs() -> None:
    """The project's own asset."""


def foreign() -> dg.Definitions:
    """Definitions of a project, with names that icepuffin uses inside itself."""

    @dg.asset(required_resource_keys={"engine"})
    def report(context: dg.AssetExecutionContext) -> str:
        return str(context.resources.engine)

    @dg.sensor(job_name="reports")
    def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return dg.SkipReason("nothing to do")

    return dg.Definitions(
        assets=[docs, report, dg.AssetSpec(["lake", "docs"], kinds={"iceberg"}), dg.AssetSpec("model", deps=[docs])],
        jobs=[dg.define_asset_job("reports", [report])],
        sensors=[watch],
        resources={"engine": "project", "catalogs": "project", "io_manager": dg.mem_io_manager},
        executor=dg.multiprocess_executor,
        loggers={"console": dg.colored_console_logger},
    )


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance, sensor: str = "watch_demo_demo_packages") -> Any:
    """One evaluation of a sensor, by what the merged definitions have."""
    watch: Any = definitions.resolve_sensor_def(sensor)
    resources = {key: (definitions.resources or {})[key] for key in watch.required_resource_keys}
    return watch(dg.build_sensor_context(instance=instance, definitions=definitions, resources=resources))


def execute(
    definitions: dg.Definitions, instance: dg.DagsterInstance, request: dg.RunRequest
) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_job_def("refresh_demo_demo_packages")
    return job.execute_in_process(
        instance=instance, partition_key=request.partition_key, tags=request.tags, raise_on_error=False
    )


def carried_out(definitions: dg.Definitions, instance: dg.DagsterInstance, request: dg.RunRequest) -> bool:
    return execute(definitions, instance, request).success


def test_it_merges_with_an_executor_resources_and_assets_of_a_project(lake: Lake, stored: dg.DagsterInstance) -> None:
    merged = dg.Definitions.merge(foreign(), definitions_of(lake))
    assert merged.executor is dg.multiprocess_executor
    merged.get_repository_def()
    result = tick(merged, stored)
    assert [request.partition_key for request in result.run_requests] == [
        str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots
    ]
    assert carried_out(merged, stored, result.run_requests[-1])
    assert icepuffin.open_index(lake.table.refresh()).coverage == "exact-version"
    report = merged.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=stored, asset_selection=[dg.AssetKey("report")]
    )
    assert report.output_for_node("report") == "project"


def test_recall_and_tombstones_are_checked_per_snapshot(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake, statistics={"ndv": "off"})
    requests = tick(definitions, stored).run_requests
    for request in reversed(requests):
        checks = execute(definitions, stored, request).get_asset_check_evaluations()
        partitions = {check.check_name: check.partition for check in checks}
        assert partitions == {
            **dict.fromkeys(("recall", "tombstones", "layout"), request.partition_key),
            "freshness": None,
        }
        severities = {check.check_name: check.severity for check in checks}
        assert severities.pop("recall") is dg.AssetCheckSeverity.ERROR
        assert set(severities.values()) == {dg.AssetCheckSeverity.WARN}


def test_tombstones_pass_up_to_the_share_over_which_a_shard_is_rebuilt(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake, statistics={"ndv": "off"}, snapshots="newest")
    assert carried_out(definitions, stored, tick(definitions, stored).run_requests[0])
    lake.table.refresh().delete("id < 24")  # a fifth of the rows
    (request,) = tick(definitions, stored).run_requests
    checks = execute(definitions, stored, request).get_asset_check_evaluations()
    (tombstones,) = (check for check in checks if check.check_name == "tombstones")
    assert tombstones.metadata["tombstone ratio"].value == tombstones.metadata["rebuild at"].value == 0.2
    assert tombstones.passed


def test_a_run_for_sketches_that_are_there_says_so_beside_what_the_work_took(
    lake: Lake, stored: dg.DagsterInstance
) -> None:
    definitions, told = definitions_of(lake, indexes={}, snapshots="newest"), []
    (request,) = tick(definitions, stored).run_requests
    for _ in range(2):
        assert carried_out(definitions, stored, request)
        event = stored.get_latest_materialization_event(dg.AssetKey([*TABLE.path, "theta_sketches"]))
        assert event is not None
        assert event.asset_materialization is not None
        told.append(event.asset_materialization.metadata)
        lake.append()
    assert [metadata["outcome"].value for metadata in told] == ["written", "current"]
    assert told[0]["bytes"] == told[1]["bytes"]
    assert told[0]["time line"] != told[1]["time line"], "it has what came since"


def test_a_check_of_a_snapshot_without_rows_says_that_nothing_was_measured(
    lake: Lake, stored: dg.DagsterInstance
) -> None:
    lake.table.refresh().delete("id >= 0")
    definitions = definitions_of(lake, statistics={"ndv": "off"}, snapshots="newest")
    (request,) = tick(definitions, stored).run_requests
    checks = execute(definitions, stored, request).get_asset_check_evaluations()
    (recall,) = (check for check in checks if check.check_name == "recall")
    assert (recall.passed, recall.metadata["action"].value) == (True, "empty")
    assert recall.metadata["not measured"].value


@pytest.mark.parametrize(("recall", "passed"), [(0.8999, False), (0.9, True)])
def test_a_version_with_recall_under_the_target_fails_its_check(
    lake: Lake, stored: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, recall: float, passed: bool
) -> None:
    """As where the target was raised since it was made."""
    refresh = ann_index.refresh_index
    monkeypatch.setattr(
        ann_index, "refresh_index", lambda *arguments, **named: replace(refresh(*arguments, **named), recall=recall)
    )
    definitions = definitions_of(
        lake, statistics={"ndv": "off"}, indexes={"embedding": {**INDEX, "target_recall": 0.9}}
    )
    request = tick(definitions, stored).run_requests[0]
    checks = execute(definitions, stored, request).get_asset_check_evaluations()
    assert {check.check_name: check.passed for check in checks}["recall"] is passed


def test_two_tables_and_the_projects_own_definitions_merge(lake: Lake) -> None:
    lake.catalog.create_table("demo.other", lake.table.schema())
    merged = dg.Definitions.merge(
        foreign(), definitions_of(lake), definitions_of(lake, "demo.other", threads=1, sensor_running=True)
    )
    merged.get_repository_def()
    keys = merged.resolve_asset_graph().get_all_asset_keys()
    assert {TABLE, dg.AssetKey(["demo", "demo", "other", "ann_index", "embedding"])} <= keys
    ours = [key for key in merged.resources or {} if key.startswith("icepuffin_")]
    assert len(ours) == 4
    assert [str(sensor.default_status.value) for sensor in merged.sensors or ()] == ["STOPPED", "STOPPED", "RUNNING"]


def test_it_has_no_executor_and_takes_any(lake: Lake) -> None:
    bare = definitions_of(lake)
    assert bare.executor is None
    merged = dg.Definitions.merge(bare, dg.Definitions(executor=run_process_executor))
    assert merged.resolve_job_def("refresh_demo_demo_packages").executor_def is run_process_executor


def test_runs_of_a_table_take_turns_without_a_dagster_yaml(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake)
    nodes: Any = definitions.resolve_job_def("refresh_demo_demo_packages").nodes
    assert {pool for node in nodes for pool in node.definition.pools} == {POOL}
    tick(definitions, stored)
    storage = stored.event_log_storage
    assert storage.get_concurrency_info(POOL).slot_count == 1
    storage.set_concurrency_slots(POOL, 3)
    tick(definitions, stored)
    assert storage.get_concurrency_info(POOL).slot_count == 3, "a limit that somebody set stays"


def test_a_run_that_was_killed_does_not_keep_the_pool(lake: Lake, stored: dg.DagsterInstance) -> None:
    """Dagster alone never frees its slot, and every later run of the table would wait."""
    definitions, storage = definitions_of(lake, statistics={"ndv": "off"}), stored.event_log_storage
    tick(definitions, stored)
    killed, waiting, working = (create_run_for_test(stored, status=dg.DagsterRunStatus.STARTED) for _ in range(3))
    for run in (killed, waiting, working):
        storage.claim_concurrency_slot(POOL, run.run_id, "step")
    for run in (killed, waiting):
        stored.report_run_failed(run, "its process was killed")
    assert storage.get_concurrency_info(POOL).active_run_ids == {killed.run_id}
    tick(definitions, stored)
    info = storage.get_concurrency_info(POOL)
    assert {step.run_id for step in (*info.claimed_slots, *info.pending_steps)} == {working.run_id}
    assert storage.claim_concurrency_slot(POOL, working.run_id, "step").is_claimed
    tick(definitions, stored)
    assert storage.get_concurrency_info(POOL).active_run_ids == {working.run_id}, "it is at work"


def test_a_run_without_a_sensor_limits_the_pool_as_well(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake, statistics={"ndv": "off"})
    stored.add_dynamic_partitions("snapshots/demo/demo/packages", [str(lake.head())])
    assert carried_out(definitions, stored, dg.RunRequest(partition_key=str(lake.head())))
    assert stored.event_log_storage.get_concurrency_info(POOL).slot_count == 1


@pytest.mark.parametrize("partitions_def", [None, dg.DailyPartitionsDefinition("2026-01-01")])
def test_the_projects_own_asset_is_the_table(
    lake: Lake, stored: dg.DagsterInstance, partitions_def: dg.PartitionsDefinition | None
) -> None:
    @dg.asset(key=["warehouse", "docs"], partitions_def=partitions_def)
    def writes_the_table() -> None: ...

    merged = dg.Definitions.merge(
        dg.Definitions(assets=[writes_the_table]), definitions_of(lake, upstream=writes_the_table)
    )
    merged.get_repository_def()
    graph = merged.resolve_asset_graph()
    index = dg.AssetKey(["warehouse", "docs", "ann_index", "embedding"])
    assert graph.get(index).parent_keys == {dg.AssetKey(["warehouse", "docs"])}
    assert TABLE not in graph.get_all_asset_keys()
    result = tick(merged, stored)
    assert len(result.run_requests) == 2
    assert carried_out(merged, stored, result.run_requests[-1])
    events = stored.fetch_materializations(dg.AssetKey(["warehouse", "docs"]), limit=9).records
    assert events == [], "the project records what its own asset does"
    assert stored.get_latest_materialization_event(index) is not None
    assert tick(merged, stored).run_requests


def test_nor_does_a_night_record_anything_of_the_projects_own_asset(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake, upstream=docs)
    nightly = definitions.resolve_schedule_def("nightly_demo_demo_packages")
    context = dg.build_schedule_context(
        instance=stored,
        scheduled_execution_time=datetime(2026, 11, 21, 2, 0, tzinfo=UTC),
        resources={key: (definitions.resources or {})[key] for key in nightly.required_resource_keys},
        repository_def=dg.Definitions.merge(dg.Definitions([docs]), definitions).get_repository_def(),
    )
    (request,) = nightly.evaluate_tick(context).run_requests or ()
    assert request.partition_key == str(lake.head())
    assert stored.fetch_materializations(dg.AssetKey("docs"), limit=9).records == []


@pytest.mark.parametrize("attribute", ["key_prefix", "key", "upstream"])
def test_tables_of_one_name_in_two_catalogs_keep_their_partitions(
    attribute: str, tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    """As of two code locations, for production and for staging."""
    lakes = {name: make_lake(tmp_path / name, snapshots=2) for name in ("production", "staging")}
    locations = [definitions_of(lake, **{attribute: name}) for name, lake in lakes.items()]
    requests = [tick(definitions, stored).run_requests for definitions in locations]
    assert [len(requested) for requested in requests] == [2, 2]
    assert all(
        carried_out(definitions, stored, requested[0])
        for definitions, requested in zip(locations, requests, strict=True)
    )


@pytest.mark.parametrize("attribute", ["key_prefix", "key", "upstream"])
def test_a_table_waits_for_no_run_of_another_catalogs_table_of_its_name(
    attribute: str, tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    production, staging = (
        definitions_of(make_lake(tmp_path / name, snapshots=2), snapshots="newest", **{attribute: name})
        for name in ("production", "staging")
    )
    request = tick(production, stored).run_requests[0]
    create_run_for_test(stored, job_name="refresh", status=dg.DagsterRunStatus.STARTED, tags=request.tags)
    assert tick(staging, stored).run_requests
    assert not tick(production, stored).run_requests


def test_two_tables_that_one_asset_writes_keep_their_partitions(lake: Lake, stored: dg.DagsterInstance) -> None:
    lake.catalog.create_namespace("other")
    other = lake.catalog.create_table("other.packages", lake.table.schema())
    other.append(lake.table.scan().to_arrow())
    tables = {"demo": "demo.packages", "other": "other.packages"}
    locations = {
        name: definitions_of(lake, table, upstream="docs", statistics={"ndv": "off"}, indexes={name: INDEX})
        for name, table in tables.items()
    }
    merged = dg.Definitions.merge(dg.Definitions(assets=[docs]), *locations.values())
    merged.get_repository_def()
    partitions = {
        merged.resolve_assets_def(dg.AssetKey(["docs", "ann_index", name])).partitions_def.name for name in tables
    }
    assert len(partitions) == 2


def test_what_a_project_may_set_of_the_assets_is_set(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(
        lake,
        key="search/docs",
        group="search",
        owners=["team:search"],
        tags={"tier": "1"},
        kinds=["faiss"],
        partitions="docs_snapshots",
    )
    graph = definitions.resolve_asset_graph()
    derived = [
        dg.AssetKey(["search", "docs", "theta_sketches"]),
        dg.AssetKey(["search", "docs", "ann_index", "embedding"]),
    ]
    assert graph.get_all_asset_keys() == {dg.AssetKey(["search", "docs"]), *derived}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert (node.group_name, list(node.owners), node.tags["tier"]) == ("search", ["team:search"], "1")
        assert node.partitions_def == dg.DynamicPartitionsDefinition(name="docs_snapshots")
    assert {frozenset(graph.get(key).kinds) for key in derived} == {frozenset({"faiss"})}
    tick(definitions, stored)
    assert len(stored.get_dynamic_partitions("docs_snapshots")) == 2


def test_a_prefix_stands_before_the_key(lake: Lake) -> None:
    keys = definitions_of(lake, key_prefix="prod").resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey(["prod", "demo", "demo", "packages", "ann_index", "embedding"]) in keys


@pytest.mark.filterwarnings("ignore:.*include_sources")
def test_a_condition_requests_the_runs_in_place_of_the_sensor(lake: Lake, stored: dg.DagsterInstance) -> None:
    definitions = definitions_of(lake, automation=dg.AutomationCondition.on_missing())
    repository = definitions.get_repository_def()
    by_dagster = repository.get_sensor_def("default_automation_condition_sensor")
    assert by_dagster.default_status is dg.DefaultSensorStatus.STOPPED, "docs/dagster.md has it switched on"
    before = dg.evaluate_automation_conditions(definitions, stored)
    assert before.total_requested == 0
    result = tick(definitions, stored)
    assert result.run_requests == []
    assert result.skip_reason.skip_message == "2 snapshots left to the automation condition"
    after = dg.evaluate_automation_conditions(definitions, stored, cursor=before.cursor)
    assert after.total_requested == 4, "sketches and an index of two snapshots"
    lake.append()
    tick(definitions, stored)
    third = dg.evaluate_automation_conditions(definitions, stored, cursor=after.cursor)
    index = dg.AssetKey([*TABLE.path, "ann_index", "embedding"])
    assert third.get_requested_partitions(index) == {str(lake.head())}
    late = dg.evaluate_automation_conditions(definitions, stored)
    assert late.total_requested == 0, "docs/dagster.md: what was there before the first evaluation takes a backfill"


def test_a_pattern_is_every_table_that_matches(lake: Lake, stored: dg.DagsterInstance) -> None:
    schema = lake.table.schema()
    lake.catalog.create_table("demo.pages", schema)
    lake.catalog.create_table("demo.users", schema)
    plain = lake.catalog.create_table("demo.p_plain", schema.select("id", "name"))
    assert plain.name() == ("demo", "p_plain")
    create_index(lake.table, IndexDefinition(name="second", column="embedding"))
    definitions = definitions_of(lake, "demo.p*")
    definitions.get_repository_def()
    names = {"/".join(key.path[2:]) for key in definitions.resolve_asset_graph().get_all_asset_keys()}
    assert names == {
        "packages",
        "packages/theta_sketches",
        "packages/ann_index/embedding",
        "packages/ann_index/second",
        "pages",
        "pages/theta_sketches",
        "pages/ann_index/embedding",
        "p_plain",
        "p_plain/theta_sketches",
    }
    assert len(tick(definitions, stored).run_requests) == 2


def test_tables_of_a_pattern_whose_names_are_one_in_dagster_have_a_sensor_each(lake: Lake) -> None:
    lake.catalog.create_table("demo.pack-ages", lake.table.schema())
    lake.catalog.create_table("demo.pack_ages", lake.table.schema())
    definitions = definitions_of(lake, "demo.*")
    definitions.get_repository_def()
    assert len([sensor for sensor in definitions.sensors or () if "pack_ages" in sensor.name]) == 2


def test_a_pattern_of_an_unreachable_catalog_is_an_asset_that_reports_it(lake: Lake) -> None:
    catalog = {**catalog_of(lake), "uri": "sqlite:////no/such/folder/lake.db?secret=hunter2"}
    definitions = icepuffin.build_defs(catalog, "demo.*")
    (asset,) = definitions.resolve_all_asset_specs()
    assert r"The tables demo.\* are not shown: catalog 'demo'" in str(asset.description)
    assert "hunter2" not in str(asset.description)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"indexes": {"e": {"column": "v", "max_degree": 1}}}, r"e\.max_degree: takes a whole number from 4 to"),
        ({"settings": {"colour": "red"}}, r"colour: no such setting"),
        ({"table": "packages"}, r"name: has the wrong form: a table is namespace\.table"),
        ({"catalog": {"type": "sql"}}, "the catalog of demo.t has no name"),
        ({"catalog": {"name": "", "type": "sql"}}, "has no name"),
        ({"catalog": {"name": "demo", "token": None}}, "catalog: token is null"),
        *(({"table": "demo.*", name: "docs"}, "may match several") for name in ("key", "upstream", "partitions")),
    ],
)
def test_a_wrong_value_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        icepuffin.build_defs(**{"catalog": {"name": "demo", "token": "hunter2"}, "table": "demo.t", **parameters})
    assert "hunter2" not in str(raised.value)


def test_secrets_are_in_no_repr() -> None:
    component = icepuffin.IcepuffinTableComponent(
        catalog={"name": "demo", "token": "hunter2"}, table="demo.t", spark={"conf": {"x": "hunter2"}}
    )
    assert "hunter2" not in repr(component)
