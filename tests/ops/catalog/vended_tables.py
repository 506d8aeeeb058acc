"""Tables of a catalog that vends, and of whose store the tests have no key."""

import re
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index
from tests.conftest import ROWS, make_rows
from tests.ops.index.comparison import DEFINITION
from tests.services.vending import Vending


def connected(lake: Vending, **properties: str) -> Catalog:
    return open_catalog("lake", {"type": "rest", "uri": lake.catalog, **properties})


def new_table(lake: Vending, folder: Path, rows: int = 200) -> Table:
    """`vended.<name of the folder>`, with an index defined."""
    catalog = connected(lake)
    catalog.create_namespace_if_not_exists("vended")
    name = re.sub(r"\W", "_", folder.name)
    made = catalog.create_table(f"vended.{name}", ROWS, f"s3://lake/vended/{name}", properties={"format-version": "2"})
    table = catalog.load_table(made.name())
    table.append(make_rows(0, rows))
    create_index(table, DEFINITION)
    return table.refresh()
