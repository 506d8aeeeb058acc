"""Columns of every type, as Spark gets them."""

import datetime as dt
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark.spark_types import as_spark, spark_schema
from tests.conftest import STORAGE, make_rows, queries
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


@pytest.mark.jvm
def test_maps_with_structs_for_keys_come_by_a_join_and_are_refused_by_name_in_sql(
    session: "SparkSession", sql_catalog: Catalog
) -> None:
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark
    from icepuffin.ops.spark.table_function import register_vector_search  # noqa: PLC0415

    maps = pa.array([[({"x": 1}, 2)]] * 9, pa.map_(pa.struct([("x", pa.int64())]), pa.int64()))
    rows = make_rows(0, 9).append_column("deep", pa.StructArray.from_arrays([maps], ["map"])).append_column("map", maps)
    table = sql_catalog.create_table("db.keyed", rows.schema)
    table.append(rows)
    create_index(table, DEFINITION)
    register_vector_search(session, sql_catalog)
    query = queries(1)[0].tolist()
    found = knn_join(
        session.createDataFrame(pa.table({"query": [query]})),
        open_index(table, DEFINITION, storage=STORAGE),
        on="query", k=1, columns=["deep", "map"],
    ).rows.toArrow()  # fmt: skip
    assert found["map"].to_pylist() == [[({"x": 1}, 2)]] == [row["map"] for row in found["deep"].to_pylist()]
    call = f"SELECT * FROM vector_search('db.keyed', 'e', {literal(query)}, 1{{}})"
    assert session.sql(call.format("")).count() == 1
    for name in ("deep", "map"):
        with pytest.raises(Exception, match=f"{name} has maps whose keys are structs or lists"):
            session.sql(call.format(f", columns => array('id', '{name}')")).collect()


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
    keyed = pa.array([[(dt.time(8, 30), b"ab")]], pa.map_(pa.time64("us"), pa.binary(2)))
    rows = pa.table({"id": [1], "all": whole, "keyed": keyed})
    found = as_spark(rows)
    assert found.schema == spark_schema(rows.schema)
    assert found["all"].to_pylist() == [{"codes": [str(one), None], "hours": [("noon", "12:00:00")], "hash": b"ab"}]
    assert found["keyed"].to_pylist() == [[("08:30:00", b"ab")]]
    assert found.schema.field("keyed").type == pa.map_(pa.string(), pa.binary())


def test_dates_that_python_lacks_stay_beside_uuids_at_every_depth() -> None:
    days = pa.array([-800_000, None, 7_000_000, 0], pa.date32())  # years -221 and 21135
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None, b"u" * 16, b"v" * 16], pa.binary(16)))
    inner = pa.StructArray.from_arrays([ids, days], ["id", "day"], mask=pa.array([False, False, False, True]))
    offsets = pa.array([0, 1, 1, 3, 4], pa.int32())
    absent = pa.array([False, True, False, False])
    rows = pa.table({
        "list": pa.ListArray.from_arrays(offsets, inner, mask=absent),
        "map": pa.MapArray.from_arrays(offsets, pa.array([b"ab"] * 4, pa.binary(2)), inner),
    })  # fmt: skip
    for part in (rows, rows.slice(1), rows.slice(2, 1), rows.slice(4)):
        found = as_spark(part)
        found.validate(full=True)
        assert found.schema == spark_schema(rows.schema)
        lists, maps = (found[name].combine_chunks() for name in ("list", "map"))
        assert lists.is_null().to_pylist() == part["list"].is_null().to_pylist()
        assert lists.flatten().flatten()[1].equals(part["list"].combine_chunks().flatten().flatten()[1])
    texts = [str(UUID(int=0)), None, str(UUID(bytes=b"u" * 16)), None]
    assert as_spark(rows)["list"].combine_chunks().flatten().flatten()[0].to_pylist() == texts
    assert maps.type == pa.map_(pa.binary(), lists.type.value_type)
