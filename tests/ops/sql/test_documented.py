"""Every SQL example of the README and of the pages on searching is run."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.sql.sql_session import SqlSession
from tests.conftest import STORAGE

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/search.md", "docs/sql.md", "docs/cheat-sheet.md", "docs/text.md")
STATEMENT = re.compile(r"^(SELECT|WITH|EXPLAIN|CREATE (OR REPLACE )?INDEX|REFRESH INDEX|SHOW INDEXES|DROP INDEX)\b")
IN_SHELL = re.compile(r'icepuffin sql "([^"]+)"')
IN_TABLE = re.compile(r"\| `([A-Z]{4}[^`]+)` \|")
VECTOR = [0.1, 0.2, 0.3, 0.4]


def examples(page: str) -> list[str]:
    """Paragraphs of SQL blocks, the texts given to `icepuffin sql`, and those given to `sql.sql`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    statements = [statement for block in blocks for statement in re.split(r"\n\s*\n", block) if statement.strip()]
    statements += IN_SHELL.findall(text) + re.findall(r'sql\.sql\("([^"]+)"', text)
    statements += IN_TABLE.findall(text) if page == "docs/cheat-sheet.md" else []
    found = [re.sub(r"\s+", " ", statement).strip() for statement in statements]
    assert all(STATEMENT.match(statement) for statement in found)
    return found


@pytest.fixture
def session(sql_catalog: Catalog) -> SqlSession:
    """The tables that the examples speak of."""
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "id": np.arange(60),
            "name": [f"package {number} of the web" for number in range(60)],
            "section": ["database" if number % 2 else "a" for number in range(60)],
            "embedding": pa.array(rng.random((60, 4)).astype(np.float32).tolist(), pa.list_(pa.float32())),
        }
    )
    new_session = SqlSession.on(sql_catalog, storage=STORAGE)
    for name in ("ns.t", "demo.packages"):
        sql_catalog.create_namespace_if_not_exists(name.split(".")[0])
        table = sql_catalog.create_table(name, rows.schema, properties={"format-version": "2"})
        table.append(rows)
        head = table.metadata.current_snapshot_id or 0
        table.manage_snapshots().create_tag(head, "release-1").commit()
    new_session.sql("CREATE INDEX e ON ns.t USING diskann (embedding) WITH (metric = 'l2', text = 'name,section')")
    new_session.sql("CREATE INDEX h ON demo.packages USING diskann (embedding) WITH (metric = 'cosine', text = 'name')")
    return new_session


def test_there_are_examples_to_run() -> None:
    assert [len(examples(page)) > least for page, least in zip(PAGES, (0, 1, 8, 8, 2), strict=True)] == [True] * 5


def test_every_example_runs(session: SqlSession, sql_catalog: Catalog) -> None:
    head = str(sql_catalog.load_table("ns.t").metadata.current_snapshot_id)
    for text in (text for page in PAGES for text in examples(page)):
        statement = text.replace("VERSION AS OF 17 ", f"VERSION AS OF {head} ")
        result = session.sql(statement, [VECTOR] if "?" in statement else {"q": VECTOR})
        if statement.startswith(("SELECT", "WITH")):
            assert result.rows.num_rows > 0, statement
            assert result.search is not None, statement
    assert index_versions(sql_catalog.load_table("ns.t"), "i")
