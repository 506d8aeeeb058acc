"""A condition in a message is what somebody would write, not the classes that it is made of."""

import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    Or,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from icepuffin.ops.filters.condition_text import condition_text
from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.search.errors import FilterError

SCHEMA = Schema(NestedField(1, "id", IntegerType()))


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("a = 1", "'a = 1'"),
        (EqualTo("a", 1), "a = 1"),
        (And(LessThan("a", 1.5), NotEqualTo("b", "x")), "(a < 1.5 and b != 'x')"),
        (Or(GreaterThanOrEqual("a", 1), Not(IsNull("b"))), "(a >= 1 or not (b is null))"),
        (In("a", [2, 1]), "a in (1, 2)"),
        (In("a", [1, 2, 3, 4, 5]), "a in (1, 2, 3, 4, 5)"),
        (ArrayContains("tags", "x"), "array_contains(tags, 'x')"),
        (~ArrayContains("tags", None), "not (array_contains(tags, None))"),
        (NotIn("a", list(range(1, 10))), "a not in (1, 2, 3, 4, 5, 4 more)"),
        (And(StartsWith("a", "x"), NotNaN("b")), "(a starts with 'x' and b is not NaN)"),
        (AlwaysTrue(), "true"),
        (AlwaysFalse(), "false"),
    ],
)
def test_a_condition_is_shown_as_it_would_be_written(where: str | BooleanExpression, text: str) -> None:
    assert condition_text(where) == text


def test_a_condition_that_does_not_fit_says_which_column_is_not_there() -> None:
    for where, text in (("nope = 1", "'nope = 1'"), (EqualTo("nope", 1), "nope = 1")):
        with pytest.raises(FilterError) as refused:
            RowPredicate(where, SCHEMA)
        assert str(refused.value) == (
            f"the condition {text} does not fit the table: it has no column 'nope'; its columns are id"
        )


def test_what_is_no_condition_is_named_by_its_type() -> None:
    with pytest.raises(FilterError, match="where is a value of type dict: write a text or"):
        RowPredicate({"id": 1}, SCHEMA)  # type: ignore[arg-type]
