"""The examples: each runs as its page says, is short, and has its line there."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icepuffin.ops.cache import process_cache
from icepuffin.ops.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = ("search", "build_and_refresh", "time_travel", "retriever", "hybrid_search")
NO_EXAMPLES = {"lake", "make_packages"}
"""What examples share, and what made their data"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run, one after the other: they find the table that the first made."""
    return tmp_path_factory.mktemp("examples")


Run = Callable[[str], str]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in this process: to import what it needs takes most of the time of a new one."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "lake", raising=False)

    def run_here(name: str) -> str:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run_here


def run_alone(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-4000:]
    return done.stdout


def test_each_example_is_short_and_has_its_line() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")} - NO_EXAMPLES
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert set(listed) == names == {*SCRIPTS, "knn_join", "service"}
    for name in names:
        text = (EXAMPLES / f"{name}.py").read_text("utf-8")
        assert len(text.splitlines()) < 50, name
        deep = re.search(r"icepuffin\.(?!langchain\b)\w+(\.\w+)* import", text)
        assert not deep, "the front door has all that an example needs"


def test_searching(folder: Path) -> None:
    out = run_alone("search", folder)
    assert "IndexReader('demo.packages', index 'embedding'" in out
    assert re.search(r"^0 +0 +1 +\S+ +postgresql +database$", out, re.MULTILINE), "pandas leaves no column out"
    assert re.search(r"0\.000  postgresql\n", out)
    assert "exact-version" in out


def test_building_and_refreshing(run: Run) -> None:
    out = run("build_and_refresh")
    assert "5,500 rows: built, 5,500 rows" in out
    assert "an append of 500 rows: refreshed, 6,000 rows" in out
    assert "the games are deleted: refreshed" in out
    assert "inserted 0, tombstones" in out
    assert "not fresh" not in out


def test_travelling_in_time(run: Run) -> None:
    out = run("time_travel")
    deleted = re.search(r"^deleting (\S+)$", out, re.MULTILINE)
    assert deleted is not None
    now, then = out.splitlines()[1:]
    assert f" {deleted[1]}," not in now
    assert f" {deleted[1]}," in then
    assert "exact-version" in now
    assert "exact-version" in then


def test_retrieving_documents(run: Run) -> None:
    *lines, for_web = run("retriever").splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"for the web: \S+, \S+", for_web)
    assert sum("database" in line.lower() for line in lines) >= 3


def test_searching_by_words_and_vectors(run: Run) -> None:
    words, lines = run("hybrid_search").splitlines()[:3], run("hybrid_search").splitlines()[3:]
    assert all(line.startswith("by words") for line in words)
    scores = [float(line.split()[0]) for line in lines]
    assert len(lines) == 10
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 1 / 61, "the first is in both rankings"


@pytest.mark.jvm
def test_joining_on_spark(folder: Path) -> None:
    out = run_alone("knn_join", folder)
    assert "exact-version; warnings: none" in out
    assert "vim-tiny" in out


def test_the_service_follows_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("service", "lake"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import service  # type: ignore[import-not-found]  # noqa: PLC0415  from the folder of the examples
    from fastapi.testclient import TestClient  # noqa: PLC0415

    module: ModuleType = service
    opened = sum(process_cache().reads.values())
    with TestClient(module.app) as client:
        first = client.get("/like/postgresql", params={"k": 3}).json()
        assert first["coverage"] == "exact-version"
        assert [row["rank"] for row in first["rows"]] == [1, 2, 3]
        assert first["rows"][0]["name"] == "postgresql"
        web = client.get("/like/postgresql", params={"section": "web"}).json()
        assert len(web["rows"]) == 5
        assert client.get("/like/o'brien").status_code == 404
        metrics = client.get("/metrics")
        assert metrics.headers["content-type"] == CONTENT_TYPE
        reads = re.findall(r"^icepuffin_shard_cache_reads_total\{.*\} (\d+)$", metrics.text, re.MULTILINE)
        assert sum(map(int, reads)) > opened
        root = tmp_path.resolve() / "lake"
        lake = SqlCatalog("lake", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
        lake.load_table("demo.packages").delete(f"name = '{first['rows'][1]['name']}'")
        module.app.state.following.update()
        second = client.get("/like/postgresql", params={"k": 3}).json()
        assert second["snapshot"] != first["snapshot"]
        assert first["rows"][1]["name"] not in [row["name"] for row in second["rows"]]
