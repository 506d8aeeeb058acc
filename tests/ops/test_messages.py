"""Texts of messages."""

import numpy as np
import pytest

from icepuffin.ops.imports import remedy
from icepuffin.ops.messages import MAX_LISTED, listed, plural, readable_count, readable_seconds


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


def test_counts_and_seconds_have_three_digits_or_so() -> None:
    counts = {7: "7", 9_999: "9,999", 60_300: "60.3 k", 999_999: "1,000 k", 1_200_000: "1.2 M", 0.985: "0.985"}
    assert [readable_count(count) for count in counts] == [*counts.values()]
    seconds = {0.04: "0.04 s", 5: "5.0 s", 12: "12 s", 204: "3.4 min", 171_179: "47.5 h", 432_000: "5 days"}
    assert [readable_seconds(number) for number in seconds] == [*seconds.values()]


def test_what_is_missing_is_installed_by_the_extra_that_brings_it() -> None:
    assert remedy(ModuleNotFoundError(name="pyspark.sql")) == "pip install 'icepuffin[spark]'"
    assert remedy(ModuleNotFoundError(name="sqlglot")) == "pip install 'icepuffin[sql]'"
    assert [remedy(ModuleNotFoundError(name=name)) for name in ("numpy", None)] == ["", ""]


def test_a_list_has_its_first_lines_and_the_number_of_the_others() -> None:
    lines = [f"line {number}" for number in range(MAX_LISTED + 1_000)]
    assert listed(lines) == (*lines[:MAX_LISTED], "and 1,000 more")
    assert listed(lines[: MAX_LISTED + 1]) == (*lines[:MAX_LISTED], "and 1 more")
    assert listed(lines[:MAX_LISTED]) == tuple(lines[:MAX_LISTED])
    assert listed([]) == ()
