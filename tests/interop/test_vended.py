"""Vended keys wherever the product reads and writes: on Spark's workers, in SQL, from the shell, in Dagster's runs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.demo.local_sensor import tick
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.tasks.task_runner import Progress, RunContext
from icepuffin.orchestration.cli import main
from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.settings import load
from tests.conftest import make_rows, queries
from tests.ops.catalog.vended_tables import connected, new_table
from tests.ops.index.comparison import DEFINITION
from tests.orchestration.lake import without_captured_output
from tests.services.vending import Vending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_keys")]
VECTOR = [0.5] * 16


@pytest.fixture
def lake(vending_lake: Vending) -> Vending:
    return vending_lake


class Late(SparkRunner):
    """What was vended before a job has expired when its tasks start."""

    def __init__(self, session: "SparkSession", lake: Vending) -> None:
        super().__init__(session)
        self._lake = lake

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Progress | None = None
    ) -> list[Any]:
        self._lake.expire()
        return super().run(function, tasks, label=label, progress=progress)


@pytest.mark.jvm
def test_tasks_on_spark_get_keys_by_themselves(lake: Vending, tmp_path: Path, spark: "SparkSession") -> None:
    table = new_table(lake, tmp_path)
    head = table.metadata.current_snapshot_id or 0
    materialize_index(RunContext(table, storage_of(table), Late(spark, lake)), DEFINITION, head)
    assert "ExpiredToken" in lake.refused
    table.refresh()
    there = open_index(table, "e", runner=Late(spark, lake), in_process_mb=0)
    assert there.tier == "distributed"
    here = open_index(table, "e")
    assert there.search(queries(3), 5).rows.equals(here.search(queries(3), 5).rows)


@pytest.mark.jvm
def test_the_table_function_of_spark_reads_with_vended_keys(
    lake: Vending, tmp_path: Path, spark: "SparkSession"
) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    table = new_table(lake, tmp_path)
    head = table.metadata.current_snapshot_id or 0
    materialize_index(RunContext(table, storage_of(table), SparkRunner(spark)), DEFINITION, head)
    register_vector_search(spark, connected(lake), name="vended_search")
    statement = f"SELECT id FROM vended_search('{'.'.join(table.name())}', 'e', array{tuple(VECTOR)}, 5)"
    first = spark.sql(statement).toArrow()
    lake.expire()
    again = spark.sql(statement.replace("SELECT id", "SELECT id, name")).toArrow()
    assert first["id"].equals(again["id"])
    assert len(first) == 5


def test_sql_needs_nothing_but_the_catalog(lake: Vending, tmp_path: Path) -> None:
    name = ".".join(new_table(lake, tmp_path).name())
    session = SqlSession.on(connected(lake))
    assert session.sql(f"REFRESH INDEX e ON {name}").rows["action"].to_pylist() == ["built"]
    statement = f"SELECT id FROM {name} ORDER BY l2_distance(embedding, ARRAY{VECTOR}) LIMIT 5"
    found = session.sql(statement)
    assert found.rows.num_rows == 5
    lake.expire()
    assert session.sql(statement.replace("SELECT id", "SELECT name")).rows.num_rows == 5


def test_runs_and_commands_need_nothing_but_the_catalog_and_keep_no_key(
    lake: Vending, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table(lake, tmp_path)
    name = ".".join(table.name())
    home = without_captured_output(tmp_path / "dagster_home")
    settings = tmp_path / "icepuffin.toml"
    settings.write_text(
        f'[catalogs.lake]\ntype = "rest"\nuri = "{lake.catalog}"\n[spark]\nmaster = ""\n'
        f'[tables.t]\ncatalog = "lake"\nname = "{name}"\nretries = 0\n'
    )

    def run(*arguments: str) -> Any:
        main([*arguments, "--json", "--dir", str(tmp_path)])
        return json.loads(capsys.readouterr().out)

    with open_instance(home) as instance:
        assert [run.succeeded for run in tick(load(settings), instance)] == [True]
    lake.expire()
    table.refresh().append(make_rows(200, 220))
    assert "refreshed" in json.dumps(run("refresh", name))
    found = run("search", name, "--vector", json.dumps(VECTOR), "--where", "id >= 10", "-k", "5")
    assert len(found["results"]) == 5
    assert run("gc", name, "--dry-run") is not None
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert name.encode() in kept
    assert not any(
        secret.encode() in kept for key in lake.keys.values() for secret in (key.access_key, key.secret_key, key.token)
    )
