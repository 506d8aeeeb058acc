"""Rows that are matched with nodes by hash: as a naive pairing has it, and in little memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.matching import pair_equal
from icepuffin.ops.model import FileSlot, LiveFile, ShardId
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.file_balls import rows_outside
from icepuffin.ops.tasks.matching.match_hashes import (
    DeadHashTask,
    HashTask,
    MatchResult,
    MatchTask,
    hash_files,
    match_rows,
    read_moves,
    stage_dead_hashes,
    stage_matches,
)
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import blocks_by_destination
from icepuffin.ops.tasks.vectors import VectorColumn, content_hashes
from icepuffin.puffin.blobs import deletion_vector_blob
from tests.ops.cache.stored import DIMS, ROWS, STORAGE, random_shard, stored


def rows_of(files: npt.NDArray[np.uint32], hashes: npt.NDArray[np.uint64]) -> VectorRows:
    """Rows of data files or of shards, by file and position."""
    files = np.sort(files).astype(np.uint32)
    starts = np.searchsorted(files, files)
    return VectorRows(files, np.arange(len(files)) - starts, hashes, np.empty((len(files), 0), np.float32))


def matched(folder: Path, new: VectorRows, dead: VectorRows) -> MatchResult:
    folder.mkdir(exist_ok=True)
    task = MatchTask(0, 0, (), (), (), f"file://{folder}", STORAGE)
    storage = open_storage(task.staging, STORAGE)
    partner = pair_equal(dead.hashes, new.hashes)
    return stage_matches(task, storage, new, dead.slots, dead.positions, partner)


files_and_hashes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=40)


@given(new=files_and_hashes, dead=files_and_hashes)
def test_the_nth_node_of_a_hash_gets_the_nth_row_of_it(
    tmp_path_factory: pytest.TempPathFactory, new: list[tuple[int, int]], dead: list[tuple[int, int]]
) -> None:
    sides = [
        rows_of(np.array([file for file, _ in side], np.uint32), np.array([value for _, value in side], np.uint64))
        for side in (new, dead)
    ]
    result = matched(tmp_path_factory.mktemp("moves"), *sides)
    rows, nodes = (
        [
            (int(file), int(place), int(value))
            for file, place, value in zip(it.slots, it.positions, it.hashes, strict=True)
        ]
        for it in sides
    )
    expected = {}
    for shard, node, value in nodes:
        row = next((row for row in rows if row[2] == value), None)
        if row is not None:
            rows.remove(row)
            expected[shard, node] = row[:2]
    storage = open_storage("file:///", STORAGE)
    actual = {}
    for moves in result.moves:
        moved, (slots, positions) = read_moves(storage, moves)
        for node, slot, position in zip(moved.tolist(), slots.tolist(), positions.tolist(), strict=True):
            actual[int(moves.shard_id), node] = slot, position
    assert actual == expected
    unmatched = {
        (slot, int(place)) for slot, places in result.unmatched for place in deletion_vector_blob.decode(places)
    }
    assert unmatched == {row[:2] for row in rows}


@pytest.mark.parametrize("are_staged", [True, False])
def test_rows_get_the_nodes_of_their_vectors_range_by_range(tmp_path: Path, are_staged: bool) -> None:
    """A file of many row groups, most of which have no row that is looked for."""
    shard = random_shard()
    vectors = np.asarray(shard.vectors)
    shard = replace(shard, content_hashes=content_hashes(vectors))
    dead = ShardId(4), stored(tmp_path, shard).stored, deletion_vector_blob.encode(np.arange(20))
    element = pa.field("element", pa.float32(), metadata={b"PARQUET:field_id": b"3"})
    field = pa.field("v", pa.list_(element), metadata={b"PARQUET:field_id": b"2"})
    order, path = np.arange(ROWS)[::-1], tmp_path / "new.parquet"
    pq.write_table(
        pa.table([pa.array(vectors[order].tolist(), field.type)], pa.schema([field])), path, row_group_size=1
    )
    file = LiveFile(f"file://{path}", path.stat().st_size, ROWS, 1, "PARQUET")
    schema = Schema(NestedField(2, "v", ListType(3, FloatType(), element_required=False), required=False))
    column, staging = VectorColumn(schema, 2, DIMS, Metric.L2, STORAGE), f"file://{tmp_path}/staging"
    sought = RowSelection(FileSlot(7), file, deletion_vector_blob.encode(np.arange(30, 55)))
    hashed = hash_files(HashTask(0, (sought,), column, 2, staging))
    assert hashed.live_rows == ((7, 25),)
    assert hashed.balls.slots.tolist() == [7], "those of 25 batches are one"
    assert rows_outside(vectors[order[30:55]], [(hashed.balls.centers[0], float(hashed.balls.radii[0]))]) == 0
    blocks = blocks_by_destination([hashed.blocks])
    dead_blocks = blocks_by_destination([stage_dead_hashes(DeadHashTask(0, (dead,), 2, staging, STORAGE))])
    assert len(dead_blocks) == 4
    moves, unmatched = {}, set[int]()
    for number, of_range in blocks.items():
        nodes_from: Any = ((), dead_blocks[number]) if are_staged else ((dead,), ())
        result = match_rows(MatchTask(number, 2, of_range, *nodes_from, staging, STORAGE))
        for of_shard in result.moves:
            nodes, (slots, positions) = read_moves(open_storage(of_shard.staged.path, STORAGE), of_shard)
            assert (of_shard.shard_id, {*slots.tolist()}) == (4, {7})
            moves |= dict(zip(nodes.tolist(), positions.tolist(), strict=True))
        unmatched |= {place for _, rest in result.unmatched for place in deletion_vector_blob.decode(rest).tolist()}
    assert moves == {int(order[place]): place for place in range(30, 55) if order[place] < 20}
    assert unmatched == {place for place in range(30, 55) if order[place] >= 20}


def test_matches_are_staged_shard_by_shard(tmp_path: Path) -> None:
    """Copies of all rows would take as much as the rows and the nodes themselves."""
    count = 400_000
    hashes = np.random.default_rng(0).permutation(count).astype(np.uint64)
    new = rows_of(np.arange(count) // 4_000, hashes)
    dead = rows_of(np.arange(count) // 4_000, hashes[::-1].copy())
    matched(tmp_path, new, dead)  # kernels are loaded
    tracemalloc.start()
    try:
        result = matched(tmp_path, new, dead)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [moves.shard_id for moves in result.moves] == [*range(100)]
    assert {len(deletion_vector_blob.decode(moves.nodes)) for moves in result.moves} == {4_000}
    assert result.unmatched == ()
    assert peak < 26 * count, peak / count
