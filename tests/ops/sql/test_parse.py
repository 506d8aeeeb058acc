from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Not,
    StartsWith,
)

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.parser import parse, require_syntax
from icepuffin.ops.sql.postprocessing import Output
from icepuffin.ops.sql.row_filters import RowFilter
from icepuffin.ops.sql.spark_statements import for_spark
from icepuffin.ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    Nearest,
    RefreshIndex,
    SearchHints,
    ShowIndexes,
    SparkStatement,
)
from icepuffin.ops.sql.values import DISTANCE


def nearest(text: str, parameters: object = None) -> Nearest:
    found = parse(text, parameters)  # type: ignore[arg-type]
    assert isinstance(found, Nearest), found
    return found


def test_the_nearest_rows_by_an_alias_in_a_snapshot() -> None:
    result = nearest(
        "SELECT id, l2_distance(embedding, ARRAY[1, -2.5, 3e-1]) AS d FROM ns.t VERSION AS OF 17 ORDER BY d LIMIT 5"
    )
    assert (result.table, result.snapshot, result.limit) == ("ns.t", 17, 5)
    assert (result.vector_column, result.metric) == ("embedding", Metric.L2)
    assert result.query == (1.0, -2.5, 0.3)
    assert result.outputs == (Output("id", "id"), Output(DISTANCE, "d"))


@pytest.mark.parametrize(
    ("text", "metric", "negated"),
    [
        ("SELECT * FROM t ORDER BY cosine_distance(v, array(1, 2)) LIMIT 3", Metric.COSINE, False),
        ("SELECT * FROM t ORDER BY inner_product(v, array(1, 2)) DESC LIMIT 3", Metric.INNER_PRODUCT, True),
        ("select * from t order by L2_DISTANCE(array(1, 2), v) limit 3", Metric.L2, False),
    ],
)
def test_each_distance_has_its_metric(text: str, metric: Metric, negated: bool) -> None:
    found = nearest(text)
    assert (found.metric, found.negated, found.outputs) == (metric, negated, None)


def test_parameters_stand_for_vectors_limits_and_constants() -> None:
    text = "SELECT id FROM t WHERE id > :low ORDER BY l2_distance(v, :q) LIMIT :k"
    found = nearest(text, {"q": [1.0, 2.0], "k": 4, "low": 7})
    assert (found.query, found.limit) == ((1.0, 2.0), 4)
    assert found.where == RowFilter(GreaterThan("id", 7))  # type: ignore[arg-type, misc]
    positional = nearest("SELECT id FROM t WHERE name = ? ORDER BY l2_distance(v, ?) LIMIT ?", ("a?", [1, 2], 3))
    assert (positional.query, positional.limit) == ((1.0, 2.0), 3)
    assert positional.where == RowFilter(EqualTo("name", "a?"))  # type: ignore[arg-type, misc]
    unlike = parse("SELECT id FROM t WHERE id < ? ORDER BY l2_distance(v, array(1)) LIMIT 3", (float("nan"),))
    assert isinstance(unlike, SparkStatement)
    assert "id cannot be compared" in unlike.why
    with pytest.raises(SqlError, match=":q has no value"):
        parse(text, {"k": 4})
    with pytest.raises(SqlError, match=r"2 \?, and got 1 value$"):
        parse("SELECT id FROM t ORDER BY l2_distance(v, ?) LIMIT ?", ([1, 2],))


def test_a_table_may_have_an_alias() -> None:
    found = nearest("SELECT x.id AS number FROM ns.t AS x ORDER BY l2_distance(x.v, array(1, 2)) LIMIT 1")
    assert found.outputs == (Output("id", "number"),)
    assert found.table == "ns.t"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("section = 'a'", EqualTo("section", "a")),
        ("3 < id", GreaterThan("id", 3)),
        ("id BETWEEN 2 AND 5", And(GreaterThanOrEqual("id", 2), LessThanOrEqual("id", 5))),
        ("id IN (1, 2)", In("id", {1, 2})),
        ("id NOT IN (1, 2)", Not(In("id", {1, 2}))),
        ("flag", EqualTo("flag", True)),
        ("NOT flag", Not(EqualTo("flag", True))),
        ("hash = X'0102'", EqualTo("hash", b"\1\2")),
        ("name NOT LIKE 'git%'", Not(StartsWith("name", "git"))),
        ("at > TIMESTAMP '2026-01-01 08:00:00'", GreaterThan("at", "2026-01-01T08:00:00")),
        ("false", AlwaysFalse()),
        ("name = 'it''s'", EqualTo("name", "it's")),
        ("name = 'it' 's'", EqualTo("name", "its")),
        ("id >= -9223372036854775808L", GreaterThanOrEqual("id", -(2**63))),
        ("name LIKE 'git%'", StartsWith("name", "git")),
        ("NOT (section IS NULL)", Not(IsNull("section"))),
        (
            "day >= DATE '2026-01-01' AND flag = true",
            And(GreaterThanOrEqual("day", date(2026, 1, 1)), EqualTo("flag", True)),
        ),
    ],
)
def test_conditions_become_iceberg_filters(condition: str, expected: BooleanExpression) -> None:
    found = nearest(f"SELECT id FROM t WHERE {condition} ORDER BY l2_distance(v, array(1)) LIMIT 1")
    assert found.where is not None
    assert found.where.expression == expected
    assert repr(found.where.expression) == repr(expected), "equal literals of two types are not the same"


@pytest.mark.parametrize(
    ("condition", "within", "inclusive"),
    [
        ("l2_distance(v, array(1)) < 2.5", 2.5, False),
        ("l2_distance(v, array(1)) <= 2", 2.0, True),
        ("2 > l2_distance(v, array(1))", 2.0, False),
        ("2 >= l2_distance(v, array(1))", 2.0, True),
        ("inner_product(v, array(1)) > 2", -2.0, False),
        ("inner_product(v, array(1)) >= 2", -2.0, True),
        ("2 < inner_product(v, array(1))", -2.0, False),
        ("2 <= inner_product(v, array(1))", -2.0, True),
    ],
)
def test_a_threshold_is_read_from_either_side(condition: str, within: float, inclusive: bool) -> None:
    found = nearest(f"SELECT id FROM t WHERE {condition}")
    assert (found.within, found.inclusive, found.limit) == (within, inclusive, None)


def test_ties_are_of_a_limit_with_further_keys_and_conditions_keep_their_brackets() -> None:
    by_distance = "SELECT id FROM t WHERE (a = 1 OR b = 2) AND c = 3 ORDER BY l2_distance(v, array(1))"
    assert [nearest(f"{by_distance}{keys} LIMIT 3").ties for keys in ("", ", id")] == [False, True]
    where = nearest(f"{by_distance} LIMIT 3").where
    assert where is not None
    assert where.text == "(a = 1 OR b = 2) AND c = 3"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT id FROM t", "not ordered by one distance"),
        ("SELECT id FROM t ORDER BY id, name LIMIT 3", "ordered by id,"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1))", "no LIMIT"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) DESC LIMIT 3", "ORDER BY l2_distance(...) ASC"),
        ("SELECT id FROM t ORDER BY inner_product(v, array(1)) LIMIT 3", "DESC"),
        ("SELECT id FROM t ORDER BY l2_distance(v, w) LIMIT 3", "does not compare one column with one vector"),
        ("SELECT id FROM t JOIN u ON t.a = u.a ORDER BY l2_distance(v, array(1)) LIMIT 3", "a join"),
        ("SELECT upper(name) FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "UPPER(name) is not computed here"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)), -id LIMIT 3", "ORDER BY -id is not computed here"),
        ("SELECT id FROM t WHERE l2_distance(v, array(1)) < 1 + 1", "1 + 1 is no constant"),
        ("SELECT id FROM t WHERE a + 1 = 2 ORDER BY l2_distance(v, array(1)) LIMIT 3", "compare one column with"),
        ("SELECT soundex(name) FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "is not computed here"),
        ("SELECT * EXCEPT (id) FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "name the columns"),
        ("SELECT u.id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "u.id is no column of t"),
        ("SELECT u.t.id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "u.t.id is no column of t"),
        ("SELECT id FROM t FOR VERSION FROM 1 TO 2 ORDER BY l2_distance(v, array(1)) LIMIT 3", "only one snapshot is"),
        ("SELECT id FROM t WHERE l2_distance(v, array(1)) > 2", "not ordered by one distance"),
        ("SELECT l2_distance(v, array(2)) FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "more than one vector"),
        (
            "SELECT id FROM t WHERE id IN (SELECT id FROM u) ORDER BY l2_distance(v, array(1)) LIMIT 3",
            "IN takes constants",
        ),
        ("SELECT x FROM (SELECT id FROM t) ORDER BY l2_distance(v, array(1)) LIMIT 3", "no column of the subquery"),
        (
            "SELECT l2_distance(v, array(2)) FROM (SELECT v FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3)",
            "outside of the subquery",
        ),
        ("SELECT id FROM t WHERE abs(id) = 1 ORDER BY l2_distance(v, array(1)) LIMIT 3", "no column"),
        ("SELECT id FROM t WHERE name LIKE '%x' ORDER BY l2_distance(v, array(1)) LIMIT 3", "only a prefix"),
        ("SELECT count(*) FROM t GROUP BY id ORDER BY l2_distance(v, array(1)) LIMIT 3", "GROUP BY"),
        ("INSERT INTO t VALUES (1)", "no SELECT"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3 UNION SELECT 1", "it has UNION"),
        ("SELECT DISTINCT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3", "DISTINCT"),
        ("SELECT a FROM t AS x (a, b) ORDER BY l2_distance(v, array(1)) LIMIT 3", "columns is not known here"),
        (
            f"SELECT a FROM t AS x (a, {200 * 'b'}) ORDER BY l2_distance(v, array(1)) LIMIT 3",
            f"x(a, {95 * 'b'}: columns is not known here",
        ),
        ("SELECT id FROM t TABLESAMPLE (9 ROWS) ORDER BY l2_distance(v, array(1)) LIMIT 3", "sample is not known"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3 TABLESAMPLE (9 ROWS)", "sample is not known"),
        ("WITH RECURSIVE n AS (SELECT id FROM t) SELECT id FROM n", "recursive is not known"),
        ("SELECT id FROM t WHERE a = CAST(4.7 AS INT) ORDER BY l2_distance(v, array(1)) LIMIT 3", "write its value"),
        ("SELECT id FROM t WHERE a = -CAST(4.7 AS INT) ORDER BY l2_distance(v, array(1)) LIMIT 3", "write its value"),
        ("SELECT id FROM t WHERE name LIKE ANY ('a%') ORDER BY l2_distance(v, array(1)) LIMIT 3", "is no constant"),
        (
            "SELECT id FROM (SELECT id FROM t UNION SELECT id FROM u) ORDER BY l2_distance(v, array(1)) LIMIT 3",
            "it reads UNION, no SELECT",
        ),
        ("WITH a AS (SELECT 1), A AS (SELECT 2) SELECT id FROM a", "WITH names two queries A"),
        ("SELECT id FROM t HAVING id > 1 ORDER BY l2_distance(v, array(1)) LIMIT 3", "it has HAVING"),
        ("SELECT id FROM t WHERE s = '${x}' ORDER BY l2_distance(v, array(1)) LIMIT 3", "it has ${"),
        ("FROM t |> ORDER BY l2_distance(v, array(1)) |> LIMIT 3", "it has |>"),
        ("SELECT id FROM t WHERE id = 0x1F ORDER BY l2_distance(v, array(1)) LIMIT 3", "write X'1F'"),
        ("SELECT id FROM t WHERE id = 9223372036854775808L ORDER BY l2_distance(v, array(1)) LIMIT 3", "is no bigint"),
        ("SELECT id FROM t WHERE a = 3.4e38F ORDER BY l2_distance(v, array(1)) LIMIT 3", "write its value"),
        ("SELECT id FROM t WHERE a = 3.5e38F ORDER BY l2_distance(v, array(1)) LIMIT 3", "3.5e38F is no number"),
        ("SELECT id FROM t WHERE l2_distance(v, array(1)) < true", "True is no distance"),
        ("SELECT id FROM t WHERE name LIKE 3 ORDER BY l2_distance(v, array(1)) LIMIT 3", "LIKE 3: a pattern is a text"),
        ("SELECT id FROM t WHERE name LIKE 'a_c%' ORDER BY l2_distance(v, array(1)) LIMIT 3", "only a prefix"),
        (r"SELECT id FROM t WHERE name LIKE 'a\\%' ORDER BY l2_distance(v, array(1)) LIMIT 3", "only a prefix"),
        ("SELECT id FROM `a``b`.t ORDER BY l2_distance(v, array(1)) LIMIT 3", "a name with a dot in it is not looked"),
        (
            "WITH n AS (SELECT * FROM t) SELECT id FROM n VERSION AS OF 1 ORDER BY l2_distance(v, array(1)) LIMIT 3",
            "version of a query that WITH names",
        ),
        (
            "SELECT a FROM (SELECT id a, name A, v FROM t) ORDER BY l2_distance(v, array(1)) LIMIT 3",
            "several columns of the subquery have that name",
        ),
        ("SELECT x FROM (SELECT id, v FROM t) ORDER BY l2_distance(v, array(1)) LIMIT 3", "subquery; it has id, v"),
        ("SELECT z.* FROM (SELECT id, v FROM t) y ORDER BY l2_distance(v, array(1)) LIMIT 3", "z.* is no column of y"),
    ],
)
def test_what_no_index_answers_says_why(text: str, why: str) -> None:
    result = parse(text)
    assert isinstance(result, SparkStatement)
    assert why in result.why
    assert result.text == text


def test_hints_name_the_index_and_the_parameters_of_a_search() -> None:
    search = "id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3"
    hint = "/*+ INDEX(a.b), SEARCH_LIST(:l), shards(2) OVERSAMPLE(3), TARGET_RECALL(0.9), rerank(false), MERGE(t) */"
    statement = parse(f"SELECT {hint} {search}", {"l": 50})
    assert isinstance(statement, Nearest)
    every = {"search_list": 50, "shards": 2, "oversample": 3, "target_recall": 0.9, "rerank": False}
    assert statement.hints == SearchHints("a.b", **every)
    assert statement.hints.parameters == every
    inner = nearest(f"SELECT id FROM (SELECT /*+ INDEX('i'), CERTIFIED, RERANK */ {search})")
    assert inner.hints == SearchHints("i", rerank=True, certified=True)
    merged = nearest(f"SELECT {search.replace('t ', '(SELECT /*+ INDEX(`i`) */ * FROM t) ')}")
    assert merged.hints == SearchHints("i")
    assert nearest(f"SELECT /*+ COALESCE(3) */ {search}").hints.parameters == {}


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("SEARCH_LIST(1.5)", "SEARCH_LIST takes a whole number"),
        ("SHARDS(true)", "SHARDS takes a whole number"),
        ("SHARDS('2')", "SHARDS takes a whole number"),
        ("SHARDS", r"write SHARDS\(\.\.\.\), with one value"),
        ("OVERSAMPLE(1, 2)", r"write OVERSAMPLE\(\.\.\.\), with one value"),
        ("TARGET_RECALL('high')", "TARGET_RECALL takes a number, such as 0.99"),
        ("RERANK(1)", "RERANK takes true or false"),
        ("INDEX(3)", "give the name of an index"),
        ("SEARCH_LIST(id)", "SEARCH_LIST"),
        ("INDEX(a), INDEX(b)", "the hint INDEX is given twice"),
    ],
)
def test_hints_that_cannot_be_followed_are_refused(hint: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse(f"SELECT /*+ {hint} */ id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 3")


def test_a_search_of_all_rows_within_a_distance_has_no_parameters() -> None:
    search = "id FROM t WHERE l2_distance(v, array(1)) < 3"
    with pytest.raises(SqlError, match="whatever SEARCH_LIST is"):
        parse(f"SELECT /*+ SEARCH_LIST(9) */ {search}")
    assert nearest(f"SELECT /*+ INDEX(i) */ {search}").hints == SearchHints("i")


def test_statements_on_indexes() -> None:
    made = parse("CREATE INDEX i ON ns.t USING diskann (embedding) WITH (metric = 'l2', shards = 4);")
    assert made == CreateIndex("ns.t", "i", "embedding", {"metric": "l2", "shards": "4"})
    lists = parse("CREATE INDEX i ON t USING diskann (v) WITH (filters = 'a,b', shards = 2, metric = 'ip')")
    assert lists == CreateIndex("t", "i", "v", {"filters": "a,b", "shards": "2", "metric": "ip"})
    for columns in ("['a', 'b c']", "ARRAY('a', `b c`)", 'array[a, "b c"]', "('a','b c',)"):
        named = parse(f'CREATE INDEX i ON t USING diskann (v) WITH (include = {columns}, metric = "l2")')
        assert named == CreateIndex("t", "i", "v", {"include": '["a", "b c"]', "metric": "l2"})
    assert parse("refresh index i on ns.t") == RefreshIndex("ns.t", "i")
    assert parse("DROP INDEX i ON ns.t") == DropIndex("ns.t", "i")
    assert parse("/* gone */ drop index if exists i on ns.t -- now") == DropIndex("ns.t", "i", if_there=True)
    assert parse("CREATE INDEX i ON t USING Centroid (v)") == CreateIndex("t", "i", "v", method="centroid")
    soft = parse("CREATE INDEX IF NOT EXISTS i ON ns.t USING diskann (v)")
    assert soft == CreateIndex("ns.t", "i", "v", if_not_exists=True)
    over = parse("CREATE OR REPLACE INDEX i ON ns.t USING diskann (v)")
    assert over == CreateIndex("ns.t", "i", "v", replace=True)
    with pytest.raises(SqlError, match="leave OR REPLACE out, or IF NOT EXISTS"):
        parse("CREATE OR REPLACE INDEX IF NOT EXISTS i ON ns.t USING diskann (v)")
    alone = parse("CREATE INDEX i ON t USING diskann (v) WITH (build = false, shards = 2)")
    assert alone == CreateIndex("t", "i", "v", {"shards": "2"}, build=False)
    assert parse("SHOW INDEXES ON ns.t") == ShowIndexes("ns.t")
    assert parse("SHOW INDEXES ON `select`.`my table`") == ShowIndexes("select.my table")
    quoted = parse("CREATE INDEX i ON `select`.t USING diskann (`from`)")
    assert quoted == CreateIndex("select.t", "i", "from", {})
    for text in ("EXPLAIN SELECT 1", "-- why\nexplain SELECT 1", "EXPLAIN FORMATTED SELECT 1"):
        assert isinstance(parse(text), Explain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT FROM", "cannot be read: Expected table name but got its end. Line 1, Col: 11"),
        ("SELECT id FROM t WHERE id = ", "cannot be read: an expression is missing after '='. Line 1, Col: 27"),
        ("SELECT id FROM t WHERE id = ORDER BY id", "an expression is missing before 'ORDER BY'. Line 1, Col: 36"),
        ("SELECT id FROM t WHERE id BETWEEN 1", "an expression is missing after '1'"),
        ("SELECT id FROM t TIMESTAMP AS OF 17 ORDER BY l2_distance(v, array(1)) LIMIT 3", "AS OF 17: it is a time"),
        ("SELECT id FROM t TIMESTAMP AS OF 'main' ORDER BY l2_distance(v, array(1)) LIMIT 3", "it is a time, such as"),
        ("SELECT id FROM t@17 ORDER BY l2_distance(v, array(1)) LIMIT 3", "followed by @: write VERSION AS OF"),
        ("CREATE INDEX i ON t (v)", r"write CREATE \[OR REPLACE\] INDEX"),
        ("CREATE INDEX i ON t USING hnsw (v)", "kinds of indexes are diskann, centroid"),
        ("CREATE INDEX i ON t USING diskann (v) WITH (metric)", "write parameter = value"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array('a')) LIMIT 3", "no list of numbers, but a list of texts"),
        ("SELECT id FROM t ORDER BY l2_distance(v, 'a') LIMIT 3", "no list of numbers, but a text"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array()) LIMIT 3", "no list of numbers, but an empty list"),
        (
            "SELECT id FROM t ORDER BY l2_distance(v, array(array(1), array(1, 2))) LIMIT 3",
            "lists that differ in length",
        ),
        ("CREATE INDEX i ON t USING diskann (v) WITH (include = ['a' 'b'])", r"or parameter = \['column', \.\.\.\]"),
        ("CREATE INDEX i ON t USING diskann (v) WITH (include = ['a', )", "write parameter = value"),
        ("SELEC 1", "no statement begins with 'SELEC'. Statements are SELECT, EXPLAIN, CREATE INDEX, .* --spark"),
        ("REFERSH INDEX i ON t", "no statement begins with 'REFERSH'. Statements are"),
        ("", "the statement is empty. Statements are SELECT"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT -1", "LIMIT -1: it is a number of rows"),
        ("SELECT /* /* 1 */ 2 */ id FROM t /* 3", r"a comment has no end, \*/"),
        (
            "SELECT id FROM t ORDER BY l2_distance(v, :q) LIMIT 3",
            "parameter :q has no value; values are given for: none",
        ),
        ("CREATE INDEX i ON t USING diskann (v) WITH (shards = 1, Shards = 2)", "Shards is given twice"),
        ("CREATE INDEX i ON t USING diskann (v) WITH (build = no)", "it takes true or false"),
        ("SHOW INDEXES ON `ns.t`", "a name with a dot in it cannot be written here; quote each part"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT 2147483648", "a number of rows, up to 2147483647$"),
        ("SELECT id FROM t ORDER BY l2_distance(v, array(1)) LIMIT true", "LIMIT True: it is a number of rows"),
    ],
)
def test_bad_statements_are_refused(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse(text)


def test_comments_within_comments_end_with_the_first_of_them() -> None:
    assert parse("SHOW /* a /* b */ c */ INDEXES ON ns.t") == ShowIndexes("ns.t")


@pytest.mark.parametrize("values", [[], [[1.0], 2]])
def test_a_statement_gets_as_many_values_as_it_has_marks(values: list[object]) -> None:
    with pytest.raises(SqlError, match=rf"the statement has 1 \?, and got {len(values)} values"):
        parse("SELECT id FROM t ORDER BY l2_distance(v, ?) LIMIT 3", values)


def test_the_most_rows_and_vectors_of_unsigned_numbers_are_taken() -> None:
    found = parse("SELECT id FROM t ORDER BY l2_distance(v, ?) LIMIT 2147483647", [np.array([1, 255], np.uint8)])
    assert isinstance(found, Nearest)
    assert (found.limit, found.query) == (2**31 - 1, (1.0, 255.0))


@pytest.mark.parametrize(
    ("condition", "value", "why"),
    [
        ("at = TIMESTAMP_NTZ '2026-01-01 08:00:00Z'", None, "write it without a zone"),
        ("id = :x", (1, 2), "which no column is compared with"),
    ],
)
def test_a_value_that_no_column_is_compared_with_is_left_to_spark(condition: str, value: object, why: str) -> None:
    text = f"SELECT id FROM t WHERE {condition} ORDER BY l2_distance(v, array(1)) LIMIT 3"
    result = parse(text, {"x": value})
    assert isinstance(result, SparkStatement)
    assert why in result.why


@pytest.mark.parametrize(
    "text",
    [
        "TABLE ns.t",
        "WITH near AS (TABLE ns.t) SELECT * FROM near",
        "MERGE WITH SCHEMA EVOLUTION INTO ns.t USING ns.s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *",
        "INSERT WITH SCHEMA EVOLUTION INTO ns.t SELECT * FROM ns.s",
        "ALTER TABLE ns.t DROP PARTITION FIELD day",
        "BEGIN DELETE FROM ns.t WHERE id = 1; DELETE FROM ns.t WHERE id = 2; END",
        "REPAIR TABLE ns.t",
    ],
)
def test_a_grammar_that_only_spark_knows_is_left_to_it(text: str) -> None:
    with pytest.raises(SqlError, match="cannot be read"):
        parse(text)
    result = parse(text, has_spark=True)
    assert isinstance(result, SparkStatement)
    assert (for_spark(result), result.why) == (text, "only Spark knows its grammar")
    assert "`ns`.`t`" in result.tables
    assert parse(f"EXPLAIN {text}", has_spark=True) == Explain(result)
    require_syntax(text, has_spark=True)


def test_distances_parameters_and_hints_are_seen_in_a_grammar_that_only_spark_knows() -> None:
    near = "SELECT * FROM ns.s WHERE l2_distance(v, :q) < 1"
    text = f"MERGE WITH SCHEMA EVOLUTION INTO ns.t USING ({near}) AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
    result = parse(text, {"q": [0.5]}, has_spark=True)
    assert isinstance(result, SparkStatement)
    assert "zip_with(v, array(CAST('0.5' AS" in for_spark(result)
    hinted = parse(text.replace("SELECT", "SELECT /*+ index(e) */"), {"q": [0.5]}, has_spark=True)
    assert isinstance(hinted, SparkStatement)
    assert hinted.hints == ("index",)
    for wrong in ("SELECT 'x", "SELECT 1; SELECT 2", "DROP INDEX x", "", "SELECT id FROM t@17"):
        with pytest.raises(SqlError):
            parse(wrong, has_spark=True)


def test_a_distance_for_spark_is_of_two_vectors() -> None:
    result = parse("SELECT count(*) FROM t WHERE l2_distance(v) < 3")
    assert isinstance(result, SparkStatement)
    with pytest.raises(SqlError, match=r"^l2_distance\(v\): a distance is of two vectors"):
        for_spark(result)
    unread = parse("FROM t |> WHERE l2_distance(v, array(1)")
    assert isinstance(unread, SparkStatement)
    with pytest.raises(SqlError, match="a parenthesis is not closed"):
        for_spark(unread)


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        ("TIMESTAMP AS OF '2026-01-01 08:00:00'", "TIMESTAMP AS OF '2026-01-01T08:00:00+00:00'"),
        ("timestamp  as of\n'2026-01-01'", "timestamp  as of\n'2026-01-01T00:00:00+00:00'"),
        ("TIMESTAMP AS OF TIMESTAMP '2026-01-01 08:00:00'", "TIMESTAMP AS OF TIMESTAMP '2026-01-01T08:00:00+00:00'"),
        (
            "TIMESTAMP AS OF TIMESTAMP_NTZ '2026-01-01 08:00:00'",
            "TIMESTAMP AS OF TIMESTAMP '2026-01-01T08:00:00+00:00'",
        ),
        ("TIMESTAMP AS OF DATE '2026-01-01'", "TIMESTAMP AS OF TIMESTAMP '2026-01-01T00:00:00+00:00'"),
        ("TIMESTAMP AS OF '2026-01-01 08:00:00+09:00'", "TIMESTAMP AS OF '2026-01-01T08:00:00+09:00'"),
        ("FOR SYSTEM_TIME AS OF '2026-01-01'", "FOR SYSTEM_TIME AS OF '2026-01-01T00:00:00+00:00'"),
        ("TIMESTAMP AS OF ('2026-01-01 08:00')", "TIMESTAMP AS OF '2026-01-01T08:00:00+00:00'"),
        ("TIMESTAMP AS OF r'2026-01-01'", "TIMESTAMP AS OF '2026-01-01T00:00:00+00:00'"),
        *(
            (f"TIMESTAMP AS OF {typed}", "TIMESTAMP AS OF TIMESTAMP '2026-01-01T08:00:00+00:00'")
            for typed in (
                "CAST('2026-01-01 08:00' AS TIMESTAMP)",
                "(TRY_CAST('2026-01-01 08:00' AS TIMESTAMP_NTZ))",
                "CAST(CAST('2026-01-01 08:00' AS TIMESTAMP_NTZ) AS TIMESTAMP)",
                "'2026-01-01 08:00'::TIMESTAMP_NTZ",
                "timestamp('2026-01-01 08:00')",
            )
        ),
        ("TIMESTAMP AS OF CAST('2026-01-01 08:00' AS DATE)", "TIMESTAMP AS OF TIMESTAMP '2026-01-01T00:00:00+00:00'"),
        (
            "TIMESTAMP AS OF CAST('2026-01-01 08:00+09:00' AS DATE)",
            "TIMESTAMP AS OF TIMESTAMP '2026-01-01T00:00:00+00:00'",
        ),
        ("TIMESTAMP AS OF '2026-1-1 8:00 Europe/Berlin'", "TIMESTAMP AS OF '2026-1-1 8:00 Europe/Berlin'"),
        ("TIMESTAMP AS OF current_timestamp()", "TIMESTAMP AS OF current_timestamp()"),
        ("TIMESTAMP AS OF 'nonsense'", "TIMESTAMP AS OF 'nonsense'"),
        ("VERSION AS OF 'v1'", "VERSION AS OF 'v1'"),
    ],
)
def test_times_to_travel_to_reach_spark_with_the_zone_that_they_have_here(written: str, passed: str) -> None:
    rest = "FROM db.t {} WHERE name = 'TIMESTAMP AS OF ''2026-01-01''' OR at > TIMESTAMP '2026-01-01'"
    for text in (f"SELECT count(*) {rest}", f"SELECT count(*) n {rest}"):
        found = parse(text.format(written))
        assert isinstance(found, SparkStatement)
        assert for_spark(found) == text.format(passed)


@pytest.mark.parametrize(
    "at", ["'2026-1-1'", "TIMESTAMP '2026-01-01 8:00'", "CAST(' 2026-01-01' AS DATE)", "DATE 'today'"]
)
def test_a_time_that_spark_alone_reads_does_not_get_the_zone_of_its_session(at: str) -> None:
    statement = parse(f"SELECT count(*) FROM db.t TIMESTAMP AS OF {at}")
    assert isinstance(statement, SparkStatement)
    with pytest.raises(SqlError, match=r"TIMESTAMP AS OF .*: it is a time, such as"):
        for_spark(statement)


def test_a_parameter_to_travel_to_reaches_spark_in_utc() -> None:
    found = parse("SELECT count(*) FROM db.t TIMESTAMP AS OF :at", {"at": datetime.fromisoformat("2026-01-01")})
    assert isinstance(found, SparkStatement)
    assert "'2026-01-01T00:00:00+00:00'" in for_spark(found)


def test_a_parameter_is_read_as_what_it_is() -> None:
    near = "ORDER BY l2_distance(v, array(1)) LIMIT 3"
    travelled = nearest(f"SELECT id FROM t TIMESTAMP AS OF :at {near}", {"at": date(2026, 1, 2)})
    assert travelled.snapshot == datetime.fromisoformat("2026-01-02")
    for raw in (b"\x03", bytearray(b"\x03"), memoryview(b"\x03")):
        where = nearest(f"SELECT id FROM t WHERE h = :h {near}", {"h": raw}).where
        assert where is not None
        assert where.expression == EqualTo("h", b"\x03")
    for number in (10**1_000, -(10**1_000)):
        with pytest.raises(SqlError, match="parameter :n has more than 1,000 digits"):
            parse(f"SELECT id FROM t WHERE n = :n {near}", {"n": number})
    values = {"a": Decimal("1E+3"), "b": Decimal("-1E-7"), "c": time(8, 30), "d": UUID(int=7)}
    found = parse("SELECT :a, :b, :c, :d FROM t", values)
    assert isinstance(found, SparkStatement)
    assert for_spark(found) == f"SELECT 1000BD, (-0.0000001BD), '08:30:00', '{UUID(int=7)}' FROM t"


def test_a_double_without_digits_reaches_spark_by_its_name() -> None:
    found = parse("SELECT :a, :b, :c FROM t", {"a": float("inf"), "b": float("-inf"), "c": float("nan")})
    assert isinstance(found, SparkStatement)
    names = (f"CAST('{name}' AS DOUBLE)" for name in ("Infinity", "-Infinity", "NaN"))
    assert for_spark(found) == f"SELECT {', '.join(names)} FROM t"


def test_a_comment_begins_behind_a_raw_text_that_ends_in_a_backslash() -> None:
    """Else the text after it would be read as outside of quotes, and lose what looks like a comment."""
    result = parse("SELECT r'\\', '/* y */', R\"\\\", \"-- z\", 'it''s' FROM t /* c */ WHERE `a--b` = 'r' -- d")
    assert isinstance(result, SparkStatement)
    assert " ".join(result.text.split()) == (
        "SELECT r'\\', '/* y */', R\"\\\", \"-- z\", 'it''s' FROM t WHERE `a--b` = 'r'"
    )


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT count(*) FROM a.b.t VERSION AS OF 5", {"`a`.`b`.`t`"}),
        ("WITH c AS (SELECT * FROM x.y) SELECT * FROM c, z.w", {"`c`", "`x`.`y`", "`z`.`w`"}),
        ("SELECT * FROM `p.q`.r JOIN b.u USING (i)", {"`p.q`.`r`", "`b`.`u`"}),
        ("MERGE INTO a.t USING b.s ON t.i = s.i WHEN MATCHED THEN DELETE", {"`a`.`t`", "`b`.`s`"}),
        ("DELETE FROM a.t WHERE i IN (SELECT i FROM b.u)", {"`a`.`t`", "`b`.`u`"}),
        ("UPDATE a.t SET x = 1", {"`a`.`t`"}),
        ("SELECT * FROM f(TABLE(a.b.t), x => table(b.u), y => upper(c.z))", {"`a`.`b`.`t`", "`b`.`u`"}),
        ("SELECT 1.5 FROM range(5)", set()),
        ("ALTER TABLE a.b.t CREATE TAG `x.y`", {"`a`.`b`.`t`"}),
        ("SHOW CREATE TABLE a . `b.c` . t", {"`a`.`b.c`.`t`"}),
        ("SELECT count(*) FROM STREAM(a.t)", {"`a`.`t`"}),
        ("FROM a.b.t |> WHERE x = 'it''s no.table' |> JOIN b.u USING (i)", {"`a`.`b`.`t`", "`b`.`u`"}),
        (r"FROM a.t |> WHERE x <> r'\' |> JOIN b.u USING (i) |> WHERE y = 'z'", {"`a`.`t`", "`b`.`u`"}),
    ],
)
def test_a_statement_for_spark_names_the_tables_that_it_reads_or_writes(text: str, tables: set[str]) -> None:
    statement = parse(text)
    assert isinstance(statement, SparkStatement)
    assert statement.tables == tables
