"""Columns of every type in SQL: in WHERE, by the index and afterwards; in ORDER BY; in the answer."""

from collections.abc import Callable

import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.sql_session import SqlSession
from tests.conftest import STORAGE, queries
from tests.ops.search.test_types import COUNT, VALUES, as_text, code, typed, value

__all__ = ["typed"]
NEAR = "l2_distance(embedding, :q)"


@pytest.fixture(scope="module")
def session(catalog: Catalog, typed: object) -> SqlSession:
    return SqlSession.on(catalog, storage=STORAGE)


def ids(session: SqlSession, text: str) -> list[int]:
    return sorted(session.sql(text, {"q": queries(1)[0]}).rows["id"].to_pylist())


CONDITIONS: list[tuple[str, Callable[[int], bool]]] = [
    ("flag", lambda n: n % 2 == 0),
    ("NOT flag", lambda n: n % 2 == 1),
    ("small < 4.0", lambda n: n < 4),
    ("small = '4'", lambda n: n == 4),
    ("price < 1.5", lambda n: n < 6),
    ("day < DATE '2026-01-03'", lambda n: n < 2),
    ("day < '2026-01-03'", lambda n: n < 2),
    ("hour = '03:30:00'", lambda n: n % 24 == 3),
    ("local < '2026-01-03'", lambda n: n < 2),
    ("text NOT IN ('t01', 't02')", lambda n: n not in (1, 2)),
    (f"code = '{code(3)}'", lambda n: n == 3),
    (f"code IN ('{code(3)}', '{code(5)}')", lambda n: n in (3, 5)),
    ("place IS NOT NULL", lambda n: True),
]


@pytest.mark.parametrize(("where", "expected"), CONDITIONS, ids=[where for where, _ in CONDITIONS])
@pytest.mark.parametrize(
    "text",
    [
        f"SELECT id FROM db.typed WHERE {{where}} ORDER BY {NEAR} LIMIT 99",
        f"SELECT id FROM db.typed WHERE {{where}} AND {NEAR} < 99",
        f"SELECT id FROM (SELECT * FROM db.typed ORDER BY {NEAR} LIMIT 99) WHERE {{where}}",
    ],
    ids=["nearest", "within", "found"],
)
def test_a_condition_on_a_column_of_each_type(
    session: SqlSession, text: str, where: str, expected: Callable[[int], bool]
) -> None:
    answer = ids(session, text.format(where=where))
    assert answer == [n for n in range(COUNT) if n % 7 != 6 and expected(n)]


@pytest.mark.parametrize(
    "where",
    [
        f"code = '{str(code(10)).upper()}'",
        f"code IN ('{code(5)}', '{{{code(3)}}}')",
        f"array_contains(codes, '{str(code(10)).upper()}')",
        "hour > '03:30'",
        "hour = '03:30:00.0'",
    ],
)
def test_a_text_that_no_uuid_and_no_time_of_day_is_written_as_is_refused(session: SqlSession, where: str) -> None:
    """A filter would take it for the value, and the rows of a subquery, which have texts, would not."""
    with pytest.raises(SqlError, match=r"a text in SQL, which .* is never equal to: write '"):
        ids(session, f"SELECT id FROM db.typed WHERE {where} ORDER BY {NEAR} LIMIT 99")
    assert session.sql(f"EXPLAIN SELECT id FROM db.typed WHERE {where} ORDER BY {NEAR} LIMIT 9", {"q": queries(1)[0]})


def test_null_is_not_nan(session: SqlSession) -> None:
    for where, answer in (("isnan(score)", []), ("NOT isnan(score)", list(range(COUNT)))):
        assert ids(session, f"SELECT id FROM db.typed WHERE {where} ORDER BY {NEAR} LIMIT 99") == answer
        assert ids(session, f"SELECT id FROM (SELECT * FROM db.typed ORDER BY {NEAR} LIMIT 99) WHERE {where}") == answer


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("local = TIMESTAMP '2026-01-03 12:00:00'", [2]),
        ("utc < TIMESTAMP '2026-01-03 12:00:00+00:00'", [0, 1]),
        ("hash = X'03010203'", [3]),
        ("hash = X'3010203'", [3]),
        ("raw < X'03'", [0, 1, 2]),
        ("raw < X'3'", [0, 1, 2]),
    ],
)
def test_times_and_bytes_are_written_as_spark_has_them(session: SqlSession, where: str, expected: list[int]) -> None:
    assert ids(session, f"SELECT id FROM db.typed WHERE {where} ORDER BY {NEAR} LIMIT 99") == expected


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT id FROM db.typed WHERE hash = :p ORDER BY {NEAR} LIMIT 99",
        f"SELECT id FROM db.typed WHERE hash = :p AND {NEAR} < 99",
        f"SELECT id FROM (SELECT * FROM db.typed ORDER BY {NEAR} LIMIT 99) WHERE hash = :p",
    ],
)
def test_bytes_are_a_parameter(session: SqlSession, text: str) -> None:
    for number in (0, 3, 25):
        rows = session.sql(text, {"q": queries(1)[0], "p": value("hash", number)}).rows
        assert rows["id"].to_pylist() == [number]


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("small < '4.5'", SqlError, "'4.5' is not read as int here"),
        (
            "utc < TIMESTAMP '2026-01-03 12:00:00'",
            SqlError,
            "timestamp are not compared here: .* '2026-01-31 08:00:00Z'",
        ),
        ("text = 1", SqlError, "string and long are not compared here: give a constant of the column's type"),
        ("small = NULL", SqlError, r"no comparison with a null \(NULL\) is true: write IS NULL"),
        ("place.city = 'c3'", SqlError, r"place\.city"),
        ("flag IN (true, 1E0)", SqlError, "boolean and double are not compared here"),
        ("tags = 'b'", SqlError, "values of type list<string> are not compared here"),
        (f"price < {39 * '9'}", SqlError, "9 has more than 38 digits"),
        (f"price < {38 * '9'}", SqlError, "no decimal holds the values of"),
        (f"price < 0.{32 * '0'}1", SqlError, "no decimal holds the values of"),
    ],
)
def test_what_a_type_cannot_hold_is_refused(
    session: SqlSession, where: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ids(session, f"SELECT id FROM db.typed WHERE {where} ORDER BY {NEAR} LIMIT 99")


def test_a_decimal_has_at_most_as_many_digits_as_a_double_beside_it(session: SqlSession) -> None:
    """A double keeps fifteen digits of any decimal: with more, two that differ may be one double."""
    text = f"SELECT id FROM db.typed WHERE score > -0.{'0' * 9}{{}} ORDER BY {NEAR} LIMIT 99"
    assert ids(session, text.format("123456")) == ids(session, text.format("1"))
    with pytest.raises(SqlError, match="more digits than a double: it is not compared with one here"):
        ids(session, text.format("1234567"))


@pytest.mark.parametrize("column", ["small", "score"])
def test_the_least_integer_is_compared(session: SqlSession, column: str) -> None:
    for least in (str(-(2**63)), f"'{-(2**63)}'"):
        assert ids(session, f"SELECT id FROM db.typed WHERE {column} >= {least} ORDER BY {NEAR} LIMIT 99")


def test_columns_of_each_type_are_returned_and_ordered_by(session: SqlSession) -> None:
    names = ", ".join(VALUES)
    rows = session.sql(f"SELECT id, {names} FROM db.typed ORDER BY {NEAR} LIMIT 99", {"q": queries(1)[0]}).rows
    for row in rows.to_pylist():
        expected = {name: as_text(value(name, row["id"])) for name in VALUES}
        assert {name: row[name] for name in VALUES} == expected
    for name in ("small", "price", "day", "hour", "local", "utc", "text", "code", "hash", "raw"):
        text = f"SELECT {name} FROM db.typed WHERE {NEAR} < 99 AND {name} IS NOT NULL ORDER BY {name}"
        found = session.sql(text, {"q": queries(1)[0]}).rows[name].to_pylist()
        assert found == sorted(found)
    with pytest.raises(SqlError, match=r"values of type struct.* are not compared here"):
        session.sql(f"SELECT id FROM db.typed WHERE {NEAR} < 99 ORDER BY place", {"q": queries(1)[0]})
