"""What SQL means where engines differ, or a shorter way would be wrong: as Spark 4.1 has it, wherever it stands."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo, LessThan

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.search.opening import open_exact
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.parser import parse
from icepuffin.ops.sql.spark_statements import for_spark
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.sql.statements import SparkStatement
from tests.conftest import STORAGE

NEAR = "l2_distance(v, array(0.0, 0.0))"
FOUND = f"(SELECT * FROM db.t ORDER BY {NEAR} LIMIT 99)"
PLACES = {
    "pushed": f"SELECT id FROM db.t WHERE {{}} ORDER BY {NEAR} LIMIT 99",
    "within": f"SELECT id FROM db.t WHERE {NEAR} < 99 AND ({{}})",
    "found": f"SELECT id FROM {FOUND} WHERE {{}}",
}
NOON = dt.datetime(2026, 1, 3, 12)  # noqa: DTZ001  on a clock


def rows() -> pa.Table:
    days = [dt.date(2026, 1, day) for day in (1, 2, 3, 3)]
    return pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "n": pa.array([0, 1, 2, -3], pa.int32()),
            "f": pa.array([0.1, 0.2, 0.5, None], pa.float32()),
            "x": pa.array([0.0, 1.0, -3.0, np.e], pa.float64()),
            "m": pa.array([Decimal("-2.55"), Decimal("2.01"), Decimal("0.20"), Decimal("1.10")], pa.decimal128(9, 2)),
            "s": ["O'Brien", "OBrien", "it's", "a\\b"],
            "b": [True, False, None, True],
            "d": pa.array(days, pa.date32()),
            "t": pa.array([NOON.replace(day=day.day) for day in days], pa.timestamp("us")),
            "z": pa.array([NOON.replace(day=day.day, tzinfo=dt.UTC) for day in days], pa.timestamp("us", "UTC")),
            "v": pa.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], pa.list_(pa.float32())),
        }
    )


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder: Path = tmp_path_factory.mktemp("meaning")
    new_catalog = open_catalog(
        "test", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
    )
    new_catalog.create_namespace("db")
    table = new_catalog.create_table("db.t", rows().schema, properties={"format-version": "2"})
    table.append(rows())
    return new_catalog


@pytest.fixture(scope="module")
def catalog_of_two(catalog: Catalog) -> Catalog:
    """With a table that has columns whose names differ in letters alone."""
    numbers = {"id": [1, 2], "S": [3, 4], "s": [6, 5]}
    vectors = {"v": [[0.0, 0.0], [1.0, 0.0]], "w": [[1.0], [2.0]], "W": [[1.0], [2.0]]}
    two = pa.table(numbers | vectors)
    catalog.create_table("db.two", two.schema).append(two)
    return catalog


@pytest.fixture(scope="module")
def session(catalog: Catalog) -> SqlSession:
    return SqlSession.on(catalog, storage=STORAGE)


CONDITIONS: list[tuple[str, dict[str, Any], list[int]]] = [
    ("s = 'O''Brien'", {}, [0]),
    ("s <> 'O''Brien'", {}, [1, 2, 3]),
    ("s IN ('it''s', 'a\\\\b')", {}, [2, 3]),
    ("s LIKE 'O''%'", {}, [0]),
    ('s = "it\'s"', {}, [2]),
    ("s = 'O' 'Brien'", {}, [1]),
    ("s <> '|>'", {}, [0, 1, 2, 3]),
    ("m = -2.55", {}, [0]),
    ("m = 2.01", {}, [1]),
    ("m = 2.010", {}, [1]),
    ("m > 2.005", {}, [1]),
    ("m = 2.005", {}, []),
    ("m = '2.01'", {}, [1]),
    ("m IN (2.01, -2.550)", {}, [0, 1]),
    ("f = 0.1", {}, []),
    ("f <= 0.1", {}, []),
    ("f > 0.1", {}, [0, 1, 2]),
    ("f BETWEEN 0.1 AND 0.2", {}, [0]),
    ("f <> 0.1", {}, [0, 1, 2]),
    ("f IN (0.1, 0.5)", {}, [2]),
    ("id IN (1e0, 3)", {}, [1, 3]),
    ("n > :p", {"p": -1}, [0, 1, 2]),
    ("f = :p", {"p": 0.1}, []),
    ("f = :p", {"p": float(np.float32(0.1))}, [0]),
    ("n < 0.5", {}, [0, 3]),
    ("n = 1.0", {}, [1]),
    ("n <= 1e-1", {}, [0, 3]),
    ("d < :p", {"p": NOON}, [0, 1, 2, 3]),
    ("d = :p", {"p": NOON}, []),
    ("d >= :p", {"p": NOON}, []),
    ("d = :p", {"p": NOON.replace(hour=0)}, [2, 3]),
    ("t < :p", {"p": dt.date(2026, 1, 2)}, [0]),
    ("t = :p", {"p": NOON}, [2, 3]),
    ("z = :p", {"p": NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)), hour=14)}, [2, 3]),
    ("b = true", {}, [0, 3]),
    ("NOT b", {}, [1]),
    ("n < (1)", {}, [0, 3]),
    ("(n) < 1", {}, [0, 3]),
    ("x IN (-0.0D, 7)", {}, [0]),
    ("x IN (0, 7)", {}, [0]),
    ("n IN ('1', 2147483648)", {}, [1]),
    ("x = :p", {"p": -0.0}, [0]),
    ("b < true", {}, [1]),
    ("1 = 1", {}, [0, 1, 2, 3]),
    ("1 = 2 OR n = 1", {}, [1]),
    ("id = 9007199254740993", {}, []),
    ("n > -2147483648", {}, [0, 1, 2, 3]),
    ("id > -9223372036854775808L", {}, [0, 1, 2, 3]),
    ("t = :p", {"p": np.datetime64(NOON, "ns")}, [2, 3]),
    ("d = :p", {"p": np.datetime64("2026-01-03")}, [2, 3]),
]


@pytest.mark.parametrize(("where", "given", "wanted"), CONDITIONS, ids=[item[0] for item in CONDITIONS])
@pytest.mark.parametrize("place", PLACES)
def test_a_condition_means_the_same_wherever_it_stands(
    session: SqlSession, place: str, where: str, given: dict[str, Any], wanted: list[int]
) -> None:
    assert sorted(session.sql(PLACES[place].format(where), given).rows["id"].to_pylist()) == wanted


COMPUTED = [
    "m + 0.10 = 0.30",
    "CAST(m AS DOUBLE) = -2.55D",
    "0.1 + 0.2 = 0.3",
    "ln(x) > 1",
    "b IS TRUE",
    "n = 1 OR NULL",
    "n <> 0 AND 1 / n > 0",
    "CASE WHEN n <> 0 THEN 1 / n ELSE 0 END >= 0",
    "upper(s) = 'IT''S'",
    "s LIKE '%s'",
    "s ILIKE 'o%'",
    "s || 'x' = 'it''sx'",
    "n = id",
    "n < + 1",
    "n < -(1)",
    "x = CAST('0' AS DOUBLE)",
    "coalesce(b, true)",
    "0.1 = 0.10",
    "length(s) = 4",
]


@pytest.mark.parametrize("where", COMPUTED)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_to_be_computed_needs_spark(session: SqlSession, place: str, where: str) -> None:
    text = PLACES[place].format(where)
    with pytest.raises(
        SqlError, match=r"^no index answers this statement: .*\. For Spark, repeat the command with --spark, "
    ):
        session.sql(text)
    explained = session.sql(f"EXPLAIN {text}")
    assert explained.how.startswith("no index answers it: ")


NO_VALUE = [
    "x <> CAST(1e300 AS BIGINT)",
    "n IN (1, CAST(1e300 AS BIGINT))",
    "n BETWEEN 5 AND CAST(9223372036854775808 AS BIGINT)",
    "id = 9223372036854775808L",
    "id = 1.5L",
    "id < 1e2L",
    "1 = 1 OR n = 'inf'",
    "1 = 1 OR x = 'y'",
    "1 = 2 AND d = '2026-02-30'",
    "1 = 1 OR m = id",
    "x < 1e",
    "x < 1eD",
    "f < 1e39F",
    "n < CAST(CAST('nan' AS DOUBLE) AS INT)",
    "x < CAST(1e400 AS DOUBLE)",
    "m < CAST(123456789 AS DECIMAL(9, 2))",
    "m < CAST('nan' AS DECIMAL(9, 2))",
    "d < CAST('2026-02-30' AS DATE)",
    "n < - -2147483648",
    "n = 99 AND 1 / 0 > 1",
    "n = 99 AND 2147483647 + 1 > n",
    "b IS NOT NULL AND NULL AND 1 / 0 > 1",
    "id < 99 OR x / (1 / 0) > 1",
    f"{NEAR} < CAST(1e300 AS BIGINT)",
    f"{NEAR} < - -2147483648",
]


@pytest.mark.parametrize("where", NO_VALUE)
@pytest.mark.parametrize("place", PLACES)
def test_a_constant_without_a_value_is_an_error_whichever_rows_there_are(
    session: SqlSession, place: str, where: str
) -> None:
    with pytest.raises(SqlError):
        session.sql(PLACES[place].format(where))


def test_a_name_that_several_columns_have_is_refused(session: SqlSession) -> None:
    with pytest.raises(SqlError, match="there are several columns 'a'"):
        session.sql(f"SELECT a FROM (SELECT id AS a, n AS a FROM db.t ORDER BY {NEAR} LIMIT 9)")
    with pytest.raises(SqlError, match="ORDER BY a: several columns have that name"):
        session.sql(f"SELECT *, n AS a FROM (SELECT id AS a, n, {NEAR} AS d FROM db.t) WHERE d < 9 ORDER BY a")
    with pytest.raises(SqlError, match="ORDER BY a: several columns have that name"):
        session.sql(f"SELECT n AS a, n AS a FROM db.t WHERE {NEAR} < 9 ORDER BY a")


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("SELECT floor(x, 1) AS e FROM {found}", {}),
        ("SELECT lower((upper(s))) AS e FROM {found}", {}),
        ("SELECT id FROM {found} WHERE upper(s) ILIKE 'ß%'", {}),
        ("SELECT lower(a) AS e FROM (SELECT upper(s) AS a, {near} AS far FROM db.t) WHERE far < 9", {}),
        ("SELECT ceil(x, 1) AS e FROM {found}", {}),
        ("SELECT try_cast(s AS INT) AS e FROM {found}", {}),
        ("SELECT length(s, 1) AS e FROM {found}", {}),
        ("SELECT round(n, n) AS e FROM {found}", {}),
        ("SELECT concat(s, 1) AS e FROM {found}", {}),
        ("SELECT TIMESTAMP '2026-01-01 00:00:00' AS e FROM {found}", {}),
        ("SELECT id FROM {found} WHERE n IN ('1', 2.5)", {}),
        ("SELECT id FROM {found} WHERE n IN ('1', 2.5D)", {}),
        ("SELECT id FROM {found} WHERE d IN ('2026-01-03', TIMESTAMP_NTZ '2026-01-03 00:00:00')", {}),
        ("SELECT id FROM {found} WHERE x < CAST(1 AS DECIMAL(16, 0))", {}),
        ("SELECT id FROM {found} WHERE f IN (CAST(1 AS DECIMAL(16, 0)), 2)", {}),
        ("SELECT -n AS n, n AS n FROM {found} ORDER BY n", {}),
        ("SELECT -n AS n, -n AS n FROM {found} ORDER BY n", {}),
        ("SELECT id AS n, id AS N FROM db.t ORDER BY {near}, n LIMIT 2", {}),
        ("SELECT *, -n AS n FROM {found} ORDER BY n", {}),
        ("SELECT *, -n AS n FROM db.t ORDER BY {near}, n LIMIT 2", {}),
        ("SELECT n FROM (SELECT *, -n AS n FROM db.t) ORDER BY {near} LIMIT 2", {}),
        ("SELECT n FROM (SELECT n, -n AS N, v FROM db.t) ORDER BY {near} LIMIT 2", {}),
        ("WITH near AS (SELECT id, {near} AS a FROM db.t) SELECT id FROM near VERSION AS OF 17 ORDER BY a LIMIT 2", {}),
        ("SELECT id FROM `db.t` ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE t > 1767441600000000 ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE d > 20455 ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE t < :p ORDER BY {near} LIMIT 2", {"p": NOON.replace(tzinfo=dt.UTC)}),
        ("SELECT id FROM db.t WHERE z < :p ORDER BY {near} LIMIT 2", {"p": NOON}),
        ("SELECT id FROM db.t WHERE s = 5 ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE b = 1 ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE n < 9223372036854775808 ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t ORDER BY {near} LIMIT 99999999999999999999", {}),
        ("SELECT id FROM db.t ORDER BY {near} |> LIMIT 1", {}),
        ("FROM db.t |> ORDER BY {near} |> LIMIT 1", {}),
        ("SELECT id FROM db.t WHERE n = :p ORDER BY {near} LIMIT 2", {"p": object()}),
        ("SELECT id FROM db.t ORDER BY {near} LIMIT 2 BY id", {}),
        ("SELECT id FROM db.t FOR SYSTEM_TIME ALL ORDER BY {near} LIMIT 2", {}),
        ("SELECT CAST(x AS INT(3)) AS e FROM {found}", {}),
        ("SELECT CAST('2026-01-01 00:00:00.12345+00:00' AS TIMESTAMP(3)) AS e FROM {found}", {}),
        ("SELECT id FROM db.t WHERE z > CAST('2026-01-01 00:00:00.1Z' AS TIMESTAMP(0)) ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t ORDER BY l2_distance(v, CAST(array(0.9, 0.9) AS ARRAY<INT>)) LIMIT 2", {}),
        ("SELECT if(b, 1) AS e FROM {found}", {}),
        ("SELECT 1e400 AS e FROM {found}", {}),
        ("SELECT id FROM db.t WHERE x < 1e400 ORDER BY {near} LIMIT 2", {}),
        ("SELECT 0x10 AS e FROM {found}", {}),
        ("SELECT id FROM db.t WHERE s = :p ORDER BY {near} LIMIT 2", {"p": "\ud800"}),
        ("WITH k AS (SELECT * FROM db.t), K AS (SELECT * FROM db.t) SELECT id FROM k ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM {found} WHERE b > (n = 1) IN (false)", {}),
        ("SELECT id FROM {found} WHERE b = b < true", {}),
        ("SELECT id FROM {found} WHERE s LIKE 'a' = b", {}),
        ("SELECT id FROM {found} WHERE b IS TRUE = b", {}),
        ("SELECT id FROM {found} WHERE b = (n IS NULL) IS NULL = b", {}),
        ("SELECT id FROM {found} WHERE b IS NOT NULL = b", {}),
        ("SELECT id FROM {found} WHERE b IS TRUE IS TRUE", {}),
        ("SELECT id FROM {found} WHERE n IN (1) IS TRUE", {}),
        ("SELECT id FROM {found} WHERE n NOT IN (1) IS TRUE", {}),
        ("SELECT id FROM {found} WHERE n BETWEEN 0 AND 1 IN (true)", {}),
        ("SELECT id FROM {found} WHERE s LIKE 'a' IS NULL", {}),
        ("SELECT id AS \"x\" FROM {found}", {}),
        ("SELECT id AS 'x' FROM {found}", {}),
        ("SELECT id AS 5 FROM {found}", {}),
        ("SELECT id FROM db.\"t\" ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t \"x\" ORDER BY {near} LIMIT 2", {}),
        ("SELECT t.\"id\" FROM db.t ORDER BY {near} LIMIT 2", {}),
        ("WITH \"w\" AS (SELECT * FROM db.t) SELECT id FROM w ORDER BY {near} LIMIT 2", {}),
        ("SELECT id /* a /* b */ FROM db.t ORDER BY {near} LIMIT 2", {}),
        ("SELECT id /* a */ */ FROM db.t ORDER BY {near} LIMIT 2", {}),
        ("SELECT id /* a /*+ b */ c */ FROM db.t ORDER BY {near} LIMIT 2", {}),
        ("SELECT n FROM (SELECT n, id AS N FROM db.t ORDER BY {near} LIMIT 2)", {}),
        ("SELECT +s AS e FROM {found}", {}),
        ("SELECT id FROM db.t ORDER BY {near}, +s LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE s = '${spark.app.name}' ORDER BY {near} LIMIT 2", {}),
        ("SELECT TIMESTAMP '2026-01-03 12:00:00+18:30' AS e FROM {found}", {}),
        ("SELECT id FROM db.t WHERE z > TIMESTAMP '2026-01-03 12:00:00-17:60' ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM db.t WHERE id = :p ORDER BY {near} LIMIT 2", {"p": np.datetime64(5, "ps")}),
        ("SELECT id FROM db.t WHERE id = :p ORDER BY {near} LIMIT 2", {"p": np.datetime64("12026-01-01")}),
        ("SELECT id FROM db.t ORDER BY {near}, -1 LIMIT 2", {}),
        ("SELECT id FROM db.t ORDER BY {near}, (-1) LIMIT 2", {}),
        ("SELECT id FROM db.t ORDER BY {near}, +1 LIMIT 2", {}),
        ("SELECT id FROM db.t ORDER BY {near}, :p LIMIT 2", {"p": 1}),
        ("SELECT id FROM db.t WHERE (s = X'') IS TRUE ORDER BY {near} LIMIT 2", {}),
        ("SELECT n / 0 AS e FROM {found}", {}),
        ("SELECT n + 2147483647 AS e FROM {found}", {}),
        ("SELECT CAST(1e300 AS BIGINT) AS e FROM {found}", {}),
        ("SELECT s LIKE 'a\\\\b' AS e FROM {found}", {}),
        ("SELECT id FROM db.t WHERE " + " AND ".join(["n <> 7"] * 5_000) + " ORDER BY {near} LIMIT 2", {}),
        ("SELECT id FROM {found} WHERE n = 1" + " + (1" * 1_500 + ")" * 1_500, {}),
        ("SELECT id FROM db.t WHERE " + "(" * 500 + "n = 1" + ")" * 500 + " ORDER BY {near} LIMIT 2", {}),
        ("SELECT " + "-(" * 400 + "n" + ")" * 400 + " AS e FROM {found}", {}),
        ("SELECT m / 3L AS e FROM {found}", {}),
        ("SELECT m / (-3L) AS e FROM {found}", {}),
        ("SELECT -(3L) + m AS e FROM {found}", {}),
    ],
    ids=range(92),
)  # fmt: skip
def test_what_is_not_understood_is_an_sql_error(session: SqlSession, text: str, given: dict[str, Any]) -> None:
    with pytest.raises(SqlError):
        session.sql(text.replace("{found}", FOUND).replace("{near}", NEAR), given)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT id FROM db.t ORDER BY {near}, id DESC LIMIT 1", [2]),
        ("SELECT id FROM (SELECT id FROM db.t ORDER BY {near}, id DESC LIMIT 3) LIMIT 2 OFFSET 1", [1, 0]),
        ("SELECT id FROM db.t ORDER BY {near}, n DESC LIMIT 2", [2, 1]),
        ("SELECT id FROM db.t WHERE id < 2 ORDER BY {near}, s DESC LIMIT 1", [1]),
        ("SELECT n, n, id FROM {found} ORDER BY n DESC", [2, 1, 0, 3]),
        ("SELECT x AS n, id FROM {found} ORDER BY N", [2, 0, 1, 3]),
        ("SELECT x AS n, id FROM db.t WHERE {near} < 9 ORDER BY n DESC", [3, 1, 0, 2]),
        ("SELECT near.*, n AS more FROM {found} AS near ORDER BY more, id DESC LIMIT 1", [3]),
        ("SELECT id /* a /* b */ c */ FROM {found} -- d \\\n AS e\r ORDER /**/ BY/*/*/ */ id */ id", [0, 1, 2, 3]),
        ("SELECT near.* FROM {found} near WHERE near.id > 1 ORDER BY id", [2, 3]),
        ("SELECT id FROM {found} ORDER BY b, id DESC", [2, 1, 3, 0]),
        ("SELECT n, id FROM {found} ORDER BY (1)", [3, 0, 1, 2]),
        ("SELECT n, id FROM db.t ORDER BY {near}, ((1)) DESC LIMIT 2", [2, 1]),
        ("SELECT n, id FROM (SELECT *, {near} AS far FROM db.t) WHERE far < 9 ORDER BY (1) DESC", [2, 1, 0, 3]),
    ],
)
def test_order(session: SqlSession, text: str, wanted: list[int]) -> None:
    found = session.sql(text.replace("{found}", FOUND).replace("{near}", NEAR)).rows
    assert found["id"].to_pylist() == wanted


@pytest.mark.parametrize("rest", ["WHERE a < 9", "ORDER BY a LIMIT 9"])
def test_a_column_without_as_has_a_name(session: SqlSession, rest: str) -> None:
    outputs = "y, (id), near.y, l2_distance(v, array(0.0, 0.0))"
    text = f"SELECT {outputs} FROM (SELECT id, x AS y, v, {NEAR} AS a FROM db.t) AS near {rest}"
    assert session.sql(text).rows.column_names == ["y", "id", "y", "distance"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT s FROM {table} ORDER BY {near} LIMIT 2",
        "SELECT S AS e FROM {table} ORDER BY {near} LIMIT 2",
        "SELECT id FROM {table} WHERE s > 0 ORDER BY {near} LIMIT 2",
        "SELECT id FROM {table} ORDER BY {near}, S LIMIT 2",
        "SELECT id FROM {table} WHERE {near} < 9 AND s > 0",
        "SELECT id FROM {table} ORDER BY l2_distance(w, array(0.0)) LIMIT 2",
        "SELECT s FROM (SELECT * FROM {table} ORDER BY {near} LIMIT 2)",
        "SELECT id FROM (SELECT * FROM {table} ORDER BY {near} LIMIT 2) WHERE S > 0",
    ],
)
def test_a_column_whose_name_another_one_has_in_other_letters_is_refused(catalog_of_two: Catalog, text: str) -> None:
    """To Spark the name is ambiguous."""
    with pytest.raises(SqlError, match=r"several columns have the name [sSw]"):
        SqlSession.on(catalog_of_two, storage=STORAGE).sql(text.replace("{table}", "db.two").replace("{near}", NEAR))


@pytest.mark.parametrize("text", ["SELECT * FROM {table}", "SELECT * FROM (SELECT * FROM {table}) WHERE id > 0"])
def test_a_star_has_columns_whose_names_differ_in_letters_alone(catalog_of_two: Catalog, text: str) -> None:
    near = f"db.two ORDER BY {NEAR} LIMIT 2"
    rows = SqlSession.on(catalog_of_two, storage=STORAGE).sql(text.replace("{table}", near)).rows
    assert rows.select(["id", "S", "s"]).to_pydict() == {"id": [1, 2], "S": [3, 4], "s": [6, 5]}


def test_names_of_a_with_clause_ignore_case(session: SqlSession) -> None:
    inner = "WITH K AS (SELECT id, v FROM db.t WHERE id > 1) SELECT * FROM k"
    text = f"WITH k AS (SELECT id, v FROM db.t) SELECT id FROM ({inner}) ORDER BY {NEAR} LIMIT 9"
    assert sorted(session.sql(text).rows["id"].to_pylist()) == [2, 3]


def test_where_of_a_search_means_the_same(catalog: Catalog) -> None:
    table = catalog.load_table("db.t")
    for where, expected in (
        ("f = 0.1", []),
        ("f > 0.1", [0, 1, 2]),
        ("m = 2.01", [1]),
        ("n < 0.5", [0, 3]),
        (LessThan("d", NOON), [0, 1, 2, 3]),  # type: ignore[arg-type, misc]
        (EqualTo("d", NOON), []),  # type: ignore[arg-type, misc]
    ):
        found = open_exact(table, "v", "l2").search([0.0, 0.0], 9, where=where, columns=["id"])
        assert sorted(found.rows["id"].to_pylist()) == expected, where


def test_a_statement_for_spark_is_passed_on_unchanged() -> None:
    given: dict[str, Any] = {"a": "it's \\ me", "b": -1, "c": 0.1, "d": [1.5, -2.0]}
    text = "SELECT to_date(s, 'yyyy'), 'O''Brien', :a, 2 -:b, :c FROM t WHERE l2_distance(v, :d) > 1 AND s = 'x:a'"
    result = parse(text, given)
    assert isinstance(result, SparkStatement)
    assert for_spark(result).startswith(
        "SELECT to_date(s, 'yyyy'), 'O''Brien', 'it\\'s \\\\ me', 2 -(-1), CAST('0.1' AS DOUBLE) FROM t WHERE (sqrt("
    )
    assert for_spark(result).rstrip().endswith(")) > 1 AND s = 'x:a'")


def test_a_parameter_is_no_variable_of_spark() -> None:
    found = parse("SELECT count(*) FROM t WHERE s = :a", {"a": "${env:HOME} \\${x}"})
    assert isinstance(found, SparkStatement)
    assert for_spark(found) == "SELECT count(*) FROM t WHERE s = '\\u0024{env:HOME} \\\\\\u0024{x}'"


@pytest.mark.parametrize(
    "text",
    [
        "CREATE INDEX i ON db.t USING diskann (v) WITH (metric = 'l2', metric = 'ip')",
        "DROP INDEX i ON `db.t`",
    ],
)
def test_contradictory_statements_on_indexes_are_refused(text: str) -> None:
    with pytest.raises(SqlError, match=r"given twice|a name with a dot"):
        parse(text)


@pytest.mark.jvm
def test_spark_runs_what_it_can_answer(catalog: Catalog, spark: Any) -> None:
    spark.createDataFrame(rows()).createOrReplaceTempView("answers")

    def on_spark(text: str, **given: Any) -> list[Any]:
        session = SqlSession.on(catalog, storage=STORAGE, spark=spark)
        found = session.sql(text.replace("{found}", FOUND.replace("db.t", "answers")), given)
        assert found.how.startswith("Spark ran it as it is"), found.how
        return found.rows.columns[0].to_pylist()

    assert on_spark("SELECT count(*) FROM answers WHERE s = 'O''Brien' AND n < :p", p=5) == [1]
    assert on_spark("SELECT count(*) FROM answers WHERE x = :p", p=float("nan")) == [0]
    assert on_spark("SELECT count(*) FROM answers WHERE s = :p", p="a\\b") == [1]
    assert on_spark("SELECT :p FROM answers LIMIT 1", p="${spark.app.name}") == ["${spark.app.name}"]
    assert on_spark("SELECT id FROM {found} WHERE id > 2") == [3]  # a table that is not in the catalog
    explained = SqlSession.on(catalog, storage=STORAGE, spark=spark).sql(
        f"EXPLAIN SELECT id FROM t ORDER BY {NEAR} LIMIT 1"
    )
    assert explained.how.endswith("Spark runs it as it is")


def test_a_double_in_a_list_makes_doubles_of_all(session: SqlSession) -> None:
    """Of 9007199254740993 it makes ...992, which a comparison of integers would not find."""
    with pytest.raises(SqlError, match="tell few apart"):
        session.sql(
            "SELECT id FROM db.t WHERE id IN (1e0, 9007199254740993) ORDER BY l2_distance(v, ARRAY(0, 0)) LIMIT 2"
        )
