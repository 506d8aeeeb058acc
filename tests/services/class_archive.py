"""An archive of the classes that Spark's JVMs load, by Java's class data sharing.

`python -m tests.services.class_archive` makes it. A JVM maps it in place of reading, parsing and verifying some ten
thousand classes, which takes half of the CPU time of a Spark session of the tests. A JVM of another Java, or with other
jars, ignores it.
"""

import os
import sys
from pathlib import Path

PATH = Path(sys.prefix) / "spark-classes.jsa"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # its warnings go to the standard output, which Spark's scripts parse


def archive_options() -> str:
    """Options of a JVM that maps the archive, where there is one."""
    return f"-XX:SharedArchiveFile={PATH} {_QUIET}" if PATH.exists() else ""


def make_archive() -> None:
    """Run a little of what the tests do in Spark; the JVM writes the archive when it ends."""
    from pyspark import SparkContext  # noqa: PLC0415  conftest.py wants the options alone
    from pyspark.sql import SparkSession  # noqa: PLC0415

    partial = PATH.with_suffix(".partial")
    conf = {
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={partial} {_QUIET}",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string")
    names = rows.groupBy("name").count().mapInArrow(lambda batches: batches, "name string, count long")
    rows.join(names, "name").where("id % 3 = 1 or name like 'b%'").orderBy("id").toPandas()
    jvm = SparkContext._gateway
    assert jvm is not None
    spark.stop()
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait()
    partial.replace(PATH)


if __name__ == "__main__":
    from tests.services.processes import SMALL_JVM

    os.environ["JAVA_TOOL_OPTIONS"] = SMALL_JVM
    make_archive()
