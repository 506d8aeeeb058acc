"""Catalogs that do not answer: said soon, by name, and without what is secret."""

import base64
import gc
import json
import re
import socket
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoRegionError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy.exc import DBAPIError

from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog import connection, time_limits
from icepuffin.ops.catalog.connection import failure, names_that_have, open_catalog, require_database
from icepuffin.ops.catalog.store_settings import store_settings, without_code
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import CatalogUnavailableError
from tests.conftest import ROWS, make_rows
from tests.ops.catalog.catalog_answers import URI, Answers
from tests.services.forwarding import Answer, Request, serving
from tests.services.processes import refusing_port

SECRET = "hunter2hunter2"


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def message_on_opening(properties: dict[str, str]) -> str:
    """The whole traceback as a log would show it."""
    begun = time.monotonic()
    with pytest.raises(CatalogUnavailableError, match="catalog 'lake' cannot be opened") as caught:
        open_catalog("lake", properties)
    assert time.monotonic() - begun < 30
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg2"])
def test_a_server_that_is_down_is_named_without_its_secrets(scheme: str) -> None:
    kind = "rest" if scheme == "http" else "sql"
    with refusing_port() as port:
        uri = f"{scheme}://user:{SECRET}@127.0.0.1:{port}/catalog"
        message = message_on_opening({"type": kind, "uri": uri, "warehouse": "file:///x", "token": SECRET})
    assert SECRET not in message
    assert "; check its settings, and that it is up" in message


@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg2"])
def test_a_server_that_never_answers_is_given_up(scheme: str, mute_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 2)
    uri = f"{scheme}://user:{SECRET}@127.0.0.1:{mute_port}/catalog"
    assert SECRET not in message_on_opening({"uri": uri, "type": "rest" if scheme == "http" else "sql"})


def test_an_address_that_cannot_be_read_does_not_show() -> None:
    assert SECRET not in message_on_opening({"type": "sql", "uri": f"no address:{SECRET}"})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"type": "polaris", "uri": f"https://x/{SECRET}"},
            "type = 'polaris' is no kind of catalog; set type to",
        ),
        ({"uri": f"grpc://{SECRET}"}, "its uri does not tell what kind it is; set type"),
        ({"uri": f"sqlite:/{SECRET}"}, "its uri must be like sqlite:////folder/catalog.db"),
        ({"type": "rest", "uri": f"localhost/{SECRET}"}, "its uri must be like https://host/path"),
        ({}, "its uri does not tell"),
        ({"type": "REST"}, "type rest needs a uri"),
        ({"type": "hive", "uri": f"thrift://{SECRET}"}, "not installed: pip install 'pyiceberg[hive]'"),
    ],
)
def test_an_unknown_kind_of_catalog_is_reported_with_the_kinds_there_are(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(CatalogUnavailableError, match=re.escape(message)) as caught:
        open_catalog("lake", properties)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_settings_of_a_login_are_handed_on_as_pyiceberg_wants_them() -> None:
    calls = []

    def answer(request: Request) -> Answer:
        calls.append(request.headers.get("Authorization", ""))
        return Answer(200, body=b'{"defaults": {}, "overrides": {}}')

    with serving(answer) as uri:
        login = {"auth.type": "basic", "auth.basic.username": "ann", "auth.basic.password": SECRET}
        open_catalog("lake", {"uri": uri, **login}).close()
    assert calls == [f"Basic {base64.b64encode(f'ann:{SECRET}'.encode()).decode()}"]


@pytest.mark.parametrize("part", ["defaults", "overrides"])
@pytest.mark.parametrize("client", ["", "pyiceberg.catalog.rest.RestCatalog"])
def test_a_server_chooses_no_code_for_its_client(
    client: str, part: str, tmp_path: Path, table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    trap: dict[str, Any] = {"py-io-impl": "trap.IO", "s3.retry-strategy-impl": "trap.Retries"}
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": "here"}
    login = {} if client else {"auth": {"type": "custom", "custom": {}, "impl": "trap.Login"}}
    metadata = json.loads(table_factory("t").metadata.model_dump_json())

    def answer(request: Request) -> Answer:
        if request.path.startswith("/v1/config"):
            document: dict[str, Any] = {"defaults": {}, "overrides": {}, part: {"prefix": "p", **trap, **login}}
        else:
            grant = {"prefix": "s3://lake/", "config": {**trap, **keys}}
            document = {"metadata": metadata, "config": trap, "storage-credentials": [grant]}
            document["metadata-location"] = "s3://lake/t/v1.metadata.json"
        return Answer(200, body=json.dumps(document).encode())

    with serving(answer) as uri:
        kind = {"py-catalog-impl": client} if client else {"type": "rest"}
        catalog = open_catalog("lake", {**kind, "uri": uri})
        table = catalog.load_table("db.t")
        table.io.new_input("s3://lake/t/v1.metadata.json")
        assert catalog.properties["prefix"] == "p"
        shown = (catalog.properties, table.io.properties, storage_of(table), table.config)
        assert "trap" not in repr(shown if not client else shown[:3])
        own = open_catalog("lake", {**kind, "uri": uri, "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
        assert own.properties["py-io-impl"] == "pyiceberg.io.fsspec.FsspecFileIO"


def test_a_database_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    message_on_opening({"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/folder/c.db", "warehouse": "file:///x"})


@pytest.mark.services
def test_a_wrong_password_does_not_show(postgres_uri: str) -> None:
    right = postgres_uri.split(":")[2].split("@", maxsplit=1)[0]
    message = message_on_opening({"type": "sql", "uri": postgres_uri.replace(right, SECRET), "warehouse": "file:///x"})
    assert SECRET not in message
    assert right not in message


def test_within_a_shorter_limit_a_catalog_must_connect_and_answer_in_that() -> None:
    usual = time_limits.CONNECT_SECONDS, time_limits.ANSWER_SECONDS
    with time_limits.answering_within(4.0):
        assert time_limits.request_limits() == (4.0, 4.0)
    with time_limits.answering_within(1e6):
        assert time_limits.request_limits() == usual
    assert time_limits.request_limits() == usual


def test_given_limits_are_kept() -> None:
    assert "connect_timeout=3" in connection._bounded_postgres("postgresql+psycopg2://u:p@h/db?connect_timeout=3")
    assert f"connect_timeout={time_limits.CONNECT_SECONDS}" in connection._bounded_postgres(
        "postgresql+psycopg2://u:p@h/db"
    )


def test_an_answer_of_a_database_has_its_limit_in_milliseconds_where_its_driver_knows_of_any() -> None:
    seconds = time_limits.ANSWER_SECONDS
    assert f"tcp_user_timeout={seconds}000" in connection._bounded_postgres("postgresql://u:p@h/db").split("&")
    other = "postgresql+pg8000://u:p@h/db"
    assert connection._bounded_postgres(other) == other


def test_a_file_io_of_the_users_own_is_kept_beside_settings_of_buckets() -> None:
    settings = {"py-io-impl": "my.FileIO", "gcs.project-id": "p"}
    assert connection._with_own_client(settings, {"type": "sql"}) == {"type": "sql"}
    del settings["py-io-impl"]
    for of_bucket in (settings, {"adls.account-name": "p"}, {"warehouse": "abfss://c@a/w"}):
        assert "StoredFileIO" in connection._with_own_client(of_bucket, {"type": "sql"})["py-io-impl"]


def test_a_catalog_that_went_away_is_named(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = open_catalog("lake", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", make_rows(0, 1).schema)
    catalog.close()
    (tmp_path / "catalog.db").write_bytes(b"this is no database at all" * 100)
    for extra in ("-wal", "-shm"):
        (tmp_path / f"catalog.db{extra}").unlink(missing_ok=True)
    with pytest.raises(CatalogUnavailableError, match=r"db\.t: catalog 'lake' does not answer"):
        reload_table(table)


def test_an_sqlite_catalog_that_nobody_uses_closes_its_connections(tmp_path: Path) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/w"
    catalog: Any = open_catalog("lake", {"type": "sql", "uri": uri, "warehouse": warehouse})
    catalog.create_namespace("db")
    pool = catalog.engine.pool
    assert pool.checkedin() == 1
    del catalog
    gc.collect()
    assert pool.checkedin() == 0


def test_an_sql_catalog_has_the_names_by_which_its_database_has_a_table(tmp_path: Path) -> None:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    for name, identifier in (("mine", "db.t"), ("his", "db.t"), ("other", "db.u"), ("third", "db.s"), ("far", "x.t")):
        catalog = open_catalog(name, settings)
        catalog.create_namespace(identifier.partition(".")[0])
        catalog.create_table(identifier, ROWS)
    assert names_that_have(catalog, "db.t") == ("his", "mine")
    assert names_that_have(catalog, "db.v") == ()


def test_an_sqlite_database_that_may_only_be_read_is_read_and_keeps_its_mode(tmp_path: Path) -> None:
    path, warehouse = tmp_path / "catalog.db", f"file://{tmp_path}/w"
    of_pyiceberg: Any = load_catalog("lake", type="sql", uri=f"sqlite:///{path}", warehouse=warehouse)
    of_pyiceberg.create_namespace("db")
    of_pyiceberg.create_table("db.t", make_rows(0, 1).schema).append(make_rows(0, 3))
    of_pyiceberg.close()
    catalog: Any = open_catalog("lake", {"type": "sql", "uri": f"sqlite:///file:{path}?mode=ro&uri=true"})
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 3
    catalog.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("kind", ["sql", pytest.param("rest", marks=pytest.mark.services)])
def test_a_table_does_not_choose_the_code_that_reads_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sql" else request.getfixturevalue("rest_uri")
    catalog = open_catalog("lake", {"type": kind, "uri": uri, "warehouse": f"file://{tmp_path}/w"})
    catalog.create_namespace_if_not_exists("hostile")
    hostile = {"py-io-impl": "antigravity.Trap", "s3.endpoint": "http://thief.example"}
    catalog.create_table("hostile.t", make_rows(0, 1).schema, f"file://{tmp_path}/t", properties=hostile)
    table = catalog.load_table("hostile.t")
    table.append(make_rows(0, 3))
    assert table.scan().to_arrow().num_rows == 3
    assert "py-io-impl" not in table.io.properties
    assert "s3.endpoint" not in table.io.properties
    catalog.drop_table("hostile.t")
    catalog.close()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_an_address_without_a_driver_gets_the_installed_one(scheme: str) -> None:
    uri = connection._bounded_postgres(f"{scheme}://user:secret@host:5432/lake")
    assert uri.startswith("postgresql+psycopg2://user:secret@host:5432/lake?")
    assert f"connect_timeout={time_limits.CONNECT_SECONDS}" in uri


def test_a_catalog_of_aws_without_a_region_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is botocore's own; boto3, by which PyIceberg comes to it, is not installed here."""

    def load(name: str, properties: Mapping[str, str]) -> Catalog:
        raise NoRegionError

    monkeypatch.setattr(connection, "_load", load)
    with pytest.raises(CatalogUnavailableError, match=r"no AWS region is set; set client.region in its settings"):
        open_catalog("lake", {"type": "glue"})


@pytest.mark.parametrize("kind", ["glue", "dynamodb"])
def test_a_catalog_of_aws_names_the_package_that_it_needs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, f"pyiceberg.catalog.{kind}", raising=False)
    with pytest.raises(CatalogUnavailableError, match=rf"pip install 'pyiceberg\[{kind}\]'"):
        open_catalog("lake", {"type": kind})


def test_the_first_line_of_a_databases_message_is_shown() -> None:
    error = DBAPIError("SELECT 1", {}, Exception("connection refused\nIs the server running there?"))
    shown = failure("c", {"type": "sql", "uri": "postgresql://somebody@host.example/db"}, error)
    assert shown.startswith("connection refused (")


def test_the_words_of_a_client_are_shown_where_they_are_asked_for_alone() -> None:
    """They may quote an address with a password that no setting has."""
    error = RuntimeError("no answer from http://ann:hunter2@host")
    assert failure("c", {"type": "glue"}, error) == "RuntimeError"
    assert failure("c", {"type": "glue"}, error, quoting=True) == f"RuntimeError: {error}"


@pytest.mark.parametrize(
    ("uri", "bounded"),
    [
        ("postgres://ann:p@host/lake", "postgresql+psycopg2://ann:p@host/lake?{limits}"),
        ("postgresql+psycopg://host/lake", "postgresql+psycopg://host/lake?{limits}"),
        ("postgresql://host/lake?tcp_user_timeout=7", "postgresql+psycopg2://host/lake?{own}"),
        ("postgresql://host/lake?connect_timeout=7", "postgresql+psycopg2://host/lake?connect_timeout=7"),
        ("postgresql+asyncpg://host/lake", "postgresql+asyncpg://host/lake"),
    ],
)
def test_a_database_gets_the_time_limits_that_its_address_lacks(uri: str, bounded: str) -> None:
    """To connect in seconds, to answer in milliseconds."""
    limits = "connect_timeout=5&tcp_user_timeout=60000"
    expected = bounded.format(limits=limits, own=limits.replace("60000", "7"))
    assert connection._bounded_postgres(uri) == expected


def test_a_request_is_limited_by_the_shorter_of_two_limits_and_only_within_the_block() -> None:
    with time_limits.answering_within(20):
        assert time_limits.request_limits() == (5, 20)
        with time_limits.answering_within(3):
            assert time_limits.request_limits() == (3, 3)
        assert time_limits.request_limits() == (5, 20)
    assert time_limits.request_limits() == (5, 60)


def test_settings_with_dots_become_tables_where_pyiceberg_wants_them() -> None:
    settings = {"ssl.client.cert": "c", "ssl.cabundle": "b", "auth.basic.username": "ann", "s3.region": "here"}
    assert connection._nested(settings) == {
        "ssl": {"client": {"cert": "c"}, "cabundle": "b"}, "auth": {"basic": {"username": "ann"}}, "s3.region": "here",
    }  # fmt: skip


def test_an_address_is_shown_with_its_port_and_without_its_user() -> None:
    for uri, shown in (
        (f"https://ann:{SECRET}@host:8181/x", "https://host:8181"),
        ("https://host/x", "https://host"),
        ("https://host:port/x", ""),
        ("", ""),
    ):
        assert connection._address({"uri": uri}) == shown


def test_a_folder_in_place_of_a_database_is_named_as_one(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, f"{tmp_path} is a folder, not an SQLite database; check uri"),
        (tmp_path / "a.db", f"there is no SQLite database {tmp_path}/a.db; check uri"),
        (tmp_path / "b" / "a.db", f"there is no SQLite database {tmp_path}/b/a.db, nor a folder {tmp_path}/b; check"),
    ):
        with pytest.raises(CatalogUnavailableError, match=re.escape(words)):
            require_database("lake", {"uri": f"sqlite:///{path}"})
    for in_memory in ("sqlite:///:memory:", "sqlite://", "sqlite:///file:x?mode=memory&uri=true"):
        require_database("lake", {"uri": in_memory})


def test_a_store_is_opened_with_the_settings_of_stores_alone() -> None:
    prefixes = ("s3.", "client.", "gcs.", "adls.", "oss.", "hdfs.", "hf.")
    settings = {**{f"{prefix}x": 1 for prefix in prefixes}, "py-io-impl": "my.IO"}
    assert store_settings({**settings, "uri": "u", "token": "t"}) == {
        key: str(value) for key, value in settings.items()
    }
    sent = {"auth": {"impl": "trap"}, "py-io-impl": "trap", "s3.retry-impl": "trap", "s3.x": 1}
    assert without_code(sent, {"auth": "mine", "s3.x": 2}) == {"s3.x": 1, "auth": "mine"}


@pytest.mark.parametrize(("made_by", "mode"), [("us", "wal"), ("others", "delete"), ("others", "wal")])
def test_an_sqlite_catalog_waits_for_other_writers_and_keeps_its_mode(tmp_path: Path, made_by: str, mode: str) -> None:
    """Its mode is in the file: a user who may only read that, and not its folder, can open no database in WAL."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    if made_by == "others":
        others: Any = SqlCatalog("lake", **properties)
        with others.engine.connect() as opened:
            opened.exec_driver_sql(f"PRAGMA journal_mode={mode}")
        others.engine.dispose()
    for _ in range(2):
        catalog: Any = open_catalog("lake", properties)
        with catalog.engine.connect() as opened:
            pragmas = [opened.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("busy_timeout", "journal_mode")]
        assert pragmas == [30_000, mode]
        catalog.close()


def test_a_rest_catalog_is_asked_for_all_snapshots(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers.about(table_factory(), monkeypatch)
    open_catalog("lake", {"type": "rest", "uri": URI}).load_table("db.t")
    assert answers.requests[-1].endswith("/tables/t?snapshots=all")


def test_the_user_of_a_database_is_not_quoted() -> None:
    error = DBAPIError("select", {}, Exception('FATAL: role "ann-4711" does not exist\nat all'))
    shown = failure("lake", {"type": "sql", "uri": f"postgresql://ann-4711:{SECRET}@host:5432/lake"}, error)
    assert shown == 'FATAL: role "<user>" does not exist (postgresql://host:5432)'


@pytest.mark.parametrize("uri", ["postgresql://user:secret@host:port/db", "sqlite"])
def test_a_database_whose_address_cannot_be_read_is_named_without_its_password(uri: str) -> None:
    settings = {"type": "sql", "uri": uri, "warehouse": "file:///w"}
    with pytest.raises(CatalogUnavailableError, match=r"catalog 'lake' cannot be opened: ") as caught:
        open_catalog("lake", settings)
    assert "secret" not in str(caught.value)
    assert failure("lake", settings, RuntimeError("secret")) == "RuntimeError"
