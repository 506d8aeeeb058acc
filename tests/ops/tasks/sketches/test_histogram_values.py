"""Histograms by values: what they answer of a small column, which they keep whole, is what a sort of it answers."""

import math
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ops.errors import ArgumentError
from icepuffin.ops.tasks.sketches.histogram_values import ValueHistogram, text_of

EPOCH = date(1970, 1, 1)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
DATES = st.dates() | st.dates(date(2020, 1, 1), date(2020, 1, 9))
DECIMALS = st.decimals(-(10**9), 10**9, places=2) | st.decimals(-1, 1, places=2)
DOUBLES = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.5, 1.5])
TYPES = {"long": LONGS, "date": DATES, "decimal(12, 2)": DECIMALS, "double": DOUBLES}
COLUMNS = st.sampled_from([*TYPES]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(TYPES[kind], min_size=1, max_size=60), st.lists(TYPES[kind]))
)


def histogram(kind: str, values: Any) -> ValueHistogram:
    numbers = [(value - EPOCH).days for value in values] if kind == "date" else values
    accumulator = KllAccumulator(np.int64 if kind in ("long", "date") else np.float64)
    accumulator.update(np.array(numbers, np.int64 if kind in ("long", "date") else np.float64))
    return ValueHistogram("c", kind, accumulator.result())


@given(COLUMNS, st.lists(st.floats(0, 1), max_size=5))
def test_of_few_values_each_answer_is_exact(drawn: tuple[str, list[Any], list[Any]], ranks: list[float]) -> None:
    kind, values, asked = drawn
    ordered, of = sorted(values), histogram(kind, values)
    assert (of.count, of.minimum, of.maximum, of.rank_error) == (len(values), ordered[0], ordered[-1], 0.0)
    at = [min(len(values), max(1, math.ceil(np.float64(rank) * len(values)))) - 1 for rank in ranks]
    assert of.quantiles(ranks) == [ordered[place] for place in at]
    assert of.ranks(asked) == [sum(it <= value for it in values) / len(values) for value in asked]
    for low in (None, *asked[:3], *values[:2]):
        for high in (None, *asked[:3], *values[:2]):
            inside = [it for it in values if (low is None or it >= low) and (high is None or it <= high)]
            assert of.fraction_between(low, high) == pytest.approx(len(inside) / len(values))


@given(COLUMNS)
def test_two_histograms_differ_by_the_largest_difference_of_ranks(drawn: tuple[str, list[Any], list[Any]]) -> None:
    kind, one, other = drawn

    def share(values: list[Any], most: Any) -> float:
        return sum(it <= most for it in values) / max(1, len(values))

    largest = max(abs(share(one, value) - share(other, value)) for value in one + other)
    assert histogram(kind, one).distance(histogram(kind, other)) == pytest.approx(largest)
    assert histogram(kind, one).distance(histogram(kind, one)) == 0


@given(
    COLUMNS.filter(lambda drawn: np.inf not in map(abs, drawn[1]) if drawn[0] == "double" else True), st.integers(1, 40)
)
def test_bars_are_ranges_side_by_side_that_have_all_values_but_the_outermost(
    drawn: tuple[str, list[Any], list[Any]], most: int
) -> None:
    kind, values, _ = drawn
    bars = histogram(kind, values).bars(most)
    assert 1 <= len(bars) <= most
    assert sum(bar.share for bar in bars) == pytest.approx(1), "of 60 values none is outside of the middle 99 %"
    for bar, after in pairwise(bars):
        assert bar.low <= bar.high
        if kind == "long":
            assert after.low == bar.high + 1
    if kind in ("long", "date"):
        for bar in bars:
            assert bar.share == pytest.approx(sum(bar.low <= value <= bar.high for value in values) / len(values))


def test_a_few_values_far_away_do_not_squeeze_the_bars() -> None:
    values = [*range(1_000), 10**12]
    assert histogram("long", values).bars(10)[-1].high < 1_000


def test_values_have_the_type_of_the_column() -> None:
    days = [EPOCH + timedelta(days=number) for number in (0, 18_628, -1)]
    assert histogram("date", days).quantiles([0, 0.5, 1]) == [date(1969, 12, 31), EPOCH, date(2021, 1, 1)]
    price = histogram("decimal(12, 2)", [Decimal("0.10"), Decimal("12345678.91")])
    assert [str(value) for value in price.quantiles([0, 1])] == ["0.10", "12345678.91"]
    wide = histogram("decimal(38, 10)", [Decimal(10) ** 27])
    assert (wide.maximum, str(histogram("decimal(38, 0)", [Decimal(3)]).maximum)) == (Decimal(10) ** 27, "3")
    assert histogram("float", [0.5]).maximum == 0.5
    assert [text_of(value) for value in (1 / 3, 12_345_678, date(2020, 1, 1))] == ["0.333333", "12345678", "2020-01-01"]


def test_dates_that_python_lacks_are_texts() -> None:
    accumulator = KllAccumulator(np.int64)
    accumulator.update(np.array([2**31 - 1], np.int64))
    assert isinstance(ValueHistogram("c", "date", accumulator.result()).maximum, str)


def test_infinities_have_a_rank_and_no_place_on_the_scale() -> None:
    of = histogram("double", [-math.inf, 0.0, math.inf])
    assert of.ranks([-math.inf, 0.0, math.inf]) == pytest.approx([1 / 3, 2 / 3, 1])
    bars = of.bars(5)
    assert all(math.isfinite(end) for bar in bars for end in (bar.low, bar.high))
    assert sum(bar.share for bar in bars) == pytest.approx(1 / 3)


def test_a_histogram_of_nothing_has_no_quantiles_and_no_bars() -> None:
    empty = histogram("long", [])
    assert (empty.minimum, empty.maximum, empty.bars(5), empty.ranks([1])) == (None, None, [], [0.0])
    assert empty.fraction_between() == 0
    with pytest.raises(ArgumentError, match="one value or more"):
        empty.quantiles([0.5])


def test_what_has_no_rank_is_refused() -> None:
    of = histogram("long", [1, 2, 3])
    for wrong, message in (("x", "of type long"), (math.nan, "NaN has no rank"), (None, "of type long")):
        with pytest.raises(ArgumentError, match=message):
            of.ranks([wrong])
    with pytest.raises(ArgumentError, match="of type date"):
        histogram("date", [EPOCH]).fraction_between(1, 2)
    with pytest.raises(ArgumentError, match="at 0 to 1"):
        of.quantiles([1.1])
    assert of.ranks([10**30, -(10**30), 1.5]) == pytest.approx([1, 0, 1 / 3])
    assert (of.fraction_between(3, 1), of.fraction_between(2)) == (0, pytest.approx(2 / 3))


@pytest.mark.parametrize("number", [int, np.int64, np.uint64])
def test_whole_numbers_are_compared_as_such_whoever_made_them(number: Any) -> None:
    base = 2**60
    ids = histogram("long", [base + item for item in range(100)])
    assert ids.fraction_between(number(base), number(base + 9)) == pytest.approx(0.1)
