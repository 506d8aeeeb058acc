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

from icepuffin.ops.theta.columns import choose_columns
from icepuffin.ops.theta.errors import UnsketchableColumnError

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


def chosen(**rules: object) -> set[str]:
    rules = {"sketched_before": (), **rules}
    return {c.name for c in choose_columns(SCHEMA, SCHEMA, **rules)}  # type: ignore[arg-type]


def test_a_creation_takes_bodos_types() -> None:
    expected = {"int", "long", "date", "time", "timestamp", "timestamptz", "string", "binary", "decimal"}
    assert chosen() == expected


def test_an_increment_takes_the_columns_that_have_a_sketch_floats_included() -> None:
    assert chosen(sketched_before={2, 4, 5, 1234}) == {"int", "float", "double"}


def test_named_columns_override_the_rules_and_may_be_of_any_primitive_type() -> None:
    assert chosen(names=["boolean", "fixed", "uuid"], sketched_before={2}) == {"boolean", "fixed", "uuid"}
    with pytest.raises(UnsketchableColumnError, match="list, nosuch: not top-level columns of a primitive type"):
        chosen(names=["list", "nosuch"])


def test_names_are_the_current_schemas_and_types_the_snapshots() -> None:
    then = Schema(NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", LongType(), required=False))
    now = Schema(NestedField(1, "z", LongType(), required=False), NestedField(3, "b", LongType(), required=False))
    found = choose_columns(then, now, sketched_before=())
    assert [(c.field_id, c.name, c.type) for c in found] == [(1, "z", "int")]


def test_a_named_column_that_the_snapshot_does_not_have_yet_is_left_out() -> None:
    then = Schema(NestedField(1, "a", IntegerType(), required=False))
    now = Schema(NestedField(1, "a", IntegerType(), required=False), NestedField(2, "b", LongType(), required=False))
    assert [c.name for c in choose_columns(then, now, sketched_before=(), names=["a", "b"])] == ["a"]
