import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.tasks.sketches.accumulators import SizeAccumulator
from icepuffin.ops.tasks.sketches.sketch_types import SIZE_TYPES, SKETCHED_TYPES, SketchTypeError
from tests.ops.tasks.sketches.columns import HELD


def data_size(array: pa.Array, iceberg_type: str) -> int:
    sizes = SizeAccumulator()
    sizes.update(array, iceberg_type)
    return sizes.result()


@pytest.mark.parametrize("held", HELD)
@given(values=st.lists(st.none() | st.text(max_size=9), max_size=30))
def test_the_size_of_a_column_is_the_bytes_of_its_values(held: str, values: list[str | None]) -> None:
    octets = [None if value is None else value.encode(errors="replace") for value in values]
    expected = sum(len(value) for value in octets if value is not None)
    for arrow in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        iceberg = "binary" if "binary" in str(arrow) else "string"
        assert data_size(HELD[held](pa.array(octets, arrow)), iceberg) == expected


def test_views_and_values_of_one_length() -> None:
    assert data_size(pa.array(["ab", None, "ü" * 20], pa.string_view()), "string") == 42
    assert data_size(pa.array([b"abc", None, b"def"], pa.binary(3)), "fixed[3]") == 6


def test_bytes_below_a_null_do_not_count() -> None:
    offsets, data = pa.array([0, 2, 5], pa.int32()).buffers()[1], pa.py_buffer(b"abcde")
    array = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\2"), offsets, data])
    assert array.to_pylist() == [None, "cde"]
    assert data_size(array, "string") == 3


@pytest.mark.parametrize("name", sorted(SKETCHED_TYPES - SIZE_TYPES))
def test_types_of_one_width_are_refused_by_name(name: str) -> None:
    with pytest.raises(SketchTypeError, match=f"type {name} has no size, only binary, fixed, string"):
        data_size(pa.array([1]), name)
