"""`vector_search` in Spark SQL, on a classic session and through a Connect server."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from ops.index import create
from ops.probe import open_index
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.history import DEFINITION, index_head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark leaves its sockets to the garbage collector
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 300))
    create(made, DEFINITION)
    index_head(made)
    made.append(make_rows(300, 350))
    return made.refresh()


def literal(vector: list[float]) -> str:
    return f"array({', '.join(f'{value!r}D' for value in vector)})"


def test_sql_finds_what_the_reader_finds(session: "SparkSession", sql_catalog: Catalog, table: Table) -> None:
    from ops.spark.sql import register_vector_search  # noqa: PLC0415  imports pyspark

    register_vector_search(session, sql_catalog)
    asked = queries(3)
    one = session.sql(
        f"SELECT * FROM vector_search('db.t', 'e', {literal(asked[0].tolist())}, 5, where => 'id >= 10')"
    ).toArrow()
    mine = open_index(table, "e", storage=STORAGE).search(asked[0], 5, where="id >= 10")
    assert one.column_names == ["rank", "distance", "id", "name", "section"]
    assert one.to_pylist() == mine.rows.drop_columns(["query"]).to_pylist()

    session.createDataFrame(
        [(n, vector) for n, vector in enumerate(asked.tolist())], "n int, v array<float>"
    ).createOrReplaceTempView("asked")
    first = table.metadata.snapshot_log[0].snapshot_id
    many = session.sql(
        "SELECT n, found.* FROM asked, LATERAL vector_search('db.t', 'e', v, 4, columns => array('id'), "
        f"snapshot => '{first}') found ORDER BY n, rank"
    ).toArrow()
    mine = open_index(table, "e", snapshot=first, storage=STORAGE).search(asked, 4, columns=["id"])
    assert many["id"].to_pylist() == mine.rows["id"].to_pylist()
    assert many["n"].to_pylist() == mine.rows["query"].to_pylist()
    with pytest.raises(Exception, match="has no column 'nope'"):
        session.sql(f"SELECT * FROM vector_search('db.t', 'e', {literal([0.0])}, columns => array('nope'))").toArrow()


def test_warnings_go_to_the_log_of_the_task_once(
    sql_catalog: Catalog, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from ops.spark.sql import Planned, Settings, answer  # noqa: PLC0415

    vectors = pa.array([[float("nan")] * 16], pa.list_(pa.float32()))
    table.append(make_rows(350, 351).set_column(3, "embedding", vectors))
    head = table.refresh().metadata.current_snapshot_id or 0
    planned = Planned(StructType([]), identifier=("db", "t"), metadata_location=table.metadata_location,
                      snapshot_id=head, index="e", columns=("id",))  # fmt: skip
    properties = dict(sql_catalog.properties)
    for _ in range(2):
        assert len(list(answer(Settings("test", properties, properties), planned, queries(1)[0], 3, None, None))) == 3
    assert caplog.text.count("1 row has no distance from anything") == 1
