import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import (
    ObjectExistsError,
    ObjectMissingError,
    StorageError,
    normalize,
    open_storage,
    relative_to,
)
from icepuffin.ops.storage.local_storage import LocalStorage

STORE = LocalStorage()


def write_half(path: str) -> None:
    with STORE.open_output(path) as sink:
        sink.write(b"half")
        raise RuntimeError("cut off")


def test_an_object_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/a/b"
    with pytest.raises(RuntimeError, match="cut off"):
        write_half(path)
    assert list((tmp_path / "a").iterdir()) == []
    with STORE.open_output(path) as sink:
        sink.write(b"whole")
        assert not STORE.exists(path)
    assert STORE.read_range(path, 1, 3) == b"hol"


def test_a_taken_name_is_not_overwritten(tmp_path: Path) -> None:
    path = f"{tmp_path}/x"
    STORE.create(path, b"first")
    with pytest.raises(ObjectExistsError):
        STORE.create(path, b"second")
    assert STORE.read_range(path, 0, 100) == b"first"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_without_links_a_taken_name_is_not_overwritten_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", no_link(number))
    store = LocalStorage()
    store.create(f"{tmp_path}/a", b"first")
    with pytest.raises(ObjectExistsError):
        store.create(f"{tmp_path}/a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_where_names_cannot_be_given_safely_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_link(errno.EPERM))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(StorageError, match="neither hard links nor a rename that does not overwrite"):
        LocalStorage().create(f"{tmp_path}/a", b"first")
    assert not list(tmp_path.iterdir())


def no_link(number: int) -> Callable[..., None]:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return link


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError, match="nothing"):
        STORE.read_range(f"{tmp_path}/nothing", 0, 1)
    STORE.delete(f"{tmp_path}/nothing")


def test_an_output_that_is_removed_while_it_is_written_is_reported(tmp_path: Path) -> None:
    def write() -> None:
        with STORE.open_output(f"{tmp_path}/x") as sink:
            sink.write(b"data")
            for unfinished in tmp_path.iterdir():
                unfinished.unlink()

    with pytest.raises(ObjectMissingError, match="was removed while it was written"):
        write()


def test_joins_copy_ranges_between_literal_bytes(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).bytes(200 * 4096)
    STORE.create(f"{tmp_path}/a", whole)
    segments: list[bytes | ObjectRange] = []
    for number, length in enumerate((0, 1, 4095, 4096, 3 * 4096 + 7, 150 * 4096 + 5)):
        segments += [whole[:length], ObjectRange(f"{tmp_path}/a", 100 * number, length)]
    copied = STORE.concat(f"{tmp_path}/joined", segments)
    expected = b"".join(
        part if isinstance(part, bytes) else whole[part.offset : part.offset + part.length] for part in segments
    )
    assert (tmp_path / "joined").read_bytes() == expected
    assert copied == len(expected) // 2


def test_a_join_past_the_end_of_a_source_publishes_nothing(tmp_path: Path) -> None:
    STORE.create(f"{tmp_path}/a", b"short")
    with pytest.raises(ObjectMissingError, match="/a ends at 5, 7 bytes more were expected"):
        STORE.concat(f"{tmp_path}/joined", [ObjectRange(f"{tmp_path}/a", 2, 10)])
    assert not STORE.exists(f"{tmp_path}/joined")


def test_listings_give_path_size_and_time(tmp_path: Path) -> None:
    for number, (name, data) in enumerate((("d/a", b"123"), ("d/e/b", b"1"))):
        STORE.create(f"{tmp_path}/{name}", data)
        os.utime(tmp_path / name, ns=(0, 10**18 + number * 10**6))
    found = {item.path: (item.size, item.modified_ms) for item in STORE.list(f"{tmp_path}/d")}
    assert found == {f"file://{tmp_path}/d/a": (3, 10**12), f"file://{tmp_path}/d/e/b": (1, 10**12 + 1)}


def test_what_is_deleted_while_files_are_listed_is_left_out(tmp_path: Path) -> None:
    for name in "abc":
        STORE.create(f"{tmp_path}/{name}", b"1")
    listed = STORE.list(f"{tmp_path}")
    first = next(listed).path
    second, *_ = (path for path in tmp_path.iterdir() if f"file://{path}" != first)
    second.unlink()
    assert len(list(listed)) == 1


@pytest.mark.parametrize(("durable", "synced"), [(True, ["x", "folder"]), (False, [])])
def test_only_what_is_to_last_is_synced_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: list[str]
) -> None:
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: names.append(Path(f"/proc/self/fd/{handle}").resolve().name))
    with STORE.open_output(f"{tmp_path}/folder/x", durable=durable) as sink:
        sink.write(b"data")
    assert [name.lstrip(".").partition(".")[0] for name in names] == synced


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x'"):
        STORE.create(f"{tmp_path}/x", b"data")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("location", "same"),
    [
        ("/x/y", "file:///x/y"),
        ("file:/x/y", "file:///x/y"),
        ("FILE:/x/y", "file:///x/y"),
        ("file:///x/y", "file:///x/y"),
        ("file://localhost/x/y", "file:///x/y"),
        ("s3a://b/k", "s3://b/k"),
        ("/x/day=a%2Fb:c?d#e [f]", "file:///x/day=a%2Fb:c?d#e [f]"),
        ("file:/x/a:b?c#d", "file:///x/a:b?c#d"),
        ("S3://b/a%20b?c#d", "s3://b/a%20b?c#d"),
        ("/x//y///z", "file:///x/y/z"),
        ("file:/x//y", "file:///x/y"),
        ("file:////x//y", "file:///x/y"),
        ("s3://b//a//b", "s3://b//a//b"),
    ],
)
def test_spellings_of_one_place_are_one(location: str, same: str) -> None:
    assert normalize(location) == same


def test_every_character_of_a_path_stands_for_itself(tmp_path: Path) -> None:
    for name in ("day=a%2Fb", "a b", "a+b", "a?b", "a#b", "a:b", "é"):
        STORE.create(f"file://{tmp_path}/{name}/x", name.encode())
        assert (tmp_path / name / "x").read_bytes() == name.encode()
        assert STORE.read_range(f"file:{tmp_path}/{name}/x", 0, 99) == name.encode()


def test_relative_paths_survive_a_moved_table() -> None:
    assert relative_to("file:/w/t/data/f.parquet", "file:///w/t") == "data/f.parquet"
    assert relative_to("s3://elsewhere/f", "s3://b/t") == "s3://elsewhere/f"
    assert relative_to("s3://b/t/f", "s3://b/t/") == "f"


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StorageError, match="ftp"):
        open_storage("ftp://x/y", StorageConfig({}))


def test_a_join_of_what_is_gone_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError):
        STORE.concat(f"{tmp_path}/joined", [ObjectRange(f"{tmp_path}/none", 0, 10)])
    assert not STORE.exists(f"{tmp_path}/joined")


def test_the_time_is_that_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    STORE.create(f"{tmp_path}/x", b"x")
    true = time.time_ns() // 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: (true + 86_400_000) * 1_000_000)
    (item,) = STORE.list(f"{tmp_path}")
    assert item.modified_ms <= STORE.now_ms(f"file://{tmp_path}") < true + 60_000
    assert [item.path for item in STORE.list(f"{tmp_path}")] == [f"file://{tmp_path}/x"], "nothing is left there"
    assert STORE.now_ms(f"file://{tmp_path}/none/later") < true + 60_000, "that of its disk"
    assert not caplog.text
    assert STORE.now_ms(f"file://{tmp_path}/x/none") == true + 86_400_000, "in a file no folder can be made"
    assert "its clock cannot be read" in caplog.text


def test_what_is_listed_is_spelled_as_all_else_is(tmp_path: Path) -> None:
    STORE.create(f"file://{tmp_path}//a//b", b"x")
    (item,) = STORE.list(f"file://{tmp_path}//a")
    assert item.path == normalize(f"file://{tmp_path}//a//b") == f"file://{tmp_path}/a/b"


def test_an_object_that_stays_does_not_keep_the_others(tmp_path: Path) -> None:
    for name in ("a", "c"):
        STORE.create(f"{tmp_path}/{name}", b"x")
    (tmp_path / "b").mkdir()
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError, match="directory"):
        STORE.delete_all([f"{tmp_path}/{name}" for name in "abc"])
    assert {path.name for path in tmp_path.iterdir()} == {"b", "d"}
    with pytest.raises(StorageError, match=r"/b'; .*/d'"):
        STORE.delete_all([f"{tmp_path}/{name}" for name in "bd"])


def test_a_range_is_whole_in_however_many_parts_the_system_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives no more than 2 GiB less a page at once, file systems over a network may give less."""
    STORE.create(f"{tmp_path}/a", b"0123456789")
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, length, offset: read(handle, min(length, 3), offset))
    assert STORE.read_ranges(f"{tmp_path}/a", [(1, 8), (4, 100)]) == [b"12345678", b"456789"]
