import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.storage import direct_io
from icepuffin.ops.storage.direct_io import DirectSink

BLOCK = 4_096
LENGTHS = (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7, 64 * BLOCK, 150 * BLOCK + 5)


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "_BUFFER", 16 * BLOCK)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source"
    file.write_bytes(np.random.default_rng(0).bytes(200 * BLOCK))
    return file


def joined(path: Path, source: Path) -> bytes:
    """Write ranges of a file and bytes in turn. Returns the expected bytes."""
    whole = source.read_bytes()
    with source.open("rb") as original, path.open("xb") as copy, DirectSink(copy.fileno()) as sink:
        for number, length in enumerate(LENGTHS):
            sink.append(whole[:length])
            assert sink.append_range(original.fileno(), 100 * number, length) == length
    return b"".join(whole[:length] + whole[100 * n : 100 * n + length] for n, length in enumerate(LENGTHS))


def test_ranges_and_bytes_are_joined(tmp_path: Path, source: Path) -> None:
    assert joined(tmp_path / "joined", source) == (tmp_path / "joined").read_bytes()


def test_whole_blocks_go_past_the_cache_and_only_they(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: dict[bool, list[int]] = {True: [], False: []}
    real = os.write

    def seen(handle: int, data: memoryview) -> int:
        lengths[bool(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT)].append(len(data))
        return real(handle, data)

    monkeypatch.setattr(direct_io.os, "write", seen)
    expected = joined(tmp_path / "joined", source)
    if not lengths[True]:
        pytest.skip("this file system has no way past its cache")
    assert not any(length % BLOCK for length in lengths[True])
    assert lengths[False] == [len(expected) % BLOCK]


@pytest.mark.parametrize("refused", ["the switch", "the write"])
def test_a_file_system_that_cannot_is_written_through_its_cache(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    write, control = os.write, fcntl.fcntl

    def picky_write(handle: int, data: memoryview) -> int:
        if refused == "the write" and control(handle, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "unaligned")
        return write(handle, data)

    def picky_control(handle: int, command: int, flags: int = 0) -> int:
        if refused == "the switch" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "unsupported")
        return control(handle, command, flags)

    monkeypatch.setattr(direct_io.os, "write", picky_write)
    monkeypatch.setattr(direct_io.fcntl, "fcntl", picky_control)
    assert joined(tmp_path / "joined", source) == (tmp_path / "joined").read_bytes()


def test_flags_that_cannot_be_set_for_another_reason_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fcntl.fcntl

    def picky_control(handle: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EPERM, "forbidden")
        return control(handle, command, flags)

    monkeypatch.setattr(direct_io.fcntl, "fcntl", picky_control)
    with (tmp_path / "out").open("xb") as taken, pytest.raises(OSError, match="forbidden"):
        DirectSink(taken.fileno())


def test_a_range_past_the_end_says_how_much_there_was(tmp_path: Path, source: Path) -> None:
    with source.open("rb") as given, (tmp_path / "out").open("xb") as taken, DirectSink(taken.fileno()) as sink:
        assert sink.append_range(given.fileno(), 199 * BLOCK, 2 * BLOCK) == BLOCK


def test_an_error_of_the_writing_thread_is_raised(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, []

    def fails_once(handle: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return real(handle, data)

    monkeypatch.setattr(direct_io.os, "write", fails_once)
    with pytest.raises(OSError, match="full"):
        joined(tmp_path / "joined", source)
    assert len(calls) == 2  # what comes after a gap is not written


def interrupted(path: Path) -> None:
    with path.open("xb") as taken, DirectSink(taken.fileno()) as sink:
        sink.append(b"held")
        raise KeyError


def test_after_an_error_nothing_more_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        interrupted(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""
