"""A real Iceberg REST catalog: Iceberg's adapter and servlet, over a SQLite database, on loopback and a free port."""

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.services.jars import POSTGRES_JDBC, S3PROXY, SPARK_JARS, fetch_all, pinned
from tests.services.processes import free_port, java, serving

_SOURCE = Path(__file__).with_name("RestCatalog.java")
_OF_OTHERS = ("org.apache.iceberg:iceberg-spark-runtime", POSTGRES_JDBC, S3PROXY, "io.zonky")
_FROM_SPARK = (
    *(
        "hadoop-client-api",
        "hadoop-client-runtime",
        "janino",
        "commons-compiler",
        "jackson-core",
        "jackson-annotations",
    ),
    *("jackson-databind", "avro", "slf4j-api", "RoaringBitmap", "commons-codec", "commons-compress", "commons-io"),
    *("commons-lang3", "commons-logging", "snappy-java", "zstd-jni", "aircompressor", "log4j-slf4j2-impl", "log4j-api"),
    "log4j-core",
)


@contextlib.contextmanager
def rest_catalog(folder: Path, s3: Mapping[str, str]) -> Iterator[str]:
    """Run the server. Returns its URI. Tables without a location lie under `folder`/warehouse; s3:// works
    where `s3` has the properties of a server.
    """
    port = free_port()
    properties = {
        "uri": f"jdbc:sqlite:{folder}/catalog.db?synchronous=OFF",
        "warehouse": f"file://{folder}/warehouse",
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
        "s3.path-style-access": "true",
        **{key: s3[key] for key in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key") if key in s3},
    }
    if "s3.region" in s3:
        properties["client.region"] = s3["s3.region"]
    command = [java(), "-Xmx512m", "-cp", ":".join(map(str, class_path()))]
    command += ["org.codehaus.janino.SimpleCompiler", str(_SOURCE), "RestCatalog", str(port)]
    command += [f"{key}={value}" for key, value in properties.items()]

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # URLError is one
            return False

    with serving(command, is_ready, folder / "rest.log"):
        yield f"http://127.0.0.1:{port}"


def class_path() -> list[Path]:
    """The jars of the server, and so of Iceberg's core with its tests."""
    jars = fetch_all(item for item in pinned() if not item.startswith(_OF_OTHERS))
    return jars + [jar for name in _FROM_SPARK for jar in SPARK_JARS.glob(f"{name}-[0-9]*.jar")]
