from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.live_files import live_files
from icepuffin.ops.datafile import DataFileError, take_rows
from icepuffin.ops.search.row_reader import RowReader
from icepuffin.ops.storage import open_storage
from tests.conftest import STORAGE, make_rows

FIELDS = [1, 2]


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    new_table = table_factory(**{"write.parquet.row-group-limit": "100"})
    new_table.append(make_rows(0, 1000))
    new_table.append(make_rows(1000, 1500))
    return new_table


def reader(table: Table, budget: int) -> RowReader:
    return RowReader(
        live_files(table, table.metadata.current_snapshot_id or 0), table.schema(), STORAGE, budget_bytes=budget
    )


@pytest.mark.parametrize("budget", [0, 20_000, 1 << 20])
def test_rows_are_the_same_for_any_budget(table: Table, budget: int) -> None:
    rows = reader(table, budget)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    rng = np.random.default_rng(0)
    for _ in range(30):
        number = int(rng.integers(len(live.files)))
        file = live.files[number]
        positions = rng.integers(0, file.record_count, 20)
        expected = take_rows(open_storage(file.path, STORAGE), file, table.schema(), FIELDS, positions)
        assert rows.take(number, FIELDS, positions).equals(expected)
    assert rows.cached_bytes <= budget


def test_threads_may_share_a_reader(table: Table) -> None:
    rows = reader(table, 10_000)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    first = min(rows.take(0, FIELDS, np.array([0]))["id"].to_pylist())

    def take(seed: int) -> bool:
        positions = np.random.default_rng(seed).integers(0, live.files[0].record_count, 50)
        return rows.take(0, FIELDS, positions)["id"].to_pylist() == (first + positions).tolist()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(take, range(64)))


def test_a_position_past_the_end_is_refused(table: Table) -> None:
    with pytest.raises(DataFileError, match="position 1000 was requested"):
        reader(table, 0).take(0, FIELDS, np.array([1000]))
