import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.rows.dead_rows import DeadRows


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.booleans()), max_size=60),
    st.sets(st.integers(0, 7), max_size=3),
    st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 45))),
)
def test_nodes_of_emptied_files_and_of_deleted_rows_are_no_longer_live(
    nodes: list[tuple[int, int, bool]], emptied: set[int], deleted: dict[int, set[int]]
) -> None:
    slots, positions, live = (list(part) for part in zip(*nodes, strict=True)) if nodes else ([], [], [])
    rows = DeadRows(np.array(sorted(emptied), np.uint32), {s: np.array(sorted(p), int) for s, p in deleted.items()})
    is_live = np.array(live, bool)
    counts, removed = rows.remove(np.array(slots, np.uint32), np.array(positions, np.int64), is_live)
    is_dead = [slot in emptied or position in deleted.get(slot, ()) for slot, position, _ in nodes]
    assert is_live.tolist() == [was and not dead for was, dead in zip(live, is_dead, strict=True)]
    assert counts.tolist() == [slots.count(slot) for slot in range(len(counts))]
    fallen = [slot for slot, was, dead in zip(slots, live, is_dead, strict=True) if was and dead]
    assert removed.tolist() == [fallen.count(slot) for slot in range(len(removed))]
    assert len(counts) > max(slots, default=0)


def test_a_row_is_gone_by_its_file_or_its_position() -> None:
    rows = DeadRows(np.array([3], np.uint32), {0: np.array([1, 9]), 2: np.array([0])})
    slots = np.array([0, 0, 0, 0, 1, 2, 2, 3], np.uint32)
    is_live = np.ones(8, bool)
    counts, removed = rows.remove(slots, np.array([0, 1, 9, 10, 1, 0, 1, 5]), is_live)
    assert is_live.tolist() == [True, False, False, True, True, False, True, False]
    assert (counts.tolist(), removed.tolist()) == ([4, 1, 2, 1], [2, 0, 1, 1])


def test_arrays_of_other_lengths_and_negative_positions_are_refused() -> None:
    rows = DeadRows(np.array([1], np.uint32), {})
    slots, positions = np.zeros(3, np.uint32), np.zeros(3, np.int64)
    with pytest.raises(DimensionError, match="are not of 2 nodes"):
        rows.remove(slots, positions, np.ones(2, bool))
    with pytest.raises(DimensionError):
        rows.remove(slots, positions - 1, np.ones(3, bool))
