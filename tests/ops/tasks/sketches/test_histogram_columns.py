import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.kll import KllAccumulator, KllSketch
from icepuffin.ops.tasks.sketches.column_updates import update_histogram
from icepuffin.ops.tasks.sketches.sketch_types import (
    HISTOGRAM_TYPES,
    SKETCHED_TYPES,
    SketchTypeError,
    type_name_of,
)
from icepuffin.ops.tasks.sketches.statistic import image_bound
from icepuffin.puffin.blobs.kll_blob import encode
from tests.ops.tasks.sketches.columns import HELD

NAN = float("nan")
DAY = dt.date(1970, 1, 1)
CASES: list[tuple[str, pa.DataType, list[object], list[object]]] = [
    ("int", pa.int32(), [3, None, -(2**31), 2**31 - 1, 3], [-(2**31), 3, 3, 2**31 - 1]),
    ("int", pa.int16(), [3, None, -5, 7], [-5, 3, 7]),
    ("long", pa.int64(), [3, None, -(2**63), 2**63 - 1], [-(2**63), 3, 2**63 - 1]),
    ("long", pa.int32(), [3, None, -5, 7], [-5, 3, 7]),
    ("date", pa.date32(), [DAY, None, dt.date(1969, 12, 30), dt.date(2026, 11, 30)], [-2, 0, 20_787]),
    ("float", pa.float32(), [1.5, None, NAN, -0.0, float("inf")], [0.0, 1.5, float("inf")]),
    ("double", pa.float64(), [1.1, None, NAN, -0.0, float("-inf")], [float("-inf"), 0.0, 1.1]),
    ("double", pa.float32(), [1.5, None, NAN], [1.5]),
    ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("1.27"), None, Decimal("-3.10")], [-3.1, 1.27]),
    ("decimal(38, 0)", pa.decimal128(38, 0), [Decimal(10**37), None, Decimal(-1)], [-1.0, 1e37]),
    ("decimal(9, 2)", pa.decimal256(9, 2), [Decimal("1.27"), None], [1.27]),
]
IDS = [f"{iceberg} from {arrow}" for iceberg, arrow, _, _ in CASES]


def sketch_of(array: pa.Array | pa.ChunkedArray, iceberg: str, k: int = 512) -> KllSketch:
    accumulator = KllAccumulator(HISTOGRAM_TYPES[type_name_of(iceberg)], k)
    update_histogram(accumulator, array, iceberg)
    return accumulator.result()


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("iceberg", "arrow", "values", "expected"), CASES, ids=IDS)
def test_values_are_kept_each_time_without_nulls_and_nans(
    held: str, iceberg: str, arrow: pa.DataType, values: list[object], expected: list[object]
) -> None:
    assert sketch_of(HELD[held](pa.array(values, arrow)), iceberg).levels[0].tolist() == expected
    for nothing in (pa.nulls(4, arrow), pa.array([], arrow)):
        assert sketch_of(HELD[held](nothing), iceberg).count == 0


@given(
    values=st.lists(st.none() | st.integers(-50, 50), max_size=300),
    iceberg=st.sampled_from(["int", "long", "float", "double", "date", "decimal(12, 0)"]),
    cuts=st.lists(st.integers(0, 300), max_size=4).map(sorted),
)
def test_chunks_do_not_show(values: list[int | None], iceberg: str, cuts: list[int]) -> None:
    arrow = {"int": pa.int32(), "float": pa.float32(), "date": pa.int32(), "double": pa.float64()}.get(iceberg)
    array = pa.array(values, arrow or pa.int64())
    array = array.cast(pa.date32()) if iceberg == "date" else array
    array = array.cast(pa.decimal128(38, 0)) if iceberg.startswith("decimal") else array
    parts = [array[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    chunks = pa.chunked_array(parts, array.type)
    assert encode(sketch_of(chunks, iceberg, 8)) == encode(sketch_of(array, iceberg, 8))
    present = sorted(value for value in values if value is not None)
    assert sketch_of(array, iceberg).levels[0].tolist() == present


@pytest.mark.parametrize("name", sorted(SKETCHED_TYPES - set(HISTOGRAM_TYPES)))
def test_other_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(SketchTypeError, match=f"type {name} has no histogram, only date, decimal, "):
        update_histogram(KllAccumulator(np.int64), pa.array([1]), name)


def test_data_of_another_type_are_refused() -> None:
    with pytest.raises(SketchTypeError, match="Arrow data of type string is not Iceberg's int"):
        sketch_of(pa.array(["a"]), "int")


@given(st.lists(st.integers(-(10**30), 10**30), max_size=50), st.sampled_from([(38, 2), (38, 18), (19, 4), (16, 2)]))
def test_a_decimal_is_the_double_next_to_it(unscaled: list[int], form: tuple[int, int]) -> None:
    precision, scale = form
    values = [Decimal(number % 10**precision - 10 ** (precision - 1)).scaleb(-scale) for number in unscaled]
    fitting = [value for value in values if len(value.as_tuple().digits) <= precision]
    sketch = sketch_of(pa.array(fitting, pa.decimal128(precision, scale)), f"decimal({precision}, {scale})")
    assert sketch.levels[0].tolist() == sorted(map(float, fitting))


@pytest.mark.parametrize("iceberg", ["long", "double"])
def test_an_image_is_within_its_bound(iceberg: str) -> None:
    """By which tasks are given shares of the budget."""
    for rows in (0, 1, 2, 10, 512, 600, 5_000, 300_000):
        values = np.random.default_rng(rows).permutation(rows)
        array = pa.array(values).cast({"long": pa.int64(), "double": pa.float64()}[iceberg])
        assert len(encode(sketch_of(array, iceberg))) <= image_bound((1, f"histogram/1 {iceberg}"), rows)
