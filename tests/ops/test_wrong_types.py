"""The name of a table in place of the table: each function says what to pass."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.index_states import list_indexes
from icepuffin.ops.metrics import metrics
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.process.threads import thread_count
from icepuffin.ops.runs.index_verification import verify
from icepuffin.ops.runs.maintenance import gc
from icepuffin.ops.runs.refresh_plan import plan
from icepuffin.ops.runs.snapshot import refresh
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.tasks.task_runner import LocalRunner
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.orchestration.component import build_defs
from icepuffin.orchestration.settings import CatalogSettings, Settings
from tests.conftest import make_rows

OPENED: dict[str, Callable[[Any], object]] = {
    "open_index": lambda table: open_index(table, "embedding"),
    "open_exact": lambda table: open_exact(table, "embedding", "l2"),
    "create_index": lambda table: create_index(table, None),
    "drop_index": lambda table: drop_index(table, "embedding"),
    "refresh": refresh,
    "plan": plan,
    "list_indexes": list_indexes,
    "verify": verify,
    "gc": gc,
    "metrics": metrics,
    "read_ndv": lambda table: read_ndv(table, 1),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_name_in_place_of_a_table_is_refused(name: str) -> None:
    remedy = 'load it first, as in catalog.load_table("ns.t")'
    with pytest.raises(TypeError, match=re.escape(f"{name} takes a PyIceberg table, not the text 'ns.t': {remedy}")):
        OPENED[name]("ns.t")
    with pytest.raises(TypeError, match=f"{name} takes a PyIceberg table, not a value of type NoneType"):
        OPENED[name](None)


def test_other_arguments_of_a_wrong_type_are_refused(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    for call, message in (
        (lambda: open_index(table, 5), "index is a name, not a value of type int: leave it out"),
        (
            lambda: open_index(table, storage={}),
            "storage is a StorageConfig, not a value of type dict: write icepuffin.",
        ),
        (
            lambda: open_exact(table, "embedding", "l2", storage={}),
            "storage is a StorageConfig, not a value of type dict",
        ),
        (
            lambda: create_index(table, "i"),
            "create_index takes an IndexDefinition, not the text 'i': write create_index(",
        ),
        (lambda: SqlSession("ns.t"), "SqlSession takes a function that loads a table by its name; SqlSession.on takes"),
        (lambda: SqlSession(print).sql(5), "sql takes a statement, not a value of type int: write sql("),
        (lambda: StorageConfig(99 * "s"), f"not the text '{59 * 's'}: write {{"),
        (lambda: StorageConfig("s3"), "StorageConfig takes a mapping of properties, not the text 's3': write {"),
        (lambda: IndexDefinition(name=3, column="e"), "an index has a name, not a value of type int: write IndexDef"),
        (lambda: IndexDefinition(name="i", column=None), "an index has a column, not a value of type NoneType: write"),
        (lambda: build_defs("lake", "ns.t"), "build_defs takes a mapping of catalog properties, not the text 'lake'"),
        (lambda: build_defs({"name": "c"}, 5), "build_defs takes the name of a table, not a value of type int: write"),
        (lambda: SqlSession.on("lake"), "SqlSession.on takes a PyIceberg catalog, not the text 'lake': open it first"),
    ):
        with pytest.raises(TypeError, match=re.escape(message)):
            call()


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_threads_than_one_are_refused(table_factory: Callable[..., Table], threads: int) -> None:
    table = table_factory()
    remedy = f"threads is {threads}: give 1 or more, or None for every core that this process may use"
    calls: tuple[Callable[[], object], ...] = (
        lambda: open_index(table, threads=threads),
        lambda: refresh(table, threads=threads),
        lambda: refresh(table, spark=object(), threads=threads),  # type: ignore[arg-type]
        lambda: SqlSession.on(table.catalog, threads=threads),
        lambda: SparkRunner(object(), task_threads=threads),  # type: ignore[arg-type]
        lambda: LocalRunner(threads),
    )
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(remedy)):
            call()


def test_threads_are_by_default_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container or under `taskset` they are fewer than the machine has."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    settings = Settings(catalogs={"local": CatalogSettings()})
    assert (thread_count(None), LocalRunner().task_threads, settings.thread_count) == (1, 1, 1)
    assert settings.model_copy(update={"threads": 5}).thread_count == 5


def test_a_reader_that_is_pickled_says_what_to_do(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    with pytest.raises(TypeError, match=r"open one in each process, or send queries to it by icepuffin\.knn_join"):
        pickle.dumps(open_exact(table, "embedding", "l2"))


def test_threads_that_are_no_number_are_refused() -> None:
    with pytest.raises(TypeError, match="threads is a whole number, not the text 'many': leave it out"):
        thread_count("many")  # type: ignore[arg-type]
