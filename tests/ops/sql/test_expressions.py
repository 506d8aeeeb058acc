"""Expressions by themselves, over one small table: their values are Python's, and each refusal says why."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icepuffin.ops.sql import SqlError
from icepuffin.ops.sql.expressions import check, condition, evaluate, typed
from icepuffin.ops.sql.tokens import trees_of

DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]
ROWS = pa.table(
    {
        "n": pa.array([7, -2, None], pa.int32()),
        "i": pa.array([10, 2**62, None], pa.int64()),
        "x": pa.array([2.5, -0.5, math.nan], pa.float64()),
        "m": pa.array([Decimal("1.25"), Decimal("-9.99"), None], pa.decimal128(9, 2)),
        "w": pa.array([Decimal(1), Decimal(2), None], pa.decimal128(38, 37)),
        "s": ["Aß", "", None],
        "y": pa.array([b"ab", b"", None], pa.binary()),
        "b": [True, False, None],
        "d": pa.array(DAYS, pa.date32()),
        "t": pa.array([None if day is None else dt.datetime(day.year, 1, day.day) for day in DAYS], pa.timestamp("us")),  # noqa: DTZ001
        "a": pa.array([["u", "v"], [], None], pa.list_(pa.string())),
        "e": pa.array([1, 2, 3], pa.time64("us")),
    }
)


def node_of(text: str) -> Any:
    """The tree of an expression."""
    (select,) = trees_of(f"SELECT {text}")
    (projection,) = select.expressions
    return projection


def values(text: str) -> list[Any]:
    return evaluate(node_of(text), ROWS).to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n + 1", [8, -1, None]),
        ("n - i", [-3, -2 - 2**62, None]),
        ("-n", [-7, 2, None]),
        ("n / 2", [3.5, -1.0, None]),
        ("m + 1", [Decimal("2.25"), Decimal("-8.99"), None]),
        ("m * m", [Decimal("1.5625"), Decimal("99.8001"), None]),
        ("-m", [Decimal("-1.25"), Decimal("9.99"), None]),
        ("m / 4", [Decimal("0.3125"), Decimal("-2.4975"), None]),
        ("m / n", [Decimal("0.1785714285714"), Decimal("4.995"), None]),
        ("abs(n)", [7, 2, None]),
        ("round(m, 1)", [Decimal("1.3"), Decimal("-10.0"), None]),
        ("round(m)", [Decimal(1), Decimal(-10), None]),
        ("round(x + 0.25, -1)", [0.0, 0.0, math.nan]),
        ("power(n, 2)", [49.0, 4.0, None]),
        ("floor(m)", [Decimal(1), Decimal(-10), None]),
        ("ceil(x)", [3, 0, 0]),
        ("concat(s, '-', s)", ["Aß-Aß", "-", None]),
        ("s || '!'", ["Aß!", "!", None]),
        ("upper(s)", ["ASS", "", None]),
        ("length(s)", [2, 0, None]),
        ("length(y)", [2, 0, None]),
        ("y = X'6162'", [True, False, None]),
        ("CAST(m AS BIGINT)", [1, -9, None]),
        ("CAST(n AS DECIMAL(4, 1))", [Decimal(7), Decimal(-2), None]),
        ("CAST(n AS DECIMAL(4))", [Decimal(7), Decimal(-2), None]),
        ("CAST('12' AS INT) + n", [19, 10, None]),
        ("d = DATE '2026-01-02'", [False, True, None]),
        ("t < TIMESTAMP '2026-01-01 12:00:00'", [True, False, None]),
        ("d <= TIMESTAMP_NTZ '2026-01-01 00:00:00'", [True, False, None]),
        ("x = x", [True, True, True]),
        ("x > 2", [True, False, True]),
        ("isnan(x)", [False, False, True]),
        ("n BETWEEN -2 AND 6", [False, True, None]),
        ("n IN (7, 8)", [True, False, None]),
        ("s LIKE '_ß'", [True, False, None]),
        ("s NOT ILIKE 'a%'", [False, True, None]),
        ("b AND n > 0", [True, False, None]),
        ("b OR NULL", [True, None, None]),
        ("NOT b", [False, True, None]),
        ("b IS TRUE", [True, False, False]),
        ("e IS NULL", [False, False, False]),
        ("if(b, n, i)", [7, 2**62, None]),
        ("CASE WHEN n > 0 THEN s ELSE 'else' END", ["Aß", "else", "else"]),
        ("coalesce(n, 1)", [7, -2, 1]),
        ("array_contains(a, 'v')", [True, False, None]),
        ("9223372036854775807", [2**63 - 1] * 3),
        ("-9223372036854775808", [-(2**63)] * 3),
        ("9223372036854775808", [Decimal(2**63)] * 3),
        ("0.10", [Decimal("0.10")] * 3),
        ("1e1", [10.0] * 3),
        ("NULL", [None] * 3),
        ("true", [True] * 3),
    ],
)
def test_an_expression_has_the_values_that_python_computes(text: str, expected: list[Any]) -> None:
    computed = values(text)
    assert computed == expected or repr(computed) == repr(expected), computed  # NaN equals nothing


@pytest.mark.parametrize(
    ("text", "sql_type"),
    [
        ("n + 1", pa.int32()),
        ("n + i", pa.int64()),
        ("n / 2", pa.float64()),
        ("m + 1", pa.decimal128(10, 2)),
        ("m + CAST(n AS DECIMAL(4, 1))", pa.decimal128(10, 2)),
        ("m * n", pa.decimal128(20, 2)),
        ("m / n", pa.decimal128(20, 13)),
        ("w * w", pa.decimal128(38, 35)),
        ("round(m, 1)", pa.decimal128(9, 1)),
        ("floor(m)", pa.decimal128(8, 0)),
        ("floor(n)", pa.int64()),
        ("-3", pa.int32()),
        ("2147483648", pa.int64()),
        ("1.50", pa.decimal128(3, 2)),
        ("length(s)", pa.int32()),
        ("if(b, n, i)", pa.int64()),
        ("s || s", pa.string()),
    ],
)
def test_an_expression_has_its_type_before_rows_are_there(text: str, sql_type: Any) -> None:
    assert typed(node_of(text), ROWS.schema).sql_type == sql_type
    assert evaluate(node_of(text), ROWS.slice(0, 0)).type == sql_type


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-NULL", "null has no type"),
        ("NULL + NULL", "null and null have no type"),
        ("NULL + m", "null beside a decimal is not computed here"),
        ("m + NULL", "null beside a decimal is not computed here"),
        ("s + n", "there is no arithmetic here with string"),
        ("-s", "there is no arithmetic here with string"),
        ("1L + m", "beside a decimal is not computed here"),
        ("none", "there is no column 'none'; there are: n, i, x"),
        ("e", r"values of type time64\[us\] are not computed with here"),
        ("array(1)", r"ARRAY\(1\) is not computed here"),
        ("1" * 39, "has more than 38 digits"),
        ("round(x, n)", "the number of digits is to be a small constant"),
        ("round(x, 1000)", "the number of digits is to be a small constant"),
        ("round(n, -1)", r"round\(\) of an integer to tens or more"),
        ("round(m, -1)", r"round\(\) of a decimal to tens or more"),
        ("concat(s, n)", "only texts are joined here"),
        ("CAST(n AS BOOLEAN)", "is not computed here"),
        ("CAST(m AS DECIMAL(1, 2, 3))", r"write DECIMAL\(precision, scale\)"),
        ("CAST(m AS DECIMAL(39, 1))", "there is no such type"),
        ("CAST(m AS DECIMAL(3, 4))", "there is no such type"),
        ("CAST(m AS DECIMAL(0, 0))", "there is no such type"),
        ("CAST(s AS INT)", "string is not cast to int32 here"),
        ("CAST('1.5' AS INT)", "'1.5' is not read as int32 here"),
        ("CAST('2147483648' AS INT)", "'2147483648' is not read as int32 here"),
        ("DATE '2026-02-30'", r"'2026-02-30' is no date32\[day\]: day is out of range"),
        ("TIMESTAMP '2026-01-01 00:00:00'", "depends on the session's time zone: write it with a zone"),
        ("CAST(x * 1e10 AS INT)", "a number is out of the range of int32"),
        ("CAST(x * 1e300 AS BIGINT)", "a number is out of the range of int64"),
        ("CAST(n * 1000 AS DECIMAL(4, 1))", r"7000 is out of the range of decimal128\(4, 1\)"),
        ("upper(n)", "int32 is no text"),
        ("upper(lower(s))", "the case of LOWER.s. is not changed again here"),
        ("length(n)", "int32 has no length"),
        ("abs(s)", "string is no number"),
        ("isnan(n)", "that is int32, no float"),
        ("n LIKE 'a'", "that is int32, no text"),
        ("s LIKE s", "LIKE takes a constant pattern"),
        (r"s LIKE 'a\\b'", "stands before %, _ or . alone"),
        (r"s LIKE 'a\\'", "stands before %, _ or . alone"),
        ("n < s", "int32 and string are not compared here"),
        ("b = 'true'", "a text is not compared with bool here"),
        ("w = x", "has more digits than a double: it is not compared with one here"),
        ("w = i", r"no decimal holds the values of decimal128\(38, 37\) and int64"),
        ("i < 9223372036854775808", "9223372036854775808 is beyond all integers"),
        ("NOT n", "n is int32, not a condition"),
        ("if(NULL, 1, 2)", "NULL is null, not a condition"),
        ("if(b, 1)", r"if\(\) takes a condition and two values"),
        ("array_contains(a, s)", "array_contains takes a column of lists, and a constant"),
        ("array_contains(a, 1)", "the lists have elements of type string"),
        ("n / 0", "division by zero"),
        ("m / 0", "division by zero"),
        ("n + 2147483647", "overflow"),
        ("1 / 0", "division by zero"),
    ],
)
def test_what_is_not_computed_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        values(text)


def test_a_name_that_two_columns_have_is_refused_with_all_names() -> None:
    two = pa.table([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(SqlError, match="there are several columns 'n'; there are: n, n"):
        evaluate(node_of("n"), two)


def test_kinds_of_nodes_without_a_rule_are_refused_wherever_they_stand() -> None:
    check(node_of("CAST(n AS DECIMAL(4, 1)) + coalesce(x, 1)"))
    with pytest.raises(SqlError, match="is not computed here"):
        check(node_of("1 + abs(rank() OVER (ORDER BY n))"))


def test_a_condition_is_of_truth_values_alone() -> None:
    assert condition(node_of("n > 0"), ROWS.schema).run(ROWS).to_pylist() == [True, False, None]
    for text in ("n", "NULL"):
        with pytest.raises(SqlError, match="not a condition"):
            condition(node_of(text), ROWS.schema)
