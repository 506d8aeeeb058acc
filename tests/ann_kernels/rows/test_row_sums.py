import numpy as np
import pytest

from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.rows.row_sums import add_live_nodes, add_rows

FILES = 5


def sums_of(slots: np.ndarray, positions: np.ndarray, hashes: np.ndarray) -> tuple[list[int], list[int]]:
    counts, sums = np.zeros(FILES, np.int64), np.zeros(FILES, np.uint64)
    add_rows(slots, positions, hashes, counts, sums)
    return counts.tolist(), sums.tolist()


def rows(seed: int = 0, count: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.integers(FILES, size=count).astype(np.uint32),
        np.arange(count),
        rng.integers(2**63, size=count).astype(np.uint64),
    )


def test_order_and_parts_do_not_matter() -> None:
    slots, positions, hashes = rows()
    order = np.random.default_rng(1).permutation(len(slots))
    counts, sums = np.zeros(FILES, np.int64), np.zeros(FILES, np.uint64)
    for part in (order[:100], order[100:]):
        add_rows(slots[part], positions[part], hashes[part], counts, sums)
    assert (counts.tolist(), sums.tolist()) == sums_of(slots, positions, hashes)
    assert counts.tolist() == np.bincount(slots, minlength=FILES).tolist()


@pytest.mark.parametrize("what", ["a position", "a hash", "two hashes swapped", "a row twice and another not"])
def test_whatever_differs_shows(what: str) -> None:
    slots, positions, hashes = rows()
    slots[:2] = 3
    before = sums_of(slots, positions, hashes)
    if what == "a position":
        positions[0] += 1000
    elif what == "a hash":
        hashes[0] ^= np.uint64(1)
    elif what == "two hashes swapped":
        hashes[:2] = hashes[1::-1]
    else:
        positions[0], hashes[0] = positions[1], hashes[1]
    after = sums_of(slots, positions, hashes)
    assert after[0] == before[0]
    assert [file for file in range(FILES) if after[1][file] != before[1][file]] == [3]


def test_slots_without_a_file_and_positions_without_a_hash_are_refused() -> None:
    slots, positions, hashes = rows()
    with pytest.raises(DimensionError, match="slot 9 of 5 files"):
        sums_of(np.full(len(slots), 9, np.uint32), positions, hashes)
    with pytest.raises(DimensionError, match="are no rows"):
        sums_of(slots, positions[1:], hashes)


def test_live_nodes_are_added_as_their_rows_and_those_between_two_positions_are_given() -> None:
    slots, positions, _ = rows()
    is_live = np.random.default_rng(1).random(len(slots)) < 0.8
    firsts, lasts = np.full(FILES, 500), np.full(FILES, -1)
    firsts[[1, 3]], lasts[[1, 3]] = (100, 7), (180, 7 + FILES)
    counts, sums = np.zeros(FILES, np.int64), np.zeros(FILES, np.uint64)
    nodes = add_live_nodes(slots, positions, is_live, firsts, lasts, counts, sums)
    alive = np.flatnonzero(is_live)
    nothing = np.zeros(len(alive), np.uint64)
    assert (counts.tolist(), sums.tolist()) == sums_of(slots[alive], positions[alive], nothing)
    is_between = (positions >= firsts[slots]) & (positions <= lasts[slots])
    assert nodes.tolist() == np.flatnonzero(is_live & is_between).tolist()
    assert len(nodes) > 3


def test_the_first_and_the_last_position_are_between_the_two() -> None:
    slots, positions = np.zeros(9, np.uint32), np.arange(9)
    tally = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    nodes = add_live_nodes(slots, positions, np.ones(9, np.bool_), np.array([3]), np.array([6]), *tally)
    assert nodes.tolist() == [3, 4, 5, 6]


def test_nodes_in_no_file_and_arrays_of_other_lengths_are_refused() -> None:
    slots, positions, _ = rows()
    tally = np.zeros(FILES, np.int64), np.zeros(FILES, np.uint64)
    every = np.ones(len(slots), np.bool_)
    with pytest.raises(DimensionError, match="slot 4 of 4 files"):
        add_live_nodes(slots, positions, every, *np.zeros((2, 4), np.int64), *(part[:4] for part in tally))
    with pytest.raises(DimensionError, match="are not of 499 nodes"):
        add_live_nodes(slots, positions, every[1:], *np.zeros((2, FILES), np.int64), *tally)
    with pytest.raises(DimensionError):
        add_live_nodes(slots, positions, every, np.zeros(1, np.int64), np.zeros(FILES, np.int64), *tally)
