"""`icepuffin.build_defs` merged with definitions as dagster-dbt and dagster-iceberg make them: both load and work.

They are written here with Dagster alone, after what the two packages define: a multi-asset with checks, and an I/O
manager under the default key that keeps every asset as an Iceberg table.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import icepuffin
from tests.orchestration.lake import Lake, make_lake, make_rows
from tests.orchestration.test_build_defs import definitions_of, tick

PACKAGES = dg.AssetKey(["demo", "packages"])
INDEX = dg.AssetKey([*PACKAGES.path, "ann_index", "embedding"])
SKETCHES = dg.AssetKey([*PACKAGES.path, "theta_sketches"])
GROUP = "demo_demo_packages"
"""The group that icepuffin gives to the table's assets."""


class IcebergIOManager(dg.IOManager):
    """Keeps the table of an asset under the asset's key, and takes nothing but tables."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.written: list[dg.AssetKey] = []

    def handle_output(self, context: dg.OutputContext, obj: pa.Table) -> None:
        self.catalog.load_table(tuple(context.asset_key.path)).append(obj)
        self.written.append(context.asset_key)

    def load_input(self, context: dg.InputContext) -> pa.Table:
        return self.catalog.load_table(tuple(context.asset_key.path)).scan().to_arrow()


class DbtProject(dg.ConfigurableResource[Any]):
    """As `DbtCliResource`: a configured resource that a multi-asset takes by its parameter."""

    project_dir: str

    def build(self) -> Iterator[str]:
        yield from ("customers", "theta_sketches")


def iceberg_like(lake: Lake) -> dg.Definitions:
    @dg.asset(key=PACKAGES, group_name=GROUP, kinds={"iceberg"}, metadata={"partition_expr": "id"})
    def packages() -> pa.Table:
        return make_rows(1000, 40)

    @dg.asset(group_name=GROUP, ins={"packages": dg.AssetIn(PACKAGES)}, required_resource_keys={"engine", "catalog"})
    def count(context: dg.AssetExecutionContext, packages: pa.Table) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(
            metadata={"rows": packages.num_rows, "engine": context.resources.engine, "of": context.resources.catalog}
        )

    @dg.sensor(name="watch", target=[packages])
    def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        del context
        return dg.SkipReason("nothing new")

    return dg.Definitions(
        assets=[packages, count],
        sensors=[watch],
        resources={"io_manager": IcebergIOManager(lake.catalog), "catalog": "sqlite", "engine": "duckdb"},
    )


def dbt_like() -> dg.Definitions:
    """Models of which one depends on the index and one has the name of an asset of ours, with tests as checks."""
    models = [
        dg.AssetSpec("customers", deps=[PACKAGES], group_name=GROUP, kinds={"dbt", "duckdb"}),
        dg.AssetSpec("theta_sketches", deps=[INDEX], group_name=GROUP, kinds={"dbt"}),
    ]
    checks = [dg.AssetCheckSpec(name, asset="customers") for name in ("freshness", "integrity")]

    @dg.multi_asset(specs=models, check_specs=checks, can_subset=True, name="dbt_models", pool="dbt")
    def dbt_models(context: dg.AssetExecutionContext, dbt: DbtProject) -> Iterator[Any]:
        for model in dbt.build():
            if dg.AssetKey(model) in context.selected_asset_keys:
                yield dg.MaterializeResult(asset_key=model)
        for check in context.selected_asset_check_keys:
            yield dg.AssetCheckResult(passed=True, asset_key=check.asset_key, check_name=check.name)

    @dg.asset_check(asset=INDEX, description="A project's own check of our asset, beside ours of the same asset.")
    def reviewed() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.asset_check(asset=PACKAGES, name="recall")
    def check_with_a_name_of_ours() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    job = dg.define_asset_job("refresh", dg.AssetSelection.assets("customers"))
    return dg.Definitions(
        assets=[dbt_models],
        asset_checks=[reviewed, check_with_a_name_of_ours],
        jobs=[job],
        schedules=[dg.ScheduleDefinition(name="nightly", job=job, cron_schedule="0 2 * * *")],
        resources={"dbt": DbtProject(project_dir="dbt")},
        executor=dg.multiprocess_executor,
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_lake(tmp_path_factory.mktemp("merged") / "lake", snapshots=1)


@pytest.fixture
def parts(lake: Lake) -> list[dg.Definitions]:
    return [iceberg_like(lake), dbt_like(), definitions_of(lake, upstream=PACKAGES)]


@pytest.mark.parametrize("first", [0, 1, 2], ids=["iceberg first", "dbt first", "icepuffin first"])
def test_they_load_in_any_order(parts: list[dg.Definitions], first: int) -> None:
    merged = dg.Definitions.merge(*parts[first:], *parts[:first])
    dg.Definitions.validate_loadable(merged)
    graph = merged.resolve_asset_graph()
    assert {graph.get(key).group_name for key in graph.get_all_asset_keys()} == {GROUP}
    assert graph.get(INDEX).parent_keys == {PACKAGES}
    assert graph.get(dg.AssetKey("theta_sketches")).parent_keys == {INDEX}
    names = {key.name for key in graph.get_check_keys_for_assets({INDEX})}
    assert names == {"recall", "tombstones", "layout", "freshness", "integrity", "reviewed"}
    assert merged.executor is dg.multiprocess_executor
    assert merged.resolve_job_def("refresh").executor_def is dg.multiprocess_executor
    assert merged.resolve_job_def("refresh_demo_demo_packages").executor_def.name == "in_process"
    assert {sensor.name for sensor in merged.sensors or ()} == {"watch", "watch_demo_demo_packages"}


def test_all_of_them_materialize_and_check(
    lake: Lake, parts: list[dg.Definitions], instance: dg.DagsterInstance
) -> None:
    """The project writes a snapshot, our sensor requests its run, and the project's model comes after the index."""
    merged = dg.Definitions.merge(*parts)
    everything = merged.resolve_implicit_global_asset_job_def()
    foreign = [PACKAGES, dg.AssetKey("count"), dg.AssetKey("customers")]
    projects_run = everything.execute_in_process(instance=instance, asset_selection=foreign)
    assert {check.asset_check_key.name for check in projects_run.get_asset_check_evaluations()} == {
        "freshness",
        "integrity",
        "recall",
    }
    (count,) = projects_run.asset_materializations_for_node("count")
    assert {key: value.value for key, value in count.metadata.items()} == {
        "rows": 100,
        "engine": "duckdb",
        "of": "sqlite",
    }
    requests = tick(merged, instance).run_requests
    assert [request.partition_key for request in requests][-1] == str(lake.head())
    refresh = merged.resolve_job_def("refresh_demo_demo_packages")
    ours = refresh.execute_in_process(instance=instance, partition_key=str(lake.head()), tags=requests[-1].tags)
    checked = {check.asset_check_key.name: check.passed for check in ours.get_asset_check_evaluations()}
    assert checked == dict.fromkeys(("recall", "tombstones", "layout", "freshness", "reviewed"), True)
    assert icepuffin.open_index(lake.table.refresh()).coverage == "exact-version"
    by_click = everything.execute_in_process(
        instance=instance, asset_selection=[INDEX, SKETCHES], partition_key=str(lake.head())
    )
    assert by_click.success
    clicked = {check.asset_check_key for check in by_click.get_asset_check_evaluations()}
    assert dg.AssetCheckKey(INDEX, "recall") in clicked
    assert dg.AssetCheckKey(INDEX, "integrity") not in clicked, "each run of a backfill would read all vectors"
    for key in (INDEX, SKETCHES):
        (first,), (second,) = (
            run.asset_materializations_for_node(key.to_python_identifier()) for run in (ours, by_click)
        )
        assert first.metadata["bytes"].value
        assert second.metadata["details"] == first.metadata["details"], "what the work took stays"
        done = "action" if key == INDEX else "outcome"
        assert second.metadata[done].value in ("reused", "current"), "what the run did is its own"
    last = everything.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("theta_sketches")])
    assert last.success
    manager = (merged.resources or {})["io_manager"]
    assert manager.written == [PACKAGES], "outputs of ours go through no I/O manager"
