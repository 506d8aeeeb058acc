"""`icepuffin mcp`: a client over stdio, and a server in a process of its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, Tool

import icepuffin
from icepuffin.ops.catalog.connection import open_catalog
from tests.conftest import make_rows, queries
from tests.extras import without_extras

SECRET = "canary0sings"
SETTINGS = """threads = 1
[catalogs.lake]
type = "sql"
uri = "sqlite:///{0}/catalog.db"
warehouse = "file://{0}/warehouse"
token = "{1}"
[tables.t]
catalog = "lake"
name = "db.t"
[tables.others]
catalog = "lake"
name = "db.u*"
[tables.again]
catalog = "lake"
name = "db.u1"
[tables.gone]
catalog = "lake"
name = "db.gone"
"""
MAIN = (sys.executable, "-c", "from icepuffin.orchestration.cli import main; main()")
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with settings, a table `db.t` in two snapshots, whose index has the first, and one that they lack."""
    folder = tmp_path_factory.mktemp("lake")
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = open_catalog("lake", properties)
    catalog.create_namespace("db")
    rows = make_rows(0, 200)
    for name in ("t", "u1", "hidden"):
        table = catalog.create_table(f"db.{name}", rows.schema, properties={"format-version": "2"})
        table.append(rows)
        icepuffin.create_index(table, name="e", column="embedding", metric="l2", text=["name"])
        if name == "t":
            icepuffin.refresh(table)
            table.append(make_rows(200, 210))
    (folder / "icepuffin.toml").write_text(SETTINGS.format(folder, SECRET), encoding="utf-8")
    return folder


def served(folder: Path, calls: Calls, log: Path) -> tuple[list[Tool], list[CallToolResult]]:
    """The tools of a server, and its answers."""
    command = [*MAIN, "mcp", "--dir", str(folder)]
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))

    async def run() -> tuple[list[Tool], list[CallToolResult]]:
        with log.open("w", encoding="utf-8") as errors:
            async with Client(stdio_client(parameters, errlog=errors)) as client:
                tools = (await client.list_tools()).tools
                return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def text_of(answer: CallToolResult) -> str:
    return "".join(getattr(part, "text", "") for part in answer.content)


def documents(answers: list[CallToolResult]) -> Iterator[dict[str, Any]]:
    for answer in answers:
        assert not answer.is_error, text_of(answer)
        assert answer.structured_content is not None
        assert answer.structured_content == json.loads(text_of(answer))
        yield answer.structured_content


def test_tables_are_listed_searched_and_explained(lake: Path, tmp_path: Path) -> None:
    vector = queries(1)[0].tolist()
    tools, answers = served(
        lake,
        [
            ("tables", {}),
            ("snapshots", {"table": "db.t", "limit": 5}),
            ("search", {"table": "db.t", "vector": vector, "k": 3, "columns": ["id"]}),
            ("search", {"table": "db.t", "like_id": "205", "k": 1, "where": "section = 'section 0'"}),
            ("search", {"table": "db.t", "text": "205", "vector": vector, "k": 2}),
            ("explain", {"table": "db.u1", "text": "name", "catalog": "lake"}),
        ],
        tmp_path / "log",
    )
    assert [tool.name for tool in tools] == ["tables", "search", "explain", "snapshots"]
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
    listed, snapshots, nearest, like, both, explained = documents(answers)
    t, u, gone = listed["tables"]
    assert (t["table"], u["table"]) == ("db.t", "db.u1")
    assert t["columns"]["section"] == "string"
    (index,) = t["indexes"]
    assert (index["name"], index["metric"], index["text"]) == ("e", "l2", ["name"])
    assert (index["versions"], index["snapshots_behind"]) == (1, 1)
    assert "there is no table db.gone" in gone["error"]
    newest, first = snapshots["snapshots"]
    assert (newest["rows_added"], newest["indexes"], first["indexes"]) == (10, [], ["e"])
    assert index["snapshot_id"] == first["snapshot_id"]
    exact = icepuffin.open_exact(open_table(lake), "embedding", "l2").search(queries(1), 3, columns=["id"])
    assert [row["id"] for row in nearest["rows"]] == exact.rows["id"].to_pylist()
    assert nearest["coverage"] == "nearest-version+tail"
    assert nearest["snapshot_id"] == newest["snapshot_id"]
    assert like["rows"][0]["id"] == 205
    assert both["rows"][0]["text_rank"] == 1
    assert "exact-scan" in explained["explanation"]


def open_table(folder: Path) -> Any:
    return open_catalog("lake", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}).load_table("db.t")


def written(folder: Path) -> dict[str, int]:
    """The files of all tables, and when each was written."""
    files = {str(path): path.stat().st_mtime_ns for path in (folder / "warehouse").rglob("*") if path.is_file()}
    assert open_table(folder).metadata_location.removeprefix("file://") in files
    return files


def test_what_is_refused_is_told_in_our_words_and_shows_no_secret(lake: Path, tmp_path: Path) -> None:
    refusals: list[tuple[str, dict[str, Any], str]] = [
        ("search", {"table": "db.hidden", "text": "a"}, "no table of the settings"),
        ("search", {"table": "db.*", "text": "a"}, "no table of the settings"),
        ("snapshots", {"table": "db.t", "catalog": "other"}, "no table of the settings"),
        ("snapshots", {"table": "db.gone"}, "there is no table db.gone"),
        ("snapshots", {"table": "db.t", "limit": 101}, "less than or equal to 100"),
        ("search", {"table": "db.t", "text": "a", "k": 101}, "less than or equal to 100"),
        ("explain", {"table": "db.t", "text": "a", "k": 0}, "greater than or equal to 1"),
        ("search", {"table": "db.t"}, "give a vector, a text, or both"),
        ("search", {"table": "db.t", "vector": [1.0]}, "the query has 1 dimension, the index has 16"),
        ("search", {"table": "db.t", "vector": [1.0] * 16, "like_id": "1"}, "give vector or like_id, not both"),
        ("search", {"table": "db.t", "like_id": "1000"}, "no row has id = 1000"),
        ("search", {"table": "db.t", "text": "a", "index": "none"}, "has no index 'none'"),
        ("search", {"table": "db.t", "text": "a", "where": "drop table"}, "drop table"),
        ("search", {"table": "db.t", "text": "a", "where": "(" * 9_000}, "cannot be read"),
        ("search", {"table": "db.t", "text": "a", "where": "x" * 10_001}, "10000 characters"),
        ("search", {"table": "db.t", "text": "a", "snapshot": "never"}, "never"),
        ("search", {"table": "db.t", "text": "a", "columns": ["nothing"]}, "no column 'nothing'"),
        ("delete", {"table": "db.t"}, "Unknown tool"),
    ]
    before = written(lake)
    _, answers = served(lake, [(name, arguments) for name, arguments, _ in refusals], tmp_path / "log")
    for (name, arguments, message), answer in zip(refusals, answers, strict=True):
        assert answer.is_error, (name, arguments)
        assert message in text_of(answer), (name, str(arguments)[:99])
        assert SECRET not in text_of(answer)
    assert SECRET not in (tmp_path / "log").read_text(encoding="utf-8")
    assert written(lake) == before


def test_a_server_without_its_extra_or_without_tables_says_what_to_do(tmp_path: Path, lake: Path) -> None:
    def failure(folder: Path, **environment: str) -> str:
        done = subprocess.run(
            [*MAIN, "mcp", "--dir", str(folder)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert failure(lake, **without_extras(tmp_path, "mcp")) == (
        "error: this command needs mcp: pip install 'icepuffin[mcp]'\n"
    )
    (tmp_path / "icepuffin.toml").write_text(SETTINGS.partition("[tables")[0].format(tmp_path, SECRET), "utf-8")
    assert "names no table; `icepuffin init` writes one" in failure(tmp_path)
