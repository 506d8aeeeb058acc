"""Row filters of a catalog as expressions: exactly the forms of the specification, and the stricter of two readings."""

import math
import re
from typing import Any

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    Or,
)
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, DoubleType, IntegerType, LongType, NestedField, UUIDType

from icepuffin.ops.filters.policy_expression import policy_expression

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "score", DoubleType()))
ID, SCORE = {"type": "reference", "id": 1}, {"type": "reference", "id": 2}
ONE, TWO = ({"type": "eq", "left": ID, "right": number} for number in (1, 2))
OVER: dict[str, Any] = {"type": "gt", "left": SCORE, "right": 0.5}
NUMBERS: dict[str, Any] = {"type": "in", "child": ID, "values": [1, 2]}
NULL: dict[str, Any] = {"type": "is-null", "child": ID}
TYPED: dict[str, Any] = {"type": "literals", "values": [1, 2], "data-type": "long"}
SCHEMA_OF_TYPES = Schema(
    NestedField(1, "price", DecimalType(9, 2)), NestedField(2, "owner", UUIDType()), NestedField(3, "key", BinaryType())
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (True, AlwaysTrue()),
        ({"type": "true"}, AlwaysTrue()),
        ({"type": "false"}, AlwaysFalse()),
        ({"type": "and", "left": ONE, "right": TWO}, And(EqualTo("id", 1), EqualTo("id", 2))),
        ({"type": "or", "left": ONE, "right": TWO}, Or(EqualTo("id", 1), EqualTo("id", 2))),
        (OVER, And(GreaterThan("score", 0.5), NotNaN("score"))),
        (OVER | {"type": "gt-eq"}, And(GreaterThanOrEqual("score", 0.5), NotNaN("score"))),
        (OVER | {"type": "lt-eq"}, LessThanOrEqual("score", 0.5)),
        (OVER | {"left": ID, "right": 5}, GreaterThan("id", 5)),
        (ONE | {"left": SCORE}, EqualTo("score", 1)),
        (NUMBERS, In("id", [1, 2])),
        (NUMBERS | {"values": TYPED}, In("id", [1, 2])),
        (NULL, IsNull("id")),
        (NULL | {"type": "is-nan", "child": SCORE}, IsNaN("score")),
        (NULL | {"type": "not-nan", "child": SCORE}, NotNaN("score")),
    ],
    ids=str,
)
def test_a_row_filter_is_the_expression_that_the_specification_says(document: Any, expected: Any) -> None:
    assert policy_expression(document, SCHEMA) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"type": "true"}, AlwaysFalse()),
        ({"type": "false"}, AlwaysTrue()),
        ({"type": "and", "left": ONE, "right": TWO}, Or(NotEqualTo("id", 1), NotEqualTo("id", 2))),
        ({"type": "or", "left": ONE, "right": TWO}, And(NotEqualTo("id", 1), NotEqualTo("id", 2))),
        ({"type": "not", "child": ONE}, EqualTo("id", 1)),
        (OVER, ~GreaterThan("score", 0.5)),
        (NUMBERS, NotIn("id", [1, 2])),
    ],
    ids=str,
)
def test_not_turns_all_that_is_below(document: Any, expected: Any) -> None:
    assert policy_expression({"type": "not", "child": document}, SCHEMA) == expected


@pytest.mark.parametrize(
    "document",
    [{"type": "true"}, {"type": "and", "left": ONE, "right": TWO}, {"type": "not", "child": ONE}, ONE, NUMBERS, NULL],
    ids=str,
)
def test_a_key_more_or_less_is_another_form(document: dict[str, Any]) -> None:
    """It may restrict the rows in a way that is not known here."""
    fewer = [{key: value for key, value in document.items() if key != left_out} for left_out in document]
    for other in (document | {"more": 1}, *fewer):
        with pytest.raises(ValueError, match=r"a predicate of type|is no predicate"):
            policy_expression(other, SCHEMA)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (NULL | {"type": "is-nan"}, "is-nan of id, which is long"),
        (NULL | {"type": "not-nan"}, "not-nan of id, which is long"),
        (NUMBERS | {"values": 1}, "are no literals"),
        (NUMBERS | {"values": TYPED | {"values": 1}}, "are no literals"),
        (NUMBERS | {"values": TYPED | {"type": "literal"}}, "are no literals"),
        (NUMBERS | {"values": TYPED | {"data-type": "string"}}, "id is long, and 1 is string"),
        (NUMBERS | {"values": {"type": "literals", "values": [1, 2]}}, "are no literals"),
        (ONE | {"left": "id"}, "no field id of a top-level column"),
        (ONE | {"left": ID | {"type": "transform"}}, "no field id of a top-level column"),
        (ONE | {"left": ID | {"id": True}}, "no field id of a top-level column"),
        (ONE | {"right": {"type": "literals", "value": 1}}, "is no literal"),
        (ONE | {"right": {"type": "literal", "value": 1, "more": 1}}, "is no literal"),
        (ONE | {"right": "1"}, "id is long, which '1' is not"),
        (OVER | {"right": 10**400}, "score is double, which 10+ is not: "),
        (OVER | {"right": math.inf}, "score is double, which inf is not"),
    ],
    ids=str,
)
def test_what_the_specification_does_not_say_is_refused(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_expression(document, SCHEMA)


@pytest.mark.parametrize(
    ("field_id", "value"), [(1, "ten"), (1, "NaN"), (1, 1.5), (2, "one"), (2, 1), (3, "xx"), (3, 1)]
)
def test_a_value_that_a_column_cannot_have_is_refused_with_the_columns_name(field_id: int, value: Any) -> None:
    column = SCHEMA_OF_TYPES.find_field(field_id)
    document = {"type": "eq", "left": {"type": "reference", "id": field_id}, "right": value}
    with pytest.raises(ValueError, match=re.escape(f"{column.name} is {column.field_type}, which {value!r} is not")):
        policy_expression(document, SCHEMA_OF_TYPES)


def test_a_literal_of_another_type_stands_where_the_column_has_all_of_its_values() -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "small", IntegerType()))
    for field_id, named, fits in ((1, "int", True), (1, "long", True), (2, "int", True), (2, "long", False)):
        literal = {"type": "literal", "value": 1, "data-type": named}
        document = {"type": "eq", "left": {"type": "reference", "id": field_id}, "right": literal}
        if fits:
            policy_expression(document, schema)
        else:
            with pytest.raises(ValueError, match="small is int, and 1 is long"):
                policy_expression(document, schema)
