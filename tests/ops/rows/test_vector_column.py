"""A column of vectors as a matrix: lists, and bytes against `struct` and single bits."""

import pickle
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField

from icepuffin.ops.rows.element_types import ELEMENT_BITS, dims_of, spare_bytes
from icepuffin.ops.rows.vector_column import (
    VectorColumnError,
    VectorSchema,
    element_type_of,
    exact_vectors,
    vector_lengths,
)

LISTS = [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 2), pa.list_(pa.float32(), 2)]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_every_kind_of_list_is_a_matrix(kind: pa.DataType) -> None:
    values = [[np.float16(0.5), np.float16(1)], [np.float16(-2), np.float16(4)]]
    plain = pa.array(values, pa.list_(pa.float16())).cast(pa.list_(kind.value_type))
    vectors = exact_vectors(pa.chunked_array([plain.cast(kind), plain.cast(kind)[1:]]))
    assert vectors.dtype == (np.float64 if kind.value_type == pa.float64() else np.float32)
    assert vectors.tolist() == [[0.5, 1.0], [-2.0, 4.0], [-2.0, 4.0]]
    assert vectors.flags.c_contiguous


@pytest.mark.parametrize(
    ("values", "dims", "message"),
    [
        ([[1.0, 2.0], None], None, r"row 1 has no vector \(null\)"),
        ([[1.0, 2.0], [1.0]], None, "row 1 has a vector of 1 dimension, not 2"),
        ([[1.0, 2.0]], 3, "row 0 has a vector of 2 dimensions, not 3"),
        ([[1.0, 2.0], [None, 1.0]], None, "row 1 has a null element"),
    ],
)
def test_the_first_bad_vector_is_named(values: list[Any], dims: int | None, message: str) -> None:
    with pytest.raises(VectorColumnError, match=message):
        exact_vectors(pa.array(values, pa.list_(pa.float32())), dims)


def test_a_sliced_column_with_nulls_before_the_slice_is_read() -> None:
    array = pa.array([None, [1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert exact_vectors(array[1:]).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_no_rows_are_a_matrix_of_no_rows() -> None:
    assert exact_vectors(pa.array([], pa.list_(pa.float32())), 5).shape == (0, 5)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64()])
def test_lists_of_integers_are_vectors_of_the_same_numbers(kind: pa.DataType) -> None:
    vectors = exact_vectors(pa.array([[1, 0], [127, 2]], pa.list_(kind)))
    assert (vectors.dtype, vectors.tolist()) == (np.float32, [[1.0, 0.0], [127.0, 2.0]])


@pytest.mark.parametrize("number", [(1 << 24) + 1, -(1 << 24) - 1, -(1 << 63)])
def test_an_integer_that_no_float_may_hold_is_named_with_its_row(number: int) -> None:
    edges = [[1 << 24, -(1 << 24)], [0, number]]
    assert exact_vectors(pa.array(edges[:1], pa.list_(pa.int64()))).tolist() == edges[:1]
    with pytest.raises(VectorColumnError, match=f"row 1 holds {number} in its vector, and floats are exact up to"):
        exact_vectors(pa.array(edges, pa.list_(pa.int64())))


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.bool_()), pa.float32()])
def test_a_column_of_another_type_is_no_vector_column(kind: pa.DataType) -> None:
    with pytest.raises(VectorColumnError, match="a vector column is a list of numbers"):
        exact_vectors(pa.array([], kind))


FORMATS = {"f32": "f", "f16": "e", "i8": "b", "u8": "B"}
"""Letters of `struct`, which packs little-endian after '<'"""


def unpacked(value: bytes, element_type: str) -> list[float]:
    if element_type == "bit":
        return [float(octet >> shift & 1) for octet in value for shift in range(7, -1, -1)]
    count = 8 * len(value) // ELEMENT_BITS[element_type]
    return [float(np.float32(number)) for number in struct.unpack(f"<{count}{FORMATS[element_type]}", value)]


@settings(max_examples=60, deadline=None)
@given(
    element_type=st.sampled_from(list(ELEMENT_BITS)),
    elements=st.integers(1, 7),
    rows=st.integers(1, 6),
    cut=st.integers(0, 3),
    kind=st.sampled_from(["binary", "large_binary", "fixed"]),
    content=st.randoms(use_true_random=False),
)
def test_bytes_are_their_elements_wherever_the_column_is_cut(
    element_type: str, elements: int, rows: int, cut: int, kind: str, content: Any
) -> None:
    size = elements if element_type == "bit" else elements * ELEMENT_BITS[element_type] // 8
    values = [content.randbytes(size) for _ in range(rows)]
    arrow = {"binary": pa.binary(), "large_binary": pa.large_binary(), "fixed": pa.binary(size)}[kind]
    column = pa.array([None] * cut + values, arrow)[cut:]
    expected = np.array([unpacked(value, element_type) for value in values], np.float32)
    for several in (column, pa.chunked_array([column[:1], column[1:]])):
        vectors = exact_vectors(several, None, element_type)
        np.testing.assert_array_equal(vectors, expected)  # NaN is NaN
        assert vectors.dtype == np.float32
        assert vectors.flags.c_contiguous
        assert vectors.flags.aligned
    assert set(vector_lengths(column, element_type).to_pylist()) == {expected.shape[1]}
    with pytest.raises(VectorColumnError, match="row 0 has a vector of"):
        exact_vectors(column, expected.shape[1] + 1, element_type)


def test_bytes_that_are_no_vectors_are_named_with_their_row() -> None:
    for values, element_type, message in (
        ([b"1234", None], "f32", r"row 1 has no vector \(null\)"),
        ([b"12", b"1"], "f16", "row 1 has 1 byte, no whole number of f16 elements"),
        ([b"1234", b"123456"], "f32", "row 1 has 6 bytes, no whole number of f32 elements"),
        ([b"12", b"1234"], "f16", "row 1 has a vector of 2 dimensions, not 1"),
        ([b"1", b""], "bit", "row 1 has a vector of 0 dimensions, not 8"),
    ):
        with pytest.raises(VectorColumnError, match=message):
            exact_vectors(pa.array(values, pa.binary()), None, element_type)
    with pytest.raises(VectorColumnError, match="of i8 elements holds bytes, this one is list"):
        exact_vectors(pa.array([[1.0]]), None, "i8")
    assert exact_vectors(pa.array([], pa.binary()), 5, "f32").shape == (0, 5)


def test_a_schema_says_in_every_process_what_the_bytes_are() -> None:
    plain = Schema(NestedField(7, "v", FixedType(8)), schema_id=3)
    assert VectorSchema.with_element_type(plain, 7, "column") is plain
    schema = pickle.loads(pickle.dumps(VectorSchema.with_element_type(plain, 7, "f16")))  # noqa: S301  of this very process
    assert (element_type_of(schema, 7), element_type_of(schema, 8), element_type_of(plain, 7)) == (
        "f16",
        "column",
        "column",
    )
    assert (schema.schema_id, schema.find_type("v")) == (3, FixedType(8))
    assert repr(schema) != repr(VectorSchema.with_element_type(plain, 7, "i8")), "names of staged objects depend on it"


def test_a_vector_of_bytes_has_as_many_elements_as_are_whole() -> None:
    sizes = {kind: (dims_of(11, kind), spare_bytes(11, kind)) for kind in ELEMENT_BITS}
    assert sizes == {"f32": (2, 3), "f16": (5, 1), "i8": (11, 0), "u8": (11, 0), "bit": (88, 0)}
