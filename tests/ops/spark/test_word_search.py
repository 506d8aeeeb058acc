"""`vector_search` with a text, on a classic session and through a Connect server, beside the reader."""

import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from tests.conftest import STORAGE, vectors_of
from tests.ops.index.comparison import index_head
from tests.ops.text.test_text_search import DEFINITION, DIMS, TextTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("no_disk_cache")]

VECTORS = vectors_of(np.array([5, 6]), dims=DIMS).astype(float)
LITERAL = f"array({', '.join(f'{value!r}D' for value in VECTORS[0].tolist())})"
SCORES = ["rank", "score", "distance"]


@pytest.fixture
def copy(sql_catalog: Catalog) -> TextTable:
    made = TextTable(sql_catalog, random.Random(1))
    made.append(60)
    index_head(made.table, create_index(made.table, DEFINITION))
    made.append(20)
    return made


def found(copy: TextTable, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    """Rows of the reader, with nulls for what the answer lacks."""
    result = open_index(copy.table.refresh(), "e", storage=STORAGE).search(*arguments, **options, columns=["id"])
    return [{name: row.get(name) for name in (*SCORES, "id")} for row in result.rows.to_pylist()]


def test_a_text_is_searched_for_alone_or_beside_the_query(
    session: "SparkSession", sql_catalog: Catalog, copy: TextTable
) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    assert not any(session.catalog.functionExists(name) for name in ("match", "hybrid")), "names of functions of ours"
    register_vector_search(session, sql_catalog)
    for query, options, expected in (
        (LITERAL, "", found(copy, VECTORS[0], 5, text="red shoes")),
        (LITERAL, ", text_weight => 0.3", found(copy, VECTORS[0], 5, text="red shoes", text_weight=0.3)),
        ("NULL", ", text_weight => 0.3", found(copy, k=5, text="red shoes")),
        ("NULL", ", where => 'id < 50'", found(copy, k=5, text="red shoes", where="id < 50")),
    ):
        call = f"vector_search('db.t', 'e', {query}, 5, text => 'red shoes', columns => array('id'){options})"
        answer = session.sql(f"SELECT * FROM {call} ORDER BY rank").toArrow()
        assert answer.column_names == [*SCORES, "id"]
        assert answer.to_pylist() == expected
    assert all(row["distance"] is None for row in expected)
    null = f"SELECT * FROM vector_search('db.t', 'e', {LITERAL}, 5, text => NULL, columns => array('id'))"
    assert session.sql(null).columns == ["rank", "distance", "id"]


def test_texts_may_differ_from_row_to_row_and_be_null(
    session: "SparkSession", sql_catalog: Catalog, copy: TextTable
) -> None:
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    register_vector_search(session, sql_catalog)
    vector = VECTORS[1].tolist()
    rows = [(0, vector, "red"), (1, vector, None), (2, None, "slow"), (3, None, None)]
    session.createDataFrame(rows, "n int, v array<double>, words string").createOrReplaceTempView("text_queries")
    answer = session.sql(
        "SELECT n, found.* FROM text_queries, LATERAL vector_search('db.t', 'e', v, 4, text => words, "
        "text_weight => 0.5, columns => array('id')) found ORDER BY n, rank"
    ).toArrow()
    expected = [
        found(copy, VECTORS[1], 4, text="red", text_weight=0.5),
        found(copy, VECTORS[1], 4),
        found(copy, k=4, text="slow"),
    ]  # fmt: skip
    assert answer.to_pylist() == [{"n": n, **row} for n, part in enumerate(expected) for row in part]


def test_columns_with_names_of_scores_are_renamed(sql_catalog: Catalog, copy: TextTable) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, StringType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import TableFunctionSettings, answer, plan  # noqa: PLC0415

    with copy.table.update_schema() as update:
        update.rename_column("id", "Score")
        update.rename_column("body", "distance")
    settings = TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE)
    text = StringType()
    table, index, query, words = (
        AnalyzeArgument(kind, value, isTable=False, isConstantExpression=True)
        for kind, value in ((text, "db.t"), (text, "e"), (ArrayType(DoubleType()), None), (text, "red"))
    )
    planned = plan(settings, table, index, query, {"text": words})
    assert planned.schema.names == [*SCORES, "table_Score", "table_distance"]
    rows = list(answer(settings, planned, None, "red"))
    expected = open_index(copy.table.refresh(), "e", storage=STORAGE).search(text="red")
    assert [row[3] for row in rows] == expected.rows["Score"].to_pylist()
    assert plan(settings, table, index, query, {}).schema.names == ["rank", "distance", "Score", "table_distance"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": 5}, "text is int: give a text"),
        ({"text": "red", "text_weight": 1.5}, "text_weight is 1.5; it is a share from 0 to 1"),
        ({"text": "red", "text_weight": "much"}, "text_weight is 'much'; it is a share from 0 to 1"),
        ({"text_weight": 0.5}, "text_columns and text_weight are for a text: give one"),
        ({"text": "red", "index": "p"}, "index p is of vectors alone: give a text and an index with text"),
    ],
)
def test_faults_of_texts_are_reported_when_a_call_is_planned(
    sql_catalog: Catalog, copy: TextTable, options: dict[str, Any], message: str
) -> None:
    from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType  # noqa: PLC0415
    from pyspark.sql.udtf import AnalyzeArgument  # noqa: PLC0415

    from icepuffin.ops.spark.table_function import TableFunctionSettings, plan  # noqa: PLC0415

    create_index(copy.table, IndexDefinition(name="p", column="embedding", metric="l2"))
    arguments = {
        name: AnalyzeArgument(
            IntegerType() if value == 5 else ArrayType(DoubleType()) if name == "query" else StringType(),
            value, isTable=False, isConstantExpression=True,
        )
        for name, value in {"table": "db.t", "index": "e", "query": None, **options}.items()
    }  # fmt: skip
    positional = (arguments.pop(name) for name in ("table", "index", "query"))
    with pytest.raises(Exception, match=re.escape(message)):
        plan(TableFunctionSettings("test", dict(sql_catalog.properties), STORAGE), *positional, arguments)
