"""Vectors that lie apart from a shard's blob: read in pieces, and compared with what the routing blob has of them."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from icepuffin.ops.model import ObjectRange, StoredRun
from icepuffin.ops.shards.shard_reader import RunsReader, read_run
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from tests.conftest import STORAGE

BYTES = bytes(range(64))
"""What the file holds"""


def run_at(file: Path, offset: int, count: int) -> StoredRun:
    """A run of vectors of four bytes."""
    length = 4 * count
    sha256 = hashlib.sha256(BYTES[offset : offset + length]).digest()
    return StoredRun(ObjectRange(f"file://{file}", offset, length), count, sha256)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read by seven bytes."""
    monkeypatch.setattr(LocalStorage, "piece_bytes", 7)
    path = tmp_path / "a.puffin"
    path.write_bytes(BYTES)
    return path


def test_runs_are_read_in_pieces_one_after_the_other(file: Path) -> None:
    runs = run_at(file, 40, 5), run_at(file, 4, 1)
    assert [len(piece) for piece in read_run(runs[0], STORAGE)] == [7, 7, 6]
    assert RunsReader(runs, STORAGE).read().tobytes() == BYTES[40:60] + BYTES[4:8]


def test_vectors_that_are_not_those_of_the_routing_blob_are_refused(file: Path) -> None:
    other = replace(run_at(file, 8, 4), sha256=bytes(32))
    words = "the vectors at 8 do not have the sha256 of the routing blob"
    with pytest.raises(ChecksumError, match=rf"^file://{re.escape(str(file))}: {words}$"):
        RunsReader((run_at(file, 0, 2), other), STORAGE).read()


def test_vectors_behind_the_end_of_a_file_are_cut_off(file: Path) -> None:
    with pytest.raises(BadBlobError, match=r"the vectors at 56 are cut off$"):
        list(read_run(run_at(file, 56, 3), STORAGE))
