"""Theta sketches as Trino sees them. `make trino` fetches it and runs them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

import icepuffin
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.table.blob_kind import index_tag
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from tests.conftest import make_rows
from tests.interop.trino_server import TrinoServer
from tests.ops.theta.conftest import ThreadlessRunner

pytestmark = pytest.mark.trino

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "at", TimestamptzType(), required=False),
    NestedField(4, "price", DecimalType(12, 2), required=False),
)


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrinoServer]:
    server = TrinoServer(tmp_path_factory.mktemp("trino"))
    server.sql("CREATE SCHEMA lake.db")
    yield server
    server.close()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    opened = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    opened.create_namespace("db")
    yield opened
    opened.engine.dispose()


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    whole = pa.array([i - 250 for i in numbers], pa.int64()).cast(pa.decimal128(19, 0))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{i % 9}" for i in numbers],
            "at": pa.array([1_700_000_000_000_000 + 1_000_000 * (i // 2) for i in numbers], pa.timestamp("us", "UTC")),
            "price": whole.cast(pa.decimal128(12, 2), safe=False),
        }
    )


def materialize(table: Table) -> ThetaReport:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return count_theta_sketches(
        RunContext(table, StorageConfig({}), ThreadlessRunner()), snapshot.snapshot_id
    ).publish()


def register(trino: TrinoServer, table: Table, name: str) -> None:
    """Show Trino the table as it is now, under a name of its own."""
    file = table.metadata_location.rsplit("/", 1)[1]
    trino.sql(f"CALL lake.system.register_table('db', '{name}', '{table.location()}', '{file}')")


def ndvs(trino: TrinoServer, name: str) -> dict[str, float]:
    return {row[0]: row[2] for row in trino.sql(f"SHOW STATS FOR lake.db.{name}") if row[0] and row[2] is not None}


def groups(trino: TrinoServer, name: str, column: str) -> float | str:
    """Rows that Trino's planner expects of a grouping by the column: a number, or what it writes for an unknown one."""
    text = f"EXPLAIN (TYPE LOGICAL, FORMAT JSON) SELECT {column}, count(*) FROM lake.db.{name} GROUP BY {column}"
    ((plan,),) = trino.sql(text)
    nodes = [json.loads(plan)]
    for node in nodes:
        nodes += node["children"]
    return next(node["estimates"][0]["outputRowCount"] for node in nodes if node["name"].startswith("Aggregate"))


def test_trinos_planner_estimates_by_our_ndvs_where_the_table_has_an_index(
    trino: TrinoServer, catalog: SqlCatalog
) -> None:
    table = catalog.create_table("db.t", make_rows(0, 1).schema)
    table.append(make_rows(0, 500))
    icepuffin.refresh(table, IndexDefinition(name="embedding", column="embedding", metric="l2"), sketches=False)
    register(trino, table.refresh(), "without_sketches")
    assert groups(trino, "without_sketches", "section") == "NaN"
    report = materialize(table)
    register(trino, table.refresh(), "with_sketches")
    assert index_tag("embedding") in {row[0] for row in trino.sql('SELECT name FROM lake.db."with_sketches$refs"')}
    assert report.ndv["section"] == 5
    assert groups(trino, "with_sketches", "section") == 5
    assert groups(trino, "with_sketches", "id") == 500


def test_trino_shows_our_ndvs(trino: TrinoServer, catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows(0, 500))
    report = materialize(table)
    register(trino, table.refresh(), "shown")
    assert ndvs(trino, "shown") == report.ndv == {"id": 500, "name": 9, "at": 250, "price": 500}
    assert trino.sql("SELECT count(*) FROM lake.db.shown") == [[500]]


def test_trino_unites_the_sketch_of_an_insert_with_ours(trino: TrinoServer, catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows(0, 500))
    materialize(table)
    register(trino, table.refresh(), "grown")
    trino.sql(
        "INSERT INTO lake.db.grown SELECT CAST(n AS bigint), 'n' || CAST(n % 12 AS varchar), "
        "TIMESTAMP '2023-11-14 22:13:20 UTC' + INTERVAL '1' SECOND * n, CAST(n - 250 AS decimal(12, 2)) "
        "FROM UNNEST(sequence(400, 599)) AS t(n)"
    )
    assert ndvs(trino, "grown") == {"id": 600, "name": 12, "at": 450, "price": 600}


def test_what_trino_analyzed_is_read(trino: TrinoServer, catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows(0, 500))
    register(trino, table.refresh(), "analyzed")
    trino.sql("ANALYZE lake.db.analyzed")
    metadata = sorted(
        Path(table.location().removeprefix("file://")).glob("metadata/*.metadata.json"),
        key=lambda p: p.stat().st_mtime_ns,
    )
    by_trino = StaticTable.from_metadata(metadata[-1].as_uri())
    snapshot = by_trino.current_snapshot()
    assert snapshot is not None
    found = read_ndv(by_trino, snapshot.snapshot_id)
    assert {c: e.ndv for c, e in found.entries.items()} == {"id": 500, "name": 9, "at": 250, "price": 500}
