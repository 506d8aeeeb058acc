"""`vector_search` in Spark SQL, on a classic session and through a Connect server."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.table.snapshots import TableUnavailableError
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    create_index(new_table, DEFINITION)
    index_head(new_table)
    new_table.append(make_rows(300, 350))
    return new_table.refresh()


def test_a_column_with_a_name_of_the_answers_own_is_renamed_in_whatever_case(
    session: "SparkSession", sql_catalog: Catalog
) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    rows = make_rows(0, 50)
    rows = rows.append_column("Rank", rows["id"]).append_column("TABLE_RANK", rows["id"])
    ranked = sql_catalog.create_table("db.ranked", rows.schema)
    ranked.append(rows)
    create_index(ranked, DEFINITION)
    register_vector_search(session, sql_catalog)
    arguments = f"'db.ranked', 'e', {literal(queries(1)[0].tolist())}, 3"
    call = f"vector_search({arguments}, columns => array('id', 'Rank'))"
    assert [row.rank for row in session.sql(f"SELECT rank FROM {call} ORDER BY rank").collect()] == [1, 2, 3]
    found = session.sql(f"SELECT id, table_rank FROM {call}").toArrow()
    assert found["id"].to_pylist() == found["table_rank"].to_pylist()
    every = session.sql(f"SELECT * FROM vector_search({arguments})")
    assert every.columns[-2:] == ["table_table_Rank", "TABLE_RANK"]


def literal(vector: list[float]) -> str:
    return f"array({', '.join(f'{value!r}D' for value in vector)})"


def test_sql_finds_what_the_reader_finds(session: "SparkSession", sql_catalog: Catalog, table: Table) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    register_vector_search(session, sql_catalog)
    query_vectors = queries(3)
    one = session.sql(
        f"SELECT * FROM vector_search('db.t', 'e', {literal(query_vectors[0].tolist())}, 5, where => 'id >= 10')"
    ).toArrow()
    local_result = open_index(table, "e", storage=STORAGE).search(query_vectors[0], 5, where="id >= 10")
    assert one.column_names == ["rank", "distance", "id", "name", "section"]
    assert one.to_pylist() == local_result.rows.drop_columns(["query"]).to_pylist()

    session.createDataFrame(
        [(n, vector) for n, vector in enumerate(query_vectors.tolist())], "n int, v array<float>"
    ).createOrReplaceTempView("query_rows")
    first = table.metadata.snapshot_log[0].snapshot_id
    many = session.sql(
        "SELECT n, found.* FROM query_rows, LATERAL vector_search('db.t', 'e', v, 4, columns => array('id'), "
        f"snapshot => '{first}') found ORDER BY n, rank"
    ).toArrow()
    local_result = open_index(table, "e", snapshot=first, storage=STORAGE).search(query_vectors, 4, columns=["id"])
    assert many["id"].to_pylist() == local_result.rows["id"].to_pylist()
    assert many["n"].to_pylist() == local_result.rows["query"].to_pylist()
    with pytest.raises(Exception, match=r"db\.t has no index 'absent'"):  # without a task
        _ = session.sql(f"SELECT * FROM vector_search('db.t', 'absent', {literal([0.0] * 16)})").schema


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table": "db.nothing"}, "test: there is no table db.nothing; check the name, or create the table"),
        ({"index": "absent"}, "db.t has no index 'absent'; it has: e"),
        ({"columns": ["nope"]}, "has no column 'nope'"),
        ({"k": 0}, "k is 0; ask for at least 1"),
        ({"k": 2.5}, "it is a whole number"),
        ({"search_list": 0}, "search_list is 0"),
        ({"where": "nope > 5"}, "does not fit the table"),
        ({"snapshot": "nope"}, "db.t has no ref 'nope'"),
        ({"query": "text"}, "the query is string, not an array of numbers"),
        ({"table": None}, "vector_search: table is null"),
        ({"index": None}, "vector_search: index is null"),
        ({"table": 5}, "vector_search: table is 5, not a text"),
        ({"table": "t"}, "'t' names no table; write namespace.table"),
        ({"where": 5}, "vector_search: where is 5, not a text"),
        ({"index": [0.5] * 384}, "index is [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...], not a text; call it with (table,"),
    ],
)
def test_faults_are_reported_when_a_call_is_planned(
    sql_catalog: Catalog, table_factory: Callable[..., Table], changed: dict[str, Any], message: str
) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, StringType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import TableFunctionSettings, plan  # noqa: PLC0415

    made = table_factory()
    made.append(make_rows(0, 3))
    create_index(made, DEFINITION)
    kinds = {"query": StringType() if "query" in changed else ArrayType(DoubleType())}
    arguments = {
        name: AnalyzeArgument(kinds.get(name, StringType()), value, isTable=False, isConstantExpression=True)
        for name, value in {"table": "db.t", "index": "e", "query": None, **changed}.items()
    }
    positional = (arguments.pop(name) for name in ("table", "index", "query"))
    with pytest.raises(Exception, match=re.escape(message)):
        plan(TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE), *positional, arguments)


def test_an_option_that_is_null_is_as_if_it_were_not_given(
    session: "SparkSession", sql_catalog: Catalog, table: Table
) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    register_vector_search(session, sql_catalog)
    call = f"SELECT * FROM vector_search('db.t', 'e', {literal(queries(1)[0].tolist())} {{}})"
    nulls = ", k => NULL, columns => NULL, where => NULL, snapshot => NULL, search_list => CAST(NULL AS INT)"
    found = session.sql(call.format(nulls)).toArrow()
    assert found.num_rows == 10
    assert found.to_pylist() == session.sql(call.format("")).toArrow().to_pylist()


def test_warnings_go_to_the_log_of_the_task_once(
    sql_catalog: Catalog, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import CallPlan, TableFunctionSettings, answer  # noqa: PLC0415

    vectors = pa.array([[float("nan")] * 16], pa.list_(pa.float32()))
    table.append(make_rows(350, 351).set_column(3, "embedding", vectors))
    table.refresh()
    planned = CallPlan(StructType([]), identifier=("db", "t"), metadata_location=table.metadata_location,
                      index="e", k=3, columns=("id",))  # fmt: skip
    properties = dict(sql_catalog.properties)
    for _ in range(2):
        assert len(list(answer(TableFunctionSettings("test", properties, properties), planned, queries(1)[0]))) == 3
    assert caplog.text.count("1 row has no distance from anything") == 1


def test_a_metadata_file_that_came_again_under_its_name_is_read_again(sql_catalog: Catalog, table: Table) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import TableFunctionSettings, answer, plan  # noqa: PLC0415

    settings = TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE)
    arguments = [
        AnalyzeArgument(kind, value, isTable=False, isConstantExpression=True)
        for kind, value in ((StringType(), "db.t"), (StringType(), "e"), (ArrayType(DoubleType()), None))
    ]
    k = {"k": AnalyzeArgument(IntegerType(), 400, isTable=False, isConstantExpression=True)}
    where = table.metadata_location
    before = list(answer(settings, plan(settings, *arguments, k), queries(1)[0]))
    table.append(make_rows(350, 355))
    newer = Path(table.refresh().metadata_location.removeprefix("file://")).read_bytes()
    Path(where.removeprefix("file://")).write_bytes(newer)
    sql_catalog.drop_table("db.t")
    sql_catalog.register_table("db.t", where)
    planned = plan(settings, *arguments, k)
    assert planned.metadata_location == where
    assert (len(before), len(list(answer(settings, planned, queries(1)[0])))) == (350, 355)


def test_a_null_element_of_a_query_is_called_so(sql_catalog: Catalog) -> None:
    """An array of floats would hold NaN in its place, of which a user knows nothing."""
    from pyspark.sql.types import StructType  # noqa: PLC0415  imports pyspark

    from icepuffin.ops.spark.table_function import CallPlan, TableFunctionSettings, answer  # noqa: PLC0415

    settings = TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE)
    with pytest.raises(QueryError, match=r"^vector_search: the query has a null element; leave such a row out"):
        list(answer(settings, CallPlan(StructType([])), [1.0, None]))


def test_a_metadata_file_that_was_deleted_since_the_plan_is_an_error_of_ours(
    sql_catalog: Catalog, table: Table
) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import CallPlan, TableFunctionSettings, answer  # noqa: PLC0415

    planned = CallPlan(
        StructType([]), identifier=("db", "t"), metadata_location=table.metadata_location, index="e", k=3
    )
    Path(table.metadata_location.removeprefix("file://")).unlink()
    settings = TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE)
    with pytest.raises(TableUnavailableError, match=r"^db\.t: its metadata file .*json was deleted since .* plan the"):
        list(answer(settings, planned, queries(1)[0]))


def test_a_date_that_python_lacks_is_named_as_the_cause() -> None:
    from icepuffin.ops.spark.table_function import _values  # noqa: PLC0415  imports pyspark

    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())  # in the year 12,921
    for column in (far, far.cast(pa.timestamp("us")), pa.StructArray.from_arrays([far], ["on"])):
        with pytest.raises(QueryError, match=r"before the year 1 or after 9999, .* or use knn_join"):
            list(_values(pa.table({"far": column})))


def test_an_argument_that_is_no_constant_is_refused_with_what_works() -> None:
    from pyspark.sql.types import IntegerType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import _constant  # noqa: PLC0415  imports pyspark

    variable = AnalyzeArgument(dataType=IntegerType(), value=None, isTable=False, isConstantExpression=False)
    with pytest.raises(QueryError, match=r"k is to be a constant: write it into the text; .* FROM queries, LATERAL"):
        _constant("k", variable)


@pytest.mark.parametrize(
    ("name", "message"),
    [("db.t", "has no index"), ("test.db.t", "has no index"), ("test.t", "no table test.t"), ("t", "names no table")],
)
def test_the_name_of_the_catalog_may_stand_before_a_table_with_its_namespace(
    sql_catalog: Catalog, table_factory: Callable[..., Table], name: str, message: str
) -> None:
    from pyspark.sql.types import StringType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import TableFunctionSettings, plan  # noqa: PLC0415  imports pyspark

    table_factory()
    settings = TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE)
    named, index = (
        AnalyzeArgument(StringType(), text, isTable=False, isConstantExpression=True) for text in (name, "e")
    )
    with pytest.raises(IcepuffinError, match=message):
        plan(settings, named, index, index, {})
