from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from ops.catalog import bind
from ops.catalog.bind import LostRaceError, UnsupportedCatalogError
from ops.catalog.snapshots import UnknownSnapshotError, data_snapshots, is_derived, resolve_snapshot
from ops.catalog.versions import versions
from ops.index import plan_version
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.index.history import DEFINITION

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


def test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file(table: Table) -> None:
    version = bind.publish(table, binding(table))
    snapshot = table.metadata.snapshot_by_id(version.derived_snapshot_id)
    base = table.metadata.current_snapshot()
    assert snapshot is not None
    assert base is not None
    assert is_derived(snapshot)
    assert snapshot.parent_snapshot_id == base.snapshot_id
    assert snapshot.manifest_list != base.manifest_list
    assert snapshot.manifests(table.io) == base.manifests(table.io)
    assert snapshot.summary is not None
    assert snapshot.summary["total-records"] == "10"
    assert snapshot.summary["statistics-file"] == version.puffin_path
    assert version.tags == ("ann_e",)
    assert table.metadata.statistics[0].blob_metadata == []
    assert table.scan(snapshot_id=version.derived_snapshot_id).to_arrow().num_rows == 10


def test_derived_snapshots_are_not_the_users_history(table: Table) -> None:
    version = bind.publish(table, binding(table))
    table.append(make_rows(10, 20))
    snapshots = data_snapshots(table)
    assert [snapshot.operation for snapshot in snapshots] == ["append", "append"]
    assert resolve_snapshot(table, version.derived_snapshot_id) == snapshots[0]


def test_the_index_tag_names_the_rows_that_it_keeps_after_its_snapshot_has_expired(table: Table) -> None:
    version = bind.publish(table, binding(table))
    table.append(make_rows(10, 20))
    table.maintenance.expire_snapshots().by_id(version.base_snapshot_id).commit()
    found = resolve_snapshot(table.refresh(), "ann_e")
    assert found.snapshot_id == version.derived_snapshot_id
    assert len(table.scan(snapshot_id=found.snapshot_id).to_arrow()) == 10
    with pytest.raises(UnknownSnapshotError, match="is icepuffin's own, for data snapshot"):
        plan_version(table, DEFINITION, found.snapshot_id, storage=STORAGE)


def test_of_two_refreshers_one_loses(table: Table) -> None:
    bind.publish(table, binding(table, 1))
    with pytest.raises(LostRaceError, match="somebody else published first"):
        bind.publish(table, binding(table, 2))


def test_the_tag_moves_to_the_next_version_and_both_are_listed(table: Table) -> None:
    first = bind.publish(table, binding(table, 1))
    second = bind.publish(table, binding(table, 2, expected=first.derived_snapshot_id))
    known = versions(table, "ann", "e")
    assert [version.derived_snapshot_id for version in known] == [first.derived_snapshot_id, second.derived_snapshot_id]
    assert [version.tags for version in known] == [(), ("ann_e",)]


def test_a_repeated_publication_of_one_build_is_found_done(table: Table) -> None:
    wanted = binding(table)
    assert bind.publish(table, wanted) == bind.publish(table, wanted)


def test_a_stale_table_object_is_refreshed(table: Table, sql_catalog: Catalog) -> None:
    other = sql_catalog.load_table("db.t")
    wanted = binding(table)
    other.append(make_rows(10, 20))
    version = bind.publish(table, wanted)
    assert version.base_snapshot_id == wanted.base_snapshot_id
    assert table.scan().to_arrow().num_rows == 20


def test_a_base_that_expired_is_refused(table: Table) -> None:
    wanted = binding(table)
    table.append(make_rows(10, 20))
    table.maintenance.expire_snapshots().by_id(wanted.base_snapshot_id).commit()
    with pytest.raises(UnknownSnapshotError, match="expired"):
        bind.publish(table, wanted)


def test_indexes_of_one_table_published_at_once_all_land(table: Table, sql_catalog: Catalog) -> None:
    def publish(number: int) -> None:
        mine = sql_catalog.load_table("db.t")
        bind.publish(mine, binding(mine, number, tag=f"ann_{number}", name=f"i{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(8)))
    table.refresh()
    assert {ref for ref in table.metadata.refs if ref.startswith("ann_")} == {f"ann_{number}" for number in range(8)}


def test_a_catalog_that_drops_tags_is_refused_before_the_commit(table: Table) -> None:
    table.catalog.properties["nessie.is-nessie-catalog"] = "true"
    with pytest.raises(UnsupportedCatalogError, match="Nessie"):
        bind.publish(table, binding(table))
    table.refresh()
    assert len(table.metadata.snapshots) == 1


def test_a_dropped_tag_is_gone_and_dropping_again_is_harmless(table: Table) -> None:
    bind.publish(table, binding(table))
    assert bind.drop(table, "ann_e")
    assert not bind.drop(table, "ann_e")
    assert versions(table, "ann", "e")[0].tags == ()
