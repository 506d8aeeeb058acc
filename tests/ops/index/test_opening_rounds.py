"""Requests that opening a version takes: the size and both ends of its file, all at once."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.storage import StorageError
from icepuffin.ops.storage.local_storage import LocalStorage
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import index_head
from tests.patience import PATIENCE


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    index_head(new_table)
    return new_table.refresh()


def test_the_size_and_the_ends_of_a_file_are_read_in_one_round(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    version = index_versions(table, "e")[-1]
    started, sized = threading.Event(), threading.Event()
    read, size, rounds = LocalStorage.read_ranges, LocalStorage.size, list[bool]()

    def read_ranges(self: LocalStorage, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if not started.is_set():
            assert (min(ranges)[0], max(map(sum, ranges))) == (0, version.file_size)
            started.set()
            rounds.append(sized.wait(PATIENCE))
        return read(self, path, ranges)

    def size_of(self: LocalStorage, path: str) -> int:
        sized.set()
        rounds.append(started.wait(PATIENCE))
        return size(self, path)

    monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
    monkeypatch.setattr(LocalStorage, "size", size_of)
    assert open_version(version, STORAGE).bound == version
    assert rounds == [True, True], "neither waits for the other"


@pytest.mark.parametrize("error", [-1, 7, 1 << 40, None])
def test_a_file_whose_size_is_recorded_wrongly_or_not_at_all_is_read_by_its_own(
    table: Table, error: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = index_versions(table, "e")[-1]
    assert version.file_size is not None
    other = replace(version, file_size=None if error is None else version.file_size + error)
    assert open_version(other, STORAGE).routing.shards
    if error is not None and error > 0:

        def read_ranges(self: LocalStorage, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
            if max(map(sum, ranges)) > version.file_size:  # type: ignore[operator]
                raise StorageError("416: the range is not in the object")
            return read(self, path, ranges)

        read = LocalStorage.read_ranges
        monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
        assert open_version(other, STORAGE).routing.shards
