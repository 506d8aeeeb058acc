"""What PyIceberg reads and writes through our own stores, here a local disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from icepuffin.ops.catalog import stored_file_io
from icepuffin.ops.catalog.stored_file_io import StoredFile, StoredFileIO, current_io, file_io
from icepuffin.ops.model import Grant, StorageConfig, VendedGrants
from icepuffin.ops.storage.local_storage import LocalStorage
from tests.conftest import STORAGE


@pytest.fixture
def file(tmp_path: Path) -> StoredFile:
    return StoredFileIO({}, STORAGE).new_output(f"file://{tmp_path}/metadata.json")


def written(file: StoredFile, data: bytes, *, overwrite: bool = False) -> None:
    with file.create(overwrite) as stream:
        stream.write(data)


def test_a_file_appears_when_it_is_closed(file: StoredFile) -> None:
    with file.create() as stream:
        assert (stream.write(b"abc"), stream.write(memoryview(b"defg")), stream.tell()) == (3, 4, 7)
        assert not file.exists()
    stream.close()
    assert file.to_input_file().open().read() == b"abcdefg"


def test_a_file_whose_writer_fails_does_not_appear(file: StoredFile, tmp_path: Path) -> None:
    """Metadata that were cut off would be those of the table."""
    stream = file.create()
    with pytest.raises(TypeError), stream:
        stream.write([stream.write(b"abc")])  # type: ignore[arg-type]
    assert stream.closed  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    file.create().write(b"abc")  # which nobody closes
    assert not file.exists()


def test_a_file_is_replaced_by_request_alone(file: StoredFile) -> None:
    written(file, b"first")
    with pytest.raises(FileExistsError):
        written(file, b"second")
    assert (len(file), file.open().read()) == (5, b"first")
    written(file, b"third, longer", overwrite=True)
    assert (len(file), file.open().read()) == (13, b"third, longer")


def test_two_writers_of_one_name_are_told_apart(file: StoredFile) -> None:
    """The second one began before the first had ended."""
    first, second = file.create(), file.create()
    first.write(b"first")
    second.write(b"second")
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert file.open().read() == b"first"


def test_the_users_own_code_reads_buckets_where_the_settings_name_it(tmp_path: Path) -> None:
    own = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    for location in ("gs://b/v1.metadata.json", "abfss://c@a.dfs.core.windows.net/v1.metadata.json"):
        assert type(file_io(StorageConfig(own), location)) is FsspecFileIO
        assert type(file_io(StorageConfig(), location)) is StoredFileIO
    assert type(file_io(StorageConfig(), f"file://{tmp_path}/v1.metadata.json")) is PyArrowFileIO


def test_files_are_reached_by_vended_keys_where_there_are_such(table_factory: Callable[..., Table]) -> None:
    table = table_factory("t")
    vended = StorageConfig({}, VendedGrants("lake", "db.t", "who", (Grant("", {}),), lambda: ()))
    assert current_io(table, StorageConfig()) is table.io
    renewed = current_io(table, vended)
    assert isinstance(renewed, StoredFileIO)
    assert (renewed.storage, renewed.properties) == (vended, table.io.properties)
    table.io = renewed
    assert current_io(table, vended) is renewed
    assert type(file_io(vended, "s3://b/v1.metadata.json")) is StoredFileIO
    assert type(file_io(StorageConfig(), "s3://b/v1.metadata.json")) is PyArrowFileIO
    assert type(file_io(vended, "file:///v1.metadata.json")) is PyArrowFileIO


def test_what_is_missing_is_what_pyiceberg_expects(file: StoredFile) -> None:
    with pytest.raises(FileNotFoundError):
        len(file)
    with pytest.raises(FileNotFoundError):
        file.open()
    written(file, b"abc")
    StoredFileIO({}, STORAGE).delete(file)
    assert not file.exists()
    written(file, b"abc")
    StoredFileIO({}, STORAGE).delete(file.location)
    assert not file.exists()


@pytest.mark.parametrize("whole", [9, 10, 11])
def test_a_large_file_is_read_by_ranges(file: StoredFile, monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    """And as a whole by one request, as PyIceberg reads metadata."""
    assert stored_file_io._WHOLE == 32 * 2**20
    monkeypatch.setattr(stored_file_io, "_WHOLE", whole)
    monkeypatch.setattr(stored_file_io, "_BUFFER", 4)
    written(file, b"0123456789")
    requests: list[tuple[int, int]] = []
    read = LocalStorage.read_range

    def counted(store: LocalStorage, path: str, offset: int, length: int) -> bytes:
        requests.append((offset, length))
        return read(store, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    with file.open() as stream:
        assert stream.read(3) == b"012"
        assert (stream.seek(-2, 2), stream.read()) == (8, b"89")
        assert (stream.seek(5), stream.read(9)) == (5, b"56789")
    assert (requests[0] == (0, 10)) is (whole >= 10)
    requests.clear()
    with file.open() as stream:
        assert stream.read() == b"0123456789"
    assert requests == [(0, 10)]
