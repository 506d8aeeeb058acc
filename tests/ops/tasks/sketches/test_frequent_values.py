import datetime as dt
import uuid
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ops.tasks.sketches.frequent_values import (
    MAX_TEXT_BYTES,
    FrequentAccumulator,
    FrequentValue,
    frequent_values,
)
from icepuffin.ops.tasks.sketches.sketch_types import SketchTypeError
from icepuffin.ops.tasks.sketches.statistic import image_bound
from icepuffin.puffin.blobs.frequent_items_blob import CAPACITY, decode
from tests.ops.tasks.sketches.columns import HELD

MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 1)  # noqa: DTZ001
FORMS: list[tuple[str, pa.DataType, dict[object, str]]] = [
    ("boolean", pa.bool_(), {True: "true", False: "false"}),
    ("int", pa.int32(), {-5: "-5", 2**31 - 1: "2147483647"}),
    ("long", pa.int64(), {0: "0", -(2**63): "-9223372036854775808"}),
    ("float", pa.float32(), {0.1: "0.1", 1.5: "1.5", float("inf"): "inf"}),
    ("double", pa.float64(), {0.1: "0.1", -0.0: "-0", 1e300: "1e+300"}),
    ("date", pa.date32(), {dt.date(2026, 11, 30): "2026-11-30"}),
    ("time", pa.time64("us"), {dt.time(23, 59, 59, 999_999): "23:59:59.999999"}),
    ("timestamp", pa.timestamp("us"), {MOMENT: "1969-12-31T23:59:59.000001"}),
    ("timestamptz", pa.timestamp("us", "UTC"), {MOMENT: "1969-12-31T23:59:59.000001+00:00"}),
    ("timestamp_ns", pa.timestamp("ns"), {-1: "1969-12-31T23:59:59.999999999"}),
    ("timestamptz_ns", pa.timestamp("ns", "UTC"), {-1: "1969-12-31T23:59:59.999999999+00:00"}),
    ("string", pa.string(), {"": "", "zürich": "zürich"}),
    ("binary", pa.binary(), {b"\0\xff": "00ff"}),
    ("fixed[2]", pa.binary(2), {b"\0\xff": "00ff"}),
    ("uuid", pa.binary(16), {uuid.UUID(int=1).bytes: "00000000-0000-0000-0000-000000000001"}),
    ("decimal(9, 2)", pa.decimal128(9, 2), {Decimal("14.20"): "14.20", Decimal("-0.05"): "-0.05"}),
]


def image_of(array: pa.Array | pa.ChunkedArray, iceberg: str) -> bytes:
    accumulator = FrequentAccumulator()
    accumulator.update(array, iceberg)
    return accumulator.result()


def assert_bounds_hold(image: bytes, truth: Counter[str]) -> None:
    items = decode(image)
    total = sum(truth.values())
    assert items.total == total
    assert items.offset * (CAPACITY + 1) <= total - sum(items.lower_bounds.values())
    assert len(items.lower_bounds) <= CAPACITY
    for text, count in truth.items():
        low = items.lower_bounds.get(text, 0)
        assert low <= count <= low + items.offset, text
    assert set(items.lower_bounds) <= set(truth)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("iceberg", "arrow", "texts"), FORMS, ids=[form[0] for form in FORMS])
def test_values_are_counted_in_iceberg_s_text_form_without_nulls(
    held: str, iceberg: str, arrow: pa.DataType, texts: dict[object, str]
) -> None:
    values = [value for number, value in enumerate(texts, 1) for _ in range(number)]
    listed = frequent_values(image_of(HELD[held](pa.array([None, *values, None], arrow)), iceberg))
    expected = [(text, number, number) for number, text in enumerate(texts.values(), 1)]
    assert listed == [FrequentValue(*value) for value in expected[::-1]]
    assert frequent_values(image_of(pa.nulls(3, arrow), iceberg)) == []


def test_nans_are_one_value() -> None:
    assert [v[:2] for v in frequent_values(image_of(pa.array([float("nan")] * 3 + [1.0]), "double"))] == [
        ("nan", 3),
        ("1", 1),
    ]


@pytest.mark.parametrize(("iceberg", "dtype", "bits"), [("float", "f4", "u4"), ("double", "f8", "u8")])
def test_nans_of_many_bits_lose_no_more_than_one_value_where_there_are_too_many(
    iceberg: str, dtype: str, bits: str
) -> None:
    nans = (np.array([np.nan], dtype).view(bits) + np.arange(50, dtype=bits)).view(dtype)
    values = np.concatenate([np.repeat(nans, 10), np.repeat(np.arange(500, dtype=dtype), 3)])
    most, *_ = frequent_values(image_of(pa.array(values), iceberg))
    assert (most.text, most.lower <= 500 <= most.upper) == ("nan", True)
    assert [v.text for v in frequent_values(image_of(pa.array(np.array([0.1], dtype)), iceberg))] == ["0.1"]


def test_equal_counts_are_listed_by_text_and_do_not_depend_on_the_order_of_rows() -> None:
    values = ["b", "a", "c", "c"]
    image = image_of(pa.array(values), "string")
    assert image == image_of(pa.array(values[::-1]), "string")
    assert [value.text for value in frequent_values(image)] == ["c", "a", "b"]


def test_of_a_long_text_the_start_and_a_hash_are_kept() -> None:
    longest = "ü" * (MAX_TEXT_BYTES // 2)
    texts = [longest, longest + "a", longest + "b", longest + "b"]
    listed = frequent_values(image_of(pa.array(texts), "string"))
    assert [value.lower for value in listed] == [2, 1, 1]
    assert longest in {value.text for value in listed}
    for value in listed:
        assert len(value.text.encode()) <= MAX_TEXT_BYTES
        assert value.text.startswith("ü" * 22)
    many = pa.array([f"{i:05}" * 60 for i in range(CAPACITY)])
    assert 25_000 < len(image_of(many, "string")) < 30_000
    assert len(image_of(many.cast(pa.binary()), "binary")) < 30_000


def test_bytes_that_are_no_text_are_counted_all_the_same() -> None:
    array = pa.array([b"a\xff", b"a\xff", b"b"]).view(pa.string())
    assert [value[:2] for value in frequent_values(image_of(array, "string"))] == [("a\\xff", 2), ("b", 1)]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    shape=st.floats(1.1, 3),
    sizes=st.lists(st.integers(0, 4_000), min_size=1, max_size=6),
    merged=st.booleans(),
)
def test_counts_are_within_the_stated_bounds_in_any_batches_and_merges(
    seed: int, shape: float, sizes: list[int], merged: bool
) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.zipf(shape, size) % 3_000 for size in sizes]
    truth = Counter(str(value) for batch in batches for value in batch.tolist())
    accumulator = FrequentAccumulator()
    for batch in batches:
        if merged:
            accumulator.merge(image_of(pa.array(batch), "long"))
        else:
            accumulator.update(pa.array(batch), "long")
    image = accumulator.result()
    assert_bounds_hold(image, truth)
    if len(truth) <= CAPACITY:
        assert decode(image).lower_bounds == truth
        assert decode(image).offset == 0


def test_a_batch_that_is_cut_keeps_the_bound() -> None:
    truth = Counter({"0": 10, **{str(value): 11 for value in range(1, CAPACITY + 1)}})
    values = [int(text) for text, count in truth.items() for _ in range(count)]
    image = image_of(pa.array(values), "long")
    assert_bounds_hold(image, truth)
    assert decode(image).offset == 10
    assert len(decode(image).lower_bounds) == CAPACITY


def test_what_one_row_in_385_has_is_never_missed() -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate([np.full(600, -1), rng.permutation(200_000)])
    image = image_of(pa.chunked_array([pa.array(part) for part in np.split(rng.permutation(values), 100)]), "long")
    assert frequent_values(image)[0].text == "-1"
    assert_bounds_hold(image, Counter(map(str, values.tolist())))


def test_other_types_and_images_are_refused() -> None:
    with pytest.raises(SketchTypeError, match="type list<int> has no frequent, only"):
        image_of(pa.array([1]), "list<int>")
    with pytest.raises(match="at least 8 bytes"):
        FrequentAccumulator().merge(b"")
    with pytest.raises(match="at least 8 bytes"):
        frequent_values(b"")


def test_values_of_one_text_are_counted_together() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000000], np.uint64).view(np.float64)
    image = image_of(pa.array([nans[0], nans[1], nans[1], 1.0]), "double")
    assert decode(image).lower_bounds == {"nan": 3, "1": 1}


@pytest.mark.parametrize("iceberg", ["string", "long", "decimal(38, 2)"])
def test_an_image_is_within_its_bound(iceberg: str) -> None:
    """By which tasks are given shares of the budget."""
    arrow = {"string": pa.string(), "long": pa.int64(), "decimal(38, 2)": pa.decimal128(38, 2)}[iceberg]
    for rows in (0, 1, 2, 10, 384, 5_000):
        values = [f"{number:0>70}" for number in range(rows)]
        array = pa.array(values if iceberg == "string" else range(rows)).cast(arrow)
        assert len(image_of(array, iceberg)) <= image_bound((1, f"frequent/1 {iceberg}"), rows)
