"""Rows by the codes of their values, and conditions on these, beside comparing each row."""

from dataclasses import replace

import numpy as np
import pytest

from icepuffin.ops.filters.coded_rows import CodedRows, ColumnPart, Combination, evaluate


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
