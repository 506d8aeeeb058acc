"""`match` and `hybrid` in SQL, beside what the reader finds and what the words of the rows say."""

import random
import re
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import load_definition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.parser import parse
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.sql.statements import SparkStatement
from tests.conftest import STORAGE, vectors_of
from tests.ops.text.test_text_search import DIMS, TextTable, having

pytestmark = pytest.mark.usefixtures("no_disk_cache")

QUERY = [float(number) for number in vectors_of(np.array([5]), dims=DIMS)[0]]
CREATE = (
    "CREATE INDEX e ON db.t USING diskann (embedding) WITH (metric = 'l2', target_recall = 0.0, text = 'body,tags')"
)
DISTANCE = "l2_distance(embedding, :q)"


@pytest.fixture
def copy(sql_catalog: Catalog) -> TextTable:
    """A table of which an index lacks some rows, and has some that were deleted."""
    made = TextTable(sql_catalog, random.Random(1))
    made.append(60)
    SqlSession.on(sql_catalog, storage=STORAGE).sql(CREATE)
    made.append(40)
    made.delete()
    return made


@pytest.fixture
def session(sql_catalog: Catalog, copy: TextTable) -> SqlSession:
    return SqlSession.on(sql_catalog, storage=STORAGE)


def reader(copy: TextTable, snapshot: int | None = None) -> IndexReader:
    return open_index(copy.table.refresh(), "e", storage=STORAGE, snapshot=snapshot)


def ids(session: SqlSession, text: str, **parameters: Any) -> list[int]:
    result = session.sql(text, {"q": QUERY, **parameters})
    assert result.search is not None, result.how
    return list(result.rows["id"].to_pylist())


@pytest.mark.parametrize("columns", ["body", "tags", "body, t.tags"])
def test_match_finds_what_the_reader_finds(session: SqlSession, copy: TextTable, columns: str) -> None:
    names = re.findall(r"body|tags", columns)
    truth = reader(copy).search(text="red shoes", k=9, text_columns=names, columns=["id"]).rows
    assert 0 < len(truth) < len(copy.rows)
    call = f"match({columns}, 'red shoes')"
    found = session.sql(f"SELECT id, {call} AS s, body FROM db.t AS t ORDER BY s DESC LIMIT 9").rows
    assert found.column_names == ["id", "s", "body"]
    assert found["id"] == truth["id"]
    assert found["s"] == truth["score"]
    assert [copy.rows[number]["body"] for number in found["id"].to_pylist()] == found["body"].to_pylist()
    assert ids(session, f"SELECT id FROM db.t AS t ORDER BY {call} DESC LIMIT 9") == truth["id"].to_pylist()
    unnamed = session.sql(f"SELECT {call} FROM db.t AS t ORDER BY 1 DESC LIMIT 2").rows
    assert unnamed.to_pydict() == {"score": truth["score"].to_pylist()[:2]}
    merged = session.sql(f"SELECT {call} FROM (SELECT body, tags FROM db.t) AS t ORDER BY 1 DESC LIMIT 2").rows
    assert merged == unnamed


def test_a_text_may_be_a_parameter(session: SqlSession) -> None:
    text = "SELECT id FROM db.t ORDER BY match(body, {}) DESC LIMIT 5"
    expected = ids(session, text.format("'red'"))
    assert ids(session, text.format(":words"), words="red") == expected
    assert session.sql(text.format("?"), ["red"]).rows["id"].to_pylist() == expected


def test_only_rows_with_a_word_come(session: SqlSession, copy: TextTable) -> None:
    found = ids(session, "SELECT id FROM db.t ORDER BY match(body, '日本語') DESC LIMIT 100")
    assert {*found} == having(copy, ["body"], "日本語")
    nothing = session.sql("SELECT id FROM db.t ORDER BY match(body, 'the') DESC LIMIT 100")
    assert nothing.rows.num_rows == 0
    assert nothing.search is not None
    assert "the text has no word that is searched for: no row is found by it" in nothing.search.warnings


@pytest.mark.parametrize("weight", [None, 0, 0.3, 1])
def test_hybrid_is_minus_the_fused_score(session: SqlSession, copy: TextTable, weight: float | None) -> None:
    truth = reader(copy).search(
        np.array(QUERY), 9, text="red shoes", text_columns=["body"], text_weight=weight, columns=["id"]
    )
    third = "" if weight is None else f", {weight}"
    call = f"hybrid({DISTANCE}, match(body, 'red shoes'){third})"
    found = session.sql(f"SELECT id, {call} AS h FROM db.t ORDER BY h LIMIT 9", {"q": QUERY}).rows
    assert found["id"] == truth.rows["id"]
    assert [-value for value in found["h"].to_pylist()] == truth.rows["score"].to_pylist()
    assert ids(session, f"SELECT id FROM db.t ORDER BY {call} ASC LIMIT 9") == truth.rows["id"].to_pylist()
    assert session.sql(f"SELECT {call} FROM db.t ORDER BY 1 LIMIT 1", {"q": QUERY}).rows.column_names == ["hybrid"]


def test_a_weight_may_be_a_parameter_and_distances_of_all_kinds_are_fused(session: SqlSession, copy: TextTable) -> None:
    session.sql(CREATE.replace("INDEX e", "INDEX p").replace("'l2'", "'ip'"))
    opened = open_index(copy.table.refresh(), "p", storage=STORAGE)
    truth = opened.search(np.array(QUERY), 5, text="red", text_columns=["body"], text_weight=0.5, columns=["id"])
    call = "hybrid(inner_product(embedding, :q), match(body, 'red'), :w)"
    assert ids(session, f"SELECT id FROM db.t ORDER BY {call} LIMIT 5", w=0.5) == truth.rows["id"].to_pylist()


def test_where_match_chooses_the_rows_that_have_one_of_the_words(session: SqlSession, copy: TextTable) -> None:
    near = sorted(copy.rows, key=lambda number: np.linalg.norm(copy.vector(number) - np.array(QUERY, np.float32)))
    for condition, rows in (
        ("match(body, 'shoe 日本語')", having(copy, ["body"], "shoe 日本語")),
        ("match(tags, body, 'slow')", having(copy, ["body", "tags"], "slow")),
        ("(match(body, 'red') AND id > 20) AND match(t.tags, 'red')",
         {n for n in having(copy, ["body"], "red") & having(copy, ["tags"], "red") if n > 20}),
        ("match(body, 'unheard')", set()),
    ):  # fmt: skip
        expected = [number for number in near if number in rows]
        ranked = f"FROM db.t AS t WHERE {condition} ORDER BY"
        assert ids(session, f"SELECT id {ranked} {DISTANCE} LIMIT 100") == expected
        within = f"SELECT id, {DISTANCE} AS d FROM db.t AS t WHERE {condition} AND {DISTANCE} < 1e9 ORDER BY d"
        assert ids(session, within) == expected
        by_words = ids(session, f"SELECT id {ranked} match(body, 'red') DESC LIMIT 100")
        assert {*by_words} == rows & having(copy, ["body"], "red")
        by_both = ids(session, f"SELECT id {ranked} hybrid({DISTANCE}, match(body, 'red')) LIMIT 100")
        assert {*by_both} == rows


def test_time_travel_conditions_and_subqueries(session: SqlSession, copy: TextTable) -> None:
    first = copy.table.refresh().metadata.snapshot_log[0].snapshot_id
    truth = reader(copy, first).search(text="red slow", k=9, text_columns=["body"], columns=["id"], where="id > 9").rows
    ranked = "WHERE id > 9 ORDER BY match(body, 'red slow') DESC LIMIT 9"
    assert ids(session, f"SELECT id FROM db.t VERSION AS OF {first} {ranked}") == truth["id"].to_pylist()
    now = reader(copy).search(text="red slow", k=9, text_columns=["body"], columns=["id"], where="id > 9").rows
    assert ids(session, f"SELECT id FROM db.t {ranked}") == now["id"].to_pylist()
    assert now["score"] != truth["score"], "the counts are those of other rows"
    least = now["score"][4].as_py()
    assert now["score"][0].as_py() > least > now["score"][-1].as_py()
    around = (
        f"SELECT id FROM (SELECT id, match(body, 'red slow') AS s FROM db.t {ranked}) WHERE s >= :least ORDER BY id"
    )
    assert ids(session, around, least=least) == sorted(row["id"] for row in now.to_pylist() if row["score"] >= least)
    merged = f"SELECT id FROM (SELECT id, body FROM db.t WHERE match(tags, 'red')) AS x {ranked}"
    assert {*ids(session, merged.replace("LIMIT 9", "LIMIT 100"))} == {
        number for number in having(copy, ["tags"], "red") & having(copy, ["body"], "red slow") if number > 9
    }


def test_further_keys_choose_among_rows_of_one_score(session: SqlSession, copy: TextTable) -> None:
    found = reader(copy).search(text="red", k=100, text_columns=["tags"], columns=["id"])
    scores = {row["id"]: row["score"] for row in found}
    expected = sorted(scores, key=lambda number: (-scores[number], -number))
    assert len({*scores.values()}) < len(scores) / 2
    for limit in range(1, 20):
        text = f"SELECT id FROM db.t ORDER BY match(tags, 'red') DESC, id DESC LIMIT {limit}"
        assert ids(session, text) == expected[:limit]


def test_explain_names_words_and_weights(session: SqlSession) -> None:
    call = f"hybrid({DISTANCE}, match(body, 'red'), 0.3)"
    text = f"SELECT id FROM db.t WHERE match(tags, 'x') AND id > 3 ORDER BY {call} LIMIT 5"
    plan = session.sql(f"EXPLAIN {text}", {"q": QUERY}).rows["plan"].to_pylist()
    assert plan[0] == "index e"
    assert plan[2:] == [
        "condition, pushed to partitions, statistics and rows: id > 3",
        "only rows with a word of match(tags, 'x')",
        "the 5 best rows by embedding and match(body, 'red'), fused with a text weight of 0.3",
    ]
    plan = session.sql("EXPLAIN SELECT id FROM db.t ORDER BY match(body, 'red') DESC, id LIMIT 5").rows["plan"]
    assert plan.to_pylist()[2:] == [
        "the 5 best rows by match(body, 'red')", "then, of these rows: ORDER BY score, id",
    ]  # fmt: skip
    measured = session.sql(f"EXPLAIN ANALYZE {text}", {"q": QUERY})
    assert any("+ words" in line for line in measured.rows["plan"].to_pylist())
    refused = session.sql("EXPLAIN SELECT id FROM db.t WHERE match(body, 'x')").how
    assert "match(...) needs an index with words" in refused


def test_indexes_get_their_words_in_sql(session: SqlSession, copy: TextTable) -> None:
    session.sql(
        "CREATE INDEX g ON db.t USING diskann (embedding) "
        "WITH (metric = 'l2', target_recall = 0.0, text = ['body'], analyzer = 'de')"
    )
    made = load_definition(copy.table.refresh(), "g")
    assert (made.text, made.analyzer) == (("body",), "de")
    shown = session.sql("SHOW INDEXES ON db.t").rows.select(["name", "text"]).to_pylist()
    assert shown == [{"name": "e", "text": "body, tags"}, {"name": "g", "text": "body"}]
    query = "SELECT /*+ INDEX(g) */ id FROM db.t ORDER BY match(body, 'running') DESC LIMIT 100"
    truth = open_index(copy.table.refresh(), "g", storage=STORAGE).search(text="running", k=100, columns=["id"]).rows
    assert ids(session, query) == truth["id"].to_pylist()
    assert ids(session, query) != ids(session, query.replace("(g)", "(e)"))


def test_a_renamed_column_is_found_by_its_present_name(session: SqlSession, copy: TextTable) -> None:
    first = copy.table.refresh().metadata.current_snapshot_id
    before = ids(session, "SELECT id FROM db.t ORDER BY match(body, 'red') DESC LIMIT 5")
    with copy.table.update_schema() as update:
        update.rename_column("body", "content")
    assert ids(session, "SELECT id FROM db.t ORDER BY match(content, 'red') DESC LIMIT 5") == before
    past = f"SELECT id FROM db.t VERSION AS OF {first} ORDER BY match(body, 'red') DESC LIMIT 5"
    assert ids(session, past) == before


RANKED = "SELECT id FROM db.t ORDER BY"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{RANKED} match(body, 'x') LIMIT 3", "the best come first only with ORDER BY match(...) DESC"),
        (f"{RANKED} match(body, 'x') DESC", "it has no LIMIT: an index finds the k best"),
        (f"{RANKED} hybrid({DISTANCE}, match(body, 'x')) DESC LIMIT 3", "only with ORDER BY hybrid(...) ASC"),
        (f"{RANKED} hybrid({DISTANCE}, match(body, 'x')), id LIMIT 3", "hybrid(...) is the only key of ORDER BY"),
        (f"{RANKED} hybrid({DISTANCE}) LIMIT 3", "write a distance, a match, and a text weight"),
        (f"{RANKED} hybrid(match(body, 'x'), {DISTANCE}) LIMIT 3", "write a distance, a match, and a text weight"),
        (f"{RANKED} hybrid({DISTANCE}, match(body, 'x'), 1.5) LIMIT 3", "it is a number from 0 to 1"),
        (f"{RANKED} hybrid({DISTANCE}, match(body, 'x'), true) LIMIT 3", "it is a number from 0 to 1"),
        (f"{RANKED} match('body', 'x') DESC LIMIT 3", "write columns, then a text"),
        (f"{RANKED} match(body) DESC LIMIT 3", "write columns, then a text"),
        (f"{RANKED} match() DESC LIMIT 3", "write columns, then a text"),
        (f"{RANKED} match(body, 5) DESC LIMIT 3", "match takes words to search for, and no int"),
        (f"{RANKED} match(body, :absent) DESC LIMIT 3", "parameter :absent has no value"),
        (f"{RANKED} match(body, tags) DESC LIMIT 3", "tags is no constant"),
        (f"{RANKED} match(nope, 'x') DESC LIMIT 3", "db.t has no column 'nope'; it has id, body"),
        (f"{RANKED} match(Body, 'x') DESC LIMIT 3", "db.t has no column 'Body'"),
        (f"{RANKED} match(body, 'x') DESC LIMIT 3 OFFSET 3", "OFFSET would search anew for each page"),
        ("SELECT id, match(tags, 'x') FROM db.t ORDER BY match(body, 'x') DESC LIMIT 3", "give one of them"),
        (f"SELECT match(body, 'x') FROM db.t ORDER BY {DISTANCE} LIMIT 3", "give one of them"),
        (f"SELECT {DISTANCE} FROM db.t ORDER BY hybrid({DISTANCE}, match(body, 'x')) LIMIT 3", "give one of them"),
        (f"SELECT id FROM db.t WHERE {DISTANCE} < 1 ORDER BY match(body, 'x') DESC LIMIT 3", "give one of them"),
        (f"SELECT id FROM db.t WHERE match(body, 'x') OR id > 3 ORDER BY {DISTANCE} LIMIT 3", "to the rest by AND"),
        (f"SELECT id FROM db.t WHERE NOT match(body, 'x') ORDER BY {DISTANCE} LIMIT 3", "joined to the rest by AND"),
        ("SELECT id FROM db.t WHERE match(body, 'x') > 2 ORDER BY match(body, 'x') DESC LIMIT 3", "a condition on a"),
        ("SELECT id FROM db.t WHERE match(body, 'x')", "match(...) needs an index with words"),
        ("SELECT count(*) FROM db.t WHERE match(body, 'x')", "match(...) needs an index with words"),
        (f"SELECT id FROM (SELECT * FROM db.t ORDER BY {DISTANCE} LIMIT 3) WHERE match(body, 'x')",
         "it computes match(...) outside of the subquery"),
        ("SELECT /*+ SHARDS(1) */ id FROM db.t ORDER BY match(body, 'x') DESC LIMIT 3", "whatever SHARDS is: leave"),
        (f"{RANKED} hybrid(cosine_distance(embedding, :q), match(body, 'x')) LIMIT 3",
         "with the words of body (there are: e (embedding, l2, text body, tags)): CREATE INDEX name ON db.t"),
        ("SELECT /*+ INDEX(e) */ id FROM db.t WHERE match(body, 'x') ORDER BY cosine_distance(embedding, :q) LIMIT 3",
         "INDEX(e): db.t has no index e on embedding by cosine, with the words of body; there are: none"),
        ("SELECT id FROM db.t WHERE match(body, 'x') AND cosine_distance(embedding, :q) < 1",
         "CREATE INDEX name ON db.t USING diskann (embedding) WITH (metric = 'cosine', text = 'body')"),
    ],
)  # fmt: skip
def test_what_is_not_answered_is_refused_by_name_with_and_without_spark(
    sql_catalog: Catalog, copy: TextTable, text: str, message: str
) -> None:
    """The session of Spark is none: nothing may reach it."""
    for spark in (None, object()):
        session = SqlSession.on(sql_catalog, storage=STORAGE, spark=spark)
        with pytest.raises(SqlError, match=re.escape(message)) as raised:
            session.sql(text, {"q": QUERY})
        assert "--spark" not in str(raised.value)


def test_without_words_in_an_index_the_error_says_how_to_make_one(sql_catalog: Catalog) -> None:
    made = TextTable(sql_catalog, random.Random(1))
    made.append(9)
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    message = (
        "db.t has no index with the words of body (there are: none): CREATE INDEX name ON db.t USING diskann "
        "(vector_column) WITH (metric = 'cosine', text = 'body')"
    )
    for text in (
        f"{RANKED} match(body, 'x') DESC LIMIT 3",
        f"EXPLAIN {RANKED} match(body, 'x') DESC LIMIT 3",
    ):
        with pytest.raises(SqlError, match=re.escape(message)):
            session.sql(text)


def test_an_index_without_the_words_does_not_answer(session: SqlSession) -> None:
    session.sql("CREATE INDEX a ON db.t USING diskann (embedding) WITH (metric = 'l2', target_recall = 0.0)")
    session.sql(CREATE.replace("INDEX e", "INDEX b").replace("'body,tags'", "'tags'"))
    for text, index in (
        ("SELECT id FROM db.t ORDER BY match(body, 'red') DESC LIMIT 3", "e"),
        ("SELECT id FROM db.t ORDER BY match(tags, 'red') DESC LIMIT 3", "b"),
        (f"SELECT id FROM db.t WHERE match(tags, body, 'red') ORDER BY {DISTANCE} LIMIT 3", "e"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3", "a"),
    ):
        assert session.sql(text, {"q": QUERY}).how.startswith(f"index {index}; ")


def test_a_text_that_only_spark_can_read_is_refused_where_it_calls_match(sql_catalog: Catalog, copy: TextTable) -> None:
    session = SqlSession.on(sql_catalog, storage=STORAGE, spark=object())
    for text in (
        "FROM db.t |> WHERE match(body, 'x')",
        "SELECT id FROM db.t |> WHERE Hybrid (1) < 2",
        "CREATE VIEW v AS SELECT id FROM db.t WHERE match(body, 'x')",
    ):
        with pytest.raises(SqlError, match=r"(match|hybrid)\(\.\.\.\) needs an index with words"):
            session.sql(text)


def test_what_only_looks_like_a_call_is_left_to_spark() -> None:
    for text in (
        "SELECT spark_catalog.default.match(body, 'x') FROM db.t",
        "INSERT INTO match (a, b) VALUES (1, 2)",
        "WITH hybrid (a) AS (SELECT 1) SELECT * FROM hybrid",
        "FROM db.t |> WHERE body = 'match(1)' |> SELECT `hybrid`, c.match(body)",
    ):
        found = parse(text, has_spark=True)
        assert isinstance(found, SparkStatement)
        assert found.functions == ()


def test_a_table_that_was_never_written_has_no_words(sql_catalog: Catalog) -> None:
    TextTable(sql_catalog, random.Random(1))
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    session.sql(CREATE)
    for text in (
        "SELECT id, match(body, 'red') AS s FROM db.t ORDER BY s DESC LIMIT 3",
        f"SELECT id, hybrid({DISTANCE}, match(body, 'red')) AS s FROM db.t ORDER BY s LIMIT 3",
    ):
        assert session.sql(text, {"q": QUERY}).rows.to_pydict() == {"id": [], "s": []}
