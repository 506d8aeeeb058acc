"""Counts in messages."""

import numpy as np
import pytest

from icepuffin.ops.counted_nouns import plural


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
