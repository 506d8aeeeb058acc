"""Files that PyIceberg reads and writes through our stores, tried on a local one."""

from pathlib import Path

import pytest

from icepuffin.ops.catalog import stored_file_io
from icepuffin.ops.catalog.stored_file_io import StoredFileIO

FILES = StoredFileIO()


@pytest.mark.parametrize("whole", [0, 10, 32 << 20])
def test_a_file_is_read_from_any_place_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(stored_file_io, "_WHOLE", whole)
    content = bytes(range(256)) * 8
    (tmp_path / "a").write_bytes(content)
    file = FILES.new_input(f"file://{tmp_path}/a")
    assert (len(file), file.exists()) == (2_048, True)
    with file.open() as stream:
        assert stream.read(3) == content[:3]
        assert stream.seek(2_000) == stream.tell() == 2_000
        assert stream.read() == content[2_000:]
        stream.seek(5)
        assert stream.read(1_000) == content[5:1_005]


def test_a_long_file_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Avro is read by a few bytes at a time, and each read of a bucket is a request."""
    monkeypatch.setattr(stored_file_io, "_WHOLE", 0)
    (tmp_path / "a").write_bytes(bytes(3 << 20))
    reads = []
    read = stored_file_io.StorageFile.read

    def counted(file: stored_file_io.StorageFile, size: int = -1) -> bytes:
        reads.append(size)
        return read(file, size)

    monkeypatch.setattr(stored_file_io.StorageFile, "read", counted)
    with FILES.new_input(f"file://{tmp_path}/a").open() as stream:
        for _ in range(100):
            assert len(stream.read(10_000)) == 10_000
    assert reads == [1 << 20]


def test_a_file_appears_when_it_is_closed_and_never_in_place_of_another(tmp_path: Path) -> None:
    file = FILES.new_output(f"file://{tmp_path}/a")
    with file.create() as stream:
        assert (stream.write(b"one"), stream.write(memoryview(b" and two"))) == (3, 8)
        assert stream.tell() == 11
        assert not file.exists()
    assert (tmp_path / "a").read_bytes() == b"one and two"
    assert len(file.to_input_file()) == 11
    with pytest.raises(FileExistsError, match="/a"):
        file.create()
    with file.create(overwrite=True) as stream:
        stream.write(b"three")
    assert (tmp_path / "a").read_bytes() == b"three"


def test_a_file_whose_writer_fails_does_not_appear(tmp_path: Path) -> None:
    file = FILES.new_output(f"file://{tmp_path}/a")
    failure = ValueError("half")
    stream = file.create()
    stream.write(b"one")
    stream.__exit__(ValueError, failure, None)
    assert stream.closed
    assert not file.exists()


def test_a_file_that_another_writer_has_made_meanwhile_is_a_builtin_error(tmp_path: Path) -> None:
    file = FILES.new_output(f"file://{tmp_path}/a")
    for end in (lambda stream: stream.close(), lambda stream: stream.__exit__(None, None, None)):
        (tmp_path / "a").unlink(missing_ok=True)
        stream = file.create()
        stream.write(b"late")
        (tmp_path / "a").write_bytes(b"first")
        with pytest.raises(FileExistsError, match="/a"):
            end(stream)
        assert (tmp_path / "a").read_bytes() == b"first"


def test_a_file_that_is_deleted_or_was_never_there_is_a_builtin_error(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/a"
    (tmp_path / "a").write_bytes(b"one")
    FILES.delete(path)
    assert not (tmp_path / "a").exists()
    FILES.delete(FILES.new_input(path))
    for read in (len, lambda file: file.open()):
        with pytest.raises(FileNotFoundError, match="/a"):
            read(FILES.new_input(path))
