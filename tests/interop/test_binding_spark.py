"""A bound version among what Spark does to its table."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, tag_target
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.table.live_files import EqualityDeletesError
from icepuffin.ops.table.snapshots import hides_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.equality import write_avro_delete_file
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("lake")
    with open_lake("bound", f"sqlite:///{folder}/catalog.db", folder, spark=spark) as opened:
        yield opened


def head_of(table: Table) -> int:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    return head


def sketch_head(table: Table) -> ThetaReport:
    return count_theta_sketches(RunContext(table, STORAGE, LocalRunner()), head_of(table)).publish()


def assert_intact(lake: Lake, name: str, version: DerivedVersion, rows: int) -> None:
    """The Puffin file is there and bound, and main's rows are all there, by both sides."""
    assert open_storage(version.puffin_path, STORAGE).exists(version.puffin_path)
    table = lake.load(name)
    assert tag_target(table, "ann_e") == version.index_snapshot_id
    assert table.scan().to_arrow().num_rows == rows
    assert lake.count(name) == rows


def test_expiry_deletes_the_version_that_the_tag_has_left(lake: Lake) -> None:
    table = lake.create("moved")
    table.append(make_rows(0, 10))
    table.append(make_rows(10, 20))  # so that the first snapshot can expire
    first = bindings.publish(table, binding(table, 1))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))
    lake.expire("moved")
    assert not open_storage(first.puffin_path, STORAGE).exists(first.puffin_path)
    assert_intact(lake, "moved", second, 20)


AGED_REFS = {"history.expire.max-ref-age-ms": "1"}
"""Any engine's expiry drops refs that do not say otherwise, as soon as they are a millisecond old."""


def test_expiry_leaves_our_tags_whatever_the_table_says_of_refs(lake: Lake) -> None:
    table = lake.create("aged", **AGED_REFS)
    table.append(make_rows(0, 20))
    index, sketches = index_head(table), sketch_head(table)
    table.append(make_rows(20, 30))
    table.manage_snapshots().create_tag(head_of(table), "yours").commit()
    lake.expire("aged")
    assert not hides_snapshots(lake.load("aged")), "Iceberg takes what expires out of the history, too"
    refs = lake.load("aged").metadata.refs
    assert set(refs) == {"main", "ann_e", "theta_sketches"}, "the property is there, and takes what is not ours"
    assert refs["ann_e"].snapshot_id == index.index_snapshot_id
    (version,) = index_versions(lake.load("aged"), "e")
    assert_intact(lake, "aged", version, 30)
    assert sketches.file_sketches_path is not None
    assert open_storage(sketches.file_sketches_path, STORAGE).exists(sketches.file_sketches_path)


def test_tags_without_an_age_are_mended_by_the_next_refresh(lake: Lake) -> None:
    table = lake.create("mended", **AGED_REFS)
    table.append(make_rows(0, 20))
    report = index_head(table)
    sketch_head(table)
    table.refresh()
    for name in ("ann_e", "theta_sketches"):  # as they were made once
        ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
        at = table.metadata.refs[name].snapshot_id
        update = SetSnapshotRefUpdate(ref_name=name, type="tag", snapshot_id=at, **ages)
        table.catalog.commit_table(table, (), (update,))
        table.refresh()
    assert index_head(table).action is Action.REUSED
    assert sketch_head(table).outcome is ThetaOutcome.CURRENT
    lake.expire("mended")
    refs = lake.load("mended").metadata.refs
    assert set(refs) == {"main", "ann_e", "theta_sketches"}
    assert refs["ann_e"].snapshot_id == report.index_snapshot_id


def test_writes_by_spark_go_on(lake: Lake) -> None:
    table = lake.create("written", **{"write.delete.mode": "merge-on-read"})
    table.append(make_rows(0, 20))
    version = bindings.publish(table, binding(table))
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
    version = bindings.publish(table, binding(table))
    with pytest.raises(Exception, match=r"Cannot (modify|delete from) table"):  # the latter on Spark 4.0
        lake.sql(f"DELETE FROM {lake.sql_name('tagged')}.tag_ann_e WHERE id = 3")
    assert_intact(lake, "tagged", version, 20)


def test_equality_deletes_go_away_as_the_error_says(lake: Lake) -> None:
    table = lake.create("upserted")
    table.append(make_rows(0, 50))
    path, size = write_avro_delete_file(table, 3, 5)
    java, gateway = lake.java("upserted"), lake.spark._sc._gateway
    fields = gateway.new_array(gateway.jvm.int, 1)
    fields[0] = 1
    builder = gateway.jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(fields)
    builder = builder.withPath(path).withFormat("AVRO").withFileSizeInBytes(size).withRecordCount(2)
    java.newRowDelta().addDeletes(builder.build()).commit()
    assert lake.count("upserted") == 48
    with pytest.raises(EqualityDeletesError) as caught:
        index_head(table)
    advice = re.search(r"CALL (system\.rewrite_data_files\(.*\))", str(caught.value))
    assert advice is not None
    lake.sql(f"CALL {lake.name}.{advice[1]}")
    assert index_head(table).rows == 48


def test_a_v3_table_of_a_sql_catalog_is_refused_before_any_work(lake: Lake) -> None:
    table = lake.create("early")
    table.append(make_rows(0, 50))
    lake.sql(f"ALTER TABLE {lake.sql_name('early')} SET TBLPROPERTIES ('format-version'='3')")
    for refused in (index_head, sketch_head, lambda early: create_index(early, DEFINITION)):
        with pytest.raises(UnsupportedFormatError, match=r"early has format version 3.* Use a REST catalog"):
            refused(table)
    store = open_storage(table.location(), STORAGE)
    assert not [item.path for item in store.list(table.location()) if "ann-" in item.path or "_icepuffin" in item.path]


def test_a_pack_outlives_what_spark_expires_and_holds_no_data(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 30_000)
    table = lake.create("packed", **AGED_REFS)
    for first in range(0, 600, 200):
        table.append(make_rows(first, first + 200))
    index_head(table)
    data_files = [task.file.file_path for task in table.scan().plan_files()]
    lake.compact("packed")
    table.refresh().append(make_rows(600, 620))
    report = index_head(table)
    version = next(item for item in index_versions(table, "e") if item.index_snapshot_id == report.index_snapshot_id)
    lake.expire("packed")
    lake.delete_orphans("packed")
    assert_intact(lake, "packed", version, 620)
    assert lake.duckdb_count(table.refresh()) == 620
    holder_id = version.packs[0].holder_id
    assert lake.count("packed", f"VERSION AS OF {holder_id}") == 0
    assert all(open_storage(pack.path, STORAGE).exists(pack.path) for pack in version.packs)
    assert not any(open_storage(path, STORAGE).exists(path) for path in data_files)
    table.refresh().append(make_rows(620, 640))
    again = index_head(table)
    assert again.bytes_shared
    assert answer_with_recall(table)[1] >= 0.95
    drop_index(table, "e")
    lake.expire("packed")
    assert not any(open_storage(pack.path, STORAGE).exists(pack.path) for pack in version.packs)
