from collections.abc import Collection

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icepuffin.ops.tasks.sketches.statistic import Kind, SketchedColumn
from icepuffin.ops.theta.columns import choose_statistics
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.requested_statistics import RequestedStatistics

TYPES = [
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(9, 2),
    DateType(),
    TimeType(),
    TimestampType(),
    TimestamptzType(),
    StringType(),
    BinaryType(),
    FixedType(4),
    UUIDType(),
    ListType(99, LongType(), element_required=False),
]
SCHEMA = Schema(
    *(NestedField(i, str(t).split("[")[0].split("(")[0], t, required=False) for i, t in enumerate(TYPES, 1))
)


def chosen_columns(
    then: Schema, now: Schema, *, sketched_before: Collection[int] = (), names: tuple[str, ...] | None = None
) -> list[SketchedColumn]:
    before = [(Kind.NDV, (field_id,)) for field_id in sketched_before]
    return [column for _, (column,) in choose_statistics(then, now, RequestedStatistics(ndv=names), before)]


def chosen(sketched_before: Collection[int] = (), names: tuple[str, ...] | None = None) -> set[str]:
    return {column.name for column in chosen_columns(SCHEMA, SCHEMA, sketched_before=sketched_before, names=names)}


def test_a_creation_takes_bodos_types() -> None:
    expected = {"int", "long", "date", "time", "timestamp", "timestamptz", "string", "binary", "decimal"}
    assert chosen() == expected


def test_an_increment_takes_the_columns_that_have_a_sketch_floats_included() -> None:
    assert chosen(sketched_before={2, 4, 5, 1234}) == {"int", "float", "double"}


def test_named_columns_override_the_rules_and_may_be_of_any_primitive_type() -> None:
    assert chosen(names=("boolean", "fixed", "uuid"), sketched_before={2}) == {"boolean", "fixed", "uuid"}
    with pytest.raises(
        UnsketchableColumnError,
        match="names list, nosuch, which it cannot be made of: it takes top-level columns",
    ):
        chosen(names=("list", "nosuch"))


def test_names_are_the_current_schemas_and_types_the_snapshots() -> None:
    then = Schema(NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", LongType(), required=False))
    now = Schema(NestedField(1, "z", LongType(), required=False), NestedField(3, "b", LongType(), required=False))
    found = chosen_columns(then, now)
    assert [(c.field_id, c.name, c.type) for c in found] == [(1, "z", "int")]


def test_a_named_column_that_the_snapshot_does_not_have_yet_is_left_out() -> None:
    then = Schema(NestedField(1, "a", IntegerType(), required=False))
    now = Schema(NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", LongType(), required=False))
    assert [c.name for c in chosen_columns(then, now, names=("a", "b"))] == ["a"]
