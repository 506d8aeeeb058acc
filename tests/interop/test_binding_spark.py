"""A bound version among what Spark does to its table."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.table import Table

from ops.catalog import bind
from ops.catalog.live import EqualityDeletesError
from ops.catalog.manifest_lists import UnsupportedFormatError
from ops.catalog.versions import DerivedVersion, tag_target
from ops.index import create
from ops.spark.runner import LocalRunner
from ops.storage import open_storage
from ops.theta import materialize_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.equality import write_delete_file
from tests.ops.index.history import DEFINITION, index_head

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # py4j's, closed when collected
]


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    with open_lake("bound", f"sqlite:///{folder}/catalog.db", folder, spark=spark) as opened:
        yield opened


def assert_intact(lake: Lake, name: str, version: DerivedVersion, rows: int) -> None:
    """The Puffin file is there and bound, and main's rows are all there, by both sides."""
    assert open_storage(version.puffin_path, STORAGE).exists(version.puffin_path)
    table = lake.load(name)
    assert tag_target(table, "ann_e") == version.derived_snapshot_id
    assert table.scan().to_arrow().num_rows == rows
    assert lake.count(name) == rows


def test_expiry_deletes_the_version_that_the_tag_has_left(lake: Lake) -> None:
    table = lake.create("moved")
    table.append(make_rows(0, 10))
    table.append(make_rows(10, 20))  # so that the first snapshot can expire
    first = bind.publish(table, binding(table, 1))
    second = bind.publish(table, binding(table, 2, expected=first.derived_snapshot_id))
    lake.expire("moved")
    assert not open_storage(first.puffin_path, STORAGE).exists(first.puffin_path)
    assert_intact(lake, "moved", second, 20)


def test_writes_by_spark_go_on(lake: Lake) -> None:
    table = lake.create("written", **{"write.delete.mode": "merge-on-read"})
    table.append(make_rows(0, 20))
    version = bind.publish(table, binding(table))
    name = lake.sql_name("written")
    lake.sql(f"DELETE FROM {name} WHERE id = 3")
    lake.sql(
        f"MERGE INTO {name} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'merged'"
    )
    lake.compact("written")
    assert_intact(lake, "written", version, 19)
    assert lake.count("written", "VERSION AS OF 'ann_e'") == 20


def test_sql_cannot_write_to_a_version(lake: Lake) -> None:
    table = lake.create("tagged")
    table.append(make_rows(0, 20))
    version = bind.publish(table, binding(table))
    with pytest.raises(Exception, match="Cannot modify table"):
        lake.sql(f"DELETE FROM {lake.sql_name('tagged')}.tag_ann_e WHERE id = 3")
    assert_intact(lake, "tagged", version, 20)


def test_equality_deletes_go_away_as_the_error_says(lake: Lake) -> None:
    table = lake.create("upserted")
    table.append(make_rows(0, 50))
    path, size = write_delete_file(table, 3, 5)
    java, gateway = lake.java("upserted"), lake.spark._sc._gateway
    fields = gateway.new_array(gateway.jvm.int, 1)
    fields[0] = 1
    builder = gateway.jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(fields)
    builder = builder.withPath(path).withFormat("PARQUET").withFileSizeInBytes(size).withRecordCount(2)
    java.newRowDelta().addDeletes(builder.build()).commit()
    assert lake.count("upserted") == 48
    with pytest.raises(EqualityDeletesError) as caught:
        index_head(table)
    advice = re.search(r"CALL (system\.rewrite_data_files\(.*\))", str(caught.value))
    assert advice is not None
    lake.sql(f"CALL {lake.name}.{advice[1]}")
    assert index_head(table).rows == 48


def sketch_head(table: Table) -> None:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    materialize_theta_sketches(table, head, runner=LocalRunner(), storage=STORAGE)


def test_a_v3_table_of_a_sql_catalog_is_refused_before_any_work(lake: Lake) -> None:
    table = lake.create("early")
    table.append(make_rows(0, 50))
    lake.sql(f"ALTER TABLE {lake.sql_name('early')} SET TBLPROPERTIES ('format-version'='3')")
    for refused in (index_head, sketch_head, lambda early: create(early, DEFINITION)):
        with pytest.raises(UnsupportedFormatError, match=r"early has format version 3.* Use a REST catalog"):
            refused(table)
    store = open_storage(table.location(), STORAGE)
    assert not [item.path for item in store.list(table.location()) if "ann-" in item.path or "_icepuffin" in item.path]
