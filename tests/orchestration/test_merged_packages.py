"""`icepuffin.build_defs` merged with definitions that dagster-dbt and dagster-iceberg make.

Opt-in: the two are not in the lock file. docs/dagster.md says how to install them beside it.
"""

import subprocess
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import icepuffin
from tests.orchestration.lake import Lake, make_lake, make_rows
from tests.orchestration.test_build_defs import catalog_of, definitions_of, tick

pytestmark = pytest.mark.filterwarnings("default")  # the two packages warn of themselves

PACKAGES = dg.AssetKey(["demo", "packages"])
INDEX = dg.AssetKey([*PACKAGES.path, "ann_index", "embedding"])
FILES = {
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: shop\n",
    "profiles.yml": "shop: {target: dev, outputs: {dev: {type: duckdb, path: shop.duckdb}}}\n",
    "models/customers.sql": "select 1 as id -- after {{ source('lake', 'packages') }}\n",
    "models/schema.yml": """
version: 2
models: [{name: customers, columns: [{name: id, data_tests: [unique]}]}]
sources:
  - name: lake
    tables: [{name: packages, meta: {dagster: {asset_key: [demo, packages, ann_index, embedding]}}}]
""",
}


def iceberg_definitions(lake: Lake) -> dg.Definitions:
    io_managers = pytest.importorskip("dagster_iceberg.io_manager.arrow")
    config = pytest.importorskip("dagster_iceberg.config")

    @dg.asset(key=PACKAGES, metadata={"write_mode": "append"})
    def packages() -> pa.Table:
        return make_rows(1000, 40)

    @dg.asset(ins={"packages": dg.AssetIn(PACKAGES)})
    def count(packages: pa.Table) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"rows": packages.num_rows})

    properties = catalog_of(lake)
    name = properties.pop("name")
    manager = io_managers.PyArrowIcebergIOManager(name=name, config=config.IcebergCatalogConfig(properties=properties))
    return dg.Definitions(assets=[packages, count], resources={"io_manager": manager})


def dbt_definitions(folder: Path) -> dg.Definitions:
    dagster_dbt = pytest.importorskip("dagster_dbt")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(["dbt", "parse", "--quiet"], cwd=folder, check=True)

    @dagster_dbt.dbt_assets(manifest=folder / "target" / "manifest.json")
    def models(context: dg.AssetExecutionContext, dbt: dagster_dbt.DbtCliResource) -> Any:
        yield from dbt.cli(["build"], context=context).stream()

    dbt = dagster_dbt.DbtCliResource(project_dir=str(folder), profiles_dir=str(folder))
    return dg.Definitions(assets=[models], resources={"dbt": dbt})


def test_a_table_of_dagster_iceberg_is_indexed_and_a_model_of_dbt_comes_after(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    parts = [iceberg_definitions(lake), dbt_definitions(tmp_path / "dbt"), definitions_of(lake, upstream=PACKAGES)]
    merged = dg.Definitions.merge(*parts)
    dg.Definitions.validate_loadable(merged)
    everything = merged.resolve_implicit_global_asset_job_def()
    before = lake.head()
    written = everything.execute_in_process(
        instance=instance, asset_selection=[PACKAGES, dg.AssetKey("count"), dg.AssetKey("customers")]
    )
    assert lake.head() != before
    assert [check.passed for check in written.get_asset_check_evaluations()] == [True]
    requests = tick(merged, instance).run_requests
    assert [request.partition_key for request in requests][-1] == str(lake.head())
    refresh = merged.resolve_job_def("refresh_demo_demo_packages")
    assert refresh.execute_in_process(instance=instance, partition_key=str(lake.head()), tags=requests[-1].tags).success
    assert icepuffin.open_index(lake.table.refresh()).coverage == "exact-version"
    assert merged.resolve_asset_graph().get(dg.AssetKey("customers")).parent_keys == {INDEX}
