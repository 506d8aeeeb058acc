"""Files mapped as a private copy."""

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.process.private_map import PrivateMap, advise_random
from tests.open_files import open_files_in

_MAPS = Path("/proc/self/maps")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(range(256)) * 64)
    return path


def mapped(path: Path, size: int) -> np.ndarray:
    with path.open("rb") as stream:
        return PrivateMap(stream.fileno(), size).bytes()


def test_it_has_the_bytes_of_the_file_and_no_open_file(file: Path) -> None:
    arrays = [mapped(file, 10_000) for _ in range(20)]
    assert open_files_in(file.parent) == []
    with file.open("rb"):
        assert open_files_in(file.parent) == [str(file)], "one would show"
    assert all(array.tobytes() == file.read_bytes()[:10_000] for array in arrays)


def test_what_is_written_stays_in_the_process(file: Path) -> None:
    before = file.read_bytes()
    one, other = mapped(file, 10_000), mapped(file, 10_000)
    one[:] = 7
    assert (one == 7).all()
    assert other.tobytes() == before[:10_000]
    assert file.read_bytes() == before


def test_it_stays_good_without_the_file_until_no_array_refers_to_it(file: Path) -> None:
    array, expected = mapped(file, 16_384), file.read_bytes()
    file.unlink()
    part = array[5_000:6_000].view(np.uint16)
    del array
    gc.collect()
    assert part.tobytes() == expected[5_000:6_000]
    assert str(file) in _MAPS.read_text()
    del part
    gc.collect()
    assert str(file) not in _MAPS.read_text()


def test_what_cannot_be_mapped_is_an_error(file: Path) -> None:
    handle = os.open(file, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            PrivateMap(handle, 4_096)
    finally:
        os.close(handle)


_READ_AT_EXIT = """
import atexit, sys
arrays = []
atexit.register(lambda: print(arrays[0].sum()))
from icepuffin.ops.process.private_map import PrivateMap
with open(sys.argv[1], "rb") as stream:
    arrays.append(PrivateMap(stream.fileno(), 10_000).bytes())
"""


def test_it_stays_good_until_the_process_has_ended(file: Path) -> None:
    """What runs at exit may still read arrays."""
    done = subprocess.run([sys.executable, "-c", _READ_AT_EXIT, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [str(sum(file.read_bytes()[:10_000]))])


def test_advice_that_is_refused_is_an_error(file: Path) -> None:
    array = mapped(file, 16_384)
    advise_random(array.ctypes.data + mmap.PAGESIZE, 5)
    with pytest.raises(OSError, match="Invalid argument"):
        advise_random(array.ctypes.data + 1, 5)
