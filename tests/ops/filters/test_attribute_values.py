"""Values of a freshness tail in a reader's memory: conditions mean what they mean to a scan, and read no data file."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.filters import attribute_values
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.process.process_budget import TAIL_MEMORY
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from tests.conftest import DIMS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head

pytestmark = pytest.mark.usefixtures("no_disk_cache")

SECTIONS = replace(DEFINITION, filters=("section", "id", "name"))
LIVE = [number for number in range(600, 650) if (number - 600) % 7]
IN_MEMORY = "and those in memory of 1 data file that it lacks"
VALUES_OF_TAIL = 16 + 50 * 8 + 50 + 12 * 50
"""50 distinct numbers of 8 bytes and a code of each row, beside the header of both; 12 bytes per row"""


@pytest.fixture(autouse=True)
def _memory_of_earlier_readers_is_released() -> None:
    gc.collect()


def opened(table: Table, definition: IndexDefinition = SECTIONS, **budgets: Any) -> IndexReader:
    use_settings(CacheSettings(disk_bytes=0, **budgets))
    return open_index(table.refresh(), definition, storage=STORAGE, threads=1)


def with_tail(table: Table) -> Table:
    """The table, indexed, and 50 rows after that, of which some are deleted."""
    index_head(table, SECTIONS)
    table.append(make_rows(600, 650))
    append_position_deletes(table, {file_of_tail(table): np.arange(0, 50, 7)})
    return table.refresh()


def file_of_tail(table: Table) -> str:
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    return min(live.files, key=lambda file: file.record_count).path


def ids(reader: IndexReader, where: Any) -> tuple[list[int], str]:
    """(ids of all rows that match, how the condition was evaluated)."""
    result = reader.search(queries(1, dims=reader.dims or DIMS), 1_000, columns=["id"], where=where)
    assert result.profile.matching_rows == (None if where is None else len(result))
    return sorted(result.rows["id"].to_pylist()), result.profile.condition


def test_the_second_condition_on_a_column_reads_it_for_all_later_ones(table: Table) -> None:
    reader = opened(with_tail(table))
    assert len(reader.search(queries(1), 1, columns=[])) == 1  # rows of the tail are in memory from here on
    assert ids(reader, "section = 'section 1'")[1].endswith("1 data file read, of 1 without values of section: the "
        "version lacks them")  # fmt: skip
    assert "1 data file read" in ids(reader, "id >= 640")[1]
    in_memory, before = f"by the index's values of id, {IN_MEMORY}", TAIL_MEMORY.reserved
    assert ids(reader, "id >= 600") == (LIVE, in_memory)
    assert TAIL_MEMORY.reserved - before == VALUES_OF_TAIL
    assert ids(reader, None)[0] == [*range(600), *LIVE]
    Path(to_path(file_of_tail(table))).unlink()
    for where, rows in (("id >= 642", [*range(643, 649)]), ("id in (3, 601, 602) and id > 3", LIVE[:2])):
        result = reader.search(queries(1), 1_000, columns=[], where=where)
        assert len(result) == result.profile.matching_rows == len(rows)
        assert result.profile.condition == in_memory
    with pytest.raises(DataFileError):
        reader.search(queries(1), 3, columns=[], where="id >= 600 and embedding is not null")


def test_a_condition_on_other_columns_too_reads_the_data_files(table: Table) -> None:
    reader = opened(with_tail(table))
    for _ in range(3):
        own, how = ids(reader, "id >= 600 and embedding is not null")
        assert own == LIVE
        assert how.endswith("1 data file read, of 1 without values of id: the version lacks them")


def test_a_column_of_too_many_values_is_read_from_the_data_files(table: Table) -> None:
    index_head(table, SECTIONS)
    rows = make_rows(600, 700)
    long = pa.array([f"{number} {'x' * 3_000}" for number in range(100)])
    table.append(rows.set_column(1, "name", long))
    reader = opened(table)
    for first in range(1, 5):
        own, how = ids(reader, f"name >= '{first}' and id >= 600")
        assert own == sorted(600 + number for number in range(100) if str(number)[0] >= str(first))
        assert how.endswith("1 data file read, of 1 without values of name: the version lacks them")


def test_the_memory_of_values_is_of_the_budget_of_tails_and_given_back(table: Table) -> None:
    with_tail(table)
    before = TAIL_MEMORY.reserved
    reader = opened(table)
    reader.search(queries(1), 1, columns=[])
    rows = TAIL_MEMORY.reserved
    for first in range(4):
        ids(reader, f"id >= {600 + first}")
    values = TAIL_MEMORY.reserved - rows
    assert values == VALUES_OF_TAIL
    del reader
    gc.collect()
    assert TAIL_MEMORY.reserved == before
    for budget, how in ((rows - before + values, IN_MEMORY), (rows - before + values - 1, "1 data file read")):
        other = opened(table, tail_bytes=before + budget)
        other.search(queries(1), 1, columns=[])
        for first in range(4):
            own, last = ids(other, f"id >= {600 + first}")
            assert own == [number for number in LIVE if number >= 600 + first]
        assert how in last
        del other
        gc.collect()
    assert TAIL_MEMORY.reserved == before


def test_values_of_lists_take_memory_of_the_budget_too(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 300)
    tags = pa.array([[f"t{number % 7}", None] if number % 3 else None for number in range(300)])
    table = sql_catalog.create_table("db.t", rows.append_column("tags", tags).schema)
    table.append(rows.append_column("tags", tags).slice(0, 200))
    definition = replace(SECTIONS, filters=("tags",))
    index_head(table, definition)
    table.append(rows.append_column("tags", tags).slice(200))
    reader = opened(table, definition)
    reader.search(queries(1), 1, columns=[])
    before = TAIL_MEMORY.reserved
    for number in range(7):
        own, how = ids(reader, f"array_contains(tags, 't{number}')")
        assert own == [row for row in range(300) if row % 3 and row % 7 == number]
    assert IN_MEMORY in how
    assert ids(reader, "tags is null") == (list(range(0, 300, 3)), f"by the index's values of tags, {IN_MEMORY}")
    elements = sum(row % 3 > 0 for row in range(200, 300))
    assert TAIL_MEMORY.reserved - before >= 100 + 12 * elements


def test_files_without_a_match_may_be_damaged(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column is then read from the files of matches, and as a whole tried again later."""
    index_head(table, SECTIONS)
    table.append(make_rows(600, 650))
    path = Path(to_path(file_of_tail(table)))
    table.append(make_rows(650, 690))
    reader = opened(table)
    hidden = path.rename(path.with_suffix(".hidden"))
    attempts: list[object] = []
    read: Any = attribute_values.read_attributes
    monkeypatch.setattr(attribute_values, "read_attributes", lambda task: attempts.append(task) or read(task))
    for first in range(10):
        result = reader.search(queries(1), 1_000, columns=["id"], where=f"id >= {650 + first}")
        assert sorted(result.rows["id"].to_pylist()) == list(range(650 + first, 690))
        assert "1 data file read, of 2" in result.profile.condition
    assert len(attempts) == 2
    hidden.rename(path)
    for first in range(8):
        own, how = ids(reader, f"id >= {640 + first}")
        assert own == list(range(640 + first, 690))
    assert how == "by the index's values of id, and those in memory of 2 data files that it lacks"
    assert len(attempts) == 3


def test_readers_that_keep_no_tail_keep_no_values(table: Table) -> None:
    with_tail(table)
    before = TAIL_MEMORY.reserved
    for reader in (opened(table, tail_bytes=0), open_index(table, SECTIONS, storage=STORAGE, stale="exact")):
        for first in range(3):
            assert ids(reader, f"id >= {600 + first}")[0] == [number for number in LIVE if number >= 600 + first]
        assert TAIL_MEMORY.reserved == before
