from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from icepuffin.ops.model import (
    DeleteFile,
    DeleteKind,
    FileNumber,
    Grant,
    LiveFile,
    LiveFiles,
    SnapshotId,
    StorageConfig,
    VendedGrants,
)
from icepuffin.ops.rows.datafile import DataFileError, take_rows
from icepuffin.ops.rows.row_reader import RowReader
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
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
    assert rows._groups._in_memory.weight <= budget


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


def expected_rows(table: Table, files: list[int], positions: list[int]) -> pa.Table:
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    places = ((live.files[number], np.array([position])) for number, position in zip(files, positions, strict=True))
    return pa.concat_tables(
        take_rows(open_storage(file.path, STORAGE), file, table.schema(), FIELDS, position) for file, position in places
    )


@pytest.mark.parametrize("count", [1, 2, 64])
def test_few_rows_at_hand_are_in_the_order_of_the_request(table: Table, count: int) -> None:
    rows, rng = reader(table, 1 << 20), np.random.default_rng(count)
    files, positions = rng.integers(0, 2, count), rng.integers(0, 500, count)
    assert rows.few_at_hand(files, positions, FIELDS) is None
    for number in (0, 1):
        rows.take(number, FIELDS, np.arange(500))
    at_hand = rows.few_at_hand(files, positions, FIELDS)
    assert at_hand is not None
    assert at_hand.equals(expected_rows(table, files.tolist(), positions.tolist()))


def test_rows_at_hand_do_not_keep_their_row_groups_in_memory(table: Table) -> None:
    rows = reader(table, 1 << 20)
    rows.take(0, FIELDS, np.arange(500))
    for count in (1, 3):
        at_hand = rows.few_at_hand(np.zeros(count, np.int64), np.arange(7, 7 + count), FIELDS)
        assert at_hand is not None
        assert sum(buffer.size for column in at_hand.columns for buffer in column.chunk(0).buffers() if buffer) < 400


def test_rows_are_at_hand_where_all_of_their_row_groups_are(table: Table) -> None:
    """Row groups have 100 rows here. Other columns are other row groups."""
    rows = reader(table, 1 << 20)
    rows.take(0, FIELDS, np.array([5, 250]))
    zeros = np.zeros(2, np.int64)
    assert rows.few_at_hand(zeros, np.array([99, 200]), FIELDS) is not None
    assert rows.few_at_hand(zeros, np.array([99, 100]), FIELDS) is None
    assert rows.few_at_hand(np.array([0, 1]), np.array([99, 99]), FIELDS) is None
    assert rows.few_at_hand(zeros, np.array([99, 200]), FIELDS[:1]) is None
    assert rows.few_at_hand(np.zeros(65, np.int64), np.full(65, 99), FIELDS) is None
    assert rows.few_at_hand(zeros[:0], zeros[:0], FIELDS) is None
    for position in (-1, 1_000):
        with pytest.raises(DataFileError, match=f"position {position} was requested"):
            rows.few_at_hand(zeros[:1], np.array([position]), FIELDS)


FILE = LiveFile("s3://lake/t/a.parquet", 100, 3, 1, "PARQUET")
LIVE = LiveFiles("db.t", "uuid", "s3://lake/t", SnapshotId(1), 1, 0, (FILE,))
SCHEMA = Schema(NestedField(1, "id", LongType()))
USER = StorageConfig({"s3.access-key-id": "one", "s3.secret-access-key": "secret"})
EXPIRED = Grant("s3://lake/t", {"s3.session-token-expires-at-ms": "1"})
DELETE = DeleteFile("s3://lake/t/d.parquet", DeleteKind.POSITION, 1, 2, 100)


@pytest.mark.parametrize(
    ("live", "schema", "user", "is_kept"),
    [
        (LIVE, SCHEMA, USER, True),
        (replace(LIVE, snapshot_id=SnapshotId(2), files=(replace(FILE, deletes=(DELETE,)),)), SCHEMA, USER, True),
        (LIVE, SCHEMA, StorageConfig({**USER.properties, "s3.access-key-id": "other"}), False),
        (LIVE, SCHEMA, StorageConfig({}, VendedGrants("lake", "db.t", "ann", (EXPIRED,), lambda: ())), False),
        (replace(LIVE, table_uuid="of another table"), SCHEMA, USER, False),
        (replace(LIVE, files=(replace(FILE, sequence_number=2),)), SCHEMA, USER, False),
        (LIVE, Schema(NestedField(1, "number", LongType())), USER, False),
    ],
    ids=["same", "deletes", "other user", "expired keys", "other table", "other file", "other column"],
)
def test_rows_are_handed_to_a_reader_of_the_same_user_that_reads_their_file_alike(
    live: LiveFiles, schema: Schema, user: StorageConfig, is_kept: bool
) -> None:
    """Who has lost the right to a file must not be given its rows by a reader of before."""
    reader = RowReader(LIVE, SCHEMA, USER)
    reader._groups._keep_in_memory(((FileNumber(0), (1,)), 0), pa.table({"id": [1, 2, 3]}))
    assert len(reader.kept_for(live, schema, user).in_memory) == is_kept
