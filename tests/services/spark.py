"""A Spark session for tests: small, local, retried when a worker is lost."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.jars import fetch_all
from tests.services.permission import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def spark_session(folder: Path, jars: Sequence[str]) -> "SparkSession":
    """`local[2,4]`: `local[2]` would fail a job at the first lost worker."""
    need("jvm")
    from pyspark.sql import SparkSession  # noqa: PLC0415  most tests start no JVM

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("icepuffin tests")
    conf = {
        "spark.jars": ",".join(map(str, fetch_all(jars))),
        "spark.sql.extensions": EXTENSIONS,
        "spark.driver.memory": "1g",
        "spark.python.daemon.module": "tests.services.spark_daemon",
        # a few rows per query: compiling takes longer than running
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
