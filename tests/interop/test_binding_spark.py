"""Tables with bound versions under other engines: maintenance by Spark, reads by Spark, DuckDB and Polars."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro  # type: ignore[import-untyped]
import duckdb_extension_iceberg  # type: ignore[import-untyped]
import polars as pl
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from ops.catalog import bind
from ops.catalog.bind import Binding, DerivedVersion
from ops.catalog.connect import open_catalog
from ops.catalog.snapshots import data_snapshots
from ops.storage import open_storage
from puffin import PuffinReader, PuffinWriter
from puffin.types import CENTROID_V1
from tests.conftest import ROWS, STORAGE, make_rows

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # py4j's, closed when collected
]


@dataclass
class Shared:
    """One catalog as PyIceberg and Spark see it: the same name and the same warehouse string."""

    spark: Any
    catalog: Catalog
    name: str

    def table(self, name: str) -> Table:
        """Two appends, so that the first snapshot can expire."""
        made = self.catalog.create_table(f"db.{name}", ROWS, properties={"format-version": "2"})
        made.append(make_rows(0, 10))
        made.append(make_rows(10, 20))
        return made

    def sql(self, text: str) -> list[Any]:
        return list(self.spark.sql(text).collect())

    def count(self, name: str) -> int:
        return int(self.sql(f"SELECT count(*) FROM {self.name}.db.{name}")[0][0])

    def java(self, name: str) -> Any:
        return self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{self.name}.db.{name}"
        )

    def delete_orphans(self, name: str) -> list[str]:
        """`deleteOrphanFiles` of everything older than now; the SQL procedure refuses less than a day."""
        actions = self.spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession)
        done = actions.deleteOrphanFiles(self.java(name)).olderThan(int(time.time() * 1000) + 60_000).execute()
        return list(
            self.spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(
                done.orphanFileLocations()
            )
        )

    def expire(self, name: str) -> None:
        """Everything that no ref needs: one snapshot is retained."""
        now = f"TIMESTAMP '{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(time.time() + 60))}'"
        self.sql(
            f"CALL {self.name}.system.expire_snapshots(table => 'db.{name}', older_than => {now}, retain_last => 1)"
        )


@pytest.fixture(scope="module")
def shared(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    name = "bound"
    warehouse = f"file://{folder}/warehouse"
    catalog = open_catalog(name, {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse})
    catalog.create_namespace("db")
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{folder}/catalog.db",
        ".warehouse": warehouse,
        ".jdbc.schema-version": "V1",
        ".cache-enabled": "false",
    }.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    yield Shared(spark, catalog, name)
    catalog.close()


def publish(table: Table, number: int = 0, expected: int | None = None) -> DerivedVersion:
    path = f"{table.location()}/metadata/ann-e-{number}.puffin"
    base = data_snapshots(table)[-1]
    with open_storage(path, STORAGE).open_output(path) as sink:
        writer = PuffinWriter(sink)
        writer.add_blob(
            CENTROID_V1,
            fields=[4],
            snapshot_id=base.snapshot_id,
            sequence_number=base.sequence_number,
            data=b"not looked into",
        )
        info = writer.finish()
    wanted = Binding(
        "ann", "e", "ann_e", base.snapshot_id, f"build {number}", path, info.file_size, info.footer_size, expected
    )
    return bind.publish(table, wanted)


def assert_intact(shared: Shared, name: str, version: DerivedVersion, rows: int) -> None:
    """The Puffin file is whole and bound, and main's rows are all there, by both sides."""
    source = open_storage(version.puffin_path, STORAGE).source(version.puffin_path)
    assert PuffinReader(source).footer.blobs[0].type == CENTROID_V1
    table = shared.catalog.load_table(f"db.{name}")
    assert bind.tag_target(table, "ann_e") == version.derived_snapshot_id
    assert table.scan().to_arrow().num_rows == rows
    assert shared.count(name) == rows


def test_maintenance_by_spark_keeps_the_version_and_the_data(shared: Shared) -> None:
    version = publish(shared.table("kept"))
    assert shared.delete_orphans("kept") == []
    assert_intact(shared, "kept", version, 20)
    shared.sql(f"CALL {shared.name}.system.compute_table_stats(table => 'db.kept')")
    shared.expire("kept")
    shared.delete_orphans("kept")
    assert_intact(shared, "kept", version, 20)


def test_expiry_deletes_the_version_that_the_tag_has_left(shared: Shared) -> None:
    table = shared.table("moved")
    first = publish(table, 1)
    second = publish(table, 2, first.derived_snapshot_id)
    shared.expire("moved")
    assert not open_storage(first.puffin_path, STORAGE).exists(first.puffin_path)
    assert_intact(shared, "moved", second, 20)


def test_writes_by_spark_go_on(shared: Shared) -> None:
    version = publish(shared.table("written"))
    name = f"{shared.name}.db.written"
    shared.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    shared.sql(f"DELETE FROM {name} WHERE id = 3")
    shared.sql(
        f"MERGE INTO {name} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'merged'"
    )
    shared.sql(
        f"CALL {shared.name}.system.rewrite_data_files(table => 'db.written', options => map('rewrite-all','true'))"
    )
    assert_intact(shared, "written", version, 19)
    tagged = shared.sql(f"SELECT count(*) FROM {name} VERSION AS OF 'ann_e'")
    assert tagged[0][0] == 20


def test_duckdb_and_polars_read_main_and_the_tag(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is a package of its own
    table = shared.table("read")
    version = publish(table)
    table.append(make_rows(20, 25))
    metadata = table.metadata_location.removeprefix("file://")
    with duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}) as db:
        for package, extension in ((duckdb_extension_avro, "avro"), (duckdb_extension_iceberg, "iceberg")):
            found = next(Path(package.__path__[0]).rglob(f"{extension}.duckdb_extension"))
            db.execute(f"LOAD '{found}'")
        at = f", snapshot_from_id={version.derived_snapshot_id}"
        assert db.sql(f"SELECT count(*) FROM iceberg_scan('{metadata}')").fetchall() == [(25,)]
        assert db.sql(f"SELECT count(*) FROM iceberg_scan('{metadata}'{at})").fetchall() == [(20,)]
    assert pl.scan_iceberg(table).select(pl.len()).collect().item() == 25
    old = pl.scan_iceberg(table, snapshot_id=version.derived_snapshot_id).select("id").collect()
    assert old.height == 20
