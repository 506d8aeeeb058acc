"""What the tests take from Maven Central: by Ivy, which comes with Spark, so that Java is all it needs.

`artifacts.lock`, `hive4.lock` and `rest_kit.lock` beside this file pin versions and sha256. Files are kept under
`$ICEPUFFIN_CACHE/jars`, by default ~/.cache/icepuffin/jars. A machine that is meant to work without a network has
ICEPUFFIN_OFFLINE=1: tests that need what is not there are skipped then; without it they fail.
"""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests.services.processes import java

_PYSPARK = distribution("pyspark")
SPARK_JARS = Path(str(_PYSPARK.locate_file("pyspark"))) / "jars"
LOCK = Path(__file__).with_name("artifacts.lock")
HIVE4_LOCK = LOCK.with_name("hive4.lock")
REST_KIT_LOCK = LOCK.with_name("rest_kit.lock")
ICEBERG = os.environ.get("ICEPUFFIN_ICEBERG", "1.11.0")
"""The Iceberg of the tests' Spark: `make ranges` names others."""
SPARK = ".".join(_PYSPARK.version.split(".")[:2])
ICEBERG_SPARK = f"org.apache.iceberg:iceberg-spark-runtime-{SPARK}_2.13:{ICEBERG}"
ICEBERG_AWS = "org.apache.iceberg:iceberg-aws-bundle:1.11.0"
SQLITE_JDBC = "org.xerial:sqlite-jdbc:3.49.1.0"
POSTGRES_JDBC = "org.postgresql:postgresql:42.7.8"
S3PROXY = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"


def cache_folder() -> Path:
    return Path(os.environ.get("ICEPUFFIN_CACHE", Path.home() / ".cache" / "icepuffin")) / "jars"


def pinned(lock: Path = LOCK) -> dict[str, str]:
    """`group:artifact:version[:classifier]` -> sha256, of everything that the lock names."""
    lines = (line.split() for line in lock.read_text().splitlines() if line and not line.startswith("#"))
    return {coordinate: sha256 for sha256, coordinate in lines}


def fetch(coordinate: str) -> Path:
    """The file of one coordinate. As `fetch_all`."""
    return fetch_all([coordinate])[0]


def fetch_all(coordinates: Iterable[str]) -> list[Path]:
    """The files of coordinates that the lock names, fetched together where any is missing, each checked.

    Skips the test where ICEPUFFIN_OFFLINE is set. Raises RuntimeError with Ivy's own words where it is not.
    """
    paths = {coordinate: cache_folder() / _file_name(coordinate) for coordinate in coordinates}
    if all(path.exists() for path in paths.values()):
        return list(paths.values())
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test runs share the folder
        missing = [coordinate for coordinate, path in paths.items() if not path.exists()]
        if missing and os.environ.get("ICEPUFFIN_OFFLINE"):
            pytest.skip(f"ICEPUFFIN_OFFLINE is set, and {cache_folder()} lacks {', '.join(missing)}")
        if missing:
            _fetch_missing(missing)
    return list(paths.values())


def _file_name(coordinate: str) -> str:
    _, *rest = coordinate.split(":")
    return f"{'-'.join(rest)}.jar"


def _fetch_missing(coordinates: list[str]) -> None:
    sums = pinned() | pinned(HIVE4_LOCK) | pinned(REST_KIT_LOCK)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        (Path(folder) / "ivy.xml").write_text(_ivy_file(coordinates))
        (ivy,) = SPARK_JARS.glob("ivy-*.jar")
        command = [
            java(),
            "-jar",
            str(ivy),
            "-ivy",
            f"{folder}/ivy.xml",
            "-confs",
            "default",
            "-cache",
            f"{folder}/ivy",
        ]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for coordinate in coordinates:
            path = Path(folder) / _file_name(coordinate)
            if not path.exists():
                message = "\n".join(line for line in done.stdout.splitlines() if line.strip(". \t"))
                raise RuntimeError(
                    f"{coordinate} could not be fetched from Maven Central; set ICEPUFFIN_OFFLINE=1 to skip the tests "
                    f"that need it. Ivy said: {(message + done.stderr)[-3000:]}"
                )
            if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != sums[coordinate]:
                raise RuntimeError(f"{coordinate} has sha256 {found}, the lock file says {sums[coordinate]}: not used")
            path.replace(cache_folder() / path.name)


def _ivy_file(coordinates: list[str]) -> str:
    """One module each, its artifacts named, and nothing that they depend on."""
    modules: dict[tuple[str, str, str], list[str]] = {}
    for coordinate in coordinates:
        group, name, version, *classifier = coordinate.split(":")
        modules.setdefault((group, name, version), []).extend(classifier or [""])
    lines = ['<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">']
    lines += [
        '<info organisation="icepuffin" module="tests"/>',
        '<configurations><conf name="default"/></configurations>',
    ]
    lines += ["<dependencies>"]
    for (group, name, version), classifiers in modules.items():
        named = f"org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)}"
        lines += [f'<dependency {named} transitive="false" conf="default->master">']
        for classifier in classifiers:
            extra = f" m:classifier={quoteattr(classifier)}" if classifier else ""
            lines += [f'<artifact name={quoteattr(name)} type="jar" ext="jar"{extra}/>']
        lines += ["</dependency>"]
    return "\n".join([*lines, "</dependencies></ivy-module>"])
