"""Files of arrays that are filled in place."""

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from icepuffin.ops.cache import mapped_arrays
from icepuffin.ops.cache.mapped_arrays import DamagedError, Draft

ROOM = 10_000


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[BinaryIO]:
    with (tmp_path / "file").open("w+b") as opened:
        opened.truncate(ROOM)
        yield opened


def test_arrays_that_are_kept_are_read_again(stream: BinaryIO) -> None:
    draft = Draft(stream, "name")
    numbers = draft.allocate((3, 5), np.int32)
    numbers[:] = 7
    assert draft.keep("numbers", numbers.reshape(-1)).ctypes.data == numbers.ctypes.data, "it was copied"
    elsewhere = np.arange(4.0)
    assert not np.may_share_memory(draft.keep("copy", elsewhere), elsewhere)
    draft.finish({"number": 1})
    stream.seek(0)
    arrays, values = mapped_arrays.read(stream, "name")
    assert values == {"number": 1}
    assert list(arrays) == ["numbers", "copy"]
    assert arrays["numbers"].tolist() == 15 * [7]
    assert arrays["copy"].tolist() == elsewhere.tolist()


@pytest.mark.parametrize("other", ["a", "nam", "name ", "z"])
def test_the_file_of_another_name_is_not_read(stream: BinaryIO, other: str) -> None:
    Draft(stream, "name").finish({})
    stream.seek(0)
    with pytest.raises(DamagedError, match="another one's"):
        mapped_arrays.read(stream, other)


def test_without_the_id_of_the_boot_no_file_counts_as_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mapped_arrays._mark(b"head") == mapped_arrays._mark(b"head") is not None
    monkeypatch.setattr(mapped_arrays, "_BOOT_ID", tmp_path / "there is none")
    assert mapped_arrays._mark(b"head") is None


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_length_is_not_read(stream: BinaryIO, change: int) -> None:
    draft = Draft(stream, "name")
    draft.keep("kept", np.ones(64, np.uint8))
    draft.finish({})
    stream.truncate(mapped_arrays.room_for([64]) + change)
    stream.seek(0)
    with pytest.raises(DamagedError, match="another length"):
        mapped_arrays.read(stream, "name")


def test_the_place_of_an_array_that_is_dropped_is_free_again(stream: BinaryIO) -> None:
    draft = Draft(stream, "name")
    first = draft.allocate((10,), np.uint8)
    dropped = draft.allocate((20,), np.uint8)
    dropped[:] = 1
    place, view = dropped.ctypes.data, dropped[5:]
    del dropped
    between = draft.allocate((1,), np.uint8)
    assert between.ctypes.data > place, "a view refers to it"
    del view, between
    again = draft.allocate((2, 3), np.float32)
    assert again.ctypes.data == place > first.ctypes.data
    draft.keep("first", first)
    draft.keep("again", again)
    del again, first
    assert draft.allocate((1,), np.uint8).ctypes.data > place, "what is kept stays"


def test_each_array_begins_with_a_cache_line_of_its_own(stream: BinaryIO) -> None:
    draft = Draft(stream, "name")
    arrays = [draft.allocate((size,), np.uint8) for size in (3, 65, 64, 1)]
    arrays.append(draft.keep("last", np.ones(5, np.uint8)))
    places = [array.ctypes.data % mmap.PAGESIZE for array in arrays]
    assert places == [0, 64, 192, 256, 320]


def test_arrays_are_kept_in_any_order(stream: BinaryIO) -> None:
    draft = Draft(stream, "name")
    first, second = draft.allocate((3,), np.int32), draft.allocate((4,), np.int64)
    first[:], second[:] = 1, 2
    draft.keep("second", second)
    draft.keep("first", first)
    draft.finish({})
    stream.seek(0)
    arrays, _ = mapped_arrays.read(stream, "name")
    assert {key: array.tolist() for key, array in arrays.items()} == {"second": 4 * [2], "first": 3 * [1]}


def test_nothing_is_left_of_an_array_that_is_dropped(stream: BinaryIO, tmp_path: Path) -> None:
    draft = Draft(stream, "name")
    draft.allocate((500,), np.uint8)[:] = 255
    for number, size in enumerate((3, 65, 64)):
        draft.keep(str(number), np.zeros(size, np.uint8))
    draft.finish({})
    assert not any((tmp_path / "file").read_bytes()[mapped_arrays._HEAD_BYTES :])


def test_what_was_not_kept_is_no_part_of_the_file(stream: BinaryIO, tmp_path: Path) -> None:
    draft = Draft(stream, "name")
    draft.keep("kept", np.zeros(64, np.uint8))
    rest = draft.allocate((1_000,), np.uint8)
    draft.finish({})
    assert rest.size == 1_000
    assert (tmp_path / "file").stat().st_size == mapped_arrays.room_for([64])


def test_a_file_has_room_up_to_its_end(stream: BinaryIO) -> None:
    draft = Draft(stream, "name")
    most = ROOM - mapped_arrays.room_for([])
    with pytest.raises(TypeError, match="too small"):
        draft.allocate((most + 1,), np.uint8)
    assert draft.keep("all", draft.allocate((most,), np.uint8)).size == most
    draft.finish({})
    assert os.fstat(stream.fileno()).st_size == ROOM


def test_only_arrays_that_are_sparse_are_read_by_the_page(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as opened:
        opened.truncate(16 * mmap.PAGESIZE)
        draft = Draft(opened, "name")
        for key, pages in (("dense", 2), ("sparse", 4), ("empty", 0), ("last", 2)):
            draft.keep(key, draft.allocate((pages * mmap.PAGESIZE + (64 if pages else 0),), np.uint8))
        draft.finish({mapped_arrays.SPARSE: ["sparse", "empty"]})
        opened.seek(0)
        del draft
        arrays, _ = mapped_arrays.read(opened, "name")
    start = arrays["dense"].ctypes.data
    pages = [(start + offset) // mmap.PAGESIZE for offset in range(0, 8 * mmap.PAGESIZE, mmap.PAGESIZE)]
    first = arrays["sparse"].ctypes.data
    last = first + arrays["sparse"].nbytes - 1
    expected = [first // mmap.PAGESIZE <= page <= last // mmap.PAGESIZE for page in pages]
    advised = random_pages(path)
    assert [page in advised for page in pages] == expected
    assert expected == [False, False, *5 * [True], False]


def random_pages(path: Path) -> set[int]:
    """Numbers of the mapped pages of a file that the system reads alone."""
    pages = set[int]()
    for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if str(path) in part and re.search(r"(?m)^VmFlags:.* rr\b", part):
            start, end = (int(number, 16) // mmap.PAGESIZE for number in part.split()[0].split("-"))
            pages |= {*range(start, end)}
    return pages
