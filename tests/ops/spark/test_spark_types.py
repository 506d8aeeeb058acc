"""Columns of every type, as Spark gets them."""

import datetime as dt
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index import create_index
from icepuffin.ops.search import open_index
from icepuffin.ops.spark.spark_types import as_spark, spark_schema
from tests.conftest import STORAGE, queries
from tests.ops.index.comparison import DEFINITION
from tests.ops.search.test_types import VALUES, as_text, typed_rows, value
from tests.ops.spark.test_sql import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.jvm
def test_columns_of_each_type_are_returned(session: "SparkSession", sql_catalog: Catalog) -> None:
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415

    table = sql_catalog.create_table("db.typed", typed_rows(0, 1).schema, properties={"format-version": "2"})
    table.append(typed_rows(0, 9))
    create_index(table, DEFINITION)
    register_vector_search(session, sql_catalog)
    names = ["id", *VALUES]
    query_vectors = queries(1)[0].tolist()
    query_rows = session.createDataFrame(pa.table({"query": [query_vectors]}))
    reader = open_index(table, DEFINITION, storage=STORAGE)
    columns = ", ".join(f"'{name}'" for name in names)
    by_sql = f"SELECT * FROM vector_search('db.typed', 'e', {literal(query_vectors)}, 9, columns => array({columns}))"
    for frame in (session.sql(by_sql), knn_join(query_rows, reader, on="query", k=9, columns=names).rows):
        kinds = dict(frame.dtypes)
        assert (kinds["local"], kinds["utc"]) == ("timestamp_ntz", "timestamp")
        assert (kinds["code"], kinds["hour"], kinds["hash"]) == ("string", "string", "binary")
        rows = frame.toArrow().to_pylist()
        assert len(rows) == 9
        for row in rows:
            wanted = {name: as_text(value(name, row["id"])) for name in VALUES}
            assert {name: row[name] for name in VALUES} == wanted


def test_types_are_changed_at_every_depth() -> None:
    one = UUID(int=7)
    kind = pa.struct(
        [("codes", pa.list_(pa.uuid())), ("hours", pa.map_(pa.string(), pa.time64("us"))), ("hash", pa.binary(2))]
    )
    stored = pa.array([[one.bytes, None]], pa.list_(pa.binary(16)))
    codes = pa.ListArray.from_arrays(
        stored.offsets, pa.ExtensionArray.from_storage(pa.uuid(), stored.values), type=kind.field("codes").type
    )
    hours = pa.array([[("noon", dt.time(12))]], kind.field("hours").type)
    whole = pa.StructArray.from_arrays([codes, hours, pa.array([b"ab"], pa.binary(2))], fields=list(kind))
    rows = pa.table({"id": [1], "all": whole})
    found = as_spark(rows)
    assert found.schema == spark_schema(rows.schema)
    assert found["all"].to_pylist() == [{"codes": [str(one), None], "hours": [("noon", "12:00:00")], "hash": b"ab"}]
