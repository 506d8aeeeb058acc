"""Nothing that a user calls secret shows, however an object or an error is printed."""

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.pretty import pretty_repr

from icepuffin.ops.resources import Engine, NoSparkError
from icepuffin.orchestration.engines import catalogs_of, engine_of, spark_conf
from icepuffin.orchestration.settings import Settings, load

CANARY = "canary0sings"
TEXT = f"""
[catalogs.lake]
type = "rest"
uri = "https://user:{CANARY}@catalog.example.org"
credential = "{CANARY}:{CANARY}"
token = "{CANARY}"
s3.secret-access-key = "{CANARY}"
header.Authorization = "Bearer {CANARY}"
[spark]
remote = "sc://user:{CANARY}@spark.example.org:15002/;token={CANARY}"
[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "{CANARY}"
"spark.some.option" = "{CANARY}"
[tables.t]
catalog = "lake"
name = "a.b"
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "icepuffin.toml").write_text(TEXT, encoding="utf-8")
    return load(tmp_path / "icepuffin.toml")


def logged(value: object) -> str:
    return logging.Formatter("%(message)s").format(
        logging.LogRecord("x", logging.INFO, __file__, 1, "%s %r", (value, value), None)
    )


PRINTERS: tuple[Callable[[Any], str], ...] = (repr, str, format, pretty_repr, logged)


def test_no_printer_shows_a_secret(settings: Settings) -> None:
    engine, catalogs = engine_of(settings), catalogs_of(settings)
    things = (settings, settings.catalogs, settings.catalogs["lake"], settings.spark, settings.tables, engine, catalogs)
    for thing in things:
        for printer in PRINTERS:
            assert CANARY not in printer(thing), (printer, type(thing))
    assert "rest" in repr(settings.catalogs["lake"])
    assert repr(engine).startswith("Engine(sc://spark.example.org, ")


def test_no_dump_shows_a_secret(settings: Settings) -> None:
    assert CANARY not in str(settings.model_dump())
    assert CANARY not in settings.model_dump_json()
    assert CANARY not in json.dumps(settings.model_dump(mode="json"), default=str)


def test_what_uses_secrets_has_them(settings: Settings) -> None:
    assert settings.catalogs["lake"].properties["token"] == CANARY
    assert spark_conf(settings.spark)["spark.some.option"] == CANARY
    assert CANARY.encode() in pickle.dumps(settings), "what a process is given"


@pytest.mark.parametrize("key", ["remote", "conf", "master", "catalogs", "lake"])
def test_no_error_of_validation_shows_a_secret(key: str) -> None:
    bad: dict[str, Any] = {
        "remote": {"catalogs": {"l": {"token": CANARY}}, "spark": {"remote": [CANARY]}},
        "conf": {"catalogs": {"l": {"token": CANARY}}, "spark": {"conf": [CANARY]}},
        "master": {"catalogs": {"l": {"token": CANARY}}, "spark": {"master": {CANARY: CANARY}}},
        "catalogs": {"catalogs": CANARY},
        "lake": {"catalogs": {"l": CANARY}},
    }[key]
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(bad)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "remote",
    [f"sc://h:1/;token {CANARY}", f"h:1/;token={CANARY}", f"sc://h:1/{CANARY};token=x", f"local[1];token={CANARY}"],
)
def test_a_connection_that_is_no_url_is_refused_without_its_token(remote: str) -> None:
    before = set(os.environ)
    engine = Engine(spark_conf={"spark.remote": remote}, threads=1, driver_only_rows=0)
    with pytest.raises(NoSparkError) as caught:
        engine.session  # noqa: B018
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY not in repr(engine)
    # PySpark turns a whole process to Spark Connect by a variable, before it reads the URL
    assert "SPARK_CONNECT_MODE_ENABLED" not in set(os.environ) - before
