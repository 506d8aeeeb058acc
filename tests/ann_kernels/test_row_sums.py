import numpy as np
import pytest

from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.row_sums import add_rows

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
