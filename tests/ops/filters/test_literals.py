"""Comparisons of a column with a literal mean what comparing the two numbers, or moments, means."""

import datetime as dt
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    StartsWith,
)
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.filters.literals import fitted

OPERATORS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    NotEqualTo: operator.ne,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}
F32 = float(np.finfo(np.float32).max)
F64 = float(np.finfo(np.float64).max)
TENTH = float(np.float32(0.1))
NUMBERS: dict[IcebergType, tuple[Sequence[Any], Sequence[Any]]] = {
    IntegerType(): (
        [-(2**31), -1, 0, 1, 2**31 - 1],
        [-(2**31), -(2**31) - 1, 2**31 - 1, 2**31, 0, -0.5, 0.5, 1e300, -math.inf, math.inf, Decimal("0.99"), 1.0],
    ),
    LongType(): (
        [-(2**63), -1, 0, 7, 2**63 - 1],
        [-(2**63), 2**63 - 1, 10**30, -(10**30), 6.5, -0.5, Decimal("7.000"), Decimal("7.1"), math.inf, -math.inf],
    ),
    FloatType(): (
        [-math.inf, -F32, -1.0, -0.0, 0.0, TENTH, 16_777_216.0, F32, math.inf, math.nan],
        [0.1, TENTH, 16_777_217, 1e39, -1e39, 0, math.inf, -math.inf, Decimal("1e400"), Decimal("-1e400"), 10**400],
    ),
    DoubleType(): (
        [-math.inf, -F64, -0.0, 0.0, 0.1, 2.0**53, F64, math.inf, math.nan],
        [0.1, 2**53 + 1, Decimal("0.1"), math.inf, -math.inf, 10**400, Decimal("-1e400"), 0],
    ),
    DecimalType(4, 2): (
        [Decimal("-99.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("0.10"), Decimal("99.99")],
        [0.1, 0.005, -0.005, 100, -100, Decimal("99.990"), Decimal("99.995"), 1e300, math.inf, -math.inf, 0],
    ),
}


def rows_of(where: BooleanExpression, kind: IcebergType, values: Sequence[Any]) -> list[bool]:
    """Whether each value satisfies the fitted condition."""
    schema = Schema(NestedField(1, "a", kind))
    satisfies = expression_evaluator(schema, fitted(where, schema), case_sensitive=True)
    return [satisfies(Record(value)) for value in values]


def number(value: Any, kind: IcebergType) -> Any:
    """What is compared: beside floats the nearest double if there is one, else a number as it is written."""
    if isinstance(kind, FloatType | DoubleType):
        try:
            double = float(value)
        except OverflowError:
            return value
        return value if math.isinf(double) and isinstance(value, Decimal) else double
    return value if isinstance(value, int) or (isinstance(value, float) and math.isinf(value)) else Decimal(str(value))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_numbers_are_compared_as_they_are(kind: IcebergType) -> None:
    values, literals = NUMBERS[kind]
    for (predicate, compare), literal in itertools.product(OPERATORS.items(), literals):
        exact = number(literal, kind)
        greater = predicate in (GreaterThan, GreaterThanOrEqual, NotEqualTo)  # NaN is larger than all numbers
        expected = [greater if math.isnan(value) else compare(value, exact) for value in values]
        assert rows_of(predicate("a", literal), kind, values) == expected, (predicate.__name__, literal)
        negated = rows_of(Not(predicate("a", literal)), kind, values)
        assert negated == [not each for each in expected], (predicate.__name__, literal)


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_lists_have_the_literals_that_the_column_can_hold(kind: IcebergType) -> None:
    values, literals = NUMBERS[kind]
    exact = [number(literal, kind) for literal in literals]
    expected = [not math.isnan(value) and value in exact for value in values]
    assert rows_of(In("a", literals), kind, values) == expected
    assert rows_of(NotIn("a", literals), kind, values) == [not each for each in expected]
    none = [literal for literal in literals if number(literal, kind) not in values]
    assert not any(rows_of(In("a", none), kind, values))
    assert all(rows_of(NotIn("a", none), kind, values))


def test_null_is_not_unequal_to_what_no_value_is() -> None:
    schema = Schema(NestedField(1, "a", IntegerType()))
    assert fitted(NotEqualTo("a", 0.5), schema) == fitted(NotIn("a", [0.5, 10**30]), schema) == NotNull("a")


DAY = 86_400_000_000
MOMENTS = [
    "2026-11-20",
    "2026-11-20T00:00",
    "2026-11-20 08:30:00.5",
    "2026-11-20T23:59:59.999999",
    "1969-12-31T23:00:00",
]


@pytest.mark.parametrize("kind", [DateType(), TimestampType()], ids=str)
def test_a_day_is_its_first_moment_beside_times(kind: IcebergType) -> None:
    unit = DAY if isinstance(kind, DateType) else 1
    first = (dt.date(2026, 11, 20) - dt.date(1970, 1, 1)).days * DAY // unit
    values = [-1, 0, first - 1, first, first + 1]
    for (predicate, compare), text in itertools.product(OPERATORS.items(), MOMENTS):
        moment = (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001
        expected = [compare(value * unit, moment) for value in values]
        assert rows_of(predicate("a", text), kind, values) == expected, (predicate.__name__, text)


def test_times_with_zones_are_one_moment_however_they_are_written() -> None:
    values = [-3_600_000_000, 0, 1]
    for text in ("1970-01-01T00:00:00Z", "1970-01-01 01:00+01:00", "1969-12-31T18:30:00-05:30"):
        assert rows_of(EqualTo("a", text), TimestamptzType(), values) == [False, True, False], text


def test_texts_of_numbers_are_numbers() -> None:
    assert rows_of(EqualTo("a", "+7"), IntegerType(), [7, 8]) == [True, False]
    assert rows_of(LessThan("a", "1e1"), DoubleType(), [9.5, 10.0]) == [True, False]
    assert rows_of(EqualTo("a", "-Infinity"), DoubleType(), [-math.inf, 0.0]) == [True, False]
    assert rows_of(EqualTo("a", ".10"), DecimalType(4, 2), [Decimal("0.10"), Decimal("0.11")]) == [True, False]
    wide, almost = DecimalType(30, 20), Decimal("0.10000000000000000001")
    assert rows_of(EqualTo("a", str(almost)), wide, [almost, Decimal("0.1")]) == [True, False]


@pytest.mark.parametrize(
    ("kind", "where", "reason"),
    [
        (IntegerType(), EqualTo("a", "7.0"), "'7.0' is no int, as a is$"),
        (DoubleType(), EqualTo("a", "NaN"), "'NaN' is no double, as a is: write a is nan"),
        (IntegerType(), EqualTo("a", True), "a is int, which True is not"),
        (IntegerType(), EqualTo("a", b"7"), "a is int, which b'7' is not"),
        (IntegerType(), EqualTo("a", dt.date(2026, 1, 1)), "a is int, which 20454 is not"),
        (LongType(), EqualTo("a", 2.0**53), "a is long, of which doubles as large as 9007199254740992.0 tell few"),
        (LongType(), LessThan("a", -(2.0**53)), "tell few apart: give an integer"),
        (StringType(), EqualTo("a", 7), "a is string, which 7 is not: compare it with what it can be"),
        (StringType(), EqualTo("a", "\ud800"), "is no text: it has half of a surrogate pair"),
        (BooleanType(), EqualTo("a", "true"), "a is boolean: write true or false"),
        (BooleanType(), EqualTo("a", 1), "a is boolean, which 1 is not"),
        (BinaryType(), EqualTo("a", "7"), "a is binary, which a text cannot say; from Python give"),
        (TimeType(), EqualTo("a", "8:30"), "a is time: write '08:30:00', with microseconds at most and no zone"),
        (TimeType(), EqualTo("a", True), "a is time, which True is not"),
        (DateType(), EqualTo("a", "2026-1-1"), "Invalid date: '2026-1-1'"),
        (TimestampType(), EqualTo("a", "now"), "Invalid timestamp without zone: 'now'"),
        (TimestamptzType(), EqualTo("a", "now"), "Invalid timestamp with zone: 'now'"),
        (TimestampType(), EqualTo("a", "2026-01-01T00:00:00Z"), "a is timestamp, write it without a zone"),
        (TimestamptzType(), EqualTo("a", "2026-01-01"), "a is timestamptz, write it with a zone, such as '2026"),
        (TimestamptzType(), EqualTo("a", 7), "a is timestamptz, which 7 is not: write it with a zone"),
        (TimestampType(), EqualTo("a", 7), "a is timestamp, which 7 is not: a time"),
        (IntegerType(), StartsWith("a", "7"), "a is int: LIKE takes a column of texts or bytes"),
        (ListType(2, LongType()), ArrayContains("a", None), r"array_contains\(a, ...\) does not find null"),
        (ListType(2, LongType()), ArrayContains("a", "7"), "array_contains takes a number, not a text"),
    ],
    ids=str,
)
def test_a_literal_that_is_no_value_of_the_column_is_refused(
    kind: IcebergType, where: BooleanExpression, reason: str
) -> None:
    schema = Schema(NestedField(1, "a", kind))
    with pytest.raises(ValueError, match=reason):
        fitted(where, schema)


def test_a_list_contains_what_its_elements_can_be() -> None:
    schema = Schema(NestedField(1, "a", ListType(2, IntegerType())))
    for value, element in ((7, 7), (7.0, 7), (7.5, None), (2**31, None)):
        predicate = fitted(ArrayContains("a", value), schema)
        assert isinstance(predicate, ArrayContains)
        assert (None if predicate.value is None else predicate.value.value) == element
        assert fitted(And(ArrayContains("a", value), ArrayContains("a", value)), schema, on_lists=False) == AlwaysTrue()


def test_conditions_on_lists_are_equal_where_they_say_the_same() -> None:
    schema = Schema(*(NestedField(number, name, ListType(9 + number, LongType())) for number, name in enumerate("ab")))
    own, *others = ArrayContains("b", 5), ArrayContains("a", 5), ArrayContains("b", 4), ArrayContains("b", 6)
    for made in (lambda condition: condition, lambda condition: condition.bind(schema)):
        assert made(own) == made(~~own)
        assert hash(made(own)) == hash(made(~~own))
        assert made(own) not in [made(other) for other in (*others, ~own)]
    assert own != own.bind(schema)


def test_a_text_beside_a_decimal_of_fifteen_digits_is_a_double() -> None:
    """As Spark compares the two. Of more digits a double tells too few apart, and the text is compared as it is."""
    near = "0.10000000000000000555"
    found = [rows_of(EqualTo("a", near), DecimalType(digits, 2), [Decimal("0.10")]) for digits in (15, 16)]
    assert found == [[True], [False]]
