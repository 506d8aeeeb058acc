"""Decoded row groups on disk: the rows are those of the data files, and budgets hold."""

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.process.process_budget import ROWS_ON_DISK, ProcessBudget
from icepuffin.ops.rows import row_groups, row_reader
from icepuffin.ops.rows.row_groups import RowGroups
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.following_reader import FollowingReader
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, make_rows, queries
from tests.open_files import open_files_in
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.rows.test_row_reader import FIELDS, table

__all__ = ["table"]
_GROUP = pa.table({"id": pa.array(range(1_000)), "title": [f"title {row}" for row in range(1_000)]})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of the cache's settings. Readers that other tests have left, and workers of tasks, have another budget."""
    monkeypatch.setattr(row_groups, "ROWS_ON_DISK", ProcessBudget(ROWS_ON_DISK._budget_of))
    use_settings(CacheSettings(tmp_path / "shards", rows_bytes=1 << 20))
    yield tmp_path / "shards"
    use_settings(None)


def kept(groups: RowGroups, key: object, rows: pa.Table = _GROUP, *, times: int = 2) -> None:
    for _ in range(times):
        groups.keep(key, rows)


def test_rows_that_are_read_again_come_from_the_disk(table: Table, folder: Path) -> None:
    """Without memory for row groups the first two searches read the data files, and the third none."""
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    rows, positions = RowReader(live, table.schema(), STORAGE, budget_bytes=0), np.array([350, 3, 420, 3])
    meters = [Meter() for _ in range(3)]
    answers = [rows.take(0, FIELDS, positions, meter) for meter in meters]
    assert [meter.bytes > 0 for meter in meters] == [True, True, False]
    assert answers[2].equals(answers[0])
    assert rows._groups._in_memory.weight == 0 < row_groups.ROWS_ON_DISK.reserved
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    del rows
    gc.collect()
    assert row_groups.ROWS_ON_DISK.reserved == 0
    assert answers[2].equals(answers[0])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, 1, 2], pa.int8()),
        pa.array([True, None, False]),
        pa.array([None, None, None]),
        pa.array([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(38, 2)),
        pa.array([date(2026, 1, 1), None, date(1, 1, 1)]),
        pa.array([datetime(2026, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        pa.array([b"a", None, b""], pa.large_binary()),
        pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.binary(16)),
        pa.array([[1.5], None, []], pa.list_(pa.float32())),
        pa.array([{"a": [{"b": None}]}, None, {"a": None}]),
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        pa.array(["x", "y", "x"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_values_of_every_type_come_back(column: pa.Array) -> None:
    rows = pa.Table.from_batches(
        pa.table({"value": column, "row": [0, 1, 2]}).to_batches()
        + pa.table({"value": column, "row": [3, 4, 5]}).to_batches()
    )
    groups = RowGroups(0)
    kept(groups, "key", rows)
    read = groups.get("key")
    assert read is not None
    assert read is not rows
    assert read.equals(rows)
    assert read.schema.equals(rows.schema, check_metadata=True)


def test_a_row_group_that_is_read_once_is_not_written() -> None:
    groups = RowGroups(1 << 20)
    kept(groups, "key", times=1)
    assert groups.get("key") is _GROUP
    assert row_groups.ROWS_ON_DISK.reserved == 0
    for budget, is_kept in ((4 * _GROUP.nbytes, True), (4 * _GROUP.nbytes - 1, False)):
        groups = RowGroups(budget)
        kept(groups, "key", times=1)
        assert (groups.get("key") is not None) == is_kept, "a fourth of the memory is for one at most"


def test_a_row_group_that_several_threads_decode_is_kept_once() -> None:
    groups = RowGroups(1 << 20)
    kept(groups, "key")
    size = row_groups.ROWS_ON_DISK.reserved
    rows = groups.get("key")
    groups.keep("key", _GROUP)
    assert groups.get("key") is rows
    assert row_groups.ROWS_ON_DISK.reserved == size > 0 == groups._in_memory.weight


def test_all_readers_of_a_process_share_the_budget(folder: Path) -> None:
    """A reader's own row groups make room, those used longest ago first; another reader's do not."""
    one, other = RowGroups(0), RowGroups(0)
    kept(one, "first")
    size = row_groups.ROWS_ON_DISK.reserved
    use_settings(CacheSettings(folder, rows_bytes=3 * size))
    for key in ("second", "third"):
        kept(one, key)
    assert one.get("first") is not None
    kept(one, "fourth")
    assert [one.get(key) is not None for key in ("first", "second", "third", "fourth")] == [True, False, True, True]
    kept(other, "fifth")
    assert other.get("fifth") is None
    assert row_groups.ROWS_ON_DISK.reserved == 3 * size
    del one
    kept(other, "fifth")
    assert other.get("fifth") is not None


def test_row_groups_that_were_taken_over_stay_while_the_other_reader_has_them(folder: Path) -> None:
    """To drop them would make no room. The other reader answers until the newer one takes its place."""
    older, newer = RowGroups(0), RowGroups(0)
    kept(older, 0)
    use_settings(CacheSettings(folder, rows_bytes=4 * row_groups.ROWS_ON_DISK.reserved))
    for key in range(1, 4):
        kept(older, key)
    newer.take_over(older.kept())
    kept(newer, 4)
    assert [newer.get(key) is not None for key in range(5)] == [True, True, True, True, False]
    del older
    kept(newer, 4)
    assert [newer.get(key) is not None for key in range(5)] == [False, True, True, True, True]


@pytest.mark.parametrize("settings", [CacheSettings(rows_bytes=0), CacheSettings(disk_bytes=0), CacheSettings.off()])
def test_nothing_is_written_where_the_settings_forbid_it(
    settings: CacheSettings, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use_settings(replace(settings, directory=folder))
    groups = RowGroups(1 << 20)
    kept(groups, "key")
    assert groups.get("key") is _GROUP
    assert row_groups.ROWS_ON_DISK.reserved == 0
    assert caplog.messages == [], "it is not tried"


def test_a_row_group_over_the_budget_leaves_the_others(folder: Path) -> None:
    groups = RowGroups(0)
    kept(groups, "small")
    use_settings(CacheSettings(folder, rows_bytes=row_groups.ROWS_ON_DISK.reserved))
    kept(groups, "large", pa.concat_tables([_GROUP, _GROUP]))
    assert groups.get("small") is not None
    assert groups.get("large") is None


def test_readers_have_so_many_files_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "_MAX_FILES", 2)
    groups, other = RowGroups(0), RowGroups(0)
    for key in range(3):
        kept(groups, key)
    kept(other, "other")
    assert [groups.get(key) is not None for key in range(3)] == [False, True, True]
    assert other.get("other") is None


def test_row_groups_on_disk_keep_no_file_open(folder: Path) -> None:
    """A process may have only 1,024 open files, its connections included."""
    groups = RowGroups(0)
    for key in range(20):
        kept(groups, key)
    assert all(groups.get(key) is not None for key in range(20))
    assert open_files_in(folder) == []


def test_a_row_group_is_not_written_where_it_would_not_have_stayed(folder: Path) -> None:
    """Of 30 row groups four fit: drawn by chance, a search would else write nearly all that it decodes."""
    groups = RowGroups(0)
    kept(groups, "first")
    use_settings(CacheSettings(folder, rows_bytes=4 * row_groups.ROWS_ON_DISK.reserved))
    before = _bytes_written()
    for _ in range(3):
        kept(groups, "often")
        for key in range(30):
            kept(groups, key, times=1)
    assert groups.get("first") is not None
    assert groups.get("often") is not None
    assert _bytes_written() - before < 4 * row_groups.ROWS_ON_DISK.reserved


def _bytes_written() -> int:
    values = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(values["wchar"])


def test_a_failing_disk_is_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = RowGroups(1 << 20)
    kept(groups, "earlier")
    before = row_groups.ROWS_ON_DISK.reserved
    folder.rename(folder.with_name("elsewhere"))
    with caplog.at_level(logging.WARNING):
        for key in range(3):
            kept(groups, key)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["decoded rows are not kept on disk"]
    assert row_groups.ROWS_ON_DISK.reserved == before
    assert all(groups.get(key) is not None for key in ("earlier", 0, 1, 2))


def test_threads_may_share_row_groups(folder: Path) -> None:
    """Of 40 row groups four fit; whatever is kept is what was put there."""
    groups = RowGroups(0)
    kept(groups, "key")
    use_settings(CacheSettings(folder, rows_bytes=4 * row_groups.ROWS_ON_DISK.reserved))
    tables = [_GROUP.set_column(0, "id", pa.array(range(key, key + 1_000))) for key in range(40)]

    def work(seed: int) -> bool:
        for key in np.random.default_rng(seed).integers(0, 40, 200).tolist():
            rows = groups.get(key)
            if rows is None:
                kept(groups, key, tables[key])
            elif not rows.equals(tables[key]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert row_groups.ROWS_ON_DISK.reserved <= row_groups.ROWS_ON_DISK.budget


def answer(reader: IndexReader, columns: list[str], *, where: str = "id < 1500") -> tuple[pa.Table, int]:
    """The rows of 20 neighbours, by id, and the bytes of data files that they took."""
    result = reader.search(queries(1), 20, columns=columns, where=where)
    return result.rows, result.profile.bytes_read["rows"]


@pytest.mark.parametrize(("budget", "is_on_disk"), [(0, True), (1 << 20, True), (1 << 20, False)])
def test_a_reader_that_follows_takes_over_the_row_groups_of_files_that_it_reads_alike(
    table: Table, monkeypatch: pytest.MonkeyPatch, budget: int, is_on_disk: bool
) -> None:
    """File numbers change with every file. Rows that are deleted since are in the row groups, and in no answer."""
    if not is_on_disk:
        use_settings(CacheSettings(disk_bytes=0))
    monkeypatch.setattr(row_reader, "RowGroups", lambda _: RowGroups(budget))
    index_head(table)
    columns = (["id"], ["id", "name"])

    def compared(following: FollowingReader[IndexReader]) -> list[int]:
        """Bytes of data files that the answers took, which are those of a new reader."""
        assert following.update()
        fresh = open_index(table.refresh(), DEFINITION, storage=STORAGE)
        answers = [(answer(following.reader, names), answer(fresh, names)) for names in columns]
        assert [followed[0].equals(other[0]) for followed, other in answers] == [True, True]
        return [followed[1] for followed, _ in answers]

    with open_index(table.refresh(), DEFINITION, storage=STORAGE).follow(interval=1e6) as following:
        for names in columns * 2:
            nearest, _ = answer(following.reader, names)
        for first in range(2_000, 2_010):
            table.append(make_rows(first, first + 1))
        assert compared(following) == [0, 0]
        table.refresh().delete(f"id in ({', '.join(map(str, nearest['id'].to_pylist()[:5]))})")
        assert compared(following)[0] > 0, "PyIceberg has written the file anew"
        for names in columns * 2:
            nearest, _ = answer(following.reader, names)
        path, position = place_of(table, nearest["id"][0].as_py())
        append_position_deletes(table.refresh(), {path: np.array([position])})
        assert compared(following) == [0, 0]
        with table.refresh().update_schema() as change:
            change.rename_column("name", "title")
        table.append(make_rows(3_000, 3_001).rename_columns(["id", "title", "section", "embedding"]))
        columns = (["id"], ["id", "title"])
        only_id, both = compared(following)
        assert only_id == 0 < both


def test_row_groups_that_are_taken_over_are_of_use_where_columns_have_another_order(table: Table) -> None:
    """Here, those of one file and one query come from both: the ones that are kept, and the ones that are read."""
    index_head(table)
    names = ["name", "section"]
    with open_index(table.refresh(), DEFINITION, storage=STORAGE).follow(interval=1e6) as following:
        answer(following.reader, names)
        with table.refresh().update_schema() as change:
            change.move_first("section")
        table.append(make_rows(3_000, 3_010).select(["section", "id", "name", "embedding"]))
        assert following.update()
        fresh = open_index(table.refresh(), DEFINITION, storage=STORAGE)
        for count in (20, 50, 400):
            rows = following.search(queries(1), count, columns=names).rows
            assert rows.equals(fresh.search(queries(1), count, columns=names).rows)


def place_of(table: Table, row_id: int) -> tuple[str, int]:
    """(path of the data file, position) of a row."""
    for file in live_files(table, table.refresh().metadata.current_snapshot_id or 0).files:
        ids = pq.read_table(to_path(file.path), columns=["id"])["id"].to_pylist()
        if row_id in ids:
            return file.path, ids.index(row_id)
    raise AssertionError(f"no file has row {row_id}")
