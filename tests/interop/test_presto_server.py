"""Statistics as Presto's own server reads them. `make presto` fetches it and runs them.

Of the release that Maven has, 0.287, planners read NDVs and data sizes. Histograms came later, as bytes of the type
`kllsketch`, which this release has in SQL: there it reads the bytes of our blobs.
"""

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin import PuffinReader
from tests.conftest import STORAGE
from tests.interop.presto_server import PrestoServer

pytestmark = pytest.mark.trino

ROWS = 20_000
KLL = "presto-kll-sketch-bytes-v1"
WHOLE, REAL = "bigint", "double"
READ_AS = {"small": WHOLE, "big": WHOLE, "day": WHOLE, "single": REAL, "twice": REAL, "price": REAL}
"""Items of the sketch of each column, as Presto names their type"""


@pytest.fixture(scope="module")
def presto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrestoServer]:
    server = PrestoServer(tmp_path_factory.mktemp("presto"))
    server.sql("CREATE SCHEMA lake.db")
    yield server
    server.close()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, presto: PrestoServer) -> Iterator[Table]:
    """A table with all kinds of statistics, which Presto has as `lake.db.t`."""
    folder = tmp_path_factory.mktemp("table")
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", rows().schema)
    made.append(rows())
    head = made.current_snapshot()
    assert head is not None
    requested = RequestedStatistics(
        histogram=(*READ_AS, "none"), size=("name",), frequent=("name",), joint=(("name", "day"),)
    )
    run = RunContext(made, STORAGE, LocalRunner(1))
    count_theta_sketches(run, SnapshotId(head.snapshot_id), requested=requested).publish()
    file = made.refresh().metadata_location.rsplit("/", 1)[1]
    presto.sql(f"CALL lake.system.register_table('db', 't', '{made.location()}', '{file}')")
    yield made
    catalog.engine.dispose()


def rows() -> pa.Table:
    numbers = range(ROWS)
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=number % 1000) for number in numbers]
    return pa.table(
        {
            "small": pa.array(numbers, pa.int32()),
            "big": pa.array([number * 10**12 for number in numbers], pa.int64()),
            "day": pa.array(days, pa.date32()),
            "single": pa.array([number / 4 for number in numbers], pa.float32()),
            "twice": [number / 8 for number in numbers],
            "price": pa.array(numbers, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
            "none": pa.nulls(ROWS, pa.int64()),
            "name": [f"n{number % 9}" for number in numbers],
        }
    )


def test_presto_plans_with_our_ndvs_and_sizes_whatever_else_the_file_has(presto: PrestoServer, table: Table) -> None:
    found = {row[0]: row[1:3] for row in presto.sql("SHOW STATS FOR lake.db.t") if row[0]}
    assert found["name"] == [2.0 * ROWS, 9.0]
    assert found["day"] == [None, 1000.0]
    assert found["small"][1] == pytest.approx(ROWS, rel=0.05)
    assert presto.sql("SELECT count(*) FROM lake.db.t") == [[ROWS]]


@pytest.mark.parametrize(("column", "kind"), READ_AS.items())
def test_presto_reads_our_histograms(presto: PrestoServer, table: Table, column: str, kind: str) -> None:
    sketch = f"CAST(X'{histograms(table)[column].hex()}' AS kllsketch({kind}))"
    texts = f"sketch_kll_quantile({sketch}, 0.25), sketch_kll_rank({sketch}, sketch_kll_quantile({sketch}, 0.75))"
    ((quartile, rank),) = presto.sql(f"SELECT {texts}")
    ((below, rows_in_all),) = presto.sql(f"SELECT count_if({as_item(column)} <= {quartile}), count(*) FROM lake.db.t")
    assert below / rows_in_all == pytest.approx(0.25, abs=0.02)
    assert rank == pytest.approx(0.75, abs=0.02)


def test_a_column_without_values_has_no_histogram(table: Table) -> None:
    assert histograms(table).keys() == READ_AS.keys()


def as_item(column: str) -> str:
    """A column's value as an item of its sketch, in SQL."""
    return f"date_diff('day', DATE '1970-01-01', {column})" if column == "day" else column


def histograms(table: Table) -> dict[str, bytes]:
    """Bytes of the blobs of histograms in the file of the head, by column."""
    head = table.current_snapshot()
    assert head is not None
    entry = find_statistics(table, head.snapshot_id)
    assert entry is not None
    reader = PuffinReader(LocalStorage().source(entry.statistics_path))
    blobs = [blob for blob in reader.footer.blobs if blob.type == KLL]
    assert all((blob.properties, blob.snapshot_id) == ({}, head.snapshot_id) for blob in blobs)
    return {table.schema().find_column_name(blob.fields[0]) or "": bytes(reader.read_blob(blob)) for blob in blobs}
