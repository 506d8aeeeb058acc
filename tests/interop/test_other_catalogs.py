"""The life of an index on catalogs that CI does not run: `make catalogs`."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from icepuffin.ops.catalog.bound_versions import index_versions, tag_target
from icepuffin.ops.index import Action, collect_garbage
from icepuffin.ops.model import StorageConfig
from tests.conftest import STORAGE, make_rows
from tests.interop import test_concurrency, test_matrix
from tests.interop.lakes import GLUE_KEYS, open_lake
from tests.interop.test_concurrency import OpenLake, index_files, index_head
from tests.ops.index.comparison import answer_with_recall
from tests.services.glue import glue_catalog

pytestmark = [pytest.mark.jvm, pytest.mark.services]


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with glue_catalog(tmp_path_factory.mktemp("glue")) as uri:
        yield uri


@pytest.fixture(params=["glue"])
def catalog_uri(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
def lakes(catalog_uri: str, tmp_path: Path) -> Iterator[OpenLake]:
    """Opens the same lake again and again, each time with a catalog of its own."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(open_lake(f"many_{tmp_path.name}", catalog_uri, tmp_path))


@pytest.mark.parametrize("store", ["local", "s3"])
def test_an_index_lives_through_writes_reads_and_maintenance(
    catalog_uri: str, store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark as the other engine, which computes statistics, expires snapshots and deletes orphans."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    spark: Any = request.getfixturevalue("spark")
    s3: StorageConfig | None = request.getfixturevalue("s3") if store == "s3" else None
    for name, key in zip(("aws.accessKeyId", "aws.secretAccessKey"), GLUE_KEYS.values(), strict=True):
        spark._jvm.java.lang.System.setProperty(name, key)
    name = f"{catalog_uri.partition('+')[0]}_{store}"
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
