"""Resources: secrets stay inside, errors help, and Spark starts only when a large table needs it."""

import json
import os
import re
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ValidationError
from requests import HTTPError, Response

import icepuffin
from icepuffin.ops import resources
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError
from icepuffin.ops.resources import (
    Catalogs,
    Engine,
    NoJavaError,
    NoSparkError,
    TableMissingError,
    UnreadableTableError,
    _is_about_the_table,
)
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.sql.errors import UnknownTableError
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.blob_kind import SCRATCH_TABLES
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.tasks.task_runner import LocalRunner
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.settings import load
from tests.conftest import make_rows
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import make_lake
from tests.services.processes import refusing_port

SECRET = "hunter2hunter2"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by the clock of the catalogs, which passes when a test changes it."""
    seconds = [1000.0]
    monkeypatch.setattr(resources, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def test_nothing_of_a_catalog_but_its_name_shows() -> None:
    catalogs = Catalogs({"lake": {"type": "rest", "uri": "http://127.0.0.1:9", "token": SECRET}})
    assert repr(catalogs) == "Catalogs(lake)"


def test_a_catalog_that_does_not_answer_is_named_without_its_secrets() -> None:
    properties = {"type": "rest", "uri": f"http://user:{SECRET}@127.0.0.1:9", "token": SECRET}
    with pytest.raises(CatalogUnavailableError, match="catalog 'lake'") as caught:
        Catalogs({"lake": properties}).table("lake", "a.b")
    assert SECRET not in str(caught.value)


def test_an_unknown_catalog_and_table_are_told_apart(tmp_path: Path) -> None:
    make_lake(tmp_path, snapshots=0)
    catalogs = Catalogs({"demo": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "file:///x"}})
    with pytest.raises(IcepuffinError, match="no catalog 'other' in the settings; there is: demo"):
        catalogs.table("other", "a.b")
    with pytest.raises(TableMissingError, match=r"no table demo\.absent"):
        catalogs.table("demo", "demo.absent")
    with pytest.raises(TableMissingError, match="'packages' names no table; write namespace"):
        catalogs.table("demo", "packages")
    with pytest.raises(TableMissingError, match=r"demo: 'd\*\.t' has a wildcard in the namespace; write namespace\.\*"):
        catalogs.matching("demo", "d*.t")
    assert catalogs.matching("demo", "demo.p*s") == ("demo.packages",)
    assert catalogs.matching("demo", "demo.d*") == ()
    with pytest.raises(TableMissingError, match=r"^demo: there is no namespace other; check the name$"):
        catalogs.matching("demo", "other.*")


def test_a_catalog_that_did_not_answer_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection may be what is broken."""
    make_lake(tmp_path, snapshots=0)
    catalogs = Catalogs({"demo": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}})

    for method, call, error in (
        ("list_tables", catalogs.matching, TimeoutError("late")),
        ("load_table", catalogs.table, ConnectionResetError("reset")),
    ):

        def broken(_: object, error: Exception = error) -> None:
            raise error

        opened = catalogs.catalog("demo")
        monkeypatch.setattr(opened, method, broken)
        with pytest.raises(CatalogUnavailableError, match="catalog 'demo' does not answer: "):
            call("demo", "demo.packages")
        assert catalogs.catalog("demo") is not opened
    assert catalogs.table("demo", "demo.packages").name() == ("demo", "packages")
    names = [("demo", name) for name in ("c", "a", "b")]
    monkeypatch.setattr(catalogs.catalog("demo"), "list_tables", lambda _: names)
    assert catalogs.matching("demo", "demo.*") == ("demo.a", "demo.b", "demo.c")


def test_a_table_that_an_sql_catalog_has_by_another_name_is_said_to_be_there(tmp_path: Path) -> None:
    make_lake(tmp_path, snapshots=0)
    catalogs = Catalogs({"lake": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}})
    with pytest.raises(TableMissingError, match=r"lake: .* demo\.packages; its database has it for catalog demo: "):
        catalogs.table("lake", "demo.packages")
    with pytest.raises(TableMissingError, match=r"no table demo\.absent; check the name, or create"):
        catalogs.table("lake", "demo.absent")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "catalogue.db",
            "there is no SQLite database {folder}/catalogue.db; check uri in its settings: sqlite:/// begins in the",
        ),
        ("absent/catalog.db", "there is no SQLite database {folder}/absent/catalog.db, nor a folder {folder}/absent"),
        ("taken", "{folder}/taken is a folder, not an SQLite database"),
        ("text.db", "file is not a database ({folder}/text.db)"),
    ],
)
def test_a_mistyped_database_is_named_and_not_made(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "text.db").write_text("no database " * 100)
    there = sorted(tmp_path.rglob("*"))
    catalogs = Catalogs({"demo": {"type": "sql", "uri": f"sqlite:///{tmp_path}/{name}", "warehouse": "file:///x"}})
    with pytest.raises(CatalogUnavailableError, match=re.escape(message.format(folder=tmp_path))):
        catalogs.table("demo", "a.b")
    assert sorted(tmp_path.rglob("*")) == there


def test_a_metadata_file_that_is_gone_is_named_and_not_the_catalog(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    Path(lake.table.refresh().metadata_location.removeprefix("file://")).unlink()
    catalogs = catalogs_of(load(lake.settings_file))
    opened = catalogs.catalog("demo")
    with pytest.raises(
        CatalogUnavailableError, match=r"catalog 'demo' has demo\.packages, and its metadata file"
    ) as caught:
        catalogs.table("demo", "demo.packages")
    assert catalogs.catalog("demo") is opened
    assert ".metadata.json" in str(caught.value)
    assert "does not answer" not in str(caught.value)


def test_a_table_of_a_later_format_version_is_named_and_the_other_tables_are_read(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog("lake", properties)
    catalog.create_namespace("db")
    later, _ = (catalog.create_table(f"db.{name}", make_rows(0, 1).schema) for name in ("later", "now"))
    metadata = to_path(later.metadata_location)
    metadata.write_text(metadata.read_text().replace('"format-version":2', '"format-version":4'), encoding="utf-8")
    catalogs = Catalogs({"lake": properties})
    message = r"db\.later has format version 4, and versions 1, 2, 3 are read"
    for read in (catalogs.table, catalogs.poll):
        with pytest.raises(UnsupportedFormatError, match=message):
            read("lake", "db.later")
    assert catalogs.poll("lake", "db.now").name() == ("db", "now")
    with pytest.raises(UnsupportedFormatError, match=message):
        reload_table(later)
    with pytest.raises(UnsupportedFormatError, match=message):
        icepuffin.refresh(later)


def test_a_table_whose_metadata_cannot_be_read_keeps_no_other_from_being_loaded(
    tmp_path: Path, now: list[float]
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog("lake", properties)
    catalog.create_namespace("db")
    lost, torn, _ = (catalog.create_table(f"db.{name}", make_rows(0, 1).schema) for name in ("lost", "torn", "now"))
    to_path(lost.metadata_location).unlink()
    to_path(torn.metadata_location).write_text("{")
    catalogs = Catalogs({"lake": properties})
    messages = {"lost": "its metadata file cannot be read", "torn": "its metadata is invalid: Invalid JSON"}
    for name, message in messages.items():
        for _ in range(2):
            with pytest.raises(UnreadableTableError, match=message):
                catalogs.poll("lake", f"db.{name}")
        assert catalogs.poll("lake", "db.now").name() == ("db", "now")
    to_path(torn.metadata_location).write_text(to_path(catalog.load_table("db.now").metadata_location).read_text())
    now[0] += resources.AWAY_SECONDS - 0.1
    with pytest.raises(UnreadableTableError):
        catalogs.poll("lake", "db.torn")
    now[0] += 0.1
    assert catalogs.poll("lake", "db.torn").name() == ("db", "torn")


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_table_that_a_catalog_refuses_keeps_no_other_from_being_loaded(status: int) -> None:
    with answering({"refused": status, "away": 503}) as (uri, requests):
        catalogs = Catalogs({"lake": {"type": "rest", "uri": uri}})
        for _ in range(2):
            with pytest.raises(UnreadableTableError, match=rf"does not give db\.refused: HTTP status {status}"):
                catalogs.poll("lake", "db.refused")
        with pytest.raises(TableMissingError):
            catalogs.poll("lake", "db.absent")
        for name in ("away", "absent"):
            with pytest.raises(CatalogUnavailableError, match="does not answer: HTTP status 503"):
                catalogs.poll("lake", f"db.{name}")
    assert requests == ["refused", "absent", "away"]


@pytest.mark.parametrize("status", [504, 0], ids=["gateway", "no answer"])
def test_a_table_that_a_catalog_is_late_for_keeps_no_other_from_being_loaded(
    monkeypatch: pytest.MonkeyPatch, now: list[float], status: int
) -> None:
    """Two in a row are a catalog that is late for all."""
    monkeypatch.setattr(resources, "POLL_SECONDS", 0.2)
    with answering({"late": status, "later": status}) as (uri, requests):
        catalogs = Catalogs({"lake": {"type": "rest", "uri": uri}})
        for _ in range(2):
            for name, error in (("late", CatalogUnavailableError), ("absent", TableMissingError)):
                with pytest.raises(error):
                    catalogs.poll("lake", f"db.{name}")
            now[0] += resources.AWAY_SECONDS
        for name in ("late", "later", "absent"):
            with pytest.raises(CatalogUnavailableError, match="does not answer"):
                catalogs.poll("lake", f"db.{name}")
    assert requests == ["late", "absent", "late", "absent", "late", "later"]


def test_a_catalog_that_has_given_a_table_since_is_late_for_the_next_one_alone(tmp_path: Path) -> None:
    catalog = open_catalog("lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)})
    catalog.create_namespace("db")
    given = {"now": to_path(catalog.create_table("db.now", make_rows(0, 1).schema).metadata_location)}
    with answering({"late": 504, "later": 504}, given=given) as (uri, requests):
        catalogs = Catalogs({"lake": {"type": "rest", "uri": uri}})
        for name in ("late", "later"):
            with pytest.raises(CatalogUnavailableError, match="does not answer"):
                catalogs.poll("lake", f"db.{name}")
            assert catalogs.poll("lake", "db.now").name() == ("db", "now")
    assert requests == ["late", "now", "later", "now"]


@pytest.mark.parametrize("status", [401, 407, 408, 419, 429, 502, 503, 504])
def test_a_status_that_a_catalog_has_for_every_table_is_not_about_one(status: int) -> None:
    response = requests.Response()
    response.status_code = status
    assert not _is_about_the_table(requests.HTTPError(response=response))


@contextmanager
def answering(
    statuses: Mapping[str, int], kind: str = "NoSuchTableException", *, given: Mapping[str, Path] = {}
) -> Iterator[tuple[str, list[str]]]:
    """(address, tables that were requested) of a server of the REST catalog's protocol, which has no tables but those
    that are given with their metadata files. A status of 0 is no answer.
    """
    requests: list[str] = []
    closing = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = urlsplit(self.path).path.rpartition("/")[2]
            if name == "config":
                status, body = 200, {"defaults": {}, "overrides": {}}
            elif name in given:
                requests.append(name)
                metadata = json.loads(given[name].read_text(encoding="utf-8"))
                status, body = 200, {"metadata-location": f"file://{given[name]}", "metadata": metadata}
            else:
                requests.append(name)
                status = statuses.get(name, 404)
                if not status:
                    closing.wait()
                    return
                body = {"error": {"message": "no", "type": kind, "code": status}}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as thread:
        serving = thread.submit(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            closing.set()
            server.shutdown()
        serving.result()


def test_what_else_a_catalog_says_of_a_table_that_it_has_not_is_in_the_error() -> None:
    """PyIceberg takes each status 404 for a missing table."""
    messages = {}
    for kind in ("NoSuchTableException", "NoSuchWarehouseException"):
        with answering({}, kind) as (address, _):
            properties = {"type": "rest", "uri": address, "token": SECRET}
            with pytest.raises(TableMissingError) as caught:
                Catalogs({"lake": properties}).table("lake", "db.absent")
            with pytest.raises(UnknownTableError) as unknown:
                SqlSession.on(load_catalog("lake", **properties)).sql("SHOW INDEXES ON db.absent")
        messages[kind] = str(caught.value), str(unknown.value)
    assert messages["NoSuchTableException"] == (
        "lake: there is no table db.absent; check the name, or create the table and try again",
        "there is no table db.absent",
    )
    answer = "there is no table db.absent (the catalog's answer: NoSuchWarehouseException: no)"
    assert messages["NoSuchWarehouseException"][0].startswith(f"lake: {answer}; ")
    assert messages["NoSuchWarehouseException"][1] == answer


def test_no_error_of_a_missing_table_has_a_secret_that_a_catalog_repeats() -> None:
    with answering({}, f"NoWarehouse of {SECRET}") as (address, _):
        properties = {"type": "rest", "uri": address, "token": SECRET, "client": SECRET[:7]}
        with pytest.raises(TableMissingError) as caught:
            Catalogs({"lake": properties}).table("lake", "db.absent")
        with pytest.raises(UnknownTableError) as unknown:
            SqlSession.on(load_catalog("lake", **properties)).sql("SHOW INDEXES ON db.absent")
    for error in (caught.value, unknown.value):
        shown = "".join(traceback.format_exception(error))
        assert "NoWarehouse of <token>: no" in shown
        assert SECRET[7:] not in shown


def test_a_server_that_refuses_connections_is_named_with_the_cause() -> None:
    for kind, scheme in (("rest", "http"), ("sql", "postgresql+psycopg2")):
        with refusing_port() as port:
            uri = f"{scheme}://user:{SECRET}@127.0.0.1:{port}/lake"
            with pytest.raises(CatalogUnavailableError, match="Connection refused") as caught:
                Catalogs({"lake": {"type": kind, "uri": uri, "warehouse": "file:///x"}}).table("lake", "a.b")
        assert f"({scheme}://127.0.0.1:{port})" in str(caught.value)
        assert SECRET not in str(caught.value)


def test_small_tables_are_built_in_process() -> None:
    engine = Engine(spark_conf={"spark.master": "local[2]"}, threads=3, driver_only_rows=1000)
    runner = engine.runner(999)
    assert isinstance(runner, LocalRunner)
    assert runner.task_threads == 3
    assert [engine.uses_spark(rows) for rows in (999, 1000)] == [False, True]
    assert Engine(spark_conf={}, threads=1, driver_only_rows=0).uses_spark(10**12) is False
    assert repr(engine) == "Engine(local[2], 3 threads, driver only under 1000 rows)"
    assert repr(Engine(spark_conf={}, threads=1, driver_only_rows=0)).startswith("Engine(no Spark, ")
    remote = Engine(spark_conf={"spark.remote": f"sc://host:1/;token={SECRET}"}, threads=1, driver_only_rows=0)
    assert repr(remote).startswith("Engine(sc://host, ")


def test_a_run_is_for_the_rows_of_its_snapshot_and_follows_its_ref(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=2)
    engine = Engine(spark_conf={"spark.master": "local[2]"}, threads=3, driver_only_rows=120)
    first, head = lake.table.snapshots()[0].snapshot_id, lake.head()
    runs = [engine.run_on(lake.table, snapshot_id, "audit") for snapshot_id in (None, first, head)]
    assert [(type(run.runner).__name__, run.ref) for run in runs] == [
        (name, "audit") for name in ("LocalRunner", "LocalRunner", "SparkRunner")
    ]


def test_a_configuration_with_secrets_does_not_show() -> None:
    conf = {"spark.master": "local[2]", "spark.hadoop.fs.s3a.secret.key": SECRET}
    assert SECRET not in repr(Engine(spark_conf=conf, threads=1, driver_only_rows=0))


@pytest.fixture
def own_session() -> Iterator[None]:
    """Ends the session that the test starts; leaves one that was there to those who share it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  only this test pays for it

    shared = SparkSession.getActiveSession() is not None
    yield
    session = SparkSession.getActiveSession()
    if session is not None and not shared:
        session.stop()


@pytest.mark.jvm
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j's sockets, closed when collected
@pytest.mark.usefixtures("own_session")
def test_spark_builds_the_same_version_as_threads(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=2)
    catalogs = catalogs_of(load(lake.settings_file))
    spec = found_spec(load(lake.settings_file).tables["packages"], catalogs)
    conf = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    engine = Engine(spark_conf=conf, threads=1, driver_only_rows=0)
    assert isinstance(engine.runner(1), SparkRunner)
    table, index = lake.table, spec.indexes[0]
    on_spark = refresh_index(engine.run_on(table, lake.head()), index, lake.head())
    assert on_spark.action == "built"
    again = Engine(spark_conf={}, threads=2, driver_only_rows=1)
    in_process = refresh_index(again.run_on(table, lake.head()), index, lake.head())
    assert (in_process.action, in_process.build_id) == ("reused", on_spark.build_id)


def test_a_job_that_must_run_on_spark_is_an_error_where_there_is_none() -> None:
    with pytest.raises(NoSparkError, match="give master or remote"):
        Engine(spark_conf={}, threads=1, driver_only_rows=0).spark_runner()
    assert isinstance(
        Engine(spark_conf={"spark.master": "local"}, threads=1, driver_only_rows=0).spark_runner(), SparkRunner
    )


def test_a_connect_server_that_is_away_is_reported_before_a_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own client tries for ten minutes."""
    monkeypatch.setattr(resources, "AWAY_SECONDS", 0.5)
    with refusing_port() as port:
        conf = {"spark.remote": f"sc://127.0.0.1:{port}/;token=canary0sings"}
        with pytest.raises(NoSparkError, match=rf"at 127\.0\.0\.1:{port} did not answer in 0\.5 s: check") as caught:
            Engine(spark_conf=conf, threads=1, driver_only_rows=0).session  # noqa: B018
    assert "canary" not in str(caught.value)


def test_an_error_of_spark_has_the_host_of_a_connect_server_and_no_more_of_its_address() -> None:
    remote = "sc://someone:hunter2@spark.example:15002/;user_id=alice42;token=canary0sings"
    engine = Engine(spark_conf={"spark.remote": remote}, threads=1, driver_only_rows=0)
    shown = str(engine._without_secrets(ValueError("spark.example:15002 refused hunter2 of alice42 by canary0sings")))
    assert "spark.example:15002 refused" in shown
    assert not any(secret in shown for secret in ("hunter2", "alice42", "canary0sings"))


def test_a_machine_without_java_is_reported(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from icepuffin.ops.resources import Engine\n"
        "try: Engine(spark_conf={'spark.master': 'local[1]'}, threads=1, driver_only_rows=0).session\n"
        "finally: print(os.environ['SPARK_LOCAL_IP'])"
    )
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=False)
    assert "NoJavaError: Spark did not start: it needs Java 17 or 21" in done.stderr
    assert done.stdout == "127.0.0.1\n", "else Spark warns of a host whose name is a loopback address"
    assert not NoJavaError.retryable, "a run waits two minutes before it fails, otherwise"


@pytest.mark.parametrize(
    ("statuses", "is_so"), [((400, 403, 404, 500), True), ((401, 407, 408, 419, 429, 502, 503, 504), False)]
)
def test_a_catalog_that_is_away_or_refuses_its_user_says_nothing_of_a_table(
    statuses: tuple[int, ...], is_so: bool
) -> None:
    """Nor does one that is called too often: it fails for every table alike."""
    for status in statuses:
        response = Response()
        response.status_code = status
        assert resources._is_about_the_table(HTTPError("refused", response=response)) is is_so, status


def test_what_a_parser_raises_is_about_the_table_and_what_a_request_raises_is_not() -> None:
    for fault in (ValidationError("no"), zlib.error("no"), EOFError(), KeyError("no"), AttributeError("no")):
        assert resources._is_about_the_table(fault), fault
    assert not resources._is_about_the_table(requests.exceptions.InvalidURL("no")), "a ValueError as well"


@pytest.mark.parametrize(
    ("memory", "mebibytes"),
    [("512m", 896), ("1024k", 385), ("2g", 2_432), ("1G", 1_408), ("8gb", 9_011), ("1t", 1_153_434), ("much", 1_408)],
)
def test_the_memory_of_a_jvm_is_its_heap_and_a_tenth_of_that_or_384_mebibytes(memory: str, mebibytes: int) -> None:
    engine = Engine(
        spark_conf={"spark.master": "local[2]", "spark.driver.memory": memory}, threads=1, driver_only_rows=0
    )
    assert engine.jvm_mb == mebibytes
    assert Engine(spark_conf={}, threads=1, driver_only_rows=0).jvm_mb == 0
    remote = {"spark.remote": "sc://spark:15002", "spark.driver.memory": memory}
    assert Engine(spark_conf=remote, threads=1, driver_only_rows=0).jvm_mb == 0


@pytest.mark.parametrize(
    ("master", "tasks"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 2]", 3),
        ("local[*]", os.cpu_count()),
        ("spark://here:7077", 0),
        ("", 0),
    ],
)
def test_tasks_run_beside_the_driver_where_the_master_is_local(master: str, tasks: int) -> None:
    conf = {"spark.master": master}
    assert Engine(spark_conf=conf, threads=1, driver_only_rows=0).local_tasks == tasks
    conf["spark.remote"] = "sc://spark:15002"
    assert Engine(spark_conf=conf, threads=1, driver_only_rows=0).local_tasks == 0


def test_an_entry_stands_for_the_tables_of_its_namespace_but_for_scratch_tables() -> None:
    assert [resources.is_pattern(f"db.t{letter}") for letter in "*?[x"] == [True, True, True, False]
    trial = f"db.{SCRATCH_TABLES}1"
    for table, entry, is_so in (
        ("db.t1", "db.t1", True),
        ("db.t1", "db.t[12]", True),
        ("db.t1", "db.T*", False),
        ("a.db.t1", "a.db.*", True),
        ("a.db.t1", "a.*", False),
        ("a.db.t1", "db.*", False),
        (trial, "db.*", False),
        (trial, trial, True),
    ):
        assert resources.is_named_by(table, entry) is is_so, (table, entry)
