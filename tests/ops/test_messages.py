"""Texts of messages."""

import numpy as np
import pytest

from icepuffin.ops.imports import remedy
from icepuffin.ops.messages import (
    MAX_LISTED,
    counted,
    listed,
    plural,
    readable_bytes,
    readable_count,
    readable_seconds,
    readable_share,
)


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (np.int64(1_234_567), "row", "1,234,567 rows"),
        (1, "query", "1 query"),
        (2, "query", "2 queries"),
        (2, "index", "2 indexes"),
        (1.0, "day", "1 day"),
        (0.5, "day", "0.5 days"),
    ],
)
def test_a_count_of_one_has_a_noun_in_the_singular(count: float, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_amounts_have_three_digits_or_so_and_the_unit_that_they_are_rounded_to() -> None:
    counts = {
        0: "0", 7: "7", 9_999: "9,999", 9_999.6: "10 k", 60_312: "60.3 k", 999_949: "999.9 k", 999_950: "1 M",
        1.2e6: "1.2 M", -60_312: "-60.3 k", 999_960_000: "1 G", 5e9: "5 G", 0.98512: "0.9851",
    }  # fmt: skip
    assert {count: readable_count(count) for count in counts} == counts
    seconds = {
        0: "0 s", 0.042: "0.04 s", 5: "5.0 s", 9.96: "10 s", 12: "12 s", 89: "89 s", 90: "1.5 min", 200: "3.3 min",
        5_340: "89 min", 5_400: "1.5 h", 171_179: "47.5 h", 172_800: "2 days", 432_000: "5 days",
    }  # fmt: skip
    assert {number: readable_seconds(number) for number in seconds} == seconds
    sizes = {
        0: "0 bytes", 1: "1 byte", 1_023: "1,023 bytes", 1_024: "1.0 KiB", 15_230: "14.9 KiB", 2**20 - 1: "1.0 MiB",
        5_000_000_000: "4.7 GiB", 2**40 - 1: "1.0 TiB", 2**51: "2,048.0 TiB",
    }  # fmt: skip
    assert {size: readable_bytes(size) for size in sizes} == sizes


def test_counts_of_what_there_is_none_of_are_left_out() -> None:
    assert counted({"in all": 12_345, "rebuilt": 0, "copied": 2}) == "12,345 in all, 2 copied"
    assert counted({"rebuilt": 0}) == ""


def test_a_share_is_all_or_nothing_only_where_it_is() -> None:
    shares = {0: "0.0%", 1e-9: "<0.1%", 0.0006: "0.1%", 0.5: "50.0%", 0.9994: "99.9%", 0.99999: ">99.9%", 1: "100.0%"}
    assert {share: readable_share(share) for share in shares} == shares
    assert [readable_share(share, 0) for share in (0, 0.004, 0.5, 0.996, 1)] == ["0%", "<1%", "50%", ">99%", "100%"]


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
