"""Texts of messages."""

import numpy as np
import pytest

from icepuffin.ops.messages import MAX_LISTED, listed, plural


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (np.int64(1_234_567), "row", "1,234,567 rows"),
        (1, "query", "1 query"),
        (2, "query", "2 queries"),
        (1.0, "day", "1 day"),
        (0.5, "day", "0.5 days"),
    ],
)
def test_a_count_of_one_has_a_noun_in_the_singular(count: float, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_a_list_has_its_first_lines_and_the_number_of_the_others() -> None:
    lines = [f"line {number}" for number in range(MAX_LISTED + 1_000)]
    assert listed(lines) == (*lines[:MAX_LISTED], "and 1,000 more")
    assert listed(lines[: MAX_LISTED + 1]) == (*lines[:MAX_LISTED], "and 1 more")
    assert listed(lines[:MAX_LISTED]) == tuple(lines[:MAX_LISTED])
    assert listed([]) == ()
