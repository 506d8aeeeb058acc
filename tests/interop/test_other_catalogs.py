"""The life of an index on catalogs that CI does not run: `make catalogs`."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.bindings import UnsupportedCatalogError
from icepuffin.ops.catalog.bound_versions import index_versions, tag_target
from icepuffin.ops.catalog.commit import reload_table
from icepuffin.ops.catalog.connection import CatalogUnavailableError, open_catalog
from icepuffin.ops.catalog.snapshots import data_snapshots
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index import Action, collect_garbage, create_index, materialize_index
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.runner import LocalRunner
from tests.conftest import ROWS, STORAGE, make_rows
from tests.interop import test_concurrency, test_matrix
from tests.interop.lakes import GLUE_KEYS, open_lake
from tests.interop.test_concurrency import OpenLake, index_files, index_head
from tests.ops.index.comparison import DEFINITION, answer_with_recall
from tests.services.glue import glue_catalog
from tests.services.hive import hive_metastore
from tests.services.s3_tables import s3_tables
from tests.services.seaweedfs import seaweedfs

pytestmark = [pytest.mark.jvm, pytest.mark.services]


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with glue_catalog(tmp_path_factory.mktemp("glue")) as uri:
        yield uri


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


@pytest.fixture(params=["glue", "hive"])
def catalog_uri(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
def lakes(catalog_uri: str, tmp_path: Path) -> Iterator[OpenLake]:
    """Opens the same lake again and again, each time with a catalog of its own."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(open_lake(f"many_{tmp_path.name}", catalog_uri, tmp_path))


@pytest.mark.parametrize(
    ("catalog_uri", "store"),
    [("glue", "local"), ("glue", "s3"), ("hive", "local")],  # this metastore has no file system for S3
    indirect=["catalog_uri"],
)
def test_an_index_lives_through_writes_reads_and_maintenance(
    catalog_uri: str, store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark as the other engine, which computes statistics, expires snapshots and deletes orphans."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    spark: Any = request.getfixturevalue("spark")
    s3: StorageConfig | None = request.getfixturevalue("s3") if store == "s3" else None
    for name, key in zip(("aws.accessKeyId", "aws.secretAccessKey"), GLUE_KEYS.values(), strict=True):
        spark._jvm.java.lang.System.setProperty(name, key)
    name = f"{request.node.callspec.params['catalog_uri']}_{store}"
    with open_lake(name, catalog_uri, tmp_path, s3=s3, spark=spark) as lake:
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
    assert answer_with_recall(lake.load("t"))[1] >= 0.95

    test_concurrency.expire(lake.load("t"))
    collect_garbage(lake.load("t"), storage=STORAGE, grace=timedelta(0))
    (version,) = index_versions(lake.load("t"), "e")
    assert version.index_snapshot_id == first.index_snapshot_id
    assert {path for path in index_files(lake) if "/ann-" in path} == {version.puffin_path}
    assert lake.load("t").scan().to_arrow().num_rows == 150


def test_two_runs_for_one_snapshot_end_with_one_version(lakes: OpenLake) -> None:
    test_concurrency.test_two_runs_for_one_snapshot_end_with_one_version(lakes)


def test_a_crowd_leaves_every_row_and_no_orphan(lakes: OpenLake) -> None:
    test_concurrency.test_refreshers_a_writer_a_compactor_and_an_expirer_at_once_leave_every_row_and_no_orphan(lakes)


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


def test_seaweedfs_keeps_what_binds_a_version_and_takes_no_file_but_icebergs_own(tmp_path: Path) -> None:
    with seaweedfs(tmp_path) as properties:
        table = indexed_table("weed", properties)
        create_index(table, DEFINITION)  # the trial on a scratch table included
        with pytest.raises(StorageError, match=r"the store refuses access \(Forbidden\)"):
            materialize_index(
                table,
                DEFINITION,
                data_snapshots(table)[-1].snapshot_id,
                runner=LocalRunner(1),
                storage=storage_of(table),
            )
        assert table.catalog.list_tables("db") == [("db", "t")]
        assert set(table.refresh().metadata.refs) == {"main"}
        assert table.scan().to_arrow().num_rows == 60


def test_s3_tables_as_emulated_make_every_new_snapshot_current_and_are_refused(tmp_path: Path) -> None:
    with s3_tables(tmp_path) as properties:
        table = indexed_table("tables", properties)
        before = table.metadata
        with pytest.raises(UnsupportedCatalogError, match=r"made snapshot \d+, which is icepuffin's, the current one"):
            create_index(table, DEFINITION)
        assert table.refresh().metadata == before
        assert table.scan().to_arrow().num_rows == 60
