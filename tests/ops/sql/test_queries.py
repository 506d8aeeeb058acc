"""What SQL texts answer, beside DuckDB on the same rows: thresholds, subqueries, conditions, order, parameters."""

import shutil
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, StringType

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.parser import parse
from icepuffin.ops.sql.postprocessing import named_field
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.sql.statements import Nearest
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from tests.conftest import ROWS, STORAGE, make_rows, queries

VECTOR = ", ".join(f"{x:.6f}" for x in queries(1)[0])
DISTANCE = f"l2_distance(embedding, ARRAY({VECTOR}))"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Of table `db.t`, which these tests only read."""
    folder = tmp_path_factory.mktemp("queries")
    new_catalog = open_catalog(
        "test", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
    )
    new_catalog.create_namespace("db")
    rows = new_catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    for start in range(0, 600, 200):
        rows.append(make_rows(start, start + 200))
    return new_catalog


@pytest.fixture(scope="module")
def table(catalog: Catalog) -> Table:
    return catalog.load_table("db.t")


@pytest.fixture(scope="module")
def session(catalog: Catalog) -> SqlSession:
    created = SqlSession.on(catalog, storage=STORAGE)
    created.sql("CREATE INDEX e ON db.t USING diskann (embedding) WITH (metric = 'l2', max_degree = 24, shards = 2)")
    created.sql("REFRESH INDEX e ON db.t")
    return created


def duck(table: Table, text: str) -> pa.Table:
    """The same text in DuckDB's words."""
    rows = table.refresh().scan().to_arrow()  # noqa: F841  DuckDB reads it by its name
    for icepuffin_form, duckdb_form in (
        ("l2_distance", "list_distance"), ("cosine_distance", "list_cosine_distance"),
        ("inner_product", "list_inner_product"), (f"ARRAY({VECTOR})", f"[{VECTOR}]::FLOAT[]"), ("db.t", "rows"),
    ):  # fmt: skip
        text = text.replace(icepuffin_form, duckdb_form)
    with duckdb.connect() as db:
        return db.execute(text).to_arrow_table()


def same(ours: pa.Table, duckdb: pa.Table) -> None:
    assert ours.column_names == duckdb.column_names
    assert ours.num_rows == duckdb.num_rows > 0
    for name in ours.column_names:
        own_rows, yours = ours[name].to_pylist(), duckdb[name].to_pylist()
        if own_rows and isinstance(own_rows[0], float):
            np.testing.assert_allclose(own_rows, yours, rtol=1e-4, atol=1e-5)
        else:
            assert own_rows == yours, name


# {d} is the distance, {t} the table
QUERIES = [
    "SELECT id, {d} AS d FROM {t} WHERE {d} < 2.9 ORDER BY d",
    "SELECT id FROM {t} WHERE 2.9 >= {d} AND section = 'section 2' ORDER BY {d}",
    "SELECT id, section FROM {t} WHERE {d} < 3.2 AND section >= 'section 2' ORDER BY section DESC, id",
    "SELECT id, {d} AS d FROM {t} WHERE {d} < 3.0 ORDER BY d LIMIT 4",
    "SELECT id, {d} AS d FROM {t} WHERE {d} BETWEEN 2 AND 2.9 AND {d} < 3 ORDER BY d DESC",
    "SELECT id, d FROM (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 8) ORDER BY d LIMIT 5 OFFSET 3",
    "SELECT id, {d} AS d FROM {t} WHERE {d} < 2.9 ORDER BY d OFFSET 3",
    "SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 5 OFFSET 0",
    "SELECT section AS s, {d} AS r, id AS next FROM {t} ORDER BY {d} LIMIT 5",
    "SELECT id FROM (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 20) WHERE d BETWEEN 2 AND 2.9 OR id = 88 ORDER BY 1",
    "SELECT id FROM {t} WHERE {d} < 3.2 AND ({d} > 3 OR id < 100) ORDER BY id",
    "SELECT x.id, x.d FROM (SELECT id, section, {d} AS d FROM {t}) x WHERE section = 'section 1' ORDER BY x.d LIMIT 5",
    "SELECT * FROM (SELECT id, {d} AS d FROM {t} WHERE id >= 100) s WHERE d < 3.1 AND id < 500 ORDER BY id",
    "SELECT id, d FROM (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 20) WHERE id > 99 ORDER BY d DESC LIMIT 2",
    "SELECT section, d FROM (SELECT id, section, {d} AS d FROM {t} ORDER BY d LIMIT 20) ORDER BY section, d",
    "WITH near AS (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 10) SELECT id, d AS score FROM near WHERE d > 1",
    "SELECT number FROM (SELECT n AS number FROM (SELECT id AS n, {d} AS d FROM {t}) WHERE d < 3) ORDER BY number",
    "SELECT id FROM (SELECT id, section, {d} AS d FROM {t}) WHERE d < 2.9 AND section LIKE 'section 2%' ORDER BY id",
    "SELECT id, {d} AS d FROM {t} WHERE 1 = 1 AND id > 7 ORDER BY 2 LIMIT 3",
    "SELECT id, {d} AS d FROM {t} WHERE {d} < 2.9 ORDER BY 1 DESC",
    "SELECT id, d FROM (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 20) x ORDER BY 1",
    "SELECT id FROM {t} WHERE name NOT LIKE 'name 1%' ORDER BY {d} LIMIT 9",
    "SELECT id FROM {t} WHERE {d} < 3 AND name NOT LIKE 'name 1%' AND NOT name LIKE 'name 2%' ORDER BY id",
    "SELECT id FROM {t} WHERE id NOT IN (88, 144) AND id BETWEEN 50 AND 500 AND NOT (id > 400) ORDER BY {d} LIMIT 9",
    "SELECT id FROM {t} WHERE {d} BETWEEN 2 AND 3 ORDER BY id",
    "SELECT section, id FROM {t} ORDER BY {d}, section DESC, id LIMIT 9",
    "SELECT section AS id, id AS section FROM (SELECT id, section, {d} AS d FROM {t}) ORDER BY d LIMIT 5",
    "SELECT id FROM (SELECT y.id, {d} AS d FROM {t} y WHERE y.id > 10) z WHERE z.d < 3 ORDER BY z.id",
    "WITH m AS (SELECT id, {d} AS d FROM {t}), n AS (SELECT id, d FROM m WHERE d < 3) SELECT id FROM n ORDER BY id",
    "WITH t AS (SELECT id, embedding FROM {t} WHERE id < 50) SELECT id FROM t ORDER BY {d} LIMIT 5",
    "SELECT id FROM (WITH n AS (SELECT id, {d} AS d FROM {t}) SELECT id, d FROM n) ORDER BY d LIMIT 5",
    "SELECT id FROM (SELECT id, {d} AS d FROM {t} ORDER BY d LIMIT 20) WHERE id IN ('88', 144) ORDER BY id",
    "SELECT n AS section FROM (SELECT id AS n, section AS s, {d} AS d FROM {t}) WHERE d < 3 ORDER BY s, n",
    "SELECT n AS name FROM (SELECT id AS n, section AS l, {d} AS d FROM {t}) WHERE d < 3 ORDER BY l, n DESC",
    "SELECT id AS embedding FROM (SELECT id, {d} AS d FROM {t}) ORDER BY d LIMIT 5",
    "SELECT id FROM (SELECT id, section, 2 AS two, {d} AS d FROM {t}) WHERE d < 3 ORDER BY section, id",
    "SELECT n AS id FROM (SELECT m n, s, d FROM (SELECT id m, name AS s, {d} AS d FROM {t})) WHERE d < 3 ORDER BY s",
    "-- nearest\nSELECT id /* the key */ FROM {t} WHERE section <> '--' AND section <> '/*' ORDER BY {d} LIMIT 5;",
]  # fmt: skip


@pytest.mark.parametrize("text", QUERIES)
def test_an_answer_is_that_of_an_engine_that_compares_every_row(session: SqlSession, table: Table, text: str) -> None:
    text = text.format(d=DISTANCE, t="db.t")
    result = session.sql(text)
    same(result.rows, duck(table, text))
    assert result.search is not None
    assert result.search.coverage is Coverage.EXACT_VERSION


@pytest.mark.parametrize(
    ("function", "order", "bound"), [("cosine_distance", "ASC", "< 0.4"), ("inner_product", "DESC", "> 9")]
)
def test_other_metrics_have_thresholds_too(
    session: SqlSession, table: Table, function: str, order: str, bound: str
) -> None:
    value = f"{function}(embedding, ARRAY({VECTOR}))"
    text = f"SELECT id, {value} AS v FROM db.t WHERE {value} {bound} ORDER BY v {order}"
    found = session.sql(text)
    same(found.rows, duck(table, text))
    assert "no index on embedding" in found.how


def test_a_threshold_is_pruned_and_explained(session: SqlSession) -> None:
    result = session.sql("SELECT id FROM db.t WHERE l2_distance(embedding, :far) < 1", {"far": [100.0] * 16})
    assert result.rows.num_rows == 0
    assert result.search is not None
    assert result.search.profile.pruning is not None
    assert result.search.profile.pruning.files_pruned == 3


def test_every_clause_takes_parameters(session: SqlSession, table: Table) -> None:
    text = (
        "SELECT id, l2_distance(embedding, :q) AS far FROM (SELECT * FROM db.t WHERE id >= :low) "
        "WHERE l2_distance(embedding, :q) < :t AND id <> :n ORDER BY far LIMIT :k"
    )
    values: dict[str, Any] = {"q": queries(1)[0], "low": 100, "t": 3.1, "n": 144, "k": 7}
    result = session.sql(text, values)
    plain = text.replace(":q", f"ARRAY({VECTOR})")
    for name in ("low", "t", "n", "k"):
        plain = plain.replace(f":{name} ", f"{values[name]} ").replace(f":{name})", f"{values[name]})")
    same(result.rows, duck(table, plain.replace(":k", "7")))
    positional = session.sql(
        "SELECT id FROM db.t WHERE l2_distance(embedding, ?) < ? ORDER BY id", [queries(1)[0], 3.1]
    )
    same(positional.rows, duck(table, f"SELECT id FROM db.t WHERE {DISTANCE} < 3.1 ORDER BY id"))


@pytest.mark.parametrize(
    ("one", "other"),
    [("`embedding`", "embedding"), ("t.embedding", "`embedding`"), ("embedding", "`t`.`embedding`")],
)
def test_a_column_is_the_same_however_it_is_written(session: SqlSession, one: str, other: str) -> None:
    plain = session.sql(f"SELECT id, {DISTANCE} AS d FROM db.t WHERE {DISTANCE} < 9 ORDER BY {DISTANCE} LIMIT 5").rows
    named, sorted_ = (DISTANCE.replace("embedding", written) for written in (one, other))
    text = f"SELECT id, {named} AS d FROM db.t WHERE {DISTANCE} < 9 ORDER BY {sorted_} LIMIT 5"
    assert session.sql(text).rows.equals(plain)


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM (SELECT id, name AS ` distance` FROM db.t ORDER BY {DISTANCE} LIMIT 2)",
        f"SELECT id FROM db.t WHERE {DISTANCE} < 3 AND ` distance` > 2",
    ],
)
def test_the_inner_name_of_the_distance_is_none_of_a_text(session: SqlSession, text: str) -> None:
    """The first answer had no column of that name, and the second rows by their distance."""
    with pytest.raises(SqlError, match="` distance` is the name of the distance here"):
        session.sql(text)


def test_no_condition_is_true_of_nothing(session: SqlSession) -> None:
    found = session.sql(f"SELECT id FROM db.t WHERE 1 = 0 ORDER BY {DISTANCE} LIMIT 5")
    assert (found.rows.num_rows, found.rows.column_names) == (0, ["id"])


def test_a_condition_takes_a_list_of_thousands_of_values(session: SqlSession, table: Table) -> None:
    text = f"SELECT id FROM db.t WHERE id IN ({', '.join(map(str, range(0, 6000, 3)))}) ORDER BY {DISTANCE} LIMIT 7"
    same(session.sql(text).rows, duck(table, text))


def test_a_star_before_other_columns_is_every_column(session: SqlSession) -> None:
    found = session.sql(f"SELECT *, {DISTANCE} AS d FROM db.t ORDER BY d LIMIT 2")
    assert found.rows.column_names == ["id", "name", "section", "embedding", "d"]


@pytest.mark.parametrize("name", ["VERSION AS OF {id}", "VERSION AS OF 'before'", "TIMESTAMP AS OF '{time}'"])
def test_a_subquery_reads_a_snapshot(catalog: Catalog, name: str) -> None:
    table = catalog.create_table("db.old", ROWS)
    table.append(make_rows(0, 60))
    snapshot = table.refresh().metadata.current_snapshot_id or 0
    table.manage_snapshots().create_tag(snapshot, "before").commit()
    log = table.refresh().metadata.snapshot_log[-1]
    table.append(make_rows(60, 90))
    travel = name.format(id=snapshot, time=f"{np.datetime64(log.timestamp_ms, 'ms')}+00:00")
    text = f"SELECT id FROM (SELECT id, {DISTANCE} AS d FROM db.old {travel}) WHERE d < 9 ORDER BY id DESC LIMIT 1"
    session = SqlSession.on(catalog, storage=STORAGE)
    assert session.sql(text).rows["id"].to_pylist() == [59]
    assert session.sql(text.replace(travel, "")).rows["id"].to_pylist() == [89]
    catalog.drop_table("db.old")


def test_a_version_is_an_id_before_it_is_a_name_and_never_a_time(catalog: Catalog) -> None:
    """As Iceberg's documentation has it for Spark. A tag of the same name came first, and a date was a time."""
    table = catalog.create_table("db.ids", ROWS)
    for start in (0, 60):
        table.append(make_rows(start, start + 30))
    first, second = (snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots)
    for name in (str(second), "17"):
        table.manage_snapshots().create_tag(first, name).commit()
    session = SqlSession.on(catalog, storage=STORAGE)
    text = f"SELECT id FROM db.ids VERSION AS OF '{{}}' WHERE {DISTANCE} < 99 ORDER BY id DESC LIMIT 1"
    for version, last in ((second, 89), (first, 29), (17, 29)):
        assert session.sql(text.format(version)).rows["id"].to_pylist() == [last], version
    for explain in ("", "EXPLAIN "):
        with pytest.raises(UnknownSnapshotError, match="no ref '2999-01-01'"):
            session.sql(explain + text.format("2999-01-01"))
    catalog.drop_table("db.ids")


def test_no_rows_have_columns_too(session: SqlSession) -> None:
    """Such a query comes from tools that want to know the columns."""
    found = session.sql(f"SELECT id, {DISTANCE} AS d FROM db.t ORDER BY d LIMIT 0").rows
    assert (found.num_rows, found.schema.types) == (0, [pa.int64(), pa.float64()])


def test_fetch_limits_rows_as_limit_does(session: SqlSession) -> None:
    text = f"SELECT id FROM db.t ORDER BY {DISTANCE}"
    assert session.sql(f"{text} FETCH FIRST 3 ROWS ONLY").rows.equals(session.sql(f"{text} LIMIT 3").rows)


def test_a_reader_stays_open_until_the_table_changes(catalog: Catalog) -> None:
    table = catalog.create_table("db.changing", ROWS)
    table.append(make_rows(0, 60))
    session = SqlSession.on(catalog, storage=STORAGE)
    session.sql("CREATE INDEX c ON db.changing USING diskann (embedding) WITH (metric = 'l2', max_degree = 8)")
    session.sql("REFRESH INDEX c ON db.changing")
    opened = []
    for more in (0, 0, 30):
        if more:
            table.refresh().append(make_rows(60, 60 + more))
        result = session.sql(f"SELECT id FROM db.changing ORDER BY {DISTANCE} LIMIT 99")
        assert result.search is not None
        assert result.rows.num_rows == 60 + more
        opened.append(result.search.opening)
    assert opened[0] is opened[1]


def test_a_table_whose_metadata_file_has_the_name_of_anothers_is_another(catalog: Catalog) -> None:
    """Some catalogs number the metadata files of a table, and those of the next table of its name alike."""
    first, second = (catalog.create_table(f"db.{name}", ROWS) for name in ("numbered", "other"))
    first.append(make_rows(0, 60))
    second.append(make_rows(100, 130))
    session, text = SqlSession.on(catalog, storage=STORAGE), f"SELECT id FROM db.numbered ORDER BY {DISTANCE} LIMIT 99"
    assert session.sql(text).rows.num_rows == 60
    path = first.metadata_location
    catalog.drop_table("db.numbered")
    shutil.copy(to_path(second.metadata_location), to_path(path))
    catalog.register_table("db.numbered", path)
    assert min(session.sql(text).rows["id"].to_pylist()) == 100


def test_a_table_may_be_named_with_its_catalog_as_spark_has_it(catalog: Catalog, session: SqlSession) -> None:
    near = session.sql(f"SELECT id FROM test.db.t ORDER BY {DISTANCE} LIMIT 3")
    assert near.rows == session.sql(f"SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3").rows
    assert near.how.startswith("index e")
    assert session.sql("SHOW INDEXES ON test.db.t").rows["name"].to_pylist() == ["e"]
    with pytest.raises(SqlError, match=r"^there is no table test.db.none$"):
        session.sql("SHOW INDEXES ON test.db.none")


def test_a_namespace_may_begin_as_its_catalog_is_named(catalog: Catalog, session: SqlSession) -> None:
    catalog.create_namespace("test.deep")
    table = catalog.create_table("test.deep.u", ROWS)
    table.append(make_rows(0, 5))
    assert session.sql(f"SELECT id FROM test.deep.u ORDER BY {DISTANCE} LIMIT 9").rows.num_rows == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} FETCH FIRST 3 ROWS WITH TIES", "give a number of rows"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} FETCH FIRST 3 PERCENT ROWS ONLY", "give a number of rows"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} FETCH FIRST ROW ONLY", "give a number of rows"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT -1", "LIMIT -1"),
        (f"SELECT id, {DISTANCE} AS d FROM db.t ORDER BY 3 LIMIT 3", "ORDER BY 3: it is to be the number of one"),
        (f"SELECT id, {DISTANCE} AS d FROM db.t ORDER BY 0 LIMIT 3", "ORDER BY 0: it is to be the number of one"),
        (f"SELECT id FROM t ORDER BY {DISTANCE} LIMIT 3", "with its namespace, as in ns.t"),
        (f"SELECT id FROM db.none ORDER BY {DISTANCE} LIMIT 3", "^there is no table db.none$"),
        (f"SELECT id FROM db.t.tag_first ORDER BY {DISTANCE} LIMIT 3", "a snapshot of one is VERSION AS OF"),
        (f"WITH n AS (SELECT * FROM n) SELECT id FROM n ORDER BY {DISTANCE} LIMIT 3", "n: name the table"),
        (f"EXPLAIN SELECT nope FROM db.t ORDER BY {DISTANCE} LIMIT 3", "has no column 'nope'"),
        ("SELECT 1; SELECT 2", "give one statement, not 2"),
        ("-- nothing", "the statement is empty"),
        (f"SELECT nope FROM db.t ORDER BY {DISTANCE} LIMIT 3", "has no column 'nope'; it has id, [a-z, ]*embedding$"),
        (
            f"SELECT {DISTANCE} AS d FROM db.t WHERE d < 3 ORDER BY d LIMIT 3",
            "'d'.*WHERE comes before SELECT",
        ),
        (f"SELECT {DISTANCE} AS d, d AS e FROM db.t ORDER BY d LIMIT 3", "no index answers.*'d'.*only Spark reads"),
        (
            f"SELECT id FROM (SELECT id, id AS a, name AS a FROM db.t ORDER BY {DISTANCE} LIMIT 3) WHERE a IS NULL",
            "several",
        ),
        (f"SELECT nope FROM (SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3)", "there is no column 'nope'"),
        (f"SELECT id / 0 AS x FROM db.t ORDER BY {DISTANCE} LIMIT 3", "id / 0 is not computed here: .* --spark"),
        (f"SELECT name + 1 AS x FROM db.t ORDER BY {DISTANCE} LIMIT 3", r"name \+ 1 is not computed here"),
        (f"SELECT id FROM db.t WHERE {DISTANCE} < 'far'", "no index answers.*is no distance"),
        (f"SELECT id FROM db.t WHERE {DISTANCE} < NULL", "no index answers.*is no constant"),
        (f"SELECT id FROM db.t WHERE {DISTANCE} < 3 AND length(name)", "is no Iceberg filter"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3 OFFSET -1", "OFFSET -1"),
        (f"SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3 OFFSET 1", "no index answers.*pages repeat rows and lose"),
        (f"SELECT id FROM db.t WHERE {DISTANCE} < 9 ORDER BY {DISTANCE}, id LIMIT 3 OFFSET 1", "search once for all"),
        (f"SELECT id, rank() OVER (ORDER BY id) FROM db.t ORDER BY {DISTANCE} LIMIT 3", "not computed here"),
        (f"SELECT count(*) FROM (SELECT id FROM db.t ORDER BY {DISTANCE} LIMIT 3)", "not computed here"),
    ],
)
def test_statements_that_cannot_be_computed_are_refused_with_the_reason(
    session: SqlSession, text: str, message: str
) -> None:
    with pytest.raises(SqlError, match=message):
        session.sql(text)


def test_pages_that_are_cut_from_one_search_have_each_row_once(session: SqlSession) -> None:
    near = f"SELECT id, {DISTANCE} AS d FROM db.t ORDER BY d LIMIT 60"
    pages = [session.sql(f"SELECT id FROM ({near}) ORDER BY d LIMIT 10 OFFSET {10 * page}") for page in range(6)]
    assert [row for page in pages for row in page.rows["id"].to_pylist()] == session.sql(near).rows["id"].to_pylist()


def test_explain_shows_what_happens_outside_of_the_index(session: SqlSession) -> None:
    inner = f"SELECT id, {DISTANCE} AS d FROM db.t WHERE id > 5 ORDER BY d LIMIT 20"
    plan = "\n".join(session.sql(f"EXPLAIN SELECT id FROM ({inner}) WHERE d < 3 ORDER BY id").rows["plan"].to_pylist())
    assert "the 20 nearest rows" in plan
    assert "then, of these rows: WHERE d < 3, ORDER BY id" in plan
    within = "\n".join(session.sql(f"EXPLAIN SELECT id FROM db.t WHERE {DISTANCE} <= 3").rows["plan"].to_pylist())
    assert within.endswith("every row with a distance <= 3, exactly")
    unpruned = DISTANCE.replace("l2_distance", "inner_product")
    (*_, plan_of_products) = session.sql(f"EXPLAIN SELECT id FROM db.t WHERE {unpruned} >= 3").rows["plan"].to_pylist()
    assert plan_of_products.endswith(", exactly; inner product lets no file be left out")
    analyzed = session.sql(f"EXPLAIN ANALYZE {inner}")
    assert any(line.startswith("strategy") for line in analyzed.rows["plan"].to_pylist())


def nearest_of(text: str) -> Nearest:
    found = parse(text)
    assert isinstance(found, Nearest)
    return found


def test_a_limit_over_a_threshold_searches_the_index_for_the_nearest() -> None:
    found = nearest_of("SELECT id FROM t WHERE l2_distance(v, array(1)) < 2 ORDER BY l2_distance(v, array(1)) LIMIT 3")
    assert (found.limit, found.within) == (3, 2.0)
    assert found.steps[0].where is not None


NULLS = pa.table({"a": [3.0, None, float("nan"), 1.0], "b": ["x", "y", None, "z"], " distance": [1.0, 2.0, 3.0, 4.0]})
FIELDS = [
    named_field(name, kind) for name, kind in (("a", DoubleType()), ("b", StringType()), (" distance", DoubleType()))
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("a", [None, 1.0, 3.0, "nan"]),
        ("a DESC", ["nan", 3.0, 1.0, None]),
        ("a NULLS LAST", [1.0, 3.0, "nan", None]),
        ("a DESC NULLS FIRST", [None, "nan", 3.0, 1.0]),
    ],
)
def test_nulls_and_nans_are_ordered_as_spark_orders_them(order: str, expected: Sequence[object]) -> None:
    step = nearest_of(f"SELECT a FROM t WHERE l2_distance(v, array(1)) < 9 ORDER BY {order}").steps[0]
    values = step.apply(NULLS, FIELDS)["a"].to_pylist()
    found = ["nan" if value is not None and np.isnan(value) else value for value in values]
    assert found == list(expected)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("NOT b = 'x'", ["y", "z"]),
        ("b NOT IN ('x', 'q')", ["y", "z"]),
        ("a > 2", ["x", None]),
        ("a < 3 OR b = 'y'", ["y", "z"]),
        ("a IS NULL AND far > 1.5", ["y"]),
        ("1 = 1", ["x", "y", None, "z"]),
        ("1 <> 1", []),
    ],
)
def test_conditions_on_rows_that_were_found_have_sparks_nulls_and_nans(where: str, expected: list[object]) -> None:
    inner = "SELECT a, b, l2_distance(v, array(1)) AS far FROM t ORDER BY far LIMIT 4"
    first, outer = nearest_of(f"SELECT b FROM ({inner}) WHERE {where}").steps
    found = first.apply(NULLS, FIELDS)
    both_ways = pa.concat_tables([found, found.take([3, 2, 1, 0])])
    for rows, values in ((found, expected), (both_ways, expected + expected[::-1])):
        assert outer.apply(rows, first.check(FIELDS))["b"].to_pylist() == values


@pytest.mark.jvm
def test_spark_computes_distances_that_no_index_answers(catalog: Catalog, spark: Any) -> None:
    rows = make_rows(0, 50)
    spark.createDataFrame(rows.select(["id", "embedding"])).createOrReplaceTempView("packages")
    session = SqlSession.on(catalog, storage=STORAGE, spark=spark)
    for function, duckdb_function in (("l2_distance", "list_distance"), ("cosine_distance", "list_cosine_distance")):
        text = f"SELECT count(*) AS n, sum({function}(embedding, :q)) AS total FROM packages WHERE id < :most"
        result = session.sql(text, {"q": queries(1)[0].astype(float), "most": 20})
        with duckdb.connect() as db:
            sql = f"SELECT sum({duckdb_function}(embedding, [{VECTOR}]::FLOAT[])) FROM rows WHERE id < 20"
            total = db.execute(sql).fetchall()[0][0]
        assert result.rows["n"].to_pylist() == [20]
        assert result.rows["total"][0].as_py() == pytest.approx(total, rel=1e-4)
        assert result.how.startswith("Spark ran it as it is")
    zero = session.sql("SELECT cosine_distance(array(0, 0), array(1, 1)) AS far, id FROM packages LIMIT 1").rows
    assert zero["far"].to_pylist() == [None]
