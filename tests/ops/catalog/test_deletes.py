"""Position delete files: which rows of which data file they name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile
from icepuffin.ops.storage import StorageError, normalize
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table import row_deletes
from icepuffin.ops.table.row_deletes import deleted_by_file, deleted_in_group, fingerprint
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.errors import BadBlobError

STORE = LocalStorage()
ENCODINGS: list[dict[str, Any]] = [
    {"use_dictionary": True},
    {"use_dictionary": True, "dictionary_pagesize_limit": 1, "data_page_size": 1, "write_batch_size": 1},
    {"use_dictionary": False},
    {"use_dictionary": False, "column_encoding": {"file_path": "DELTA_BYTE_ARRAY"}},
    {"use_dictionary": False, "column_encoding": {"file_path": "DELTA_LENGTH_BYTE_ARRAY"}},
]
"""Ways in which writers store the names: Java's writes deltas where a dictionary would be larger"""


def deleting(folder: Path, table: pa.Table, *data: str) -> list[LiveFile]:
    """Data files that one delete file is about."""
    path = folder / "deletes.parquet"
    pq.write_table(table, path)
    delete = DeleteFile(f"file://{path}", DeleteKind.POSITION, table.num_rows, 2, path.stat().st_size)
    return [LiveFile(name, 1, 100, 1, "PARQUET", deletes=(delete,)) for name in data]


def test_each_data_file_gets_its_own_positions_however_its_path_is_spelt(tmp_path: Path) -> None:
    named = pa.table({"file_path": ["file:/b", "file:///a", "file:///a", "file:///c"], "pos": [3, 9, 2, 0]})
    found = deleted_by_file(lambda _: STORE, deleting(tmp_path, named, "file:///a", "file:/b"))
    assert {path: rows.tolist() for path, rows in found.items()} == {"file:///a": [2, 9], "file:/b": [3]}


@pytest.mark.parametrize("columns", [["file_path"], ["pos"], ["id"]])
def test_a_file_without_paths_and_positions_is_named(tmp_path: Path, columns: list[str]) -> None:
    with pytest.raises(StorageError, match=r"deletes\.parquet is not a Parquet position delete file"):
        deleted_by_file(lambda _: STORE, deleting(tmp_path, pa.table({name: [1] for name in columns}), "file:///a"))


@pytest.mark.parametrize("column", ["file_path", "pos"])
def test_a_row_without_a_path_or_a_position_is_reported(tmp_path: Path, column: str) -> None:
    rows = {"file_path": ["file:///a"] * 2, "pos": [1, 2]}
    rows[column] = [rows[column][0], None]
    with pytest.raises(StorageError, match=r"deletes\.parquet: a row .* no path or no position"):
        deleted_by_file(lambda _: STORE, deleting(tmp_path, pa.table(rows), "file:///a"))


def test_a_damaged_file_is_named_whatever_arrow_makes_of_the_damage(tmp_path: Path) -> None:
    rng, table = np.random.default_rng(0), pa.table({"file_path": ["file:///a"] * 50, "pos": range(50)})
    files = deleting(tmp_path, table, "file:///a")
    path, reports = tmp_path / "deletes.parquet", list[str]()
    whole = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            deleted_by_file(lambda _: STORE, files)
        except StorageError as error:
            reports.append(str(error))
    assert all("deletes.parquet is not a Parquet position delete file" in report for report in reports)
    assert reports


def test_a_deletion_vector_names_no_more_rows_than_its_file_has(tmp_path: Path) -> None:
    """A few bytes of runs would else take a gigabyte."""
    path = tmp_path / "deletes.puffin"

    def deleted(rows: int) -> list[int]:
        path.write_bytes(deletion_vector_blob.encode(np.arange(rows)))
        where = (f"file://{path}", DeleteKind.DELETION_VECTOR, rows, 2, path.stat().st_size, 0, path.stat().st_size)
        file = LiveFile("file:///t/a.parquet", 1, 100, 1, "PARQUET", deletes=(DeleteFile(*where),))
        return deleted_by_file(lambda _: STORE, [file])[file.path].tolist()

    assert deleted(100) == list(range(100))
    with pytest.raises(BadBlobError):
        deleted(65_536)


@pytest.mark.parametrize(("offset", "length"), [(None, 9), (4, None), (None, None)])
def test_a_deletion_vector_lies_where_the_manifest_says(offset: int | None, length: int | None) -> None:
    vector = DeleteFile("file:///v.puffin", DeleteKind.DELETION_VECTOR, 1, 2, 9, offset, length)
    with pytest.raises(StorageError, match=r"v\.puffin: the manifest does not say where .* of file:///a lies"):
        deleted_by_file(lambda _: STORE, [LiveFile("file:///a", 1, 9, 1, "PARQUET", deletes=(vector,))])


def test_a_file_has_the_same_deletes_each_time_that_it_is_given(tmp_path: Path) -> None:
    (plain,) = deleting(tmp_path, pa.table({"file_path": ["file:///a"], "pos": [3]}), "file:///a")
    bare = replace(plain, deletes=())
    for files in ([plain, bare], [bare, plain], [plain, plain, bare]):
        with pytest.raises(TableFaultError, match=r"file:///a is listed twice in a snapshot, and deletes apply"):
            deleted_by_file(lambda _: STORE, files)
        assert deleted_in_group(lambda _: STORE, files) == {}
    assert deleted_by_file(lambda _: STORE, [plain, plain])["file:///a"].tolist() == [3]


@pytest.mark.parametrize("seed", range(12))
def test_positions_are_those_of_the_delete_files_that_apply(tmp_path: Path, seed: int) -> None:
    """Data files share their deletes, or do not, and paths are spelt in two ways."""
    rng = np.random.default_rng(seed)
    names = [f"file:///data/{number}" if number % 3 else f"file:/data/{number}" for number in range(6)]
    deletes, rows = [], {}
    for number in range(5):
        path = tmp_path / f"{number}.parquet"
        named = [names[place] for place in rng.integers(0, 6, 20)]
        named = [normalize(name) if rng.random() < 0.5 else name for name in named]
        kind = rng.choice(np.array([pa.string(), pa.large_string(), pa.binary()], np.object_))
        table = pa.table({"file_path": pa.array(named).cast(kind), "pos": rng.integers(0, 100, 20)})
        pq.write_table(table, path, row_group_size=int(rng.integers(3, 30)), **rng.choice(ENCODINGS))
        table = table.cast(pa.schema({"file_path": pa.string(), "pos": pa.int64()}))
        deletes.append(DeleteFile(f"file://{path}", DeleteKind.POSITION, 20, 2, path.stat().st_size))
        rows[deletes[-1].path] = table.to_pylist()
    shared = tuple(deletes[:3])
    files = []
    for name in names:
        own = tuple(deletes[place] for place in sorted(rng.choice(5, rng.integers(0, 5), replace=False)))
        files.append(LiveFile(name, 1, 100, 1, "PARQUET", deletes=shared if rng.random() < 0.5 else own))
    deleted = deleted_by_file(lambda _: STORE, files)
    for file in files:
        spelt = {file.path, normalize(file.path)}
        expected = {row["pos"] for one in file.deletes for row in rows[one.path] if row["file_path"] in spelt}
        assert deleted[file.path].tolist() == sorted(expected)
    alone = [deleted_by_file(lambda _: STORE, [file])[file.path].tolist() for file in files]
    assert alone == [deleted[file.path].tolist() for file in files]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_each_name_of_a_data_file_is_in_memory_once(
    tmp_path: Path, encoding: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position deletes name the data file in each row: a million of 200 letters would take 200 MB."""
    name, count = f"file:///{'a' * 1_000}", 20_000
    table = pa.table({"file_path": [name] * count, "pos": np.arange(count)})
    (file,) = deleting(tmp_path, table, name)
    pq.write_table(table, tmp_path / "deletes.parquet", row_group_size=1_000, **encoding)
    monkeypatch.setattr(row_deletes, "_ROWS_AT_ONCE", 1_000)
    pool, usual = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        deleted = deleted_by_file(lambda _: STORE, [replace(file, record_count=count)])
    finally:
        pa.set_memory_pool(usual)
    assert np.array_equal(deleted[name], np.arange(count))
    assert pool.max_memory() < 8 << 20


def test_files_that_share_their_deletes_count_as_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of files may: sets of their paths, one for each of them, would take the square of their number."""
    table = pa.table({"file_path": ["file:///0", "file:///2"], "pos": [3, 4]})
    (first,) = deleting(tmp_path, table, "file:///0")
    files = [replace(first, path=f"file:///{number}") for number in range(3)]
    groups = []
    add = row_deletes._add_position_deletes

    def recorded(parts: Any, covering: Any, open_store: Any) -> None:
        groups.extend(paths for _, paths in covering)
        add(parts, covering, open_store)

    monkeypatch.setattr(row_deletes, "_add_position_deletes", recorded)
    deleted = deleted_by_file(lambda _: STORE, files)
    assert [positions.tolist() for positions in deleted.values()] == [[3], [], [4]]
    assert groups == [[set(deleted)]]


def test_deletes_are_read_in_a_group_where_they_are_about_several_of_its_files(tmp_path: Path) -> None:
    named = pa.table({"file_path": ["file:///a", "file:///b", "file:///b"], "pos": [1, 2, 4]})
    first, second = deleting(tmp_path, named, "file:///a", "file:///b")
    deleted = deleted_in_group(lambda _: STORE, [first, second])
    assert {path: rows.tolist() for path, rows in deleted.items()} == {"file:///a": [1], "file:///b": [2, 4]}
    assert deleted_in_group(lambda _: STORE, [first]) == {}
    assert deleted_in_group(lambda _: STORE, [first, second, second]) == {}


def test_a_fingerprint_is_that_of_the_files_own_deletes() -> None:
    def made(*paths: str) -> LiveFile:
        return LiveFile("f", 1, 9, 1, "PARQUET", deletes=tuple(
            DeleteFile(path, DeleteKind.POSITION, 1, 2, 1) for path in paths
        ))  # fmt: skip

    files = [made("a"), made("b"), made("a", "b"), made(), made("a")]
    prints = [fingerprint(file) for file in (*files, *files, files[0], files[0])]
    assert prints[:5] == prints[5:10] == [fingerprint(file) for file in files]
    assert prints[0] == prints[4] == prints[10] == prints[11]
    assert len(set(prints)) == 4
