"""The examples of docs/spark.md, run in order. What they call is tried through Spark Connect elsewhere."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index
from tests.conftest import ROWS, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm
PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_the_examples_run(spark: "SparkSession", sql_catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    sql_catalog.create_namespace("demo")
    table = sql_catalog.create_table("demo.packages", ROWS, properties={"format-version": "2"})
    table.append(make_rows(0, 200))
    definition = replace(DEFINITION, name="embedding", shards=1, text=("name",))
    create_index(table, definition)
    index_head(table, definition)
    query_vectors = spark.createDataFrame(pa.table({"number": range(4), "vector": queries(4).tolist()}))
    names: dict[str, Any] = {
        "catalog": sql_catalog,
        "properties": dict(sql_catalog.properties),
        "spark": spark,
        "query": queries(1)[0],
        "queries": query_vectors,
    }
    for example in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(example, names)  # noqa: S102  our own page
    assert names["result"].profile.tier == "in-process"
    shown = capsys.readouterr().out
    assert sum("[" in line for line in shown.splitlines()) == 20, "rows of the join, which begin with a vector"
    assert "found_name" in shown
    assert "section 2" in shown
    assert "section 1" not in shown
