"""Rows in common, against sets."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.rows.postings import NO_NODE, Postings, common_rows
from tests.naive.postings import common

SIZES = st.sampled_from([1, 63, 64, 300, 2_000, 20_000, 20_000])


def postings_of(lists: list[list[int]], size: int, parts: int = 1) -> Postings:
    """The lists, in so many parts."""
    bounds = np.linspace(0, len(lists), parts + 1).astype(int)
    return Postings.from_parts([part_of(lists[first:last]) for first, last in pairwise(bounds)], size)


def part_of(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return starts, np.array([row for rows in lists for row in rows], np.uint32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[list[int]], list[list[int]], int]:
    """(rows, lists, lists of each query, limit): lists of all lengths, some equal, some runs of rows."""
    size = draw(SIZES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lists: list[list[int]] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = rng.integers(5)
        if kind == 0 and lists:
            lists.append(lists[rng.integers(len(lists))])
        elif kind == 1:
            first = int(rng.integers(size))
            lists.append(list(range(first, min(size, first + int(rng.integers(1 + size // 20))))))
        elif kind == 2 and lists:  # a part of another one, and some rows beside it
            rows = np.array(lists[rng.integers(len(lists))], int)
            lists.append(np.unique(np.append(rows[rng.random(len(rows)) < 0.3], rng.integers(size, size=4))).tolist())
        else:
            share = rng.choice([0.0, 0.001, 0.005, 0.015, 0.03, 0.05, 1.0])
            lists.append(np.flatnonzero(rng.random(size) < share).tolist())
    chosen = st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=5)
    queries = draw(st.lists(chosen, max_size=6))
    return size, lists, queries, draw(st.sampled_from([0, 1, 10, size]))


@settings(deadline=None, max_examples=300)
@given(cases(), st.integers(1, 3))
def test_common_rows_are_those_of_all_lists(
    case: tuple[int, list[list[int]], list[list[int]], int], parts: int
) -> None:
    size, lists, queries, limit = case
    postings = postings_of(lists, size, parts)
    rng = np.random.default_rng(size)
    node_of_row = rng.permutation(size).astype(np.uint32)
    node_of_row[rng.random(size) < 0.2] = NO_NODE
    starts = np.cumsum([0, *map(len, queries)]).astype(np.int64)
    chosen = np.array([number for query in queries for number in query], np.int32)
    answer = common_rows(postings, chosen, starts, node_of_row, limit)
    for place, query in enumerate(queries):
        rows = common(lists, query)
        nodes = [node for node in node_of_row[rows].tolist() if node != NO_NODE]
        own = answer.nodes[answer.starts[place] : answer.starts[place + 1]].tolist()
        if len(nodes) > limit:
            assert (answer.counts[place], own) == (-1, [])
        else:
            assert (answer.counts[place], own) == (len(rows), nodes)


def test_lists_with_many_rows_have_bitmaps_and_others_do_not() -> None:
    lists = [list(range(0, 640, 31)), list(range(0, 640, 33)), list(range(640)), []]
    postings = postings_of(lists, 640)
    assert postings.bitmaps.tolist() == [0, -1, 1, -1]
    assert len(postings) == 4
    nodes = np.arange(640, dtype=np.uint32)
    pairs = [(one, other) for one in range(4) for other in range(4)]
    answer = common_rows(postings, np.array(pairs, np.int32).reshape(-1), 2 * np.arange(17), nodes, 640)
    for place, pair in enumerate(pairs):
        own = answer.nodes[answer.starts[place] : answer.starts[place + 1]].tolist()
        assert own == common(lists, pair)
