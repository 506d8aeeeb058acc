"""Rows of data files on their way: joined, sorted, and split by file, by range and by destination."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField

from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks import rows as rows_module
from icepuffin.ops.tasks.attribute_task import ColumnsOfFile
from icepuffin.ops.tasks.rows import VectorRows, by_file, range_of, undo_rounding
from icepuffin.ops.tasks.staged_blocks import BlockWriters, blocks_by_destination, read_in_order
from tests.conftest import STORAGE

RNG = np.random.default_rng(1)


def drawn_rows(count: int, dims: int = 3) -> VectorRows:
    return VectorRows(
        RNG.integers(0, 4, count).astype(np.uint32),
        RNG.integers(0, 2**40, count),
        RNG.integers(0, 2**63, count).astype(np.uint64) * np.uint64(2),
        RNG.standard_normal((count, dims)).astype(np.float32),
    )


def columns(rows: VectorRows) -> list[Any]:
    return [column.tolist() for column in (rows.slots, rows.positions, rows.hashes, rows.vectors)]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_rows_that_are_known_as_halves_get_the_vectors_of_their_equals(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_ROUNDED_AT_ONCE", at_once)
    known = drawn_rows(6)
    halves = replace(known, vectors=known.vectors.astype(np.float16).astype(np.float32))
    others = replace(drawn_rows(2), hashes=known.hashes[2:4])  # collisions
    others = replace(others, vectors=others.vectors.astype(np.float16).astype(np.float32))
    rows = VectorRows.joined([halves, known.take(np.array([3, 1])), others, halves.take(np.array([1, 5]))])
    undo_rounding(rows)
    expected = halves.vectors.copy()
    expected[[1, 3]] = known.vectors[[1, 3]]
    assert rows.vectors[:8].tolist() == [*expected.tolist(), *known.vectors[[3, 1]].tolist()]
    assert rows.vectors[8:10].tolist() == others.vectors.tolist()
    assert rows.vectors[10:].tolist() == [known.vectors[1].tolist(), halves.vectors[5].tolist()]
    before = halves.vectors.copy()
    undo_rounding(halves)
    assert (halves.vectors == before).all(), "nothing is known better"


def test_parts_are_joined_in_their_order_whichever_are_empty() -> None:
    parts = [drawn_rows(count) for count in (0, 4, 0, 2)]
    expected = [first + second for first, second in zip(columns(parts[1]), columns(parts[3]), strict=True)]
    assert columns(VectorRows.joined(parts)) == expected
    assert VectorRows.joined(parts[:3]) is parts[1]
    assert VectorRows.joined(parts[:1]) is parts[0], "it has the dimensions of vectors that are joined later"


@pytest.mark.parametrize("bits", [0, 1, 7])
def test_ranges_are_of_the_leading_bits(bits: int) -> None:
    hashes = drawn_rows(90).hashes
    assert range_of(hashes, bits).tolist() == [number >> (64 - bits) for number in hashes.tolist()]


@pytest.mark.parametrize("largest", [5, 2**16 - 1, 2**16, 2**31])
def test_places_of_a_file_ascend(largest: int) -> None:
    files = RNG.choice(np.array([0, 3, largest], np.uint32), 60)
    assert {file: places.tolist() for file, places in by_file(files)} == {
        file: np.flatnonzero(files == file).tolist() for file in np.unique(files).tolist()
    }


@pytest.mark.parametrize("dims", [0, 3])
def test_each_row_is_staged_for_its_destination(tmp_path: Path, dims: int) -> None:
    tasks = []
    parts = [(drawn_rows(count, dims), RNG.choice([2, 7], count)) for count in (6, 5)]
    for number, (rows, destinations) in enumerate(parts):
        with contextlib.ExitStack() as stack:
            writers = BlockWriters(f"{tmp_path}/{number}", dims, LocalStorage(), stack)
            writers.write(rows, destinations)
        tasks.append(writers.blocks())
    blocks = blocks_by_destination(tasks)
    assert sorted(blocks) == [2, 7]
    for destination, own in blocks.items():
        expected = VectorRows.joined([rows.take(np.flatnonzero(to == destination)) for rows, to in parts])
        assert columns(read_in_order(STORAGE, own, dims)) == columns(expected)


def test_reading_columns_takes_eight_bytes_per_value_and_more_per_list() -> None:
    tags = ListType(3, LongType(), element_required=False)
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "tags", tags, required=False))
    sizes = [
        ColumnsOfFile(FileSlot(0), LiveFile("f", 1, 100, 1, "PARQUET"), fields).size(schema)
        for fields in ((1,), (1, 2))
    ]
    assert sizes[0] == 800
    assert sizes[1] > 2 * sizes[0]
