"""Vectors in columns of bytes that Spark writes, and that Spark searches with."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType, LongType, NestedField

from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.sql.sql_session import SqlSession
from tests.conftest import STORAGE, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

pytestmark = [pytest.mark.jvm, pytest.mark.services]


def test_bytes_of_spark_and_of_pyiceberg_are_the_same_vectors(spark: Any, changes_catalog: Catalog) -> None:
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415  imports pyspark

    vectors = vectors_of(np.arange(80), dims=7).astype("<f2")
    rows = [(number, vector.tobytes()) for number, vector in enumerate(vectors)]
    columns = NestedField(2, "fixed", FixedType(14)), NestedField(3, "free", BinaryType())
    table = changes_catalog.create_table("db.octets", Schema(NestedField(1, "id", LongType()), *columns))
    spark.createDataFrame(rows[:40], "id long, v binary").coalesce(1).createOrReplaceTempView("incoming")
    spark.sql("INSERT INTO changes.db.octets SELECT id, v, v FROM incoming")
    own = pa.schema([("id", pa.int64()), ("fixed", pa.binary(14)), ("free", pa.binary())])
    table.refresh()
    table.append(pa.Table.from_pylist([{"id": at, "fixed": v, "free": v} for at, v in rows[40:]], schema=own))
    register_vector_search(spark, changes_catalog)
    for column in ("fixed", "free"):
        definition = create_index(table, replace(DEFINITION, name=column, column=column, element_type="f16"))
        assert index_head(table, definition).rows == 80
        reader = open_index(table, column, storage=STORAGE)
        answer = reader.search(vectors[[3, 50]], 6, columns=["id"], search_list=80)
        for number, query in enumerate(vectors[[3, 50]].astype(np.float64)):
            nearest = np.argsort(((vectors - query) ** 2).sum(axis=1), kind="stable")[:6]
            assert answer.rows["id"].to_pylist()[6 * number : 6 * number + 6] == nearest.tolist()
    one = spark.sql(f"SELECT * FROM vector_search('db.octets', 'free', X'{rows[3][1].hex()}', 6, search_list => 80)")
    assert one.columns == ["rank", "distance", "id", "fixed"], "the index's own vectors come where they are named"
    assert one.sort("rank").toArrow()["id"].to_pylist() == answer.rows["id"].to_pylist()[:6]
    left = spark.createDataFrame([rows[3], rows[50]], "number long, query binary")
    joined = knn_join(left, reader, on="query", k=6, columns=["id"], search_list=80).rows
    assert joined.sort("number", "rank").toArrow()["id"].to_pylist() == answer.rows["id"].to_pylist()
    differing = np.unpackbits(np.frombuffer(b"".join(row[1] for row in rows), np.uint8).reshape(80, 14) ^ 0x0F, axis=1)
    session = SqlSession(lambda name: (changes_catalog.load_table(name), STORAGE), spark=spark)
    for name in ("s", "i", "p", "octets"):  # those of the variables in what Spark computes, and another
        for source in (f"(SELECT fixed AS {name} FROM changes.db.octets)", f"changes.db.octets AS {name}"):
            vector = name if source.startswith("(") else f"{name}.fixed"
            text = f"SELECT max(hamming_distance({vector}, X'{'0F' * 14}')) AS d FROM {source}"
            assert session.sql(text).rows.to_pylist() == [{"d": differing.sum(axis=1).max()}]
