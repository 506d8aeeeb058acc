"""Remote objects through `ParquetObject`: the same rows, few requests, no call from a thread of Arrow's."""

import io
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icepuffin.ops.rows.parquet import ParquetObject, StorageFile
from icepuffin.ops.storage import ObjectMissingError
from icepuffin.ops.storage.local_storage import LocalStorage

ROWS = 5000


class CountingStorage(LocalStorage):
    """A local store under an s3 name: counts requests and keeps the thread of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.threads: set[int] = set()

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.requests += ranges
        self.threads.add(threading.get_ident())
        return super().read_ranges(path.removeprefix("s3:/"), ranges)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    noise = pa.array([rng.bytes(400) for _ in range(ROWS)])
    lists = pa.array(list(rng.standard_normal((ROWS, 4)).astype(np.float32)), pa.list_(pa.float32()))
    table = pa.table({"id": range(ROWS), "noise": noise, "vector": lists, "tail": range(ROWS)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    return tmp_path / "a.parquet"


def opened(path: Path) -> tuple[ParquetObject, CountingStorage]:
    storage = CountingStorage()
    return ParquetObject(storage, f"s3:/{path}", path.stat().st_size), storage


def test_remote_and_local_give_the_same_rows(written: Path) -> None:
    remote, _ = opened(written)
    local = ParquetObject(LocalStorage(), str(written), written.stat().st_size)
    columns = ["id", "vector"]
    expected = pq.read_table(written, columns=columns)
    assert remote.read(columns, range(5)).equals(expected)
    assert local.read(columns, range(5)).equals(expected)
    assert pa.Table.from_batches(remote.batches(columns, batch_rows=300)).equals(expected)
    assert pa.Table.from_batches(local.batches(columns, batch_rows=300)).equals(expected)


def test_only_the_requested_columns_of_the_requested_row_groups_are_fetched(written: Path) -> None:
    remote, storage = opened(written)
    storage.requests.clear()
    remote.read(["id"], [3])
    assert len(storage.requests) == 1
    assert storage.requests[0][1] < 20_000


def test_a_column_may_have_dots_in_its_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise, lists = rng.bytes(3 << 20), pa.array([[1.0], [2.0]], pa.list_(pa.float32()))
    columns = {"a": pa.array([noise, b""]), "a.b": lists, "c": pa.array([{"a": 1, "b": [1]}] * 2), "d.e": lists}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    remote, storage = opened(tmp_path / "a.parquet")
    assert [name for name, _ in remote.chunks(0)] == ["a", "a.b", "c", "c", "d.e"]
    for name in ("a.b", "d.e"):
        storage.requests.clear()
        assert remote.read([name], [0])[name].combine_chunks().equals(lists)
        assert len(storage.requests) == 1
        assert storage.requests[0][1] < 1_000


def test_chunks_close_together_are_one_request(written: Path) -> None:
    remote, storage = opened(written)
    storage.requests.clear()
    remote.read(["id", "vector", "tail"], [1, 2])
    assert len(storage.requests) == 1


def test_arrow_reads_from_the_callers_thread_only(written: Path) -> None:
    remote, storage = opened(written)
    remote.read(["id", "noise", "vector", "tail"], range(5))
    list(remote.batches(["id", "noise", "vector", "tail"], batch_rows=100))
    assert storage.threads == {threading.get_ident()}


def test_a_read_past_the_end_of_what_was_fetched_goes_to_the_store(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    storage = CountingStorage()
    file = StorageFile(storage, f"s3:/{path}", 100)
    file.source.fetch([(10, 20)])
    file.seek(28)
    assert file.read(4) == bytes(range(28, 32))
    assert (file.seek(-2, io.SEEK_CUR), file.read(1)) == (30, bytes([30]))
    assert (file.seek(-2, io.SEEK_END), file.read(9), file.read(9)) == (98, bytes([98, 99]), b"")
    assert storage.requests[-1] == (98, 2), "no store is asked for bytes past the end"


def test_a_missing_object_is_the_stores_own_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError):
        ParquetObject(LocalStorage(), str(tmp_path / "none.parquet"), 10)


@pytest.mark.parametrize("scheme", ["s3:/", ""])
def test_the_first_rows_of_a_large_column_chunk_take_little_reading(tmp_path: Path, scheme: str) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"noise": [rng.bytes(4000) for _ in range(ROWS)]})  # one chunk of 20 MB
    pq.write_table(table, tmp_path / "b.parquet", use_dictionary=False)
    path = f"{scheme}{tmp_path / 'b.parquet'}"
    before = _bytes_read()

    result = ParquetObject(CountingStorage(), path, (tmp_path / "b.parquet").stat().st_size).first(
        ["noise"], rows=9, group=0
    )

    assert result is not None
    assert result.to_pylist() == table.slice(0, 9).to_pylist()
    assert _bytes_read() - before < 6e6


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
