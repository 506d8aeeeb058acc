"""Objects in this process's memory: read as files are, and forgotten together."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, cast

import pytest

from icepuffin.ops.model import ObjectRange
from icepuffin.ops.storage import (
    ObjectExistsError,
    ObjectMissingError,
    RefusedError,
    Storage,
    StorageError,
    base,
    memory_storage,
    open_storage,
)
from icepuffin.ops.storage.base import PartSource
from icepuffin.ops.storage.memory_storage import memory_folder, with_bytes
from tests.conftest import STORAGE


def test_an_object_in_memory_is_read_as_a_file_is() -> None:
    with memory_folder("of a test") as folder:
        store = open_storage(folder, STORAGE)
        path, other = f"{folder}/a", f"{folder}/b/c"
        store.create(path, b"0123456789")
        assert store.concat(other, [b"x", ObjectRange(path, 3, 4)]) == 0
        assert (store.size(path), store.exists(path), store.exists(f"{path}b")) == (10, True, False)
        assert store.read_ranges(path, [(2, 3), (8, 9)]) == [b"234", b"89"]
        assert store.read_range(other, 0, 9) == b"x3456"
        assert {(info.path, info.size) for info in store.list(folder)} == {(path, 10), (other, 5)}
        assert list(store.list(path)) == []
        with pytest.raises(ObjectExistsError, match="exists already"):
            store.create(path, b"other bytes")
        store.delete(path)
        with pytest.raises(ObjectMissingError, match="not in the memory of this process"):
            store.size(path)
        with pytest.raises(ObjectMissingError, match="file:///d is not in memory"):
            store.concat(path, [ObjectRange("file:///d", 0, 1)])
        assert not store.exists(path), "an object that was not written whole does not appear"


def test_what_may_not_be_deleted_stays_with_a_warning_and_another_error_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with base.left_where_refused():
        raise RefusedError("s3://b/k: no rights")
    (entry,) = caplog.records
    assert entry.levelname == "WARNING"
    assert entry.getMessage() == (
        "files that nothing needs stay (s3://b/k: no rights). `icepuffin gc` deletes them, run by a user with the "
        "right to delete"
    )
    with pytest.raises(StorageError, match="no answer"), base.left_where_refused():
        raise StorageError("no answer")


def test_what_is_deleted_while_objects_are_listed_is_left_out() -> None:
    with memory_folder("of a test") as folder:
        create_both(folder)
        store = open_storage(folder, STORAGE)
        listed = store.list(folder)
        first = next(listed).path
        store.delete(f"{folder}/{'b' if first.endswith('a') else 'a'}")
        assert list(listed) == []


def test_more_objects_than_are_deleted_at_once_are_all_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "DELETIONS", 2)
    with memory_folder("of a test") as folder:
        store, paths = open_storage(folder, STORAGE), [f"{folder}/{number}" for number in range(5)]
        for path in paths:
            store.create(path, b"1")
        store.delete_all(paths)
        assert list(store.list(folder)) == []


def create_twice(path: str) -> None:
    for data in (b"2", b"3"):
        open_storage(path, STORAGE).create(path, data)


def test_a_folder_in_memory_is_forgotten_after_an_error_too() -> None:
    with memory_folder("kept") as kept:
        open_storage(kept, STORAGE).create(f"{kept}/a", b"1")
        with pytest.raises(ObjectExistsError), memory_folder("kept") as folder:
            create_twice(f"{folder}/a")
        assert list(memory_storage._objects) == [f"{kept}/a"]
    assert not memory_storage._objects


def test_threads_stage_at_the_same_time() -> None:
    """Of two refreshes in one process, each forgets what it has staged, while the other one stages."""

    def stage(number: int) -> int:
        with memory_folder(f"of {number}") as folder:
            create_both(folder)
            return len(list(open_storage(folder, STORAGE).list(folder)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with memory_folder("many") as many, ThreadPoolExecutor(4) as pool:
            for number in range(2_000):  # looking through them takes a while
                open_storage(many, STORAGE).create(f"{many}/{number}", b"1")
            assert set(pool.map(stage, range(300))) == {2}
    finally:
        sys.setswitchinterval(interval)
    assert not memory_storage._objects


def create_both(folder: str) -> None:
    for name in ("a", "b"):
        open_storage(folder, STORAGE).create(f"{folder}/{name}", b"1")


def test_segments_in_memory_become_bytes_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_storage, "_BYTES_AT_ONCE", 4)
    with memory_folder("of a test") as folder:
        open_storage(folder, STORAGE).create(f"{folder}/a", b"0123456789")
        file = ObjectRange("s3://bucket/key", 0, 9)
        segments = [b"head", ObjectRange(f"{folder}/a", 1, 9), file]
        assert list(with_bytes(segments)) == [b"head", b"1234", b"5678", b"9", file]


def test_what_is_fetched_of_an_object_is_not_read_again_and_all_else_is() -> None:
    far = 2 << 20
    with memory_folder("of a test") as folder:
        store, path = open_storage(folder, STORAGE), f"{folder}/a"
        store.create(path, b"0123" + bytes(far - 4) + b"4567")
        source = store.source(path)
        source.fetch([(far, 3), (0, 3)])
        assert source.read_range(0, 4) == b"0123"
        store.delete(path)
        reads = {(0, 3): b"012", (1, 2): b"12", (far, 3): b"456", (far + 2, 1): b"6"}
        assert {(offset, length): source.read_range(offset, length) for offset, length in reads} == reads
        for offset, length in ((0, 4), (3, 1), (far - 1, 2), (far + 1, 3)):
            with pytest.raises(ObjectMissingError):
                source.read_range(offset, length)


def test_several_errors_are_one_of_their_type_where_they_have_one() -> None:
    """A right that is missing is no reason to fail; a store that does not answer is."""
    refused, away = RefusedError("a: refused"), StorageError("b: away")
    assert base._joined([refused]) is refused
    for errors, kind in (([refused, refused], RefusedError), ([refused, away], StorageError), ([away], StorageError)):
        assert type(base._joined(errors)) is kind
    assert str(base._joined([refused, away])) == "a: refused; b: away"


def test_a_part_of_an_object_is_a_source_that_ends_where_the_part_ends() -> None:
    """What lies behind it in the file is another blob's."""
    with memory_folder("of a test") as folder:
        store, path = open_storage(folder, STORAGE), f"{folder}/a"
        store.create(path, b"0123456789")
        part = PartSource(store, ObjectRange(path, 3, 4))
        assert part.size() == 4
        reads = {(0, 4): b"3456", (0, 5): b"3456", (3, 9): b"6", (1, 2): b"45", (4, 1): b"", (9, 2): b""}
        assert {(offset, length): part.read_range(offset, length) for offset, length in reads} == reads


def test_no_negative_length_is_requested_behind_the_end_of_a_part() -> None:
    """What a store makes of one is its own affair."""

    class Requests:
        ranges: ClassVar[list[tuple[int, int]]] = []

        def read_range(self, _: str, offset: int, length: int) -> bytes:
            self.ranges.append((offset, length))
            return b""

    part = PartSource(cast("Storage", Requests()), ObjectRange("a", 3, 4))
    for offset in (0, 3, 4, 9):
        part.read_range(offset, 9)
    assert Requests.ranges == [(3, 4), (6, 1), (7, 0), (12, 0)]


def test_its_clock_is_that_of_the_process() -> None:
    before = time.time_ns() // 1_000_000
    with memory_folder("of a clock") as folder:
        assert before <= open_storage(folder, STORAGE).now_ms(folder) <= time.time_ns() // 1_000_000
