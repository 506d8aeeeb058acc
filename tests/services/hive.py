"""A Hive Metastore on loopback and a free port, over a database in memory: 2.3, whose classes PySpark brings, or 4."""

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.services.jars import HIVE4_LOCK, SPARK_JARS, fetch_all, pinned
from tests.services.processes import answers, free_port, java, serving

_SOURCES = Path(__file__).parent
_OF_SPARK = ("hadoop-client", "janino", "commons-compiler", "commons-codec", "commons-io", "commons-lang", "derby")
_OF_SPARK += (
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "log4j",
    "slf4j-api",
    "jta",
    "transaction-api",
    "libfb303",
    "libthrift",
)
"""Jars of PySpark that a Hive Metastore 4 takes, too; others are too new or too old for it"""


@contextlib.contextmanager
def hive_metastore(folder: Path, lock_seconds: int = 300) -> Iterator[str]:
    """Run a server of 2.3. Returns `thrift://...`. Skips the test where PyIceberg's client of Hive has no thrift.

    lock_seconds: after which a lock is taken from a client that has died with it
    """
    options = ("-Dderby.system.durability=test", f"-Dhive.txn.timeout={lock_seconds}s")
    with _server(folder, "HiveMetastore", [f"{SPARK_JARS}/*"], *options) as uri:
        yield uri


@contextlib.contextmanager
def hive4_metastore(folder: Path) -> Iterator[str]:
    """Run a server of 4.0.1. As `hive_metastore`."""
    of_spark = (path for path in SPARK_JARS.glob("*.jar") if path.name.startswith(_OF_SPARK))
    with _server(folder, "Hive4Metastore", map(str, [*fetch_all(pinned(HIVE4_LOCK)), *sorted(of_spark)])) as uri:
        yield uri


@contextlib.contextmanager
def _server(folder: Path, name: str, jars: Iterable[str], *options: str) -> Iterator[str]:
    if importlib.util.find_spec("thrift") is None:
        pytest.skip("thrift is not installed: `make catalogs` has it")
    port = free_port()
    compiler, source = "org.codehaus.janino.SimpleCompiler", str(_SOURCES / f"{name}.java")
    command = [java(), "-Xmx512m", *options, "-cp", ":".join(jars), compiler, source, name, str(port)]
    command += [f"file://{folder}/warehouse", f"{folder}/metastore"]
    with serving(command, lambda: answers(port), folder / "hive.log", cwd=folder):
        yield f"thrift://127.0.0.1:{port}"
