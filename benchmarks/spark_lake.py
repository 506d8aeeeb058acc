"""The table of `benchmarks.lake` in format v3, whose rows Spark writes and compacts, over a REST catalog.

PyIceberg writes no v3. Spark, the catalog and their jars are those of the tests (`tests/services`): Java 17 is needed.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lake import Lake
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from tests.services.jars import ICEBERG_SPARK
from tests.services.rest import rest_catalog
from tests.services.spark import spark_session

_NO_S3 = {
    "s3.region": "us-east-1",
    "s3.endpoint": "http://127.0.0.1",
    "s3.access-key-id": "",
    "s3.secret-access-key": "",
}


class SparkLake(Lake):
    """Rows keep their `_row_id` where Spark rewrites them."""

    format_version = "3"

    def __init__(self, uri: str, spark: Any, folder: Path, *arguments: Any) -> None:
        self._uri, self._spark = uri, spark
        super().__init__(folder, *arguments)

    def _catalog_properties(self, folder: Path) -> dict[str, str]:
        return {"type": "rest", "uri": self._uri}

    def _write(self, rows: pa.Table) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(rows, f"{folder}/rows.parquet")
            self._spark.read.parquet(f"{folder}/rows.parquet").coalesce(1).writeTo("bench.db.t").append()
        self.table.refresh()

    def rewrite(self, files: int) -> None:
        """The same rows in so many other files, in the order of their ids: more files are written anew, and their rows
        get other row ids; fewer come from Spark's compaction, which keeps them.
        """
        sizes = [task.file.file_size_in_bytes for task in self.table.refresh().scan().plan_files()]
        if files > len(sizes):
            from pyspark.sql import functions  # noqa: PLC0415

            rows = self._spark.table("bench.db.t").repartitionByRange(files, "id").sortWithinPartitions("id")
            rows.writeTo("bench.db.t").overwrite(functions.lit(True))
        else:
            self._spark.sql(
                "CALL bench.system.rewrite_data_files(table => 'db.t', strategy => 'sort', sort_order => 'id', options "
                f"=> map('rewrite-all', 'true', 'target-file-size-bytes', '{-(-sum(sizes) // files)}'))"
            ).collect()
        self.table.refresh()


@contextmanager
def spark_lake(
    folder: Path,
    vectors: npt.NDArray[Any],
    rows: int,
    files: int,
    definition: IndexDefinition,
    threads: int,
    tasks: str,
) -> Iterator[SparkLake]:
    """The lake, while its catalog runs. Parameters are those of `Lake`."""
    with rest_catalog(folder, _NO_S3) as uri:
        spark = spark_session(folder, [ICEBERG_SPARK])
        conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": uri, ".cache-enabled": "false"}
        for key, value in conf.items():
            spark.conf.set(f"spark.sql.catalog.bench{key}", value)
        yield SparkLake(uri, spark, folder, vectors, rows, files, definition, threads, tasks)
        spark.stop()
