"""The Spark of a Dagster project: its session does our tasks, and what cannot be used is refused."""

import os
import re
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import icepuffin
from icepuffin.ops import resources
from icepuffin.ops.resources import Engine, NoSparkError
from icepuffin.orchestration.engines import engine_on
from icepuffin.orchestration.overrides import SettingsError
from tests.orchestration.test_component import attributes, block, run_of_the_sensor_succeeds, tick
from tests.services.processes import refusing_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.jvm
def test_tasks_run_on_the_spark_of_a_resource_of_the_project(
    table: Any, instance: dg.DagsterInstance, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has one session of Spark, the tests' own here; whose resource opens it is seen by its configuration."""
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415  imports pyspark

    names: dict[str, Any] = {"dg": dg, "icepuffin": icepuffin, "os": os}
    page = block("python", 2).replace("spark://spark:7077", "local[2]")
    exec(page.replace("100_000", "0"), names)  # noqa: S102  our own page
    opened, open_session = [], LazyPySparkResource._init_session
    monkeypatch.setattr(
        LazyPySparkResource, "_init_session", lambda self: (opened.append(self.spark_config), open_session(self))
    )
    of_a_session_of_ours = ("PYSPARK_PYTHON", "SPARK_LOCAL_IP")
    for variable in of_a_session_of_ours:
        monkeypatch.delenv(variable, raising=False)
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    assert run_of_the_sensor_succeeds(names["defs"], instance)
    assert len(tracker.getJobIdsForGroup()) > before
    assert opened == [names["spark"].spark_config]
    assert not os.environ.keys() & of_a_session_of_ours
    assert icepuffin.open_index(table.refresh()).coverage == "exact-version"


def on_resource(resource: Any, **parameters: Any) -> dg.Definitions:
    """The table with the Spark of that resource of a project, which names it otherwise where it is None."""
    given = {"pyspark": resource} if resource is not None else {"spark": "theirs"}
    ours = icepuffin.build_defs(**attributes(), spark_resource="pyspark", **parameters)
    return dg.Definitions.merge(ours, dg.Definitions(resources=given))


@pytest.mark.usefixtures("table")
def test_a_key_that_no_resource_has_is_an_error_when_definitions_load() -> None:
    with pytest.raises(dg.DagsterInvariantViolationError, match=r"'pyspark' required by resource .*_engine', but not"):
        on_resource(None).get_repository_def()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ("spark://spark:7077", "is 'pyspark', which is of type str here: name a PySparkResource or LazyPySpark"),
        ({"spark.master": "local", "x": "hunter2"}, "'pyspark' has no spark.io.encryption.enabled, and tasks with cre"),
    ],
)
def test_a_resource_whose_spark_cannot_be_used_ends_a_run_before_its_first_step(
    resource: Any, message: str, instance: dg.DagsterInstance
) -> None:
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415  imports pyspark

    spark = resource if isinstance(resource, str) else LazyPySparkResource(spark_config=resource)
    definitions = on_resource(spark, indexes={"e": {"column": "embedding"}})
    definitions.get_repository_def()
    (request,) = tick(definitions, instance).run_requests
    job = definitions.resolve_job_def("refresh_lake_search_docs")
    run = job.execute_in_process(instance=instance, partition_key=request.partition_key, raise_on_error=False)
    assert not [event for event in run.all_events if event.is_step_start]
    (failed,) = (event for event in run.all_events if event.event_type_value == "RESOURCE_INIT_FAILURE")
    error = str(failed.engine_event_data.error)
    assert message in error
    assert "hunter2" not in error


def test_a_resource_of_spark_connect_says_nothing_of_disks_and_is_reported_where_its_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415  imports pyspark

    monkeypatch.setattr(resources, "AWAY_SECONDS", 0.5)
    with refusing_port() as port:
        resource = LazyPySparkResource(spark_config={"spark": {"remote": f"sc://127.0.0.1:{port}/;token=hunter2"}})
        engine = engine_on("pyspark", resource, Engine(spark_conf={}, threads=3, driver_only_rows=7))
        assert (engine.threads, engine.uses_spark(6), engine.uses_spark(7)) == (3, False, True)
        with pytest.raises(NoSparkError, match=rf"at 127\.0\.0\.1:{port} did not answer in 0\.5 s"):
            engine.session  # noqa: B018


@pytest.mark.parametrize("named", ["master", "remote", "conf"])
def test_settings_of_a_session_are_refused_beside_a_resource_that_has_one(named: str) -> None:
    spark = {"driver_only_rows": 5, named: {} if named == "conf" else "local"}
    message = f"icepuffin[lake/a.b]: spark has {named}, and the session is that of spark_resource"
    with pytest.raises(SettingsError, match=re.escape(message)):
        icepuffin.build_defs({"name": "lake"}, "a.b", spark=spark, spark_resource="pyspark")


def test_a_resource_in_place_of_its_key_is_refused() -> None:
    with pytest.raises(TypeError, match="spark_resource takes the key of a resource, not a value of type obj"):
        icepuffin.build_defs({"name": "lake"}, "a.b", spark_resource=object())
