"""Lists of the rows that have a term, beside loops over the rows."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text.term_lists import invert, pack, unpack

rows_of_terms = st.lists(st.lists(st.integers(-1, 12), max_size=12), max_size=300)


def packed_lists(rows: list[list[int]], number: int) -> tuple[list[bytes], list[int]]:
    """(the packed list of each term, numbers of its rows)."""
    terms = np.array([term for row in rows for term in row], np.int32)
    starts, own, counts = invert(terms, np.cumsum([len(row) for row in rows], dtype=np.int64), number)
    data, ends = pack(np.arange(number, dtype=np.int64), starts, own, counts)
    places = [0, *ends.tolist()]
    lists = [data[start:end].tobytes() for start, end in pairwise(places)]
    return lists, np.diff(starts).tolist()


@given(rows=rows_of_terms)
def test_lists_have_the_rows_of_each_term_and_how_often(rows: list[list[int]]) -> None:
    lists, sizes = packed_lists(rows, 13)
    for term, (data, size) in enumerate(zip(lists, sizes, strict=True)):
        found, counts = unpack(np.frombuffer(data, np.uint8), size, len(rows))
        expected = {row: Counter(terms)[term] for row, terms in enumerate(rows) if term in terms}
        assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == expected
        assert found.tolist() == sorted(expected)


def test_steps_and_counts_of_all_widths_come_back() -> None:
    steps = np.repeat([1 << bits for bits in range(24)], 11).astype(np.int64)
    rows = np.cumsum(steps).astype(np.uint32)
    counts = np.resize([1, 2, 1 << 20, 0xFFFFFFFF], len(rows)).astype(np.uint32)
    data, _ = pack(np.zeros(1, np.int64), np.array([0, len(rows)]), rows, counts)
    found, often = unpack(data, len(rows), int(rows[-1]) + 1)
    assert (found.tolist(), often.tolist()) == (rows.tolist(), counts.tolist())


@given(rows=rows_of_terms, cut=st.integers(1, 5), flip=st.integers(0, 2**20))
def test_what_is_no_list_is_refused_or_is_within_its_limits(rows: list[list[int]], cut: int, flip: int) -> None:
    rows = [[0, *row] for row in rows or [[]]]
    (data, *_), (size, *_) = packed_lists(rows, 13)
    for broken in (data[:-cut], data + b"\0", b""):
        with pytest.raises(KernelError, match=r"no list of|cannot have"):
            unpack(np.frombuffer(broken, np.uint8), size, len(rows))
    with pytest.raises(KernelError, match="no list of"):
        unpack(np.frombuffer(data, np.uint8), size, len(rows) - 1)
    flipped = np.frombuffer(data, np.uint8).copy()
    flipped[flip // 8 % len(flipped)] ^= 1 << flip % 8
    try:
        found, counts = unpack(flipped, size, len(rows))
    except KernelError:
        return
    assert (np.diff(found.astype(np.int64)) > 0).all()
    assert found.max() < len(rows)
    assert counts.min() > 0


def test_a_short_text_cannot_claim_many_rows() -> None:
    with pytest.raises(KernelError, match="cannot have 1000000 rows"):
        unpack(np.zeros(2, np.uint8), 1_000_000, 1 << 30)


def test_terms_and_rows_that_do_not_fit_are_refused() -> None:
    for terms, ends in (([2], [1]), ([-2], [1]), ([0], [2]), ([0, 0], [2, 1]), ([0], [-1])):
        with pytest.raises(KernelError, match=r"not among|must ascend"):
            invert(np.array(terms, np.int32), np.array(ends, np.int64), 2)
