"""Row filters of a catalog as expressions: exactly the forms of the specification, and the stricter of two readings."""

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
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    Or,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField

from icepuffin.ops.filters.policy_expression import policy_expression

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "score", DoubleType()))
ID, SCORE = {"type": "reference", "id": 1}, {"type": "reference", "id": 2}
ONE, TWO = ({"type": "eq", "left": ID, "right": number} for number in (1, 2))
OVER: dict[str, Any] = {"type": "gt", "left": SCORE, "right": 0.5}
NUMBERS: dict[str, Any] = {"type": "in", "child": ID, "values": [1, 2]}
NULL: dict[str, Any] = {"type": "is-null", "child": ID}


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
