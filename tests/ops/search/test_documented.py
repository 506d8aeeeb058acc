"""The Python examples of the README, the quickstart and the pages on searching are run, on a table like the demo's."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import icepuffin
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.search.result import Profile, Pruning, SearchResult
from tests.ops.index.comparison import DEFINITION, index_head

ROOT = Path(__file__).parents[3]
CELL = re.compile(r"`((?:icepuffin|reader|table)\.[^`]+)` *\|")
"""Python in a cell of a table"""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def demo_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has what `make demo` leaves there: a catalog, a table, an index."""
    (tmp_path / "demo-data" / "warehouse").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/demo-data/catalog.db"
    catalog = open_catalog("demo", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/demo-data/warehouse"})
    rng = np.random.default_rng(1)
    rows = pa.table(
        {
            "id": np.arange(100),
            "halves": [row.tobytes() for row in rng.random((100, 16)).astype("<f2")],
            "code": [row.tobytes() for row in rng.integers(0, 256, (100, 8), np.uint8)],
            "name": ["postgresql", *(f"package {number}" for number in range(1, 100))],
            "description": ["database server", *(f"web server {number}" for number in range(1, 100))],
            "section": ["database" if number % 2 else "games" for number in range(100)],
            "embedding": pa.array(
                np.random.default_rng(0).random((100, 16), dtype=np.float32).tolist(), pa.list_(pa.float32())
            ),
        }
    )
    np.save(tmp_path / "logged.npy", rng.random((60, 16), dtype=np.float32))
    catalog.create_namespace("demo")
    table = catalog.create_table("demo.packages", rows.schema, properties={"format-version": "2"})
    table.append(rows)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "release-1").commit()
    text = ("name", "description")
    definition = DEFINITION.__class__(name="embedding", column="embedding", metric="cosine", text=text)
    definition = create_index(table, definition)
    index_head(table, definition)


@pytest.mark.usefixtures("demo_data")
@pytest.mark.parametrize(
    "pages",
    [("README.md", "docs/text.md"), ("docs/quickstart.md",), ("docs/search.md", "docs/how-a-search-works.md")],
    ids=lambda pages: pages[-1],
)
def test_the_examples_run(pages: tuple[str, ...]) -> None:
    """Those of a page go on where those of the page before it end."""
    blocks = [block for page in pages for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    names: dict[str, Any] = {}
    run = [block for block in blocks if "register_vector_search" not in block and ".mkdir()" not in block]
    assert run
    for block in run:
        exec(block, names)  # noqa: S102  our own pages
    assert names["result"].rows.num_rows > 0


@pytest.mark.usefixtures("demo_data")
def test_the_lines_of_the_cheat_sheet_run() -> None:
    names: dict[str, Any] = {"icepuffin": icepuffin, "queries": np.load("logged.npy")}
    catalog = open_catalog("demo", {"type": "sql", "uri": "sqlite:///demo-data/catalog.db"})
    names["table"] = catalog.load_table("demo.packages")
    names["query"] = names["queries"][0]
    names["reader"] = icepuffin.open_index(names["table"], "embedding")
    lines = CELL.findall((ROOT / "docs" / "cheat-sheet.md").read_text(encoding="utf-8"))
    assert len(lines) > 15
    for line in lines:
        result = eval(line, names)  # noqa: S307  our own page
        if isinstance(result, SearchResult):
            assert result.rows.num_rows > 0, line
        elif isinstance(result, icepuffin.FollowingReader):
            result.close()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", "docs/search.md", "docs/how-a-search-works.md", "docs/spark.md"]
)
def test_fields_of_a_result_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for pair in re.findall(r"\bresult\.(\w+)(?:\.(\w+))?", text) for name in pair if name}
    of_arrow = {"to_pandas", "num_rows"}
    of_sql = {"how", "search"}
    fields = {name for kind in (SearchResult, Profile, Pruning) for name in dir(kind)}
    fields |= {field.name for kind in (SearchResult, Profile, Pruning) for field in dataclasses.fields(kind)}
    assert named - fields - of_arrow - of_sql == set()
