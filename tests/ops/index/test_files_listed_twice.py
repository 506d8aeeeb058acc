"""A data file that a snapshot lists twice: its rows are there twice, as every engine reads them."""

from collections.abc import Callable

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 100))
    new_table.append(make_rows(100, 200))
    return new_table.refresh()


def list_again(table: Table, rows: int = 300) -> str:
    names = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    path = names[0].path
    table.add_files([path], check_duplicate_files=False)
    assert table.refresh().scan().count() == rows
    return path


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def assert_answered_as_it_is_read(table: Table) -> None:
    exact = open_exact(table, "embedding", "l2", storage=STORAGE).search(queries(1), 300, columns=["id"])
    result = open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 300, columns=["id"])
    assert sorted(exact.rows["id"].to_pylist()) == sorted(result.rows["id"].to_pylist()) == ids(table)
    matching = sorted(table.scan(row_filter="id >= 50").to_arrow()["id"].to_pylist())
    for reader in (
        open_index(table, DEFINITION, storage=STORAGE),
        open_exact(table, "embedding", "l2", storage=STORAGE),
    ):
        result = reader.search(queries(1), 300, columns=["id"], where="id >= 50")
        assert sorted(result.rows["id"].to_pylist()) == matching
        result = reader.within(queries(1), 1e9, columns=["id"], where="id >= 50")
        assert sorted(result.rows["id"].to_pylist()) == matching


@pytest.mark.parametrize("indexed", [False, True])
def test_a_search_finds_its_rows_twice(table: Table, indexed: bool) -> None:
    if indexed:
        index_head(table)
    path = list_again(table)
    assert_answered_as_it_is_read(table)
    append_position_deletes(table, {path: np.arange(10)})
    assert len(ids(table.refresh())) == 280
    assert_answered_as_it_is_read(table)


@pytest.mark.parametrize("indexed", [False, True])
def test_an_index_is_refused_before_any_work_and_says_what_to_do(table: Table, indexed: bool) -> None:
    if indexed:
        index_head(table)
    path = list_again(table)
    before = index_versions(table, "e")
    with pytest.raises(
        TableFaultError, match=rf"{path} is listed twice.*rewrite_data_files\(.* or remove the second entry"
    ) as refused:
        index_head(table)
    assert not refused.value.retryable
    assert index_versions(table.refresh(), "e") == before
    table.overwrite(table.scan().to_arrow())
    assert index_head(table).rows == 300
    assert_answered_as_it_is_read(table)


def test_entries_with_different_deletes_are_scanned_each_by_its_own_or_refused(table: Table) -> None:
    """Deletes do not apply to what was added after them."""
    path = live_files(table, table.metadata.current_snapshot_id or 0).files[0].path
    append_position_deletes(table, {path: np.arange(10)})
    index_head(table)
    list_again(table, rows=290)
    exact = open_exact(table, "embedding", "l2", storage=STORAGE).search(queries(1), 300, columns=["id"])
    assert len(exact.rows) == 90 + 100 + 100
    with pytest.raises(TableFaultError, match=r"listed twice in a snapshot, and deletes apply"):
        open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 300, columns=["id"])


def test_sketches_of_entries_with_different_deletes_are_refused(table: Table) -> None:
    """One sketch per path counts the rows of one entry."""
    list_again(table)
    head = SnapshotId(table.metadata.current_snapshot_id or 0)
    assert count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish().ndv["id"] == 200
    append_position_deletes(table, {live_files(table, head).files[0].path: np.arange(10)})
    list_again(table, rows=380)
    head = SnapshotId(table.metadata.current_snapshot_id or 0)
    with pytest.raises(TableFaultError, match=r"listed twice in a snapshot, and deletes apply"):
        count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
