"""Rows that are matched with nodes by hash: as a naive pairing has it, and in little memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.rows.matching import pair_equal
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.matching.match_hashes import MatchResult, MatchTask, read_moves, stage_matches
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.puffin.blobs import deletion_vector_blob

STORAGE = StorageConfig({})


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
