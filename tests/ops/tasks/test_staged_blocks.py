"""Staged rows: a loss on the way is noticed."""

import contextlib
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, ShardId
from icepuffin.ops.storage import StorageError
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks import markers, scatter
from icepuffin.ops.tasks.markers import StagedDamageError
from icepuffin.ops.tasks.matching.match_hashes import StagedMoves, read_moves
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.scatter import RowSelection, ScatterTask
from icepuffin.ops.tasks.staged_blocks import BlockWriters, read_blocks
from icepuffin.ops.tasks.vectors import VectorColumn
from icepuffin.puffin.blobs import addresses_blob, deletion_vector_blob
from icepuffin.puffin.errors import ChecksumError
from tests.conftest import STORAGE

STORE = LocalStorage()


def staged(folder: Path, batches: int) -> tuple[str, int]:
    """One block of so many batches of ten rows."""
    with contextlib.ExitStack() as stack:
        writers = BlockWriters(f"{folder}/block", 2, STORE, stack)
        for start in range(0, 10 * batches, 10):
            positions = np.arange(start, start + 10)
            vectors = np.zeros((10, 2), np.float32)
            writers.write(
                VectorRows(np.zeros(10, np.uint32), positions, positions.astype(np.uint64), vectors), np.zeros(10)
            )
    ((_, path, rows),) = writers.blocks()
    return path, rows


def test_rows_come_back_in_order_whoever_staged_them(tmp_path: Path) -> None:
    blocks = [staged(tmp_path, 3), staged(tmp_path, 1)]
    assert read_blocks(STORAGE, blocks, 2).positions.tolist() == sorted([*range(30), *range(10)])


def test_each_change_of_what_is_scattered_is_another_marker() -> None:
    """Of the table, or of the version that a retry starts from."""
    column = VectorColumn(Schema(), 3, 2, Metric.L2, STORAGE)
    file = LiveFile("file:///data/a.parquet", 100, 10, 1, "PARQUET")
    shards = np.arange(2, dtype=np.uint32)
    codebook, files = np.eye(2, dtype=np.float32), (RowSelection(FileSlot(0), file),)
    task = ScatterTask(0, files, column, codebook, shards, "f32", "staging", recorded=True)
    selections = [
        RowSelection(FileSlot(1), file),
        RowSelection(FileSlot(0), replace(file, record_count=11)),
        RowSelection(FileSlot(0), file, deletion_vector_blob.encode(np.arange(3))),
        RowSelection(FileSlot(0), file, deletion_vector_blob.encode(np.arange(4))),
    ]
    others = [replace(task, files=(selection,)) for selection in selections]
    others += [
        replace(task, column=replace(column, field_id=4)),
        replace(task, column=replace(column, metric=Metric.COSINE)),
        replace(task, codebook=2 * task.codebook),
        replace(task, partition_to_shard=shards[::-1]),
    ]
    names = {markers.name_of("scatter-0", scatter._inputs(one)) for one in (task, *others)}
    assert len(names) == 1 + len(others)


def test_a_block_that_lost_rows_is_refused(tmp_path: Path) -> None:
    short, _ = staged(tmp_path, 2)
    with pytest.raises(StagedDamageError, match="hold 20 of the 30 rows staged"):
        read_blocks(STORAGE, [(short, 30)], 2)


def test_each_flipped_byte_of_a_block_is_noticed_or_without_effect(tmp_path: Path) -> None:
    path, rows = staged(tmp_path, 2)
    sound, data = read_blocks(STORAGE, [(path, rows)], 2), Path(path).read_bytes()
    noticed = 0
    for place in range(len(data)):
        Path(path).write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            read = read_blocks(STORAGE, [(path, rows)], 2)
        except StagedDamageError:
            noticed += 1
            continue
        assert all(np.array_equal(getattr(read, name), getattr(sound, name)) for name in VectorRows.__slots__)
    assert noticed > 20 * (4 + 8 + 8 + 8), "the values of the rows"


def test_a_block_in_place_of_another_is_noticed(tmp_path: Path) -> None:
    (path, rows), (other, _) = staged(tmp_path, 2), staged(tmp_path, 2)
    Path(path).write_bytes(Path(other).read_bytes())
    with pytest.raises(StagedDamageError, match="is not as it was written"):
        read_blocks(STORAGE, [(path, rows)], 2)


def test_moves_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    STORE.create(f"{tmp_path}/moves", bytes(40))
    with pytest.raises(StorageError, match="holds 40 of 60 bytes"):
        read_moves(STORE, moves(ObjectRange(f"{tmp_path}/moves", 0, 60)))


def test_moves_are_read_as_staged_and_others_are_refused(tmp_path: Path) -> None:
    slots, positions = np.array([4, 4, 9], np.uint32), np.array([2**35, 0, 7])
    data = addresses_blob.encode(slots, positions)
    STORE.create(f"{tmp_path}/moves", data)
    nodes, moved = read_moves(STORE, moves(ObjectRange(f"{tmp_path}/moves", 0, len(data))))
    assert nodes.tolist() == [1, 5, 6]
    assert [part.tolist() for part in moved] == [slots.tolist(), positions.tolist()]
    STORE.create(f"{tmp_path}/other", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ChecksumError):
        read_moves(STORE, moves(ObjectRange(f"{tmp_path}/other", 0, len(data))))


def moves(where: ObjectRange) -> StagedMoves:
    """Moves of three nodes, staged there."""
    return StagedMoves(ShardId(0), deletion_vector_blob.encode(np.array([1, 5, 6])), where)


def test_more_blocks_are_written_than_a_process_may_open_at_first(tmp_path: Path) -> None:
    count = 400
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
    try:
        zeros = np.zeros(count, np.int64)
        rows = VectorRows(zeros.astype(np.uint32), zeros, zeros.astype(np.uint64), np.zeros((count, 2), np.float32))
        with contextlib.ExitStack() as stack:
            writers = BlockWriters(f"{tmp_path}/block", 2, STORE, stack)
            writers.write(rows, np.arange(count))
        assert [rows for _, _, rows in writers.blocks()] == [1] * count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
