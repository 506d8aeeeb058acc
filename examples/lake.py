"""The table that the examples work on: 6,000 Debian packages in a SQLite catalog and a local warehouse.

Each example opens it by `packages()`, which creates it in a folder `lake` on the first call.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icepuffin

HERE = Path(__file__).resolve().parent
TABLE = "demo.packages"
INDEX = icepuffin.IndexDefinition(name="embedding", column="embedding", metric="cosine", text=("name", "description"))


def rows() -> pa.Table:
    """The packages: id long, name, section, description string, embedding list<float>[384]."""
    table = pq.read_table(HERE / "packages.parquet")
    column = table.schema.get_field_index("embedding")
    return table.set_column(column, "embedding", table["embedding"].cast(pa.list_(pa.float32())))


def catalog(folder: Path = Path("lake")) -> Catalog:
    folder.mkdir(parents=True, exist_ok=True)
    root = folder.resolve()
    return SqlCatalog("lake", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")


def packages(folder: Path = Path("lake"), *, index: bool = True) -> Table:
    """The table; with all packages and their index where it has to be created first."""
    lake = catalog(folder)
    if lake.table_exists(TABLE):
        return lake.load_table(TABLE)
    lake.create_namespace_if_not_exists("demo")
    table = lake.create_table(TABLE, rows().schema, properties={"format-version": "2"})
    table.append(rows())
    if index:
        icepuffin.create_index(table, INDEX)
        icepuffin.refresh(table)
    return table
