"""A single-node Presto on loopback, for the opt-in tests.

Needs `PRESTO_HOME`: a folder with `lib` and `plugin/iceberg` of the Maven artifact com.facebook.presto:presto-server
(0.287:tar.gz is the newest there), in which ASM 9.0 was replaced by a release that knows the classes of Java 17.
`make presto` fetches it. Its catalog `lake` keeps its tables in files; other engines' tables come by `register_table`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.interop.trino_server import TrinoServer
from tests.services.processes import java

OPENED = (
    "lang",
    "lang.ref",
    "lang.reflect",
    "io",
    "net",
    "nio",
    "security",
    "text",
    "util",
    "util.concurrent",
    "util.regex",
)
"""Packages of Java whose private parts this release uses"""


class PrestoServer(TrinoServer):
    """As `TrinoServer`."""

    settings = ("PRESTO_HOME",)
    user_header = "X-Presto-User"

    def _command(self, options: Sequence[str]) -> list[str]:
        home = os.environ["PRESTO_HOME"]
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
        jvm = [java(), *opened, "-Djdk.attach.allowAttachSelf=true", "-XX:+UseSerialGC", *options]
        return [*jvm, "-cp", f"{home}/lib/*", "com.facebook.presto.server.PrestoServer"]

    def _config(self, folder: Path, query_mb: int) -> dict[str, str]:
        own = {"discovery-server.enabled": "true", "plugin.dir": f"{os.environ['PRESTO_HOME']}/plugin"}
        config = {**super()._config(folder, query_mb), **own, "query.max-total-memory-per-node": f"{query_mb}MB"}
        del config["catalog.management"]
        return config

    @staticmethod
    def _catalog(folder: Path, rest: str) -> dict[str, str]:
        assert not rest, "this release of Presto knows no REST catalog"
        return {
            "connector.name": "iceberg",
            "iceberg.catalog.type": "HIVE",
            "hive.metastore": "file",
            "hive.metastore.catalog.dir": f"file://{folder}/metastore",
        }
