"""What commands print, whole: of golden tables, at noon of the day on which these were written."""

import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.cache import use_settings
from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.orchestration.cli import group, main
from tests.conformance.golden_files import golden_ids, golden_noon
from tests.conftest import DIMS, make_rows, queries
from tests.recorded import new_ids, recorded

SETTINGS = """threads = 1
[catalogs.golden]
type = "sql"
uri = "sqlite:///{0}/catalog.db"
warehouse = "file://{0}"
[tables.t]
catalog = "golden"
name = "db.t"
[tables.t.indexes.e]
column = "embedding"
metric = "l2"
max_degree = 8
search_list = 40
shards = 2
target_recall = 0.5
filters = ["section"]
include = ["name"]
cells = "sq8"
"""
Q = json.dumps([0] * DIMS, separators=(",", ":"))
NEAREST = "SELECT id FROM db.t ORDER BY l2_distance(embedding, :q) LIMIT 3"
Said = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of a golden table's files, with settings; clocks stand still."""
    (tmp_path / "icepuffin.toml").write_text(SETTINGS.format(tmp_path), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv("ICEPUFFIN_SETTINGS", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    use_settings(CacheSettings.off())
    with golden_noon(tmp_path):
        yield tmp_path


def table_in(folder: Path) -> Table:
    return open_catalog("golden", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}).load_table("db.t")


def record(name: str, folder: Path, *texts: str) -> None:
    text = "\n".join(texts)
    recorded(name, text, {str(folder): "FOLDER", **new_ids(text, golden_ids())})


@pytest.fixture
def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run commands. Returns each with what it prints, on stdout and then on stderr."""

    def run(*lines: str) -> str:
        texts = []
        for line in lines:
            words = shlex.split(line)
            try:
                main(words)
                code = ""
            except SystemExit as exited:
                code = f"[exit code {exited.code}]\n"
            printed = capsys.readouterr()
            texts.append(f"$ icepuffin {line}\n{printed.out}{printed.err}{code}")
        return "\n".join(texts)

    return run


def helped(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of a command, and of those below it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helped(below, (*path, name))


def test_help(said: Said, folder: Path) -> None:
    record("cli_help.txt", folder, said(*(shlex.join((*path, "--help")) for path in helped(group, ()))))


def test_what_is_told_of_a_table(said: Said, folder: Path) -> None:
    record(
        "cli_state.txt",
        folder,
        said(
            "snapshots db.t",
            "snapshots db.t --json --limit 1",
            "snapshots db.t --operation delete",
            "snapshots db.t --operation append --since 2026-01-01T00:00:00.008",
            "index list db.t",
            "index list db.t --json",
            "index show db.t",
            "index show db.t e --snapshot 425354370570890871 --json",
            "index verify db.t",
            "index verify db.t --json",
            "plan db.t",
            "plan db.t --json",
            "stats db.t",
            "stats db.t --json --snapshot 987301599074543942",
            "report db.t",
            "report db.t --json -o page.html",
            "metrics",
            "gc db.t --dry-run",
            "gc db.t --json",
            "refresh db.t",
            "refresh db.t --json",
        ),
    )


def test_what_is_found(said: Said, folder: Path) -> None:
    np.save(folder / "queries.npy", queries(3))
    np.save(folder / "many.npy", queries(50))
    record(
        "cli_search.txt",
        folder,
        said(
            "search db.t --like-id 7 -k 3",
            "search db.t --like-id 7 -k 2 --json",
            "search db.t --query-file queries.npy -k 2 --columns id --explain --where 'id < 100'",
            "search db.t --like-id 7 -k 3 --exact --columns id,section --explain",
            "search db.t --like-id 7 --within 2 --explain",
            "search db.t --like-id 7 --within 0.00001 --columns id --where 'id > 100'",
            "search db.t --like-id 7 -k 3 --certified --columns id --json",
            "search db.t --like-id 7 -k 3 --target-recall 0.9 --columns '' --explain",
            "sql 'SHOW INDEXES ON db.t'",
            "sql 'SHOW INDEXES ON db.t' --json",
            f"sql '{NEAREST}' --param q={Q}",
            f"sql '{NEAREST}' --param q={Q} --json",
            f"sql 'EXPLAIN {NEAREST}' --param q={Q}",
            "tune db.t --queries queries.npy",
            "tune db.t --queries many.npy --dry-run",
        ),
    )


def test_what_is_made(said: Said, folder: Path) -> None:
    table_in(folder).append(make_rows(150, 250))
    behind = said("snapshots db.t", "index list db.t", "index show db.t", "plan db.t", "stats db.t", "report db.t")
    made = said("refresh db.t --index e", "refresh db.t --json", "index show db.t", "gc db.t --dry-run", "stats db.t")
    table_in(folder).delete("id < 60")
    deleted = said("plan db.t --json", "refresh db.t", "index show db.t", "metrics")
    record("cli_made.txt", folder, behind, made, deleted)


def test_what_is_kept_with_the_table(said: Said, folder: Path) -> None:
    np.save(folder / "many.npy", queries(50))
    tuned = said(
        "tune db.t --queries many.npy --target 0.5",
        "index show db.t e",
        "tune db.t --forget",
        "tune db.t e --forget --json",
    )
    created = said(
        "index create db.t --name other --column embedding --method centroid",
        "index create db.t --name json --column embedding --metric ip --filters section,name --json",
        "index create db.t --name e --column embedding",
        "index create db.t --name other --column embedding --metric ip",
        "index create db.t --name other --column embedding --method centroid --filters section --search-list 9",
        "index create db.t --name other --column embedding --method centroid --filters section --search-list 9 --yes",
        "index list db.t",
        "refresh db.t --index other",
        "index show db.t other",
        "plan db.t",
        "stats db.t",
        "index export db.t e",
    )
    with table_in(folder).update_schema() as change:
        change.rename_column("embedding", "vector")
    renamed = said("index show db.t other")
    with table_in(folder).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("vector")
    dropped = said(
        "index show db.t other",
        "index drop db.t json",
        "index drop db.t json --yes --json",
        "index drop db.t other --yes",
        "index drop db.t e --yes",
    )
    record("cli_kept.txt", folder, tuned, created, renamed, dropped)


def test_what_is_wrong(said: Said, folder: Path) -> None:
    settings = folder / "icepuffin.toml"
    refusals = said(
        "snapshots t",
        "snapshots db.none",
        "snapshots db.t --since yesterday",
        "snapshots db.t --catalog none",
        "snapshot db.t",
        "index show db.t none",
        "index show db.t e --index other",
        "index show db.t --snapshot 5",
        "index create db.t --name e --column none",
        "index create db.t --name new --column name",
        "plan db.t --snapshot none",
        "search db.t",
        "search db.t --like-id 7 --metric ip",
        "search db.t --like-id 7 --element-type f32",
        "search db.t --like-id 7 --vector-column name",
        "search db.t --like-id 7 --certified --exact",
        "search db.t --like-id 7000",
        "search db.t --vector 1",
        "search db.t --vector [1]",
        "search db.t --like-id 7 --columns none",
        "tune db.t",
        "tune db.t --forget --dry-run",
        "sql 'SELEC id'",
        f"sql '{NEAREST}'",
        f"sql '{NEAREST}' --param q",
        f"sql '{NEAREST}' --param q=[1",
        "metrics --listen 9464",
        "metrics --listen h:65536",
        "index drop db.t none --yes",
        "report db.t -o absent/page.html",
    )
    path = next((folder / "t").rglob("ann-e-snap-7981524989982481092-*.puffin"))
    path.write_bytes(path.read_bytes()[:-40])
    damaged = said(
        "index show db.t",
        "index verify db.t",
        "index verify db.t --json",
        "report db.t",
        "search db.t --like-id 7 -k 1",
        "refresh db.t --index e --verify",
        "index export db.t --snapshot 7981524989982481092",
    )
    text = SETTINGS.format(folder)
    settings.write_text(text.replace('"db.t"', '"db.t"\nwatched_refs = ["audit"]'), encoding="utf-8")
    lost = said("index list db.t", "index show db.t", "stats db.t", "plan db.t", "report db.t", "metrics")
    off = text.partition("[tables.t.indexes.e]")[0] + 'indexes_from_table = false\nstatistics.ndv = "off"'
    settings.write_text(off, encoding="utf-8")
    none = said("index list db.t", "index show db.t", "refresh db.t", "plan db.t", "stats db.t --json", "report db.t")
    settings.write_text(text.replace('"db.t"', '"db.none"'), encoding="utf-8")
    unknown = said("metrics")
    settings.write_text("threads = 1", encoding="utf-8")
    settings_gone = said("metrics", "stats db.t")
    settings.unlink()
    record("cli_wrong.txt", folder, refusals, damaged, lost, none, unknown, settings_gone, said("stats db.t"))
