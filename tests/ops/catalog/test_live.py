from collections.abc import Callable

import numpy as np
from pyiceberg.table import Table

from ops.catalog.deletes import NO_DELETES, deleted_positions, fingerprint
from ops.catalog.live import live_files
from ops.catalog.rowdeletes import append_position_deletes
from ops.storage import open_storage
from tests.conftest import STORAGE, make_rows

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
