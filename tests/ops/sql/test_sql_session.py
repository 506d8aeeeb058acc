import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import UnsupportedOperationException

from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.sql.errors import IndexNotBuiltError, SqlError
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.tasks.task_runner import LocalRunner
from icepuffin.puffin.errors import BadBlobError
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, queries

VECTOR = ", ".join(f"{x:.6f}" for x in queries(1)[0])
NEAREST = f"SELECT id, section, l2_distance(embedding, ARRAY({VECTOR})) AS d FROM db.t"


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 400))
    return made


@pytest.fixture
def session(sql_catalog: Catalog, table: Table) -> SqlSession:
    created = SqlSession.on(sql_catalog, storage=STORAGE)
    created.sql(
        "CREATE INDEX e ON db.t USING diskann (embedding) "
        "WITH (metric = 'l2', max_degree = 16, shards = 2, include = ['section', 'id'])"
    )
    created.sql("REFRESH INDEX e ON db.t")
    return created


def brute_force(table: Table, where: str = "id >= 0", k: int = 5) -> list[int]:
    rows = table.refresh().scan(row_filter=where).to_arrow()
    vectors = np.array(rows["embedding"].to_pylist(), np.float32)
    order = np.argsort(np.linalg.norm(vectors - queries(1), axis=1), kind="stable")[:k]
    return [rows["id"][int(place)].as_py() for place in order]


def test_the_nearest_rows_come_from_the_index(session: SqlSession, table: Table) -> None:
    result = session.sql(f"{NEAREST} ORDER BY d LIMIT 5")
    assert result.rows.column_names == ["id", "section", "d"]
    assert result.rows["id"].to_pylist() == brute_force(table)
    assert result.search is not None
    assert result.search.coverage is Coverage.EXACT_VERSION
    assert result.how.startswith("index e; exact-version")
    assert result.search.profile.included_rows == {"id": 5, "section": 5}


def test_threads_share_a_reader(session: SqlSession) -> None:
    statements, begin = [f"{NEAREST} ORDER BY d LIMIT 5"] * 8, Barrier(8)

    def run(statement: str) -> Any:
        begin.wait()
        return session.sql(statement)

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, statements))
    assert all(result.rows.equals(results[0].rows) for result in results)
    assert len({id(result.search.opening) for result in results}) == 1


def test_a_condition_and_time_travel(session: SqlSession, table: Table) -> None:
    before = table.refresh().metadata.current_snapshot_id
    table.append(make_rows(400, 800))
    now = session.sql(f"{NEAREST} WHERE section = 'section 2' ORDER BY d LIMIT 5")
    assert now.rows["id"].to_pylist() == brute_force(table, "section = 'section 2'")
    then = session.sql(f"{NEAREST} VERSION AS OF {before} ORDER BY d LIMIT 5")
    assert then.rows["id"].to_pylist() == brute_force(table, "id < 400")


def test_a_star_gives_every_column(session: SqlSession) -> None:
    found = session.sql("SELECT * FROM db.t ORDER BY l2_distance(embedding, :q) LIMIT 2", {"q": queries(1)[0]})
    assert found.rows.column_names == ["id", "name", "section", "embedding"]


def test_of_all_rows_at_the_last_distance_the_next_key_chooses(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 9)
    alike = pa.concat_arrays([rows["embedding"].chunk(0)[:1]] * 9)
    rows = rows.set_column(rows.schema.get_field_index("embedding"), rows.schema.field("embedding"), alike)
    sql_catalog.create_table("db.alike", rows.schema).append(rows)
    text = f"SELECT id FROM db.alike ORDER BY l2_distance(embedding, ARRAY({VECTOR})), id DESC LIMIT 2"
    assert SqlSession.on(sql_catalog, storage=STORAGE).sql(text).rows["id"].to_pylist() == [8, 7]


def test_a_column_that_is_called_as_the_star_is_one_column(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 50).rename_columns(["id", "*", "section", "embedding"])
    sql_catalog.create_table("db.stars", rows.schema).append(rows)
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    nearest = f"FROM db.stars ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 3"
    whole = session.sql(f"SELECT * {nearest}").rows
    assert whole.column_names == rows.column_names
    named = session.sql(f"SELECT `*` {nearest}").rows
    assert named.to_pylist() == whole.select(["*"]).to_pylist()


def test_columns_keep_names_that_a_search_has_for_its_own(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 50).rename_columns(["query", "rank", "distance", "embedding"])
    sql_catalog.create_table("db.clash", rows.schema).append(rows)
    near = f"FROM db.clash ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 3"
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    for text in (f"SELECT rank, query, distance {near}", f"SELECT query, rank, distance {near}"):
        for row in session.sql(text).rows.to_pylist():
            assert (row["rank"], row["distance"]) == (f"name {row['query']}", f"section {row['query'] % 5}")


def test_a_table_with_the_inner_name_of_the_distance_is_refused(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 50).rename_columns(["id", " distance", "section", "embedding"])
    sql_catalog.create_table("db.named", rows.schema).append(rows)
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    near = f"ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 3"
    for text in (f"SELECT * FROM db.named {near}", f"SELECT id FROM db.named {near}"):
        with pytest.raises(SqlError, match="has a column ` distance`"):
            session.sql(text)


def test_another_metric_is_answered_exactly_and_explained(session: SqlSession) -> None:
    text = f"SELECT id, inner_product(embedding, ARRAY({VECTOR})) AS p FROM db.t ORDER BY p DESC LIMIT 3"
    result = session.sql(text)
    assert "no index on embedding by ip (there are: e (embedding, l2))" in result.how
    assert result.search is not None
    assert result.search.coverage is Coverage.EXACT_SCAN
    products = result.rows["p"].to_pylist()
    assert products == sorted(products, reverse=True)


def test_a_hint_names_the_index_and_its_parameters(session: SqlSession, table: Table) -> None:
    session.sql("CREATE INDEX z ON db.t USING diskann (embedding) WITH (metric = 'l2', vectors = 'rq4')")
    by_default, chosen = (
        session.sql(f"{NEAREST.replace('SELECT', f'SELECT {hint}')} ORDER BY d LIMIT 5")
        for hint in ("", "/*+ INDEX(z), SEARCH_LIST(77), TARGET_RECALL(0.5) */")
    )
    assert by_default.how.startswith("index e; exact-version")
    assert chosen.how.startswith("index z, by a hint; exact-version")
    assert chosen.search is not None
    parameters = chosen.search.profile.parameters
    assert parameters is not None
    assert (parameters.search_list, parameters.rerank) == (77, True)
    assert parameters.why.startswith("recall 0.5")
    assert chosen.rows["id"].to_pylist() == brute_force(table)
    codes = session.sql(f"{NEAREST.replace('SELECT', 'SELECT /*+ INDEX(z), RERANK(false) */')} ORDER BY d LIMIT 5")
    assert codes.rows["d"].to_pylist() != chosen.rows["d"].to_pylist()
    proof = session.sql(f"{NEAREST.replace('SELECT', 'SELECT /*+ CERTIFIED */')} ORDER BY d LIMIT 5").search
    assert proof is not None
    assert proof.profile.certificate is not None
    plan = session.sql(f"EXPLAIN {NEAREST.replace('SELECT', 'SELECT /*+ INDEX(z), SHARDS(1) */')} ORDER BY d LIMIT 5")
    assert {"index z, by a hint", "hints: shards = 1"} < {*plan.rows["plan"].to_pylist()}
    with pytest.raises(SqlError, match=r"INDEX\(e\): db.t has no index e on embedding by cosine; there are: none"):
        session.sql(
            "SELECT /*+ INDEX(e) */ id FROM db.t ORDER BY cosine_distance(embedding, ?) LIMIT 3", [[1.0] * DIMS]
        )


def test_a_hint_is_not_ignored_where_no_index_answers(session: SqlSession, sql_catalog: Catalog) -> None:
    text = "SELECT /*+ INDEX(e) */ count(*) FROM db.t GROUP BY section"
    with_spark = SqlSession.on(sql_catalog, storage=STORAGE, spark=object())
    with pytest.raises(SqlError, match="has GROUP BY; Spark would ignore the hint INDEX: leave it out"):
        with_spark.sql(text)
    assert "Spark would ignore the hint INDEX" in session.sql(f"EXPLAIN {text}").how


def test_explain_says_what_would_answer(session: SqlSession) -> None:
    plan = session.sql(f"EXPLAIN {NEAREST} WHERE id > 3 ORDER BY d LIMIT 5").rows["plan"].to_pylist()
    assert plan[0] == "index e"
    assert "exact-version" in plan[1]
    assert plan[2].endswith(": id > 3")
    assert "no LIMIT" in session.sql(f"EXPLAIN {NEAREST} ORDER BY d").how
    grouped = session.sql("EXPLAIN SELECT count(*) FROM db.t GROUP BY section").how
    assert "it has GROUP BY; it does not run here. For Spark, repeat the command with --spark" in grouped
    assert "ORDER BY cosine_distance(column, ARRAY(...)) LIMIT k" in grouped, "the metric of an index that names none"


@pytest.mark.parametrize("indexed", [False, True])
def test_a_table_that_was_never_written_has_no_nearest_rows(sql_catalog: Catalog, *, indexed: bool) -> None:
    owner = pa.field("owner", pa.struct([("code", pa.uuid())]))
    sql_catalog.create_table("db.new", make_rows(0, 1).schema.append(owner))
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    if indexed:
        session.sql("CREATE INDEX e ON db.new USING diskann (embedding) WITH (metric = 'l2')")
    text = f"SELECT section, l2_distance(embedding, ARRAY({VECTOR})) AS d FROM db.new"
    for query in (f"{text} ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 5", f"{text} WHERE id > 3 AND d < 2"):
        text_within = query.replace("d < 2", f"l2_distance(embedding, ARRAY({VECTOR})) < 2")
        result = session.sql(text_within)
        assert result.rows.schema == pa.schema([("section", pa.string()), ("d", pa.float64())])
        assert (result.rows.num_rows, result.search) == (0, None)
        assert result.how == "db.new has no rows: nothing was ever written to it"
        assert session.sql(f"EXPLAIN {text_within}").rows.num_rows >= 2
    for wrong in ("name", "nope"):
        with pytest.raises((DefinitionError, SqlError), match=wrong):
            session.sql(f"SELECT id FROM db.new ORDER BY l2_distance({wrong}, ARRAY({VECTOR})) LIMIT 5")


def test_what_no_index_answers_needs_spark(session: SqlSession) -> None:
    with pytest.raises(SqlError, match="not ordered by one distance"):
        session.sql("SELECT count(*) FROM db.t")


def test_indexes_are_shown_and_dropped(session: SqlSession) -> None:
    (shown,) = session.sql("SHOW INDEXES ON db.t").rows.to_pylist()
    assert isinstance(shown.pop("snapshot_id"), int)
    of_column = {"name": "e", "column": "embedding", "element_type": "column"}
    of_lists = {"filters": "", "include": "section, id", "text": ""}
    assert shown == {**of_column, "method": "diskann", "metric": "l2", "vectors": "f32", **of_lists, "versions": 1}
    assert session.sql("DROP INDEX e ON db.t").rows["tag"].to_pylist() == ["ann_e"]
    assert session.sql("SHOW INDEXES ON db.t").rows.num_rows == 0


def test_an_index_without_graphs_answers_exactly(session: SqlSession) -> None:
    session.sql("DROP INDEX e ON db.t")
    text = f"SELECT id, l2_distance(embedding, ARRAY({VECTOR})) AS d FROM db.t ORDER BY d LIMIT 5"
    exact = session.sql(text).rows
    with pytest.raises(SqlError, match="stands behind USING"):
        session.sql("CREATE INDEX b ON db.t USING diskann (embedding) WITH (method = 'centroid')")
    created = session.sql("CREATE INDEX b ON db.t USING centroid (embedding) WITH (metric = 'l2')")
    (built,) = created.rows.to_pylist()
    assert (built["action"], built["recall"]) == ("built", None)
    result = session.sql(text)
    assert result.rows.equals(exact)
    with pytest.raises(DefinitionError, match="vectors = rq4 is for graphs"):
        session.sql("CREATE INDEX c ON db.t USING centroid (embedding) WITH (vectors = 'rq4')")
    assert result.search is not None
    assert result.search.profile.strategy == "pruned scan"
    (shown,) = session.sql("SHOW INDEXES ON db.t").rows.to_pylist()
    assert (shown["name"], shown["method"], shown["vectors"]) == ("b", "centroid", None)
    with pytest.raises(DefinitionError, match=r"triangle inequality.*: take metric l2 or cosine, or method diskann"):
        session.sql("CREATE INDEX c ON db.t USING centroid (embedding) WITH (metric = 'ip')")


def test_distances_in_sql_are_no_estimates_by_codes(session: SqlSession, table: Table) -> None:
    text = f"{NEAREST} ORDER BY d LIMIT 5"
    exact = session.sql(text).rows
    session.sql("CREATE INDEX a ON db.t USING diskann (embedding) WITH (metric = 'l2', vectors = 'rq4')")
    result = session.sql(text)
    assert result.how.startswith("index a; exact-version")
    assert result.rows.equals(exact)


def test_an_index_with_a_version_answers_before_one_without(session: SqlSession) -> None:
    session.sql("CREATE INDEX a ON db.t USING centroid (embedding) WITH (metric = 'l2', build = false)")
    text = f"{NEAREST} ORDER BY d LIMIT 5"
    assert session.sql(text).how.startswith("index e; exact-version")
    session.sql("REFRESH INDEX a ON db.t")
    assert session.sql(text).how.startswith("index a; exact-version")


def test_tasks_of_spark_build_indexes_of_many_rows(sql_catalog: Catalog, table: Table) -> None:
    """Those of the session that was given, which starts none for few rows."""
    rows: list[int] = []

    def runner_for(count: int) -> LocalRunner:
        rows.append(count)
        return LocalRunner()

    session = SqlSession(lambda name: (sql_catalog.load_table(name), STORAGE), runner_for=runner_for)
    session.sql("CREATE INDEX b ON db.t USING centroid (embedding) WITH (metric = 'l2')")
    session.sql("REFRESH INDEX b ON db.t")
    assert rows == [400, 400]
    any_spark = object()
    for spark, count, kind in (
        (any_spark, 199_999, LocalRunner), (any_spark, 200_000, SparkRunner), (None, 10**9, LocalRunner)
    ):  # fmt: skip
        assert isinstance(SqlSession.on(sql_catalog, spark=spark)._runner_for(count), kind)


def test_an_index_is_built_where_it_is_created_unless_that_is_not_wanted(session: SqlSession) -> None:
    created = session.sql("CREATE INDEX c ON db.t USING diskann (embedding) WITH (metric = 'cosine', build = FALSE)")
    assert created.how == "index c is defined; REFRESH INDEX c ON db.t builds it"
    changed = "INDEX c ON db.t USING diskann (embedding) WITH (metric = 'cosine', filters = 'id', build = false)"
    with pytest.raises(DefinitionError, match=r"filters none becomes id\. .*CREATE OR REPLACE INDEX"):
        session.sql(f"CREATE {changed}")
    assert session.sql(f"CREATE OR REPLACE {changed}").how == created.how
    assert session.sql("SHOW INDEXES ON db.t").rows["filters"].to_pylist() == ["id", ""]
    again = "CREATE INDEX IF NOT EXISTS c ON db.t USING diskann (embedding) WITH (metric = 'cosine')"
    assert session.sql(again).how.endswith("which has no version yet; REFRESH INDEX c ON db.t builds it")
    built = session.sql("CREATE INDEX d ON db.t USING diskann (embedding) WITH (metric = 'cosine', max_degree = 8)")
    assert (built.rows["action"].to_pylist(), built.rows["rows"].to_pylist()) == (["built"], [400])
    shown = session.sql("SHOW INDEXES ON db.t").rows.to_pylist()
    assert {row["name"]: row["versions"] for row in shown} == {"c": 0, "d": 1, "e": 1}
    with pytest.raises(SqlError, match="build = no\\): it takes true or false"):
        session.sql("CREATE INDEX f ON db.t USING diskann (embedding) WITH (build = no)")
    assert session.sql("DROP INDEX c ON db.t").rows["result"].to_pylist() == ["index c is dropped; it had no version"]


def test_an_index_of_a_table_without_rows_is_defined_alone(sql_catalog: Catalog, table_factory: Any) -> None:
    table_factory()
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    created = session.sql("CREATE INDEX e ON db.t USING diskann (embedding) WITH (metric = 'l2')")
    assert "db.t has no rows yet" in created.how
    assert session.sql("SHOW INDEXES ON db.t").rows["name"].to_pylist() == ["e"]


def test_a_build_that_fails_leaves_a_definition_that_the_error_names(
    sql_catalog: Catalog, table_factory: Callable[..., Table]
) -> None:
    table = table_factory()
    rows = make_rows(0, 100)
    table.append(rows)
    zeros = pa.array([[0.0] * DIMS] * 100, pa.list_(pa.float32()))
    table.append(rows.set_column(rows.schema.get_field_index("embedding"), rows.schema.field("embedding"), zeros))
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    with pytest.raises(IndexNotBuiltError, match=r"defined.*is zero, under cosine.*DROP INDEX z ON db\.t"):
        session.sql("CREATE INDEX z ON db.t USING diskann (embedding) WITH (metric = 'cosine')")
    assert session.sql("SHOW INDEXES ON db.t").rows["versions"].to_pylist() == [0]
    assert session.sql("DROP INDEX z ON db.t").how == "index z is dropped; it had no version"


@pytest.mark.parametrize("error", [BadBlobError("a shard is broken"), DimensionError("vectors differ")])
def test_a_build_that_fails_by_bytes_or_arrays_is_named_likewise(
    sql_catalog: Catalog, table: Table, error: Exception
) -> None:
    class Failing(LocalRunner):
        def run(self, *_: Any, **__: Any) -> Any:
            raise error

    session = SqlSession(lambda name: (sql_catalog.load_table(name), STORAGE), runner_for=lambda _: Failing(1))
    with pytest.raises(IndexNotBuiltError, match=rf"defined.*not built: {error}.*DROP INDEX z ON db\.t"):
        session.sql("CREATE INDEX z ON db.t USING diskann (embedding) WITH (metric = 'l2')")


def test_building_by_a_statement_reports_its_progress(sql_catalog: Catalog, table: Table) -> None:
    stages: set[tuple[str, str]] = set()
    session = SqlSession(
        lambda name: (sql_catalog.load_table(name), STORAGE),
        progress=lambda name, stage, done, total: stages.add((name, stage)) if done <= total else None,
    )
    session.sql("CREATE INDEX p ON db.t USING diskann (embedding) WITH (metric = 'l2', max_degree = 8)")
    assert {name for name, _ in stages} == {"p"}
    assert len(stages) > 1


def test_scripts_may_run_twice(session: SqlSession) -> None:
    text = "CREATE INDEX IF NOT EXISTS e ON db.t USING diskann (embedding) WITH (metric = 'l2')"
    assert session.sql(text).how == "db.t has an index e already"
    for how in ("index e is dropped", "db.t has no index e"):
        assert session.sql("DROP INDEX IF EXISTS e ON db.t").how == how


def test_an_index_with_a_broken_definition_is_there_and_can_be_dropped(session: SqlSession, table: Table) -> None:
    with table.refresh().transaction() as transaction:
        transaction.set_properties({"ann.index.e.depth": "3"})
    hinted = NEAREST.replace("SELECT", "SELECT /*+ INDEX(e) */")
    for text in (
        "CREATE INDEX IF NOT EXISTS e ON db.t USING diskann (embedding) WITH (metric = 'l2')",
        f"{hinted} ORDER BY d LIMIT 5",
    ):
        with pytest.raises(DefinitionError, match=r"ann\.index\.e\.depth"):
            session.sql(text)
    assert session.sql("DROP INDEX IF EXISTS e ON db.t").how == "index e is dropped"
    assert "ann_e" not in table.refresh().metadata.refs


def test_a_column_is_that_of_the_snapshot(sql_catalog: Catalog) -> None:
    """Its name may be another column's by now."""
    rows = make_rows(0, 60)
    rows = rows.append_column("other", make_rows(60, 120)["embedding"])
    table = sql_catalog.create_table("db.renamed", rows.schema, properties={"format-version": "2"})
    table.append(rows)
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    session.sql("CREATE INDEX o ON db.renamed USING diskann (other) WITH (metric = 'l2', max_degree = 8)")
    session.sql("REFRESH INDEX o ON db.renamed")
    then = table.refresh().metadata.current_snapshot_id
    expected = session.sql(f"SELECT id FROM db.renamed ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 5").rows
    with table.update_schema() as update:
        update.rename_column("embedding", "first")
        update.rename_column("other", "embedding")
    text = f"SELECT id FROM db.renamed VERSION AS OF {then} ORDER BY l2_distance(embedding, ARRAY({VECTOR})) LIMIT 5"
    found = session.sql(text)
    assert found.rows.equals(expected)
    assert "no index on embedding" in found.how
    assert session.sql(text.replace("embedding", "other")).how.startswith("index o")
    assert session.sql(text.replace(f"VERSION AS OF {then}", "")).how.startswith("index o")


def test_an_unknown_parameter_of_an_index_is_refused(session: SqlSession) -> None:
    names = r"WITH takes analyzer, element_type, .*, filters, include, text, build$"
    with pytest.raises(SqlError, match=names) as refused:
        session.sql("CREATE INDEX f ON db.t USING diskann (embedding) WITH (colour = 'red')")
    assert "method" not in str(refused.value), "it stands behind USING"


@pytest.mark.jvm
def test_spark_runs_what_no_index_answers(sql_catalog: Catalog, table: Table, spark: Any) -> None:
    spark.sql("SELECT 6 * 7 AS answer").createOrReplaceTempView("answers")
    session = SqlSession.on(sql_catalog, storage=STORAGE, spark=spark)
    for text in ("SELECT 6 * 7 AS answer", "TABLE answers"):
        found = session.sql(text)
        assert found.rows.to_pylist() == [{"answer": 42}]
        assert found.how.startswith("Spark ran it as it is")


@pytest.fixture
def iceberg_spark(own_session: Any, tmp_path: Path) -> Any:
    """A session that knows the catalog `test`, and keeps its tables as Iceberg's catalogs in Spark do by default."""
    catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc", ".jdbc.schema-version": "V1"}
    catalog |= {".uri": f"jdbc:sqlite:{tmp_path}/catalog.db", ".warehouse": f"file://{tmp_path}/warehouse"}
    for key, setting in catalog.items():
        own_session.conf.set(f"spark.sql.catalog.test{key}", setting)
    return own_session


@pytest.mark.jvm
def test_spark_drops_a_table_of_types_that_it_lacks(sql_catalog: Catalog, iceberg_spark: Any) -> None:
    sql_catalog.create_table("db.times", pa.schema([("time", pa.time64("us"))]))
    session = SqlSession.on(sql_catalog, storage=STORAGE, spark=iceberg_spark)
    with pytest.raises(UnsupportedOperationException, match="does not support time fields"):
        session.sql("SELECT count(*) FROM test.db.times")
    session.sql("DROP TABLE test.db.times")
    assert not sql_catalog.table_exists("db.times")


@pytest.mark.jvm
def test_spark_reads_the_state_that_the_index_reads(sql_catalog: Catalog, table: Table, iceberg_spark: Any) -> None:
    """Iceberg's catalogs in Spark keep the state of a table for as long as it is read, by default."""
    session = SqlSession.on(sql_catalog, storage=STORAGE, spark=iceberg_spark)
    counted = [
        "WITH own AS (SELECT id FROM test.db.t) SELECT count(*) AS n FROM own",
        "SELECT sum(record_count) AS n FROM test.db.t.files",
        "SELECT count(*) AS n FROM test.db.t.branch_main",
    ]
    assert session.sql(counted[0]).rows.to_pylist() == [{"n": 400}]
    for number, text in enumerate(counted, 1):
        table.append(make_rows(350 + 50 * number, 400 + 50 * number))
        assert session.sql(f"{NEAREST} ORDER BY d LIMIT 600").rows.num_rows == 400 + 50 * number
        assert session.sql(text).rows.to_pylist() == [{"n": 400 + 50 * number}], text
    table.append(make_rows(550, 600))
    session.sql("DELETE FROM test.db.t WHERE id >= 390")
    assert session.sql(f"{NEAREST} ORDER BY d LIMIT 600").rows.num_rows == 390


@pytest.mark.jvm
def test_a_branch_that_spark_audits_is_searched(sql_catalog: Catalog, table: Table, iceberg_spark: Any) -> None:
    """Spark reads and writes the branch that `spark.wap.branch` names, of tables that allow it and have it."""
    session = SqlSession.on(sql_catalog, storage=STORAGE, spark=iceberg_spark)
    iceberg_spark.sql("ALTER TABLE test.db.t CREATE BRANCH audit")
    iceberg_spark.sql("DELETE FROM test.db.t.branch_audit WHERE id >= 50")

    def seen() -> list[int]:
        (counted,) = session.sql("SELECT count(*) AS n FROM test.db.t").rows["n"].to_pylist()
        return [counted, session.sql(f"{NEAREST} ORDER BY d LIMIT 500").rows.num_rows]

    iceberg_spark.conf.set("spark.wap.branch", "audit")
    assert seen() == [400, 400]
    iceberg_spark.sql("ALTER TABLE test.db.t SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
    assert seen() == [50, 50]
    assert session.sql(f"{NEAREST} VERSION AS OF 'main' ORDER BY d LIMIT 500").rows.num_rows == 400
    iceberg_spark.conf.set("spark.wap.branch", "another")
    assert seen() == [400, 400]


@pytest.mark.jvm
def test_spark_searches_indexes_over_the_threshold(
    session: SqlSession, sql_catalog: Catalog, table: Table, spark: Any
) -> None:
    there = SqlSession(lambda name: (sql_catalog.load_table(name), STORAGE), spark=spark, in_process_mb=0)
    result = there.sql(f"{NEAREST} ORDER BY d LIMIT 5")
    assert result.search is not None
    assert result.search.profile.tier == "distributed"
    assert result.rows["id"].to_pylist() == brute_force(table)
    session.sql("DROP INDEX e ON db.t")
    session.sql("CREATE INDEX b ON db.t USING centroid (embedding) WITH (metric = 'l2')")
    session.sql("REFRESH INDEX b ON db.t")
    result = there.sql(f"EXPLAIN ANALYZE {NEAREST} ORDER BY d LIMIT 5")
    assert result.search is not None
    assert result.search.rows["id"].to_pylist() == brute_force(table)
    assert any("data files read by tasks: 1, here: 0" in line for line in result.rows["plan"].to_pylist())


def test_an_hour_that_a_clock_shows_twice_is_two_times(sql_catalog: Catalog) -> None:
    """Between the two half past twos of the night in which clocks in Berlin went back, a snapshot came."""
    table = sql_catalog.create_table("db.night", ROWS)
    table.append(make_rows(0, 3))
    table.append(make_rows(3, 10))
    path = to_path(table.metadata_location)
    metadata = json.loads(path.read_text())
    for number, hour in enumerate((0, 1)):
        milliseconds = int(datetime(2026, 10, 25, hour, tzinfo=UTC).timestamp() * 1000)
        metadata["snapshot-log"][number]["timestamp-ms"] = milliseconds
        metadata["snapshots"][number]["timestamp-ms"] = milliseconds
    path.write_text(json.dumps(metadata))
    session = SqlSession.on(sql_catalog, storage=STORAGE)
    text = "SELECT id FROM db.night TIMESTAMP AS OF :at ORDER BY l2_distance(embedding, :q) LIMIT 20"
    for fold, count in ((0, 3), (1, 10), (0, 3)):
        at = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
        assert session.sql(text, {"at": at, "q": [0.0] * 16}).rows.num_rows == count


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{NEAREST} VERSION AS OF {{}} ORDER BY d LIMIT 5", "db.t has no snapshot 999"),
        (f"{NEAREST} VERSION AS OF '{{}}' ORDER BY d LIMIT 5", "db.t has no ref '999"),
        (f"{NEAREST} ORDER BY d LIMIT {{}}", "LIMIT 9+: it is a number of rows"),
        (f"{NEAREST} WHERE id = {{}} ORDER BY d LIMIT 5", "9 (?:is beyond all integers|has more than 38 digits)"),
        (f"{NEAREST} WHERE id = {{}}L ORDER BY d LIMIT 5", "9L is no number"),
        (
            f"{NEAREST} WHERE id IN ({{}}, 1.5e0) ORDER BY d LIMIT 5",
            "more digits than a double|out of the range of double",
        ),
        (f"{NEAREST} ORDER BY {{}} LIMIT 5", "it is to be the number of one of the columns"),
    ],
)
@pytest.mark.parametrize("digits", [20, 400, 1_200, 5_000])
def test_a_number_of_thousands_of_digits_is_refused(session: SqlSession, text: str, why: str, digits: int) -> None:
    """Python refuses to convert more than 4,300 digits, by an error that is not ours."""
    too_many = digits > 1_000 and "'{}'" not in text
    with pytest.raises(IcepuffinError, match="it has a number of more than 1,000 digits" if too_many else why):
        session.sql(text.format("9" * digits))


def test_numbers_out_of_range_of_a_comparison_are_refused(session: SqlSession) -> None:
    nearest = f"{NEAREST} WHERE id IN (:n, 1.5e0) ORDER BY d LIMIT 5"
    for number in (10**400, Decimal("1e400")):
        with pytest.raises(SqlError, match="is out of the range of double"):
            session.sql(nearest, {"n": number})
    for number in (10**1_000, -(10**5_000)):
        for text in (nearest, f"{NEAREST} WHERE id = :n ORDER BY d LIMIT 5", f"{NEAREST} ORDER BY d LIMIT :n"):
            with pytest.raises(SqlError, match="parameter :n has more than 1,000 digits"):
                session.sql(text, {"n": number})
