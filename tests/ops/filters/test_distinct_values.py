"""The distinct values of a column in their order: codes of values by a dictionary, and by bisection."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from icepuffin.ops.filters import distinct_values
from icepuffin.ops.filters.coded_rows import ColumnPart
from icepuffin.ops.filters.condition_parser import LookUp
from icepuffin.ops.filters.distinct_values import DistinctValues
from icepuffin.ops.filters.predicate import RowPredicate

TEXTS = ["", " ", "A", "a", "a ", "aa", "a\0b", "\0", "e\u0301", "\u00e9", "z", "\ue000", "\uffff", "\U00010000"]


@pytest.mark.parametrize("most", [0, 1 << 16])
@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.int64()], ids=str)
def test_codes_are_places(kind: pa.DataType, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct_values, "_MAX_LISTED", most)
    rng = random.Random(0)
    edge = 2**63 if kind == pa.int64() else 2**31
    numbers = [-edge, -edge + 1, -1, 0, 1, 5, edge - 2, edge - 1]
    pool = TEXTS if pa.types.is_string(kind) else numbers
    others = ["", "b", "\U0010ffff"] if pa.types.is_string(kind) else [-edge - 1, edge, 10**30, -(10**30), 3]
    for _ in range(60):
        values = sorted(rng.sample(pool, rng.randrange(1, len(pool) + 1)))
        shuffled = rng.sample(values, len(values))
        distinct, (_, own) = DistinctValues.from_arrays([pa.array(values[:1], kind), pa.array(shuffled, kind)], kind)
        assert own.tolist() == [values.index(value) for value in shuffled]
        for value in (*pool, *others):
            assert distinct.codes([value]) == ([values.index(value)] if value in values else [])
        drawn = rng.choices([*pool, *others], k=5)
        assert distinct.codes(drawn) == [place for place, value in enumerate(values) if value in drawn]


def test_values_that_python_compares_in_another_way_are_not_looked_up() -> None:
    for kind in (pa.float64(), pa.bool_(), pa.date32(), pa.binary(), pa.decimal128(9, 2)):
        values, _ = DistinctValues.from_arrays([pa.array([], kind)], kind)
        with pytest.raises(TypeError, match="is no look-up among values"):
            values.part(1, LookUp("a", (1,), of_lists=False), None)


@pytest.mark.parametrize("kind", [LongType(), DoubleType()], ids=str)
def test_of_a_thousand_values_a_comparison_by_order_finds_where_it_changes(kind: LongType | DoubleType) -> None:
    schema = Schema(NestedField(1, "a", kind))
    numbers = [3.0 * number for number in range(1_000)] + [math.nan] * isinstance(kind, DoubleType)
    arrow_type = schema.as_arrow().field(0).type
    values, _ = DistinctValues.from_arrays([pa.array(numbers, pa.float64()).cast(arrow_type)], arrow_type)
    for operator in (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual):
        for literal in (-1, 0, 1, 3, 92, 93, 94, 1_500, 2_996, 2_997, 2_998):
            predicate = RowPredicate(operator("a", literal), schema)
            found = values.part(1, predicate.bound, predicate)
            compared = ColumnPart.from_mask(1, np.asarray(predicate.truth(predicate.bound, values.values)))
            assert found.runs == compared.runs, (operator, literal)
