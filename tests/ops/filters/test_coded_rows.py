"""Rows by the codes of their values, and conditions on these, beside comparing each row."""

from dataclasses import replace

import numpy as np
import pytest

from icepuffin.ops.filters.coded_rows import (
    NO_LIST,
    CodedRows,
    ColumnPart,
    Combination,
    ListPart,
    Lists,
    evaluate,
)
from icepuffin.puffin.blobs.attributes_blob import NULL, WHOLE, WITH_NULL


@pytest.mark.parametrize(("kind", "codes"), [(np.uint8, 3), (np.uint8, 200), (np.uint16, 900), (np.uint32, 1 << 17)])
def test_rows_of_codes_are_those_that_have_them(kind: type[np.unsignedinteger], codes: int) -> None:
    """Frequent codes and rare ones, runs of codes, and more runs than are looked up one by one."""
    rng = np.random.default_rng(codes)
    skewed = (codes * rng.random(2_000) ** 4).astype(kind)
    rows = CodedRows(skewed, codes)
    for most in (1, 4, 40) * 4:
        true = np.zeros(codes, np.bool_)
        for first in rng.choice(skewed, rng.integers(most)).astype(int):
            true[first : first + rng.integers(1, 1 + codes // 3 if rng.random() < 0.2 else 3)] = True
        part = ColumnPart.from_mask(1, true)
        each = ColumnPart(1, [(code, code) for code in np.flatnonzero(true).tolist()])
        for one in (part, each):
            assert np.array_equal(one.rows(rows).marked(), true[skewed])
            assert one.count(rows) == np.count_nonzero(true[skewed])
        assert part.runs == sorted(part.runs)


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_a_conjunction_are_those_for_which_each_part_is_true(seed: int) -> None:
    """Of rare values and frequent ones, one value or several, in any order."""
    rng = np.random.default_rng(seed)
    columns = {
        field: CodedRows((60 * rng.random(3_000) ** power).astype(np.uint8), 60) for field, power in ((1, 1), (2, 9))
    }
    columns[3] = CodedRows(rng.integers(0, 5, 3_000).astype(np.uint16), 5)
    parts, expected = [], np.ones(3_000, np.bool_)
    for field in rng.permutation([1, 2, 3, 2])[: rng.integers(1, 5)].tolist():
        true = np.zeros(len(columns[field].starts) - 1, np.bool_)
        first = int(rng.choice(columns[field].codes))
        true[first : first + rng.choice([1, 1, 3])] = True
        true[int(rng.choice(columns[field].codes))] |= rng.random() < 0.7
        parts.append(ColumnPart.from_mask(field, true))
        expected &= true[columns[field].codes]
    rows = evaluate(Combination(every=True, parts=tuple(parts)), columns)
    assert np.array_equal(rows.marked(), expected)
    assert rows.count() == np.count_nonzero(expected)


def test_of_parts_that_are_never_true_no_row_is_left() -> None:
    columns = {field: CodedRows(np.arange(300).astype(np.uint16) % 40, 40) for field in (1, 2)}
    never, rare, often = ColumnPart(1, []), ColumnPart(2, [(3, 3)]), ColumnPart(1, [(0, 9), (20, 29)])
    for parts in ((never, replace(never, field_id=2)), (rare, never), (never, rare, often)):
        assert evaluate(Combination(every=True, parts=parts), columns).count() == 0
    assert evaluate(Combination(every=True, parts=(rare, often)), columns).marked().nonzero()[0].tolist() == [
        *range(3, 300, 40)
    ]


@pytest.mark.parametrize("count", [8, 9, 25])
def test_rows_of_many_runs_are_those_of_each(count: int) -> None:
    """Runs with codes between them, and runs right behind one another."""
    codes = np.arange(300).astype(np.uint8) % 60
    rows = CodedRows(codes, 60)
    for step in (1, 2):
        runs = [(step * number, step * number) for number in range(3, 3 + count)]
        expected = np.isin(codes, [first for first, _ in runs])
        assert np.array_equal(ColumnPart(1, runs).rows(rows).marked(), expected)


@pytest.mark.parametrize("seed", range(8))
def test_lists_are_found_by_their_elements_and_by_their_states(seed: int) -> None:
    """Of rows, and of nodes, some of which have no row or one that is deleted."""
    rng = np.random.default_rng(seed)
    states = rng.choice([WHOLE, WITH_NULL, NULL, NO_LIST], 400).astype(np.uint8)
    has = (rng.random((6, 400)) < np.array([0.9, 0.5, 0.1, 0.01, 0.004, 0.0])[:, None]) & (states < NULL)
    starts = np.append(0, np.cumsum(has.sum(axis=1)))
    lists = Lists(states, starts, np.nonzero(has)[1].astype(np.uint32))
    rows = rng.permutation(400)[:350]
    outside, is_live = rng.random((2, 350)) < np.array([[0.1], [0.8]])
    nodes = lists.of_nodes(rows, outside, is_live)
    here = is_live & ~outside
    for own, own_states, own_has in (
        (lists, states, has),
        (nodes, np.where(here, states[rows], NO_LIST), has[:, rows] & here),
    ):
        assert own.live_count == np.count_nonzero(own_states != NO_LIST)
        for elements in ((), (0,), (3,), (1, 4), (5,), (0, 2, 3)):
            having = own_has[list(elements)].any(axis=0)
            assert np.array_equal(ListPart(1, elements, ()).rows(own).marked(), having)
            without = (own_states == WHOLE) & ~having
            assert np.array_equal(ListPart(1, elements, (WHOLE,)).rows(own).marked(), without)
        for wanted in ((NULL,), (WHOLE, WITH_NULL)):
            assert np.array_equal(ListPart(1, None, wanted).rows(own).marked(), np.isin(own_states, wanted))
