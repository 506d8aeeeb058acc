"""The life of an index on stores that CI does not run: `make stores`."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.model import Action
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.task_runner import LocalRunner, Progress, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import ROWS, make_rows, queries
from tests.interop.buckets import STORES, BucketServer, bucket_server
from tests.interop.test_concurrency import expire
from tests.ops.index.comparison import DEFINITION
from tests.services.vending_tokens import How, TokenVending, token_vending

pytestmark = pytest.mark.services


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with bucket_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def catalog(server: BucketServer, tmp_path: Path) -> Iterator[Catalog]:
    uri, root = f"sqlite:///{tmp_path}/catalog.db", f"{server.root}/{tmp_path.name}"
    catalog = open_catalog("lake", {"type": "sql", "uri": uri, "warehouse": root, **server.storage.properties})
    catalog.create_namespace("db")
    yield catalog
    catalog.close()


def refresh(table: Table) -> IndexReport:
    head = table.refresh().metadata.current_snapshot_id or 0
    count_theta_sketches(RunContext(table, storage_of(table), LocalRunner()), head).publish()
    report = materialize_index(RunContext(table, storage_of(table), LocalRunner()), DEFINITION, head)
    table.refresh()
    return report


def recall(table: Table) -> float:
    """The part of the true nearest rows, under a condition, that the index returns."""
    found = open_index(table, "e").search(queries(10), 5, columns=["id"], where="id >= 10").rows["id"].to_pylist()
    true = open_exact(table, "embedding", DEFINITION.metric).search(queries(10), 5, where="id >= 10", columns=["id"])
    return len(set(found) & set(true.rows["id"].to_pylist())) / len(set(true.rows["id"].to_pylist()))


def files(table: Table) -> set[str]:
    return {info.path for info in open_storage(table.location(), storage_of(table)).list(table.location())}


@pytest.mark.parametrize("partition", ["plain", "day=a%2Fb c"])
def test_an_index_lives_through_build_refresh_search_rollback_and_gc(catalog: Catalog, partition: str) -> None:
    location = f"{catalog.properties['warehouse']}/{partition}/t"
    table = catalog.create_table("db.t", ROWS, location, properties={"format-version": "2"})
    table.append(make_rows(0, 150))
    create_index(table, DEFINITION)
    first = refresh(table)
    table.append(make_rows(150, 200))
    second = refresh(table)
    assert (first.action, second.action) == (Action.BUILT, Action.REFRESHED)
    assert refresh(table).index_snapshot_id == second.index_snapshot_id
    assert recall(catalog.load_table("db.t")) >= 0.95

    table.manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    again = refresh(table)
    assert again.index_snapshot_id == first.index_snapshot_id == tag_target(table, "ann_e")
    expire(catalog.load_table("db.t"))
    table.refresh()
    before = files(table)
    collect_garbage(table, storage=storage_of(table), grace=timedelta(0))
    (version,) = index_versions(table.refresh(), "e")
    assert {path for path in files(table) if "/ann-" in path} == {version.puffin_path}
    assert files(table) < before
    assert table.scan().to_arrow().num_rows == 150
    assert recall(catalog.load_table("db.t")) >= 0.95


class LateRunner(LocalRunner):
    """By the time that tasks run, what was vended before has expired; and again when they are done."""

    def __init__(self, lake: TokenVending) -> None:
        super().__init__()
        self._lake = lake

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Progress | None = None
    ) -> list[Any]:
        self._lake.expire()
        later = [pickle.loads(pickle.dumps(task)) for task in tasks]  # noqa: S301  our own bytes
        done = super().run(function, later, label=label, progress=progress)
        self._lake.expire()
        return done


@pytest.mark.parametrize("how", ["config", "storage-credentials"])
def test_tokens_that_a_catalog_vends_are_renewed_while_an_index_is_built(
    catalog: Catalog, server: BucketServer, how: How
) -> None:
    catalog.create_table("db.t", ROWS, properties={"format-version": "2"}).append(make_rows(0, 150))
    with token_vending(catalog, server) as lake:
        lake.how = how
        table = open_catalog("lake", {"type": "rest", "uri": lake.uri}).load_table("db.t")
        create_index(table, DEFINITION)
        table.refresh()
        refused = server.refused
        assert refresh(table).action is Action.BUILT
        assert recall(table) >= 0.95
        assert server.refused == refused, "no token is used that is not good"
        table.append(make_rows(150, 200))
        head = table.refresh().metadata.current_snapshot_id or 0
        report = materialize_index(RunContext(table, storage_of(table), LateRunner(lake)), DEFINITION, head)
        assert report.action is Action.REFRESHED
        assert server.refused > refused
        table.refresh()
        reader = open_index(table, "e")
        lake.expire()
        assert reader.search(queries(1), 5, columns=["name"]).rows.num_rows == 5
        lake.expire()
        assert table.scan(selected_fields=("id",)).to_arrow().num_rows == 200, "PyIceberg's own client likewise"
        shown = f"{storage_of(table)!r} {table.io!r} {open_storage(table.location(), storage_of(table))!r}"
        assert not any(token in shown for token in lake.tokens)
