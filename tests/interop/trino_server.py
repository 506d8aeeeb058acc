"""A single-node Trino on loopback, for the opt-in tests.

Needs `TRINO_HOME` (a folder with `trino-server-core-*/lib` and `plugins/iceberg`, from the Maven artifacts
io.trino:trino-server-core:476:tar.gz and io.trino:trino-iceberg:476:zip) and `TRINO_JAVA_HOME` (a JDK of version 24 or
newer). `make trino` sets both.
Its catalog `lake` is the REST catalog at `rest`, if one is given. Without one it keeps its tables in files under the
given folder; other engines' tables come by `register_table`.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.services.permission import need

START_SECONDS = 180
JVM = (
    "-server",
    "-XX:+UseSerialGC",
    "-XX:ReservedCodeCacheSize=256M",
    "-Djdk.attach.allowAttachSelf=true",
    "-Djdk.nio.maxCachedBufferSize=2000000",
    "-Dfile.encoding=UTF-8",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
NOT_READY = ("No nodes available", "sortedCandidates is null or empty")
"""Errors until the node announces itself, some seconds after the start: Trino's, Presto's"""


class TrinoServer:
    """Starts on construction; `close` ends it.

    `heap_mb`: what its JVM may use, a third of it by one query. `compiler`: options, by default the quickest to start.
    """

    settings = ("TRINO_HOME", "TRINO_JAVA_HOME")
    """Environment variables that it needs"""
    user_header = "X-Trino-User"

    def __init__(
        self, folder: Path, rest: str = "", heap_mb: int = 1500, compiler: str = "-XX:TieredStopAtLevel=1"
    ) -> None:
        if not all(map(os.environ.get, self.settings)):
            pytest.skip(f"set {' and '.join(self.settings)} to run these tests (see {self.__module__})")
        need("trino")
        self.statistics: dict[str, Any] = {}
        """The server's own, of the last statement"""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = folder / "server.log"
        node = {"node.environment": "test", "node.id": "n1", "node.data-dir": f"{folder}/data"}
        node |= {"node.internal-address": "127.0.0.1", "node.bind-ip": "127.0.0.1"}
        node |= {"config": f"{folder}/etc/config.properties", "log.levels-file": f"{folder}/etc/log.properties"}
        options = [compiler, f"-Xmx{heap_mb}M", *(f"-D{key}={value}" for key, value in node.items())]
        self._write(folder / "etc" / "config.properties", self._config(folder, heap_mb // 3))
        self._write(folder / "etc" / "catalog" / "lake.properties", self._catalog(folder, rest))
        self._write(folder / "etc" / "log.properties", {"io.trino": "INFO"})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command(options), stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        self._wait()

    def _command(self, options: Sequence[str]) -> list[str]:
        home, java = map(os.environ.__getitem__, self.settings)
        (server,) = Path(home).glob("trino-server-core-*")
        plugins = f"-Dplugin.dir={home}/plugins"
        return [f"{java}/bin/java", *JVM, *options, plugins, "-cp", f"{server}/lib/*", "io.trino.server.TrinoServer"]

    def _config(self, folder: Path, query_mb: int) -> dict[str, str]:
        return {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(self.port),
            "discovery.uri": f"http://127.0.0.1:{self.port}",
            "query.max-memory": f"{query_mb}MB",
            "query.max-memory-per-node": f"{query_mb}MB",
            "memory.heap-headroom-per-node": "256MB",
            "catalog.management": "static",
            "catalog.config-dir": f"{folder}/etc/catalog",
        }

    @staticmethod
    def _catalog(folder: Path, rest: str) -> dict[str, str]:
        files = {
            "iceberg.catalog.type": "TESTING_FILE_METASTORE",
            "hive.metastore.catalog.dir": f"local://{folder}/metastore",
        }
        return {
            "connector.name": "iceberg",
            **({"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": rest} if rest else files),
            "iceberg.register-table-procedure.enabled": "true",
            "fs.native-local.enabled": "true",
            "local.location": "/",
        }

    @staticmethod
    def _write(path: Path, properties: dict[str, str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                pytest.fail(f"{type(self).__name__} ended while starting:\n{self._log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/info", timeout=5) as answer:
                    if json.load(answer)["starting"] is False:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.5)
        self.close()
        pytest.fail(f"{type(self).__name__} did not start within {START_SECONDS} s:\n{self._log.read_text()[-3000:]}")

    def sql(self, text: str) -> list[list[Any]]:
        """Run a statement to its end through Trino's REST protocol; its rows."""
        for _ in range(60):
            rows, error = self._run(text)
            if not any(words in error for words in NOT_READY):
                break
            time.sleep(0.5)
        assert not error, f"{text}\n{error}"
        return rows

    def _run(self, text: str) -> tuple[list[list[Any]], str]:
        rows: list[list[Any]] = []
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/statement", data=text.encode(), headers={self.user_header: "test"}
        )
        while True:
            with urllib.request.urlopen(request, timeout=120) as answer:
                page = json.load(answer)
            self.statistics = page["stats"]
            rows += page.get("data", [])
            if "error" in page:
                return rows, str(page["error"]["message"])
            if "nextUri" not in page:
                return rows, ""
            request = urllib.request.Request(page["nextUri"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
