"""A catalog and a store as PyIceberg and Spark see them, with what other engines do to a table there."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import duckdb_extension_avro  # type: ignore[import-untyped]
import duckdb_extension_httpfs  # type: ignore[import-untyped]
import duckdb_extension_iceberg  # type: ignore[import-untyped]
import polars as pl
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from sqlalchemy.engine import make_url

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import StorageConfig
from tests.conftest import ROWS

_POLARS_NAMES = {
    "endpoint": "endpoint_url",
    "access-key-id": "access_key_id",
    "secret-access-key": "secret_access_key",
    "region": "region",
}


GLUE_KEYS = {"glue.access-key-id": "test", "glue.secret-access-key": "testsecret"}
"""moto takes any keys"""


@dataclass(frozen=True)
class Lake:
    """The catalog has one name, and the warehouse one string, on both sides."""

    name: str
    catalog: Catalog
    root: str
    """Folder or prefix of the tables"""
    storage: StorageConfig
    spark: Any = None

    @property
    def namespace(self) -> str:
        return f"db_{self.name}"  # lakes share servers

    def create(self, table: str, **properties: str) -> Table:
        """A table with the columns of `make_rows`, format version 2 unless another is given."""
        given = {"format-version": "2", **properties}
        return self.catalog.create_table(f"{self.namespace}.{table}", ROWS, f"{self.root}/{table}", properties=given)

    def load(self, table: str) -> Table:
        return self.catalog.load_table(f"{self.namespace}.{table}")

    def sql_name(self, table: str) -> str:
        return f"{self.name}.{self.namespace}.{table}"

    def sql(self, text: str) -> list[Any]:
        return list(self.spark.sql(text).collect())

    def count(self, table: str, at: str = "") -> int:
        """Rows as Spark counts them; `at` is SQL such as VERSION AS OF."""
        return int(self.sql(f"SELECT count(name) FROM {self.sql_name(table)} {at}")[0][0])

    def java(self, table: str) -> Any:
        """The table as Iceberg Java's own object."""
        jvm = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.sql_name(table))

    def delete_orphans(self, table: str) -> list[str]:
        """`deleteOrphanFiles` of everything older than now; the SQL procedure refuses less than a day."""
        jvm, session = self.spark._jvm, self.spark._jsparkSession
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(session).deleteOrphanFiles(self.java(table))
        in_store = self.root.startswith("s3:")  # Spark has no Hadoop file system for S3; the table's own FileIO lists
        done = action.usePrefixListing(in_store).olderThan(int(time.time() * 1000) + 60_000).execute()
        lists = jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists
        return list(lists.newArrayList(done.orphanFileLocations()))

    def expire(self, table: str) -> None:
        """Everything that no ref needs: one snapshot is retained."""
        now = f"TIMESTAMP '{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(time.time() + 60))}'"
        self._call("expire_snapshots", table, f"older_than => {now}, retain_last => 1")

    def compute_statistics(self, table: str) -> None:
        self._call("compute_table_stats", table)

    def compact(self, table: str) -> None:
        self._call("rewrite_data_files", table, "options => map('rewrite-all','true')")

    def _call(self, procedure: str, table: str, more: str = "") -> None:
        arguments = f"table => '{self.namespace}.{table}'" + (f", {more}" if more else "")
        self.sql(f"CALL {self.name}.system.{procedure}({arguments})")

    def duckdb_count(self, table: Table, snapshot_id: int | None = None) -> int:
        travel = f", snapshot_from_id={snapshot_id}" if snapshot_id else ""
        metadata = table.metadata_location.removeprefix("file://")
        with _duckdb(self.storage) as db:
            rows = db.sql(f"SELECT count(name) FROM iceberg_scan('{metadata}'{travel})").fetchall()
        return int(rows[0][0])

    def polars_count(self, table: Table, snapshot_id: int | None = None) -> int:
        """Planned by PyIceberg (POLARS_ICEBERG_PLANNER=pyiceberg): Polars' own planner is a package of its own."""
        files = self.storage.properties
        options = files and {
            **{f"aws_{polars_name}": files[f"s3.{s3_name}"] for s3_name, polars_name in _POLARS_NAMES.items()},
            "aws_allow_http": "true",
        }
        scan = pl.scan_iceberg(table, snapshot_id=snapshot_id, storage_options=options or None)
        return int(scan.select("name").collect().height)


@contextmanager
def open_lake(
    name: str, uri: str, folder: Path, *, s3: StorageConfig | None = None, spark: Any = None, **properties: str
) -> Iterator[Lake]:
    """A catalog at `uri` (SQLAlchemy's, http, glue+http or thrift) over a folder, or over the bucket of `s3`.

    `properties` are the catalog's; Spark has them, too.
    """
    root = f"s3://lake/{name}" if s3 else f"file://{folder}/warehouse"
    files = {**s3.properties, "client.region": "us-east-1"} if s3 else {}
    address = {"type": "rest" if uri.startswith("http") else "sql", "uri": uri}
    if uri.startswith("glue+"):
        address = {"type": "glue", "glue.endpoint": uri.removeprefix("glue+"), "glue.region": "us-east-1", **GLUE_KEYS}
    if uri.startswith("thrift:"):
        address = {"type": "hive", "uri": uri, "hive.hive2-compatible": "true"}
    catalog = open_catalog(name, {**address, "warehouse": root, **files, **properties})
    lake = Lake(name, catalog, root, StorageConfig(files), spark)
    catalog.create_namespace_if_not_exists(lake.namespace)
    if spark is not None:
        conf = _spark_catalog(uri, root, files) | {f".{key}": value for key, value in properties.items()}
        for key, value in conf.items():
            spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    yield lake
    catalog.close()


def _spark_catalog(uri: str, warehouse: str, files: dict[str, str]) -> dict[str, str]:
    conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".warehouse": warehouse, ".cache-enabled": "false"}
    if uri.startswith("http"):
        conf |= {".type": "rest", ".uri": uri}
    elif uri.startswith("glue+"):
        conf |= {".type": "glue", ".glue.endpoint": uri.removeprefix("glue+"), ".client.region": "us-east-1"}
        conf[".io-impl"] = "org.apache.iceberg.hadoop.HadoopFileIO"  # its own default is S3
    elif uri.startswith("thrift:"):
        conf |= {".type": "hive", ".uri": uri}
    else:
        url = make_url(uri)
        conf |= {".type": "jdbc", ".jdbc.schema-version": "V1"}
        if url.drivername == "sqlite":
            conf[".uri"] = f"jdbc:sqlite:{url.database}?synchronous=OFF"
        else:
            conf[".uri"] = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"
            conf |= {".jdbc.user": str(url.username), ".jdbc.password": str(url.password)}
    if files:
        conf |= {".io-impl": "org.apache.iceberg.aws.s3.S3FileIO", ".s3.path-style-access": "true"}
        conf |= {f".{key}": value for key, value in files.items()}
    return conf


@contextmanager
def _duckdb(storage: StorageConfig) -> Iterator[duckdb.DuckDBPyConnection]:
    extensions = (
        (duckdb_extension_httpfs, "httpfs"),
        (duckdb_extension_avro, "avro"),
        (duckdb_extension_iceberg, "iceberg"),
    )
    with duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}) as db:
        for package, extension in extensions:
            found = next(Path(package.__path__[0]).rglob(f"{extension}.duckdb_extension"))
            db.execute(f"LOAD '{found}'")
        if endpoint := storage.properties.get("s3.endpoint"):
            key, secret = storage.properties["s3.access-key-id"], storage.properties["s3.secret-access-key"]
            db.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION 'us-east-1', "
                f"ENDPOINT '{urlsplit(endpoint).netloc}', URL_STYLE 'path', USE_SSL false)"
            )
        yield db
