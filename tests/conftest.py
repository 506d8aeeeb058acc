"""Real parts for every test: a SQLite catalog, tables with vectors, runners."""

import gc

gc.disable()  # a fifth of the time of imports and collection, of which little is garbage

import itertools
import os
import random
import sqlite3
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from sqlalchemy import Engine, event

from icepuffin.ops.cache.cache_settings import DIRECTORY
from icepuffin.ops.cache.shard_cache import use_settings
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import StorageConfig
from tests.draws import SEED
from tests.durations import FOLDER, DurationRecorder
from tests.services import permission
from tests.services.class_archive import archive_options
from tests.services.jars import ICEBERG_AWS, ICEBERG_SPARK, POSTGRES_JDBC, SQLITE_JDBC
from tests.services.postgres import postgres, uri
from tests.services.processes import SMALL_JVM
from tests.services.rest import rest_catalog
from tests.services.s3proxy import s3proxy
from tests.services.spark import spark_session
from tests.services.vending import Vending, vending

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIMS = 16
ROWS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("section", pa.string()), ("embedding", pa.list_(pa.float32()))]
)
STORAGE = StorageConfig({})

pytest_plugins = ("tests.selection", "tests.draw_report")

os.environ.setdefault("JAVA_TOOL_OPTIONS", f"{SMALL_JVM} {archive_options()}")


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get(FOLDER):
        config.pluginmanager.register(DurationRecorder(Path(folder)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import FileScheduling  # noqa: PLC0415  workers have no scheduler

    return FileScheduling(config, log)


def pytest_collection_finish() -> None:
    """Collected tests stay to the end: the garbage collector need not look at them again and again.

    It does not look at them once: what is garbage among them takes 10 MB, and to find it most of a second. What tests
    leave is collected less often than by default: it was a twentieth of their time.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with permission.running(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Generator[None, object, object]:
    with permission.setting_up(fixturedef, request):
        return (yield)


@pytest.fixture(autouse=True)
def marked_for_what_it_uses(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    permission.refuse_unmarked(request)


@event.listens_for(Engine, "connect")
def _leave_writing_to_the_system(connection: object, _: object) -> None:
    """Catalogs and Dagster's instances do not wait for the disk: no test takes the machine's power away."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(autouse=True, scope="session")
def files_are_left_to_the_system() -> Iterator[None]:
    """Nor do our files wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another one for each commit. A test draws the same, whichever others run.

    By it names of files are drawn, too: the files of a snapshot are in the order of their names.
    """
    own = f"{SEED} {request.node.name}"
    names = random.Random(f"{own} names")
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4))
    return own


def make_rows(first: int, last: int, *, seed: int = 0, dims: int = DIMS) -> pa.Table:
    """Rows `first` to `last - 1`; a row's vector depends on its id and the seed alone."""
    ids = np.arange(first, last)
    vectors = vectors_of(ids, seed=seed, dims=dims)
    return pa.table(
        {
            "id": ids,
            "name": [f"name {number}" for number in ids],
            "section": [f"section {number % 5}" for number in ids],
            "embedding": pa.array(vectors.tolist(), pa.list_(pa.float32())),
        },
        schema=ROWS,
    )


def vectors_of(ids: npt.NDArray[np.int64], *, seed: int = 0, dims: int = DIMS) -> npt.NDArray[np.float32]:
    """Clustered vectors f32[n, dims], one a given id."""
    centers = np.random.default_rng(99).standard_normal((8, dims))
    noise = np.stack([_noise(seed, number, dims) for number in ids.tolist()])
    return np.asarray(centers[ids % 8] + 0.6 * noise, np.float32)


@lru_cache(maxsize=200_000)
def _noise(seed: int, number: int, dims: int) -> npt.NDArray[np.float64]:
    """Most tests have the same rows, and making a generator for each took 3 % of their time."""
    return np.random.default_rng([seed, number]).standard_normal(dims)


def queries(count: int = 20, dims: int = DIMS) -> npt.NDArray[np.float32]:
    return vectors_of(np.arange(1_000_000, 1_000_000 + count), dims=dims)


_tests = itertools.count()


@pytest.fixture(autouse=True)
def shard_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shard cache for each test, made where it is used; programs that the test starts use it, too.

    Settings that the test or a command in its process chose are not those of the next.
    """
    folder = tmp_path_factory.getbasetemp() / f"shards-{next(_tests)}"
    monkeypatch.setenv(DIRECTORY, str(folder))
    yield folder
    use_settings(None)


@pytest.fixture
def sql_catalog(tmp_path: Path) -> Catalog:
    """A SQLite catalog over a local warehouse, both in this test's own folder."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = open_catalog("test", properties)
    catalog.create_namespace("db")
    return catalog


@pytest.fixture
def table_factory(sql_catalog: Catalog) -> Callable[..., Table]:
    """Makes v2 tables `db.<name>` with the columns of `make_rows`."""

    def make(name: str = "t", **properties: str) -> Table:
        return sql_catalog.create_table(f"db.{name}", ROWS, properties={"format-version": "2", **properties})

    return make


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageConfig]:
    """A real S3 server with one bucket, `lake`."""
    with s3proxy(tmp_path_factory.mktemp("s3proxy")) as config:
        yield config


@pytest.fixture(scope="session")
def rest_uri(tmp_path_factory: pytest.TempPathFactory, s3: StorageConfig) -> Iterator[str]:
    """A real REST catalog; its tables may lie in local folders or in the bucket of `s3`."""
    with rest_catalog(tmp_path_factory.mktemp("rest"), s3.properties) as address:
        yield address


@pytest.fixture
def vending_lake(rest_uri: str, s3: StorageConfig) -> Iterator[Vending]:
    """The same catalog, vending keys for its tables; and the same bucket, taking no others."""
    with vending(rest_uri, s3.properties) as state:
        yield state


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing by which AWS clients would find credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A real PostgreSQL, as SQLAlchemy names it."""
    with postgres() as port:
        yield uri(port)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One Spark session for the whole run, with Iceberg's runtime and what its catalogs need on the class path."""
    jars = [ICEBERG_SPARK, ICEBERG_AWS, SQLITE_JDBC, POSTGRES_JDBC]
    session = spark_session(tmp_path_factory.mktemp("spark"), jars)
    yield session
    session.stop()


@pytest.fixture
def own_session(spark: "SparkSession") -> Iterator["SparkSession"]:
    """A session with settings of its own. After the test the shared one is the thread's active session again, of which
    Spark takes settings, as of catalogs.
    """
    yield spark.newSession()
    spark.createDataFrame([], "number int")
