"""The life of an index on catalogs that CI does not run: `make catalogs`."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.errors import UnsupportedCatalogError
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action, StorageConfig
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage import RefusedError, open_storage
from icepuffin.ops.theta.ndv import read_ndv
from tests.conftest import ROWS, make_rows
from tests.interop import test_concurrency, test_matrix, test_v3_rest
from tests.interop.lakes import GLUE_KEYS, Lake, open_lake
from tests.interop.test_concurrency import OpenLake, index_files, index_head
from tests.ops.index.comparison import DEFINITION, answer_with_recall
from tests.services.glue import glue_catalog
from tests.services.hive import hive4_metastore, hive_metastore
from tests.services.s3_tables import s3_tables
from tests.services.seaweedfs import BUCKET, SeaweedFS, seaweedfs
from tests.services.wire import wire_to

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.services,
    pytest.mark.skipif("ICEPUFFIN_CATALOG_SERVERS" not in os.environ, reason="make catalogs runs it"),
]
EXPIRE_ALL = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
"""Properties of a table by which SeaweedFS expires what no ref names"""


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with glue_catalog(tmp_path_factory.mktemp("glue")) as uri:
        yield uri


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
def hive4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive4_metastore(tmp_path_factory.mktemp("hive4")) as uri:
        yield uri


@contextmanager
def open_server(
    server: str | SeaweedFS, name: str, folder: Path, s3: StorageConfig | None = None, spark: Any = None
) -> Iterator[Lake]:
    """A catalog at an address, or over the table bucket of SeaweedFS, which is its own store."""
    if isinstance(server, str):
        with open_lake(name, server, folder, s3=s3, spark=spark) as lake:
            yield lake
        return
    with open_lake(name, server.uri, folder, s3=StorageConfig(server.files), spark=spark, **server.login()) as lake:
        yield replace(lake, root=f"s3://{BUCKET}/{lake.namespace}")


@pytest.fixture(params=["glue", "hive", "hive4", "seaweed"])
def lakes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLake]:
    """Opens the same lake again and again, each time with a catalog of its own."""
    server = request.getfixturevalue(request.param)
    with ExitStack() as opened:
        yield lambda: opened.enter_context(open_server(server, f"many_{tmp_path.name}", tmp_path))


@pytest.mark.parametrize(
    ("server", "store"),  # the metastore of Hive has no file system for S3
    [("glue", "local"), ("glue", "s3"), ("hive", "local"), ("seaweed", "its own")],
)
def test_an_index_lives_through_writes_reads_and_maintenance(
    server: str, store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark as the other engine, which computes statistics, expires snapshots and deletes orphans."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    spark: Any = request.getfixturevalue("spark")
    s3: StorageConfig | None = request.getfixturevalue("s3") if store == "s3" else None
    for name, key in zip(("aws.accessKeyId", "aws.secretAccessKey"), GLUE_KEYS.values(), strict=True):
        spark._jvm.java.lang.System.setProperty(name, key)
    name = f"{server}_{store.replace(' ', '_')}"
    with open_server(request.getfixturevalue(server), name, tmp_path, s3, spark) as lake:
        test_matrix.test_an_index_lives_through_writes_reads_and_maintenance(lake)


def test_a_rollback_moves_the_tag_and_garbage_goes(lakes: OpenLake) -> None:
    lake = lakes()
    table = lake.create("t")
    table.append(make_rows(0, 150))
    first = index_head(lake)
    table.refresh().append(make_rows(150, 200))
    second = index_head(lake)
    assert (first.action, second.action) == (Action.BUILT, Action.REFRESHED)
    table.refresh().manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    again = index_head(lake)
    assert again.index_snapshot_id == first.index_snapshot_id
    assert tag_target(lake.load("t"), "ann_e") == first.index_snapshot_id
    assert answer_with_recall(lake.load("t"), storage=lake.storage)[1] >= 0.95

    test_concurrency.expire(lake.load("t"))
    collect_garbage(lake.load("t"), storage=lake.storage, grace=timedelta(0))
    (version,) = index_versions(lake.load("t"), "e")
    assert version.index_snapshot_id == first.index_snapshot_id
    assert {path for path in index_files(lake) if "/ann-" in path} == {version.puffin_path}
    assert lake.load("t").scan().to_arrow().num_rows == 150


def test_two_runs_for_one_snapshot_end_with_one_version(lakes: OpenLake) -> None:
    test_concurrency.test_two_runs_for_one_snapshot_end_with_one_version(lakes)


@pytest.mark.parametrize("lakes", ["glue", "hive", "seaweed"], indirect=True)  # Hive 4 over Derby: locks hang
def test_a_crowd_leaves_every_row_and_no_orphan(lakes: OpenLake) -> None:
    test_concurrency.test_refreshers_a_writer_a_compactor_and_an_expirer_at_once_leave_every_row_and_no_orphan(lakes)


def test_tables_of_a_hive_metastore_4_are_listed_and_renamed(hive4: str, tmp_path: Path) -> None:
    with open_lake("listed", hive4, tmp_path) as lake:
        lake.create("t").append(make_rows(0, 3))
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]
        lake.catalog.rename_table(f"{lake.namespace}.t", f"{lake.namespace}.other")
        assert lake.load("other").scan().to_arrow().num_rows == 3
        with pytest.raises(NoSuchTableError):
            lake.load("t")


def test_pyiceberg_alone_cannot_read_a_hive_metastore_4(
    hive4: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it can, this fails, and `icepuffin.ops.catalog.hive_client` can go."""
    client: Any = pytest.importorskip("hive_metastore.ThriftHiveMetastore").Client
    with open_lake("alone", hive4, tmp_path) as lake:
        monkeypatch.setattr(client, "get_table", client.get_table.__wrapped__)
        with pytest.raises(Exception, match="Invalid method name: 'get_table'"):
            lake.load("t")


@pytest.mark.parametrize("retries", [10, 0])
def test_where_boto3_repeats_a_write_to_glue_pyiceberg_breaks_the_table(
    glue: str, tmp_path: Path, retries: int
) -> None:
    """The answer to a write is lost, boto3 repeats it, and it is refused, as it was done: PyIceberg deletes its files.
    Once PyIceberg looks before it deletes them, this fails.
    """
    port, name = int(glue.rpartition(":")[2]), f"repeated_{retries}"
    settings: Any = {"glue.max-retries": retries}
    with wire_to(port) as wire, open_lake(name, f"glue+http://127.0.0.1:{wire.port}", tmp_path, **settings) as lake:
        table = lake.create("t", **{"commit.retry.num-retries": "0"})
        table.append(make_rows(0, 5))
        client: Any = getattr(lake.catalog, "glue")  # noqa: B009  a catalog of AWS
        update = client.update_table

        def answer_is_lost(**request: Any) -> Any:
            wire.faults.append("lost answers")
            return update(**request)

        client.update_table = answer_is_lost
        with pytest.raises(CommitFailedException if retries else ConnectionClosedError):
            table.append(make_rows(5, 10))
        scan = lake.load("t").scan()
        if retries:
            with pytest.raises(FileNotFoundError):
                scan.to_arrow()
        else:
            assert scan.to_arrow().num_rows == 10


def test_a_metastore_that_is_away_is_named(tmp_path: Path) -> None:
    with hive_metastore(tmp_path) as uri, open_lake("away", uri, tmp_path) as lake:
        table = lake.create("t")
    with pytest.raises(CatalogUnavailableError, match="does not answer"):
        reload_table(table)


def indexed_table(name: str, properties: dict[str, str]) -> Table:
    """A table of the catalog, with rows, that is to be indexed."""
    catalog = open_catalog(name, properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS)
    table.append(make_rows(0, 60))
    return table


def test_an_index_lives_through_the_maintenance_of_seaweedfs(
    seaweed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compaction, its expiry and its removal of orphans, by its own scheduler and worker. With packs."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    with open_server(seaweed, "maintained", tmp_path) as lake:
        table = lake.create("t", **EXPIRE_ALL)
        for start in range(0, 100, 20):
            table.append(make_rows(start, start + 20))
        first = index_head(lake)
        table.refresh().append(make_rows(100, 120))
        assert "compacted 6 files into 1" in seaweed.maintain(lake.namespace, "t", "compact", min_input_files=2)
        second = test_matrix.bring_up_to_date(lake, lake.load("t"))
        assert (second.action, second.inserted, second.remapped) == (Action.REFRESHED, 20, 100)

        done = seaweed.maintain(lake.namespace, "t", "expire_snapshots,remove_orphans")
        assert re.search(r"expired [1-9]\d* snapshot\(s\).*removed 0 orphan file", done)
        table = lake.load("t")
        refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
        assert {snapshot.snapshot_id for snapshot in table.metadata.snapshots} == set(refs.values())
        assert (refs["main"], refs["ann_e"]) == (second.snapshot_id, second.index_snapshot_id)
        test_matrix.assert_answers(lake, table, 120)
        assert read_ndv(table, second.snapshot_id).entries["id"].ndv == 120
        deleted = collect_garbage(table, storage=lake.storage, grace=timedelta(0)).deleted
        assert first.puffin_path in deleted
        test_matrix.assert_answers(lake, lake.load("t"), 120)
        table.append(make_rows(120, 140))
        assert test_matrix.bring_up_to_date(lake, table).inserted == 20
        test_matrix.assert_answers(lake, table, 140)


def test_seaweedfs_compacts_a_table_with_an_index_and_none_whose_last_commit_was_off_main(
    seaweed: SeaweedFS, tmp_path: Path, spark: Any
) -> None:
    """It takes the number after that of main's head, which a commit to any branch has, and an index has not."""
    with open_server(seaweed, "numbered", tmp_path, spark=spark) as lake:
        for name in ("indexed", "branched"):
            table = lake.create(name)
            for start in (0, 20, 40):
                table.append(make_rows(start, start + 20))
        table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "other").commit()
        table.append(make_rows(60, 80), branch="other")
        test_matrix.bring_up_to_date(lake, lake.load("indexed"))
        limits, error = {"min_input_files": 2, "min_manifests_to_rewrite": 2}, "must be > than last sequence number"
        for operation in ("compact", "rewrite_manifests"):
            assert error in seaweed.maintain(lake.namespace, "branched", operation, **limits)
        assert error not in seaweed.maintain(lake.namespace, "indexed", "rewrite_manifests", **limits)
        test_matrix.assert_answers(lake, lake.load("indexed"), 60, Coverage.NEAREST_VERSION_AND_TAIL)
        lake.compact("indexed")
        report = test_matrix.bring_up_to_date(lake, lake.load("indexed"))
        assert (report.files, report.remapped, report.inserted) == (1, 60, 0)
        test_matrix.assert_answers(lake, lake.load("indexed"), 60)


def test_a_v3_table_of_seaweedfs_is_indexed_and_takes_no_deletion_vectors(
    seaweed: SeaweedFS, tmp_path: Path, spark: Any
) -> None:
    """They are Puffin files beside the data, whose names are not among those that a table bucket takes."""
    with open_server(seaweed, "v3", tmp_path, spark=spark) as lake:
        test_v3_rest.create(lake)
        test_v3_rest.insert(lake, make_rows(0, 200))
        table = lake.load("t")
        assert test_matrix.bring_up_to_date(lake, table).action is Action.BUILT
        with pytest.raises(Py4JJavaError, match="Forbidden"):
            lake.sql(f"DELETE FROM {lake.sql_name('t')} WHERE id < 30")
        test_v3_rest.insert(lake, make_rows(200, 240))
        report = test_matrix.bring_up_to_date(lake, table)
        assert (report.action, report.inserted) == (Action.REFRESHED, 40)
        test_matrix.assert_answers(lake, table, 240)
        assert lake.count("t", "VERSION AS OF 'ann_e'") == 240
        assert len(set(test_v3_rest.row_ids(lake).values())) == 240


def test_keys_that_seaweedfs_vends_with_a_table_are_enough(seaweed: SeaweedFS) -> None:
    """The catalog's settings have none: data, index and sketches are written and read by keys of that one table."""
    catalog = open_catalog("vended", {"type": "rest", "uri": seaweed.uri, **seaweed.login()})
    catalog.create_namespace("vended")
    table = catalog.create_table("vended.t", ROWS)
    create_index(table, DEFINITION)
    for start, action in ((0, Action.BUILT), (60, Action.REFRESHED)):
        table.refresh().append(make_rows(start, start + 60 - start // 2))
        lake = Lake("vended", catalog, table.location(), storage_of(table))
        assert lake.storage.vended is not None
        assert test_matrix.bring_up_to_date(lake, table).action is action
    test_matrix.assert_answers(lake, catalog.load_table("vended.t"), 90)
    with pytest.raises(RefusedError, match="refuses access"):
        open_storage(table.location(), lake.storage).read_range(f"s3://{BUCKET}/other/t/x", 0, 1)


def test_a_table_bucket_that_the_api_of_s3_tables_made_has_indexes(seaweed: SeaweedFS) -> None:
    """Bucket, namespace and maintenance by Amazon's API, the table by the REST catalog beside it."""
    amazon = seaweed.s3_tables()
    bucket = amazon.create_table_bucket(name="amazon")["arn"]
    amazon.create_namespace(tableBucketARN=bucket, namespace=["db"])
    place = {"tableBucketARN": bucket, "namespace": "db"}
    catalog = open_catalog("amazon", {"type": "rest", "uri": seaweed.uri, **seaweed.files, **seaweed.login(bucket)})
    lake = Lake("amazon", catalog, "s3://amazon/db", StorageConfig(seaweed.files))
    table = catalog.create_table("db.t", ROWS, properties=EXPIRE_ALL)
    table.append(make_rows(0, 100))
    create_index(table, DEFINITION)
    test_matrix.bring_up_to_date(lake, table)
    table.append(make_rows(100, 140))
    report = test_matrix.bring_up_to_date(lake, table)
    assert (report.action, report.inserted) == (Action.REFRESHED, 40)
    test_matrix.assert_answers(lake, table, 140)

    assert amazon.get_table(**place, name="t")["format"] == "ICEBERG"
    assert [item["name"] for item in amazon.list_tables(tableBucketARN=bucket)["tables"]] == ["t"]
    kind = "icebergSnapshotManagement"
    for status, outcome in (("disabled", ""), ("enabled", "expired")):
        settings = {"settings": {kind: {"minSnapshotsToKeep": 1, "maxSnapshotAgeHours": 1}}}
        value = {"status": status, **(settings if outcome else {})}
        amazon.put_table_maintenance_configuration(**place, name="t", type=kind, value=value)
        assert outcome in seaweed.maintain("db", "t", "expire_snapshots")
    state = amazon.get_table_maintenance_job_status(**place, name="t")["status"][kind]
    assert state["status"] == "Successful"
    test_matrix.assert_answers(lake, catalog.load_table("db.t"), 140)


def test_a_table_that_the_api_of_s3_tables_made_takes_no_commit_on_seaweedfs(seaweed: SeaweedFS) -> None:
    """The API makes a name without metadata, and has no call to set them; the catalog invents a uuid at each load."""
    amazon = seaweed.s3_tables()
    bucket = amazon.create_table_bucket(name="nameless")["arn"]
    amazon.create_namespace(tableBucketARN=bucket, namespace=["db"])
    amazon.create_table(tableBucketARN=bucket, namespace="db", name="t", format="ICEBERG")
    catalog = open_catalog("nameless", {"type": "rest", "uri": seaweed.uri, **seaweed.files, **seaweed.login(bucket)})
    table = catalog.load_table("db.t")
    assert table.schema().fields == ()
    with pytest.raises(CommitFailedException, match="UUID mismatch"), table.transaction() as transaction:
        transaction.set_properties(a="b")


def test_s3_tables_as_emulated_make_every_new_snapshot_current_and_are_refused(tmp_path: Path) -> None:
    with s3_tables(tmp_path) as properties:
        table = indexed_table("tables", properties)
        before = table.metadata
        with pytest.raises(UnsupportedCatalogError, match=r"made snapshot \d+, which is icepuffin's, the current one"):
            create_index(table, DEFINITION)
        assert table.refresh().metadata == before
        assert table.scan().to_arrow().num_rows == 60
