"""A Hive Metastore on loopback and a free port: 2.3, whose classes PySpark brings, over a database in memory."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.jars import SPARK_JARS
from tests.services.processes import answers, free_port, java, serving

_SOURCE = Path(__file__).with_name("HiveMetastore.java")


@contextlib.contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Run the server. Returns `thrift://...`. Skips the test where PyIceberg's client of Hive has no thrift."""
    if importlib.util.find_spec("thrift") is None:
        pytest.skip("thrift is not installed: `make catalogs` has it")
    port = free_port()
    command = [java(), "-Xmx512m", "-cp", f"{SPARK_JARS}/*", "org.codehaus.janino.SimpleCompiler", str(_SOURCE)]
    command += ["HiveMetastore", str(port), f"file://{folder}/warehouse"]
    with serving(command, lambda: answers(port), folder / "hive.log", cwd=folder):
        yield f"thrift://127.0.0.1:{port}"
