"""Jars that the tests need from Maven Central: by Maven where there is one, else by the Ivy that Spark brings along.

Kept under `$ICEPUFFIN_CACHE/jars`, by default ~/.cache/icepuffin/jars.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ICEBERG_SPARK = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
SQLITE_JDBC = "org.xerial:sqlite-jdbc:3.49.1.0"
S3PROXY = "org.gaul:s3proxy:4.1.0:jar:jar-with-dependencies"


def cache_folder() -> Path:
    return Path(os.environ.get("ICEPUFFIN_CACHE", Path.home() / ".cache" / "icepuffin")) / "jars"


def fetch(coordinate: str) -> Path:
    """The jar of `group:artifact:version[:jar:classifier]`, fetched once.

    Raises RuntimeError with the client's own words; a classifier needs Maven.
    """
    _, artifact, version, *classified = coordinate.split(":")
    folder = cache_folder()
    jar = folder / f"{'-'.join([artifact, version, *classified[1:]])}.jar"
    if jar.exists():
        return jar
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("mvn"):
        _run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={coordinate}", f"-DoutputDirectory={folder}")
    elif classified:
        raise RuntimeError(f"{coordinate} has a classifier: install Maven (mvn) to fetch it")
    else:
        _by_ivy(coordinate, jar)
    return jar


def _by_ivy(coordinate: str, jar: Path) -> None:
    """Spark resolves `spark.jars.packages` before it starts a session; a short-lived process does it here."""
    ivy = jar.parent / "ivy"
    script = (
        "from pyspark.sql import SparkSession as S; import sys;"
        "S.builder.master('local[1]').config('spark.jars.packages', sys.argv[1]).config('spark.jars.ivy', sys.argv[2])"
        ".config('spark.jars.excludes', '*:*-tests').config('spark.ui.enabled', 'false').getOrCreate().stop()"
    )
    _run(sys.executable, "-c", script, coordinate, str(ivy))
    found = next((ivy / "jars").glob(f"*{jar.name}"))
    found.replace(jar)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} could not fetch a jar: {(done.stdout + done.stderr)[-2000:]}")
