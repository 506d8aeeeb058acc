"""Packed row addresses."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.rows.addresses import addresses_of, rows_at

ROWS = st.lists(st.tuples(st.integers(0, 2**27 - 1), st.integers(0, 2**36 - 1)), max_size=20)


@given(ROWS)
def test_unpacking_gives_what_was_packed(rows: list[tuple[int, int]]) -> None:
    files, positions = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ([], [])))
    unpacked_files, unpacked_positions = rows_at(addresses_of(files, positions))
    assert unpacked_files.tolist() == files.tolist()
    assert unpacked_positions.tolist() == positions.tolist()


@given(ROWS)
def test_addresses_sort_by_file_then_by_position(rows: list[tuple[int, int]]) -> None:
    files, positions = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ([], [])))
    order = np.argsort(addresses_of(files, positions), kind="stable").tolist()
    assert [rows[place] for place in order] == sorted(rows)


def test_file_slots_of_32_bits_are_not_cut_off() -> None:
    assert rows_at(addresses_of(np.array([2**20], np.uint32), np.array([7], np.int64)))[0].tolist() == [2**20]


def test_no_row_stays_no_row() -> None:
    files, positions = rows_at(addresses_of(np.array([-1, 3]), np.array([-1, 5])))
    assert (files.tolist(), positions.tolist()) == ([-1, 3], [-1, 5])
