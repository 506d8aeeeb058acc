from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ann_kernels.sketches.theta_estimates import bounds
from icepuffin.ops.tasks.sketches.column_updates import update_joint
from icepuffin.ops.tasks.sketches.sketch_types import ARROW_TYPES, SketchTypeError
from tests.ops.tasks.sketches.columns import HELD
from tests.ops.tasks.sketches.test_theta_columns import CASES

Sketch = tuple[int, list[int]]


def sketch_of(arrays: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[str]) -> Sketch:
    accumulator = ThetaAccumulator()
    update_joint(accumulator, arrays, types)
    theta, hashes = accumulator.result()
    return theta, hashes.tolist()


def groups(arrays: Sequence[pa.Array], types: Sequence[str]) -> int:
    return len(sketch_of(arrays, types)[1])


TYPES = ["boolean", "int", "long", "date", "time", "timestamp", "string", "binary", "decimal(9, 2)"]
values = st.lists(st.none() | st.integers(0, 3), min_size=12, max_size=12)


def column(numbers: list[int | None], iceberg: str) -> pa.Array:
    if iceberg == "boolean":
        return pa.array([None if n is None else n > 1 for n in numbers])
    if iceberg in ("string", "binary"):
        return pa.array([None if n is None else "ü" * n for n in numbers]).cast(ARROW_TYPES[iceberg])
    if iceberg.startswith("decimal"):
        return pa.array([None if n is None else Decimal(n) for n in numbers], pa.decimal128(9, 2))
    narrow = pa.array(numbers, pa.int32() if iceberg in ("int", "date") else pa.int64())
    return narrow.view(ARROW_TYPES[iceberg])


@given(columns=st.lists(st.tuples(values, st.sampled_from(TYPES)), min_size=1, max_size=4))
def test_the_rows_counted_are_the_groups_of_a_group_by(columns: list[tuple[list[int | None], str]]) -> None:
    arrays = [column(numbers, iceberg) for numbers, iceberg in columns]
    types = [iceberg for _, iceberg in columns]
    assert groups(arrays, types) == len(set(zip(*(array.to_pylist() for array in arrays), strict=True)))


@settings(max_examples=30)
@given(
    columns=st.lists(st.tuples(values, st.sampled_from(TYPES), st.sampled_from(sorted(HELD))), min_size=1, max_size=3)
)
def test_how_columns_are_held_does_not_show(columns: list[tuple[list[int | None], str, str]]) -> None:
    arrays = [column(numbers, iceberg) for numbers, iceberg, _ in columns]
    types = [iceberg for _, iceberg, _ in columns]
    held = [HELD[name](array) for array, (_, _, name) in zip(arrays, columns, strict=True)]
    assert sketch_of(held, types) == sketch_of(arrays, types)
    parts = ThetaAccumulator()
    for start in (0, 5):
        update_joint(parts, [array[start : start + 5 + 2 * bool(start)] for array in arrays], types)
    theta, hashes = parts.result()
    assert (theta, hashes.tolist()) == sketch_of(arrays, types)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} from {case[1]}")
def test_every_type_tells_its_values_and_null_apart(case: tuple[object, pa.DataType, list[object]]) -> None:
    iceberg, arrow, several = case
    array = pa.array([*several, None, *several], arrow)
    numbers = pa.array([0] * (len(several) + 1) + [1] * len(several))
    assert groups([array], [str(iceberg)]) == len(several) + 1
    assert groups([array, numbers], [str(iceberg), "long"]) == 2 * len(several) + 1


def test_the_order_of_columns_and_where_texts_end_count() -> None:
    left, right = pa.array(["ab", "a", "b", "", None]), pa.array(["c", "bc", "a", None, ""])
    assert groups([left, right], ["string"] * 2) == 5
    assert sketch_of([left, right], ["string"] * 2) != sketch_of([right, left], ["string"] * 2)
    assert groups([pa.nulls(3, pa.string())] * 2, ["string"] * 2) == 1
    assert groups([pa.array([], pa.string())] * 2, ["string"] * 2) == 0


@pytest.mark.parametrize(
    ("before", "after", "array"),
    [
        ("int", "long", pa.array([-1, 5, None], pa.int32())),
        ("float", "double", pa.array([1.1, -0.0, None], pa.float32())),
        ("decimal(9, 2)", "decimal(18, 2)", pa.array([Decimal("-1.10"), None], pa.decimal128(9, 2))),
    ],
)
def test_a_promoted_type_changes_no_hash(before: str, after: str, array: pa.Array) -> None:
    assert sketch_of([array, array], [before, after]) == sketch_of([array, array], [after, after])


def test_estimates_of_many_groups_are_within_their_bounds() -> None:
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        left, right = rng.integers(0, 300, 40_000) + 300 * seed, rng.integers(0, 300, 40_000)  # other values each time
        accumulator = ThetaAccumulator()
        update_joint(accumulator, [pa.array(left), pa.array(right).cast(pa.string())], ["long", "string"])
        theta, hashes = accumulator.result()
        low, high = bounds(theta, len(hashes))
        held += low <= len(np.unique(left * 300 + right)) <= high
    assert held >= 90  # 95.4 % are expected


def test_other_types_and_lengths_are_refused() -> None:
    with pytest.raises(SketchTypeError, match="3 rows and 2 rows"):
        sketch_of([pa.array([1, 2, 3]), pa.array([1, 2])], ["long", "long"])
    with pytest.raises(SketchTypeError, match="type list<int> has no joint, only"):
        sketch_of([pa.array([1])], ["list<int>"])
    with pytest.raises(SketchTypeError, match="is not Iceberg's int"):
        sketch_of([pa.array(["a"])], ["int"])
