from collections.abc import Callable

import numpy as np
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from ops.catalog.deletes import NO_DELETES, deleted_positions, fingerprint
from ops.catalog.live import live_files
from ops.catalog.rowdeletes import append_position_deletes
from ops.storage import open_storage
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.equality import delete_where_id_is

TableFactory = Callable[..., Table]


def head(table: Table) -> int:
    table.refresh()
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def test_live_files_are_those_that_a_scan_reads(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 100))
    table.append(make_rows(100, 150))
    live = live_files(table, head(table))
    assert [file.path for file in live.files] == sorted(task.file.file_path for task in table.scan().plan_files())
    assert live.record_count == 150


def test_position_deletes_apply_to_the_file_that_they_name(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 100))
    table.append(make_rows(100, 150))
    first, second = live_files(table, head(table)).files
    append_position_deletes(table, {first.path: np.array([3, 1])})
    append_position_deletes(table, {first.path: np.array([1, 7])})
    live = live_files(table, head(table)).by_path()
    store = open_storage(table.location(), STORAGE)
    assert deleted_positions(store, live[first.path]).tolist() == [1, 3, 7]
    assert deleted_positions(store, live[second.path]).tolist() == []
    assert fingerprint(live[second.path]) == NO_DELETES
    assert table.scan().to_arrow().num_rows == 147


def test_position_deletes_apply_to_files_of_every_partition_spec(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(10, 20))
    files = live_files(table, head(table)).files
    assert len({file.spec_id for file in files}) == 2
    append_position_deletes(table, {file.path: np.array([0]) for file in files})
    live = live_files(table, head(table)).files
    store = open_storage(table.location(), STORAGE)
    assert [deleted_positions(store, file).tolist() for file in live] == [[0]] * 6
    assert table.scan().to_arrow().num_rows == 14


def test_equality_deletes_of_a_spec_whose_fields_are_all_void_apply_to_every_file(table_factory: TableFactory) -> None:
    table = table_factory(properties={"format-version": "1"})
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(0, 10))
    with table.update_spec() as update:  # v1 keeps the field, as void
        update.remove_field("section")
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(make_rows(10, 20))
    snapshot = delete_where_id_is(table, 3)
    assert [file.has_equality_deletes for file in live_files(table, snapshot).files] == [True] * 6
