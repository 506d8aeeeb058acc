"""The rows for which a condition is true, by arrays of its columns."""

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import In, NotIn
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType, IntegerType, NestedField

from icepuffin.ops.filters.predicate import RowPredicate


@pytest.mark.parametrize("kind", [DoubleType(), FloatType()], ids=str)
def test_a_zero_of_a_list_is_one_of_either_sign(kind: IcebergType) -> None:
    schema = Schema(NestedField(1, "a", kind, required=False))
    rows = pa.record_batch([pa.array([0.0, -0.0, 1.0, None], schema.as_arrow().field(0).type)], ["a"])
    for zero in (0.0, -0.0):
        for predicate, expected in ((In, [0, 1]), (NotIn, [2])):
            where = predicate("a", [zero, 7.0])
            assert RowPredicate(where, schema).satisfied(rows, np.arange(4)).tolist() == expected, where


@pytest.mark.parametrize(
    ("where", "expected"),
    [("a > 99999999999", []), ("a <= 99999999999", [0, 1]), ("false", []), ("true", [0, 1, 2])],
)
def test_what_holds_for_all_numbers_or_for_none_need_not_be_compared(where: str, expected: list[int]) -> None:
    schema = Schema(NestedField(1, "a", IntegerType(), required=False))
    rows = pa.record_batch([pa.array([1, -1, None], pa.int32())], ["a"])
    assert RowPredicate(where, schema).satisfied(rows, np.arange(3)).tolist() == expected
