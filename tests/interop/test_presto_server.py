"""Statistics as Presto's own server reads them. `make presto` fetches it and runs them.

Of the release that Maven has, 0.287, planners read NDVs and data sizes. Histograms came later, as bytes of the type
`kllsketch`, which this release has in SQL: there it reads the bytes that are to lie in a blob.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from datasketches import PyDoublesSerDe, PyLongsSerDe, PyObjectSerDe, kll_items_sketch
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icepuffin
from tests.interop.presto_server import PrestoServer
from tests.ops.theta.foreign import add_unlisted

pytestmark = pytest.mark.trino

KLL, SIZE = "presto-kll-sketch-bytes-v1", "presto-sum-data-size-bytes-v1"


@pytest.fixture(scope="module")
def presto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrestoServer]:
    server = PrestoServer(tmp_path_factory.mktemp("presto"))
    server.sql("CREATE SCHEMA lake.db")
    yield server
    server.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    rows = pa.table({"id": list(range(1000)), "name": [f"n{number % 9}" for number in range(1000)]})
    made = catalog.create_table("db.t", rows.schema)
    made.append(rows)
    icepuffin.refresh(made)
    yield made.refresh()
    catalog.engine.dispose()


def register(presto: PrestoServer, table: Table, name: str) -> None:
    """Show Presto the table as it is now, under a name of its own."""
    file = table.refresh().metadata_location.rsplit("/", 1)[1]
    presto.sql(f"CALL lake.system.register_table('db', '{name}', '{table.location()}', '{file}')")


def statistics(presto: PrestoServer, name: str) -> dict[str, tuple[float | None, float | None]]:
    """(data size, NDV) by column."""
    return {row[0]: (row[1], row[2]) for row in presto.sql(f"SHOW STATS FOR lake.db.{name}") if row[0]}


def test_presto_plans_with_our_ndvs(presto: PrestoServer, table: Table) -> None:
    register(presto, table, "counted")
    assert statistics(presto, "counted") == {"id": (None, 1000.0), "name": (None, 9.0)}


def test_presto_reads_blobs_that_no_entry_lists(presto: PrestoServer, table: Table) -> None:
    blobs = [(KLL, 1, kll(range(1000), PyLongsSerDe()), {}), (SIZE, 2, b"", {"data_size": "2000"})]
    add_unlisted(table, blobs)
    register(presto, table, "sized")
    assert statistics(presto, "sized") == {"id": (None, 1000.0), "name": (2000.0, 9.0)}
    assert presto.sql("SELECT count(*) FROM lake.db.sized") == [[1000]]


@pytest.mark.parametrize(("kind", "serde", "step"), [("bigint", PyLongsSerDe, 1), ("double", PyDoublesSerDe, 0.25)])
def test_presto_reads_a_histogram(presto: PrestoServer, kind: str, serde: type[PyObjectSerDe], step: float) -> None:
    image = kll([number * step for number in range(1000)], serde())
    sketch = f"CAST(X'{image.hex()}' AS kllsketch({kind}))"
    asked = f"SELECT sketch_kll_quantile({sketch}, 0.5), sketch_kll_rank({sketch}, CAST({100 * step} AS {kind}))"
    ((median, rank),) = presto.sql(asked)
    assert median == pytest.approx(500 * step, rel=0.05)
    assert rank == pytest.approx(0.1, abs=0.02)


def kll(values: Iterable[float], serde: PyObjectSerDe) -> bytes:
    sketch = kll_items_sketch(200)
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize(serde))
