"""Which cells a query reads, and which of their rows are compared exactly."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icepuffin.ops.shards.cell_rows import MAX_BYTES, CellRows, are_coded, chosen_cells, nearest_first, require_codes
from icepuffin.puffin.errors import BadBlobError


@pytest.mark.parametrize(
    ("lengths", "probes", "cells"),
    [
        ([10, 10, 10], 2, 2),
        ([10, 10, 10], 5, 3),
        ([MAX_BYTES, 1], 2, 1),
        ([MAX_BYTES - 1, 1, 1], 3, 2),
        ([MAX_BYTES + 1, 1], 2, 1),
        ([MAX_BYTES // 2, MAX_BYTES, 1], 3, 1),
    ],
)
def test_the_nearest_cells_are_read_while_they_are_small_enough_and_one_in_any_case(
    lengths: list[int], probes: int, cells: int
) -> None:
    assert chosen_cells(np.array(lengths, np.int64), probes) == cells


def test_the_codes_of_cells_are_those_of_the_vectors() -> None:
    steps, nodes = np.array([1.0, 0.5], np.float32), np.array([1, 0], np.uint32)
    cell = SimpleNamespace(lows=np.zeros(2, np.float32), steps=steps, nodes=nodes, codes=np.array([[2, 6], [4, 8]]))
    cells: Any = SimpleNamespace(directory=SimpleNamespace(counts=[2], bits=8), cell=lambda _: cell)
    vectors = np.array([[4.5, 4.25], [2, 3]], np.float32)
    require_codes(cells, vectors)
    vectors[0, 1] += 0.1
    with pytest.raises(BadBlobError, match="the codes of cell 0 are not those"):
        require_codes(cells, vectors)


def rows_at(distances: np.ndarray) -> CellRows:
    count = len(distances)
    nodes = np.arange(count)[::-1].copy()
    numbers = np.arange(count)
    vectors = np.zeros((count, 1), np.float32)
    return CellRows(nodes, numbers, 2 * numbers, distances, vectors, np.zeros(count, np.float32))


@pytest.mark.parametrize(("bits", "count", "width"), [(4, 1, 11), (4, 4, 16), (8, 1, 11), (8, 10, 20), (8, 30, 60)])
def test_more_rows_than_are_searched_for_are_compared_the_nearest_first(bits: int, count: int, width: int) -> None:
    distances = np.random.default_rng(0).integers(0, 20, 80).astype(float)  # many are equal
    rows = rows_at(distances)
    places = nearest_first(rows, count, bits).tolist()
    assert places == sorted(range(80), key=lambda place: (distances[place], rows.nodes[place]))[:width]


def test_rows_of_cells_are_joined_chosen_and_moved() -> None:
    rows = CellRows.joined([rows_at(np.arange(3.0)), rows_at(np.arange(2.0))])
    assert rows.nodes.tolist() == [2, 1, 0, 1, 0]
    chosen = rows.take(rows.nodes > 0)
    assert (chosen.nodes.tolist(), chosen.distances.tolist()) == ([2, 1, 1], [0, 1, 0])
    moved = chosen.moved(np.array([10, 11, 12], np.uint32), np.array([100, 101, 102], np.int64))
    assert (moved.file_slots.tolist(), moved.row_positions.tolist()) == ([12, 11, 11], [102, 101, 101])


def test_codes_are_of_vectors_within_half_a_step() -> None:
    decoded, roundings = np.full((2, 2), 4.0, np.float32), np.array([0.5, 0.25], np.float32)
    assert are_coded(np.array([[4.5, 4.25], [3.5, 3.75]], np.float32), decoded, roundings)
    assert not are_coded(np.array([[4.5, 4.3], [4.0, 4.0]], np.float32), decoded, roundings)
    assert not are_coded(np.array([[4.0, 4.0], [3.4, 4.0]], np.float32), decoded, roundings)
    assert not are_coded(decoded[:1], decoded, roundings)
    assert not are_coded(np.full((2, 2), np.nan, np.float32), decoded, roundings)
