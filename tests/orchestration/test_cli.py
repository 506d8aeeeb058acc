"""The command line: fast help, one-line errors, JSON that scripts read, everything inside a folder."""

import dataclasses
import io
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FloatType, ListType

from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.recall.recall_reports import RecallReporter, RecallReports
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs import maintenance, refresh_plan, snapshot
from icepuffin.ops.runs.snapshot import RefreshReport
from icepuffin.ops.table.snapshots import is_derived
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaOutcome
from icepuffin.orchestration.cli import _COMMANDS, group, main, metrics, ui
from icepuffin.orchestration.cli.metrics import server
from icepuffin.puffin.blobs import routing_blob
from tests.orchestration.lake import DIMS, Lake, make_lake, make_rows
from tests.patience import PATIENCE
from tests.services.processes import free_port

Run = Callable[..., str]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three snapshots, refreshed: each has its sketches and its index."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=3)
    for item in lake.table.metadata.snapshots:
        main(["refresh", "demo.packages", "--snapshot", str(item.snapshot_id), "--dir", str(lake.directory)])
    return lake


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command inside the folder, as a user there would. Returns stdout."""
    monkeypatch.chdir(lake.directory)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.delenv("ICEPUFFIN_SETTINGS", raising=False)

    def command(*arguments: str) -> str:
        main(list(arguments))
        return capsys.readouterr().out

    return command


@pytest.fixture
def refused(run: Run, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command that fails. Returns its one line on stderr."""

    def command(*arguments: str) -> str:
        with pytest.raises(SystemExit) as exited:
            run(*arguments)
        assert exited.value.code != 0
        return capsys.readouterr().err

    return command


def work_of_children() -> float:
    """Seconds that a processor was busy with processes that have ended: a wait for other programs is not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_fast_and_shows_examples() -> None:
    program = str(Path(sys.executable).with_name("icepuffin"))
    seconds = []
    for _ in range(3):
        before = work_of_children()
        output = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
        seconds.append(work_of_children() - before)
    assert min(seconds) < 0.5
    assert "icepuffin search demo.packages --index embedding --like-id 48182" in output.stdout


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in _COMMANDS:
        main([command, "--help"])
        assert "Example" in capsys.readouterr().out, command


def of_pattern(lake: Lake) -> str:
    """Settings in which `demo.pa*` stands for the table."""
    return lake.settings().replace('"demo.packages"', '"demo.pa*"')


@pytest.fixture
def pages(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Another folder, with the settings of a pattern that two tables match. Commands run in it: after `run` has changed
    to the folder of the others.
    """
    lake = make_lake(tmp_path / "lake", snapshots=0)
    lake.catalog.create_table("demo.pages", lake.table.schema())
    lake.settings_file.write_text(of_pattern(lake), encoding="utf-8")
    monkeypatch.chdir(lake.directory)
    return lake


def test_a_table_of_a_pattern_has_the_settings_of_the_pattern(run: Run, pages: Lake) -> None:
    def listed(table: str) -> list[str]:
        return [index["name"] for index in json.loads(run("index", "list", table, "--json"))]

    pages.append()
    without_sketches = of_pattern(pages).replace('"demo.pa*"', '"demo.pa*"\nstatistics.ndv = "off"')
    pages.settings_file.write_text(without_sketches, encoding="utf-8")
    assert listed("demo.packages") == listed("demo.pages") == ["embedding"]
    assert "theta_sketches" not in json.loads(run("refresh", "demo.packages", "--json"))
    own = '[tables.own]\ncatalog = "demo"\nname = "demo.packages"\nindexes.second.column = "embedding"\n'
    another = '[catalogs.another]\ntype = "sql"\n'
    pages.settings_file.write_text(f"{of_pattern(pages)}{own}{another}", encoding="utf-8")
    assert "second" in listed("demo.packages")
    assert listed("demo.pages") == ["embedding"]


def test_snapshots_are_listed_with_what_is_derived_from_each(run: Run, lake: Lake) -> None:
    snapshots = json.loads(run("snapshots", "demo.packages", "--json"))["snapshots"]
    data = [item for item in lake.table.refresh().metadata.snapshots if not is_derived(item)]
    assert [item["snapshot_id"] for item in snapshots] == [str(item.snapshot_id) for item in reversed(data)]
    assert all(item["theta_sketches"] and item["indexes"] == ["embedding"] for item in snapshots)
    assert (snapshots[0]["refs"], snapshots[0]["rows_added"], snapshots[0]["rows_removed"]) == (["main"], 60, 0)
    assert f" {data[-1].snapshot_id} " in run("snapshots", "demo.packages", "--limit", "1")


def test_a_table_that_was_never_written_has_no_snapshot_yet(run: Run, pages: Lake) -> None:
    assert "demo.pages has no snapshot yet" in run("snapshots", "demo.pages")


def test_a_list_of_snapshots_has_the_newest_of_so_many_and_those_since_a_time(run: Run) -> None:
    every = json.loads(run("snapshots", "demo.packages", "--json"))["snapshots"]
    assert len(every) >= 3
    assert json.loads(run("snapshots", "demo.packages", "--limit", "2", "--json"))["snapshots"] == every[:2]
    day = every[0]["committed"][:10]
    assert json.loads(run("snapshots", "demo.packages", "--since", day, "--json"))["snapshots"] == [
        one for one in every if one["committed"][:10] >= day
    ]
    moment = every[1]["committed"]
    assert json.loads(run("snapshots", "demo.packages", "--since", moment, "--json"))["snapshots"] == every[:2]


def test_the_time_since_which_snapshots_are_listed_is_utc_whatever_the_zone_of_the_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, *_ = json.loads(run("snapshots", "demo.packages", "--json"))["snapshots"]
    after = datetime.fromisoformat(newest["committed"]) + timedelta(seconds=1)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            since = run("snapshots", "demo.packages", "--since", f"{after:%Y-%m-%dT%H:%M:%S}")
        finally:
            patch.undo()
            time.tzset()
    assert "has no such snapshot" in since


def test_snapshots_are_found_by_time_and_operation(run: Run) -> None:
    assert "has no such snapshot" in run("snapshots", "demo.packages", "--operation", "delete")
    assert "has no such snapshot" in run("snapshots", "demo.packages", "--since", "2199-01-01")
    assert "append" in run("snapshots", "demo.packages", "--operation", "append", "--since", "2020-01-01 00:00")
    assert "append" in run("snapshots", "demo.packages", "--since", "2020-01-01T00:00+09:00")


@contextmanager
def a_dropped_table_in_the_settings(lake: Lake) -> Iterator[None]:
    """Beside the table that is there."""
    gone = '[tables.archive]\ncatalog = "demo"\nname = "demo.archive"\n[tables.packages]'
    lake.settings_file.write_text(lake.settings().replace("[tables.packages]", gone, 1), encoding="utf-8")
    try:
        yield
    finally:
        lake.write_settings()


AWAY = {"own": "demo.packages", "pattern": "demo.*"}


def test_metrics_say_how_an_index_is_doing(run: Run, tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "own", snapshots=1)  # other tests count the versions of the shared one
    folder = ("--dir", str(lake.directory))
    run("refresh", "demo.packages", *folder)
    samples = dict(line.rsplit(" ", 1) for line in run("metrics", *folder).splitlines() if not line.startswith("#"))
    table = 'catalog="demo",table="demo.packages"'
    index = f'{table},index="embedding"'
    assert samples[f"icepuffin_table_up{{{table}}}"] == "1"
    assert samples[f"icepuffin_index_versions_behind{{{index}}}"] == "0"
    assert float(samples[f"icepuffin_index_recall{{{index}}}"]) >= 0.95
    assert float(samples[f"icepuffin_index_run_seconds{{{index}}}"]) > 0
    version = json.loads(run("index", "show", "demo.packages", "--json", *folder))
    assert float(samples[f'icepuffin_index_bytes{{{index},in="file"}}']) == version["file_bytes"]
    assert float(samples[f"icepuffin_index_versions{{{index}}}"]) == len(version["versions"])
    lake.append()
    behind = f"icepuffin_index_versions_behind{{{index}}} 1"
    assert behind in run("metrics", *folder)


def test_no_index_passes_for_fresh_where_the_ref_that_it_follows_does_not_exist(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    lake.write_settings(watched_refs=("prod", "main"))
    folder = ("--dir", str(tmp_path))
    main(["metrics", *folder])
    printed = capsys.readouterr()
    labels = 'catalog="demo",table="demo.packages",index="embedding"'
    for unit in ("versions", "seconds"):
        assert f"icepuffin_index_{unit}_behind{{{labels}}} +Inf\n" in printed.out
    missing = "the table has no branch or tag 'prod', the first of watched_refs"
    assert f"warning: demo.packages: {missing}" in printed.err
    assert f"warning: {missing}" in run("stats", "demo.packages", *folder)
    assert json.loads(run("stats", "demo.packages", "--json", *folder))["indexes"]["embedding"]["lag"] is None
    lake.table.manage_snapshots().create_branch(lake.head(), "prod").commit()
    main(["metrics", *folder])
    printed = capsys.readouterr()
    assert f"icepuffin_index_versions_behind{{{labels}}} 1\n" in printed.out
    assert "warning" not in printed.err + run("stats", "demo.packages", *folder)


def test_metrics_of_a_pattern_are_of_each_table_once_and_of_the_indexes_that_it_has_columns_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    lake.catalog.create_table("demo.plain", Schema(lake.table.schema().find_field("id")))
    index = '[tables.all.indexes.embedding]\ncolumn = "embedding"\n'
    pattern = f'[tables.all]\ncatalog = "demo"\nname = "demo.*"\nwatched_refs = ["prod"]\n{index}'
    settings = lake.settings().replace("[tables.packages]", f"{pattern}[tables.packages]", 1)
    lake.settings_file.write_text(settings, encoding="utf-8")
    main(["metrics", "--dir", str(tmp_path)])
    printed = capsys.readouterr()
    assert "prod" not in printed.err, "the table has settings of its own, and the other one no index"
    samples = [line for line in printed.out.splitlines() if not line.startswith("#")]
    names = [sample.rsplit(" ", 1)[0] for sample in samples]
    assert len(names) == len(set(names))
    assert [name for name in names if "demo.plain" in name] == ['icepuffin_table_up{catalog="demo",table="demo.plain"}']


def test_metrics_of_a_table_that_cannot_be_read_are_that_it_is_down(
    run: Run, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_dropped_table_in_the_settings(lake):
        main(["metrics"])
    printed = capsys.readouterr()
    assert 'icepuffin_table_up{catalog="demo",table="demo.archive"} 0' in printed.out
    assert 'icepuffin_table_up{catalog="demo",table="demo.packages"} 1' in printed.out
    assert "no table demo.archive" in printed.err


def test_metrics_of_a_catalog_that_is_away_are_that_its_tables_are_down(
    run: Run, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other catalog has a table of the same name."""
    away = '[catalogs.away]\ntype = "sql"\nuri = "sqlite:////no/such/folder/lake.db"\n'
    tables = "".join(f'[tables.{key}]\ncatalog = "away"\nname = "{name}"\n' for key, name in AWAY.items())
    lake.settings_file.write_text(lake.settings() + away + tables, encoding="utf-8")
    try:
        main(["metrics"])
    finally:
        lake.write_settings()
    printed = capsys.readouterr()
    assert 'icepuffin_table_up{catalog="demo",table="demo.packages"} 1' in printed.out
    for name in AWAY.values():
        assert f'icepuffin_table_up{{catalog="away",table="{name}"}} 0' in printed.out
    assert printed.err.count("error: ") == 2


def test_metrics_are_served_at_a_host_and_a_port() -> None:
    address = metrics._Address()
    assert address.convert("127.0.0.1:65535", None, None) == ("127.0.0.1", 65_535)
    for text in (":9464", "127.0.0.1:65536", "127.0.0.1:", "127.0.0.1:-1", "9464"):
        with pytest.raises(click.BadParameter, match=f"'{text}' is no address"):
            address.convert(text, None, None)


def test_metrics_of_the_settings_are_served_where_the_command_is_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: Queue[Any] = Queue()

    @contextmanager
    def noted(*arguments: Any) -> Iterator[Any]:
        with server(*arguments) as scraped:
            started.put(scraped)
            yield scraped

    monkeypatch.setattr(metrics, "server", noted)
    arguments = ["metrics", "--listen", "127.0.0.1:0", "--dir", str(lake.directory)]
    serving = Thread(target=main, args=(arguments,), daemon=True)
    serving.start()
    scraped = started.get(timeout=PATIENCE)
    text = urlopen(f"http://127.0.0.1:{scraped.server_port}/metrics", timeout=PATIENCE).read().decode()
    assert 'icepuffin_table_up{catalog="demo",table="demo.packages"} 1' in text
    scraped.shutdown()
    serving.join(PATIENCE)
    assert not serving.is_alive()


def test_metrics_of_settings_without_a_table_say_how_to_name_one(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "icepuffin.toml").write_text('[catalogs.c]\ntype = "rest"\n', encoding="utf-8")
    assert "icepuffin.toml names no table; `icepuffin init` writes one" in refused("metrics", "--dir", str(tmp_path))


def test_metrics_are_served_anew_for_each_scrape() -> None:
    numbers = iter(range(9))
    with server(("127.0.0.1", 0), lambda: f"n {next(numbers)}\n") as scraped, ThreadPoolExecutor(1) as thread:
        serving = thread.submit(scraped.serve_forever)
        try:
            address = f"http://127.0.0.1:{scraped.server_port}"
            assert [urlopen(f"{address}/{page}").read() for page in ("metrics", "health", "metrics")] == [
                b"n 0\n", b"ok\n", b"n 1\n",
            ]  # fmt: skip
            assert urlopen(f"{address}/health").headers["Content-Type"].startswith("text/plain; version=0.0.4")
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"{address}/other")
        finally:
            scraped.shutdown()
        serving.result()


def test_health_waits_for_no_scrape_and_for_no_silent_client() -> None:
    at_work, finish = Event(), Event()

    def slowly() -> str:
        at_work.set()
        assert finish.wait(PATIENCE)
        return "n 1\n"

    with server(("127.0.0.1", 0), slowly) as scraped, ThreadPoolExecutor(2) as threads:
        serving = threads.submit(scraped.serve_forever)
        address = f"http://127.0.0.1:{scraped.server_port}"
        try:
            with socket.create_connection(("127.0.0.1", scraped.server_port)):
                scrape = threads.submit(lambda: urlopen(f"{address}/metrics").read())
                assert at_work.wait(PATIENCE)
                assert urlopen(f"{address}/health", timeout=PATIENCE).read() == b"ok\n"
                finish.set()
                assert scrape.result() == b"n 1\n"
        finally:
            finish.set()
            scraped.shutdown()
        serving.result()


def test_a_client_that_sends_nothing_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps a thread."""
    monkeypatch.setattr(metrics, "_REQUEST_SECONDS", 0.05)
    with server(("127.0.0.1", 0), str) as scraped, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(scraped.serve_forever)
        try:
            with socket.create_connection(("127.0.0.1", scraped.server_port), timeout=PATIENCE) as silent:
                assert silent.recv(1) == b""
        finally:
            scraped.shutdown()
        serving.result()


def test_stats_give_the_exact_distinct_values_of_a_small_table(run: Run, lake: Lake) -> None:
    document = json.loads(run("stats", "demo.packages", "--json"))
    assert document["columns"]["id"]["ndv"] == document["records"]
    assert document["columns"]["name"]["ndv"] == 7
    assert document["fresh"] is True
    assert document["indexes"]["embedding"]["covers_snapshot"] is True
    assert "distinct values" in run("stats", "demo.packages", "--snapshot", str(lake.head()))


def test_stats_show_the_recall_that_readers_report(
    run: Run, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(run("stats", "demo.packages", "--json"))["indexes"]["embedding"]["live_recall"] is None
    folder, table = str(tmp_path / "recall"), lake.table.refresh()
    version = index_versions(table, "embedding")[-1].index_snapshot_id
    reporter = RecallReporter(RecallReports(folder, StorageConfig(), table.metadata.table_uuid), "embedding")
    reporter.report(version, queries=200, recall_sum=190.0, left_out=0)
    monkeypatch.setenv("ICEPUFFIN__TABLES__PACKAGES__RECALL_REPORTS", folder)
    shown = " ".join(run("stats", "demo.packages").split())
    assert "recall of live queries, newest version: 0.9500 (0.9104 to 0.9726); 200 measured, by 1 reader" in shown
    document = json.loads(run("stats", "demo.packages", "--json"))["indexes"]["embedding"]["live_recall"]
    assert (document["queries"], document["recall"], document["index_snapshot_id"]) == (200, 0.95, str(version))
    (report,) = (path for path in (tmp_path / "recall").rglob("*.json") if path.is_file())
    report.write_text("{}")
    assert f"cannot be read: file://{report}" in " ".join(run("stats", "demo.packages").split())
    monkeypatch.setenv("ICEPUFFIN__TABLES__PACKAGES__RECALL_REPORTS", "ftp://host/recall")
    assert "'ftp' is not supported" in " ".join(run("stats", "demo.packages").split())
    assert "'ftp'" in json.loads(run("stats", "demo.packages", "--json"))["indexes"]["embedding"]["live_recall_why"]


def test_search_by_example_finds_the_row_itself_first(run: Run, lake: Lake) -> None:
    document = json.loads(
        run("search", "demo.packages", "--index", "embedding", "--like-id", "5", "-k", "10", "--json")
    )
    assert document["coverage"] == "exact-version"
    assert document["snapshot_id"] == document["base_snapshot_id"] == str(lake.head())
    assert [row["rank"] for row in document["results"]] == list(range(1, 11))
    assert document["results"][0]["id"] == 5
    assert abs(document["results"][0]["distance"]) < 1e-5
    distances = [row["distance"] for row in document["results"]]
    assert distances == sorted(distances)


def test_search_of_an_older_snapshot_sees_only_its_rows(run: Run, lake: Lake) -> None:
    oldest = lake.table.snapshots()[0].snapshot_id
    arguments = ("search", "demo.packages", "--like-id", "5", "-k", "100", "--snapshot", str(oldest), "--json")
    document = json.loads(run(*arguments))
    assert document["snapshot_id"] == document["base_snapshot_id"] == str(oldest)
    assert {row["id"] for row in document["results"]} <= set(range(60))


def test_indexed_search_agrees_with_exact_search(run: Run) -> None:
    arguments = ("search", "demo.packages", "--like-id", "7", "--json")
    found, exact = json.loads(run(*arguments)), json.loads(run(*arguments, "--exact"))
    assert exact["coverage"] == "exact-scan"
    assert len({row["id"] for row in found["results"]} & {row["id"] for row in exact["results"]}) >= 9


def test_a_condition_is_kept_exactly(run: Run) -> None:
    document = json.loads(run("search", "demo.packages", "--like-id", "7", "--where", "name = 'package 3'", "--json"))
    assert {row["name"] for row in document["results"]} == {"package 3"}
    assert (document["coverage"], document["strategy"]) == ("exact-version", "exact over matches")


def test_a_vector_can_be_given(run: Run, tmp_path: Path) -> None:
    vector = json.dumps([0.5] * 8)
    by_option = json.loads(run("search", "demo.packages", "--vector", vector, "--json"))
    (tmp_path / "query.json").write_text(vector)
    by_file = json.loads(run("search", "demo.packages", "--query-file", str(tmp_path / "query.json"), "--json"))
    assert by_option["results"] == by_file["results"]
    assert "exact-version" in run("search", "demo.packages", "--vector", vector)


def test_an_index_keeps_the_columns_for_conditions(run: Run) -> None:
    create = ("index", "create", "demo.packages", "--name", "kept", "--column", "embedding")
    definition = json.loads(run(*create, "--filters", "['name']", "--filters", "id", "--include", "name", "--json"))
    assert (definition["filters"], len(definition["filter_ids"])) == (["name", "id"], 2)
    assert (definition["include"], len(definition["include_ids"])) == (["name"], 1)
    run("index", "drop", "demo.packages", "kept", "--yes")


def test_a_drop_is_confirmed_by_who_knows_what_it_means(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drop = ("index", "drop", "demo.packages", "embedding")
    create = ("index", "create", "demo.packages", "--name", "other", "--column", "embedding", "--metric")
    for answer, other_index, expected in (
        ("", (), "Searches of column embedding by cosine will be exact scans"),
        ("n\n", (*create, "l2"), "Searches of column embedding by cosine will be exact scans"),
        ("n\n", (*create, "cosine"), "Searches of column embedding by cosine will be answered by index other"),
    ):
        if other_index:
            run(*other_index)
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        with pytest.raises(SystemExit):
            run(*drop)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert expected in printed.err
        assert "\nUsage: " in printed.err, "the error begins a line"
        assert "index embedding is not dropped: without a terminal, confirm with --yes" in printed.err
        if other_index:
            run("index", "drop", "demo.packages", "other", "--yes")
    assert "embedding" in run("index", "list", "demo.packages")


def test_an_index_is_changed_by_who_has_seen_what_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = ("index", "create", "demo.packages", "--name", "changed", "--column", "embedding", "--json")
    first = run(*create, "--include", "id,name", "--target-recall", "0.99")
    assert run(*create, "--include", "id,name", "--target-recall", "0.99") == first, "nothing changes"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SystemExit):
        run(*create, "--filters", "id")
    printed = capsys.readouterr()
    changes = "filters none becomes id, include id, name becomes none, target_recall 0.99 becomes 0.9"
    assert f"Change index changed of demo.packages? {changes} [y/N]" in printed.err
    assert "nothing is changed: without a terminal, confirm with --yes" in printed.err
    assert run(*create, "--include", "id,name", "--target-recall", "0.99") == first
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    changed = json.loads(run(*create, "--filters", "id"))
    assert (changed["target_recall"], changed["filters"], changed["include"]) == (0.9, ["id"], [])
    run("index", "drop", "demo.packages", "changed", "--yes")


def test_indexes_are_created_listed_shown_built_and_dropped(run: Run, lake: Lake) -> None:
    create = ("index", "create", "demo.packages", "--name", "second", "--column", "embedding", "--metric", "l2")
    made = json.loads(run(*create, "--max-deltas", "2", "--delta-share", "0.5", "--rebuild-ratio", "0.3", "--json"))
    assert (made["metric"], made["max_deltas"], made["delta_share"], made["rebuild_ratio"]) == ("l2", 2, 0.5, 0.3)
    assert made["field_id"] is not None
    assert {item["name"] for item in json.loads(run("index", "list", "demo.packages", "--json"))} == {
        "embedding",
        "second",
    }
    (line,) = [line for line in run("index", "list", "demo.packages").splitlines() if "second" in line]
    assert re.search(r"  0 \(\d+ behind\) +- *$", line), "no version, of no snapshot"
    output = run("refresh", "demo.packages", "--index", "second")
    assert "    action  built: there is no version to start from\n" in output
    assert re.search(r"^      time  .*; [\d.]+ s expected \(default rates, .*\)$", output, re.MULTILINE)
    shown = json.loads(run("index", "show", "demo.packages", "second", "--json"))
    assert [version["base_snapshot_id"] for version in shown["versions"]] == [str(lake.head())]
    assert shown["versions"][0]["tags"] == ["ann_second"]
    assert f"of the version of snapshot {lake.head()}" in run("index", "show", "demo.packages", "second")
    older = str(lake.table.metadata.snapshots[0].snapshot_id)
    run("refresh", "demo.packages", "--index", "second", "--snapshot", older)
    assert f"of the version of snapshot {lake.head()}" in run("index", "show", "demo.packages", "second")
    assert f"of the version of snapshot {older}" in run("index", "show", "demo.packages", "second", "--snapshot", older)
    listed = {item["name"]: item for item in json.loads(run("index", "list", "demo.packages", "--json"))}
    assert (listed["second"]["versions"], listed["second"]["snapshot_id"]) == (2, str(lake.head()))
    exported = json.loads(run("index", "export", "demo.packages", "second", "--snapshot", older, "--json"))
    assert exported["metadata"]["snapshots"][0]["source-table-snapshot-id"] == int(older)
    assert ".puffin.index.json" in run("index", "export", "demo.packages", "second")
    run("index", "drop", "demo.packages", "second", "--yes")
    assert [item["name"] for item in json.loads(run("index", "list", "demo.packages", "--json"))] == ["embedding"]


def test_wrong_properties_of_an_index_are_named_by_every_command_and_can_be_dropped(
    run: Run, refused: Run, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    with lake.table.refresh().transaction() as transaction:
        transaction.set_properties({"ann.index.second.colum": "embedding"})
    wrong = "demo.packages: table property 'ann.index.second.colum' is no parameter of an index"
    like = ("--like-id", "5")
    assert wrong in refused("refresh", "demo.packages")
    for command, *options in (["refresh"], ["plan"], ["search", *like], ["index", "verify"], ["index", "show"]):
        caplog.clear()
        arguments = [command, "demo.packages", *options] if command != "index" else [command, *options, "demo.packages"]
        assert wrong in refused(*arguments, "--index", "second")
        assert wrong not in caplog.text, "it is said once"
    assert "has several indexes, name one: embedding, second" in refused("search", "demo.packages", *like)
    caplog.clear()
    assert run("stats", "demo.packages"), "it is about the other index"
    assert wrong in caplog.text
    run("index", "drop", "demo.packages", "second", "--yes")
    assert "has a version" in run("stats", "demo.packages")


def test_a_refresh_without_vectors_reports_that(run: Run, lake: Lake) -> None:
    first = lake.table.refresh().metadata.snapshots[0].snapshot_id
    with lake.table.update_schema() as change:
        change.add_column("late", ListType(0, FloatType(), element_required=False))
    run("index", "create", "demo.packages", "--name", "late", "--column", "late")
    lines = run("refresh", "demo.packages", "--snapshot", str(first), "--index", "late").split("\n")
    assert lines[1].strip() == "action  nothing to publish: the snapshot has no column 'late' yet"
    assert lines[2:] == [""]
    run("index", "drop", "demo.packages", "late", "--yes")


def test_the_column_of_an_index_is_shown_with_the_name_that_it_has_now(run: Run, lake: Lake) -> None:
    def shown() -> str:
        return " ".join(run("index", "show", "demo.packages", "moved").split())

    with lake.table.update_schema() as change:
        change.add_column("first", ListType(0, FloatType(), element_required=False))
    run("index", "create", "demo.packages", "--name", "moved", "--column", "first", "--filters", "id,name")
    assert "column first field_id" in shown()
    assert "filters id, name filter_ids" in shown()
    assert "None" not in shown()
    with lake.table.update_schema() as change:
        change.rename_column("first", "second")
    assert "column first (now second) field_id" in shown()
    with lake.table.update_schema() as change:
        change.delete_column("second")
    assert "column first (dropped since) field_id" in shown()
    run("index", "drop", "demo.packages", "moved", "--yes")


def test_an_index_without_graphs_is_made_shown_searched_and_verified(run: Run, lake: Lake) -> None:
    run("index", "create", "demo.packages", "--name", "balls", "--column", "embedding", "--method", "centroid")
    try:
        rows = lake.table.refresh().scan().count()
        assert f"{rows} to read" in run("plan", "demo.packages", "--index", "balls")
        report = json.loads(run("refresh", "demo.packages", "--index", "balls", "--json"))["indexes"]["balls"]
        assert (report["action"], report["shards"], report["recall"]) == ("built", 0, None)
        shown = " ".join(run("index", "show", "demo.packages", "balls").split())
        assert re.search(r"no graphs: \d+ balls around the vectors of \d+ files", shown)
        answer = run("search", "demo.packages", "--index", "balls", "--like-id", "3", "--explain")
        assert "pruned scan" in answer
        assert f"0 shards, {report['rows']:,} rows compared" in run("index", "verify", "demo.packages", "balls")
        again = run("refresh", "demo.packages", "--index", "balls")
        assert "action  reused" in again
        assert "recall" not in again
        (line,) = [line for line in run("index", "list", "demo.packages").splitlines() if "balls" in line]
        assert "centroid" in line
        assert "f32" not in line
    finally:
        run("index", "drop", "demo.packages", "balls", "--yes")


def test_dropping_an_index_of_the_settings_warns_that_it_will_come_back(run: Run) -> None:
    assert "defines it too: take it out" in run("index", "drop", "demo.packages", "embedding", "--yes")
    assert json.loads(run("refresh", "demo.packages", "--json"))["indexes"]["embedding"]["action"] in (
        "reused",
        "retagged",
    )


def test_an_index_file_is_verified_and_a_damaged_one_made_anew(
    run: Run, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(run("index", "verify", "demo.packages", "--json"))
    assert (whole["faults"], whole["shards"]) == (
        [],
        json.loads(run("refresh", "demo.packages", "--json"))["indexes"]["embedding"]["shards"],
    )
    file = Path(whole["path"].removeprefix("file://"))
    published = file.read_bytes()
    file.write_bytes(published[:5000] + bytes(64) + published[5064:])
    try:
        with pytest.raises(SystemExit):
            run("index", "verify", "demo.packages", "embedding")
        output = capsys.readouterr()
        assert re.search(r"puffin: shard \d+ at \d+: ", output.out)
        remedy = f"icepuffin refresh demo.packages --index embedding --snapshot {lake.head()} --verify"
        assert output.err.rstrip().endswith(f"is damaged; make it anew with: {remedy}")
        assert json.loads(run(*remedy.split()[1:], "--json"))["indexes"]["embedding"]["action"] == "refreshed"
    finally:
        file.write_bytes(published)
    assert "whole, " in run("index", "verify", "demo.packages")


def test_a_version_of_a_later_release_is_not_called_damaged(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_blob, "VERSION", 0)
    with pytest.raises(SystemExit):
        run("index", "verify", "demo.packages", "embedding")
    error = capsys.readouterr().err
    assert "error: the version of index embedding is of a later release; " in error


def test_a_refresh_of_what_exists_writes_nothing(run: Run) -> None:
    report = json.loads(run("refresh", "demo.packages", "--json"))
    assert [*report] == ["table", "snapshot_id", "theta_sketches", "indexes"]
    assert report["indexes"]["embedding"]["action"] == "reused"
    assert report["theta_sketches"]["outcome"] == "current"


def test_a_plan_says_what_a_refresh_will_do_and_does_nothing(run: Run, lake: Lake) -> None:
    assert "behind" not in run("stats", "demo.packages")
    lake.append(30)
    before = lake.table.refresh().metadata_location
    output = run("stats", "demo.packages")
    assert re.search(r"no version for this snapshot; 1 snapshot behind, the oldest of [\d.]+ (s|min) ago", output)
    assert output.count("not fresh: counted for snapshot") == 1
    assert json.loads(run("stats", "demo.packages", "--json"))["indexes"]["embedding"]["lag"]["snapshots"] == 1
    plan = json.loads(run("plan", "demo.packages", "--json"))
    (output,), sketches = plan["indexes"].values(), plan["theta_sketches"]
    files = sketches["files_sketched"]
    assert files >= 1, "with those of earlier tests, which are few"
    assert sketches["values"] % (30 * sketches["columns"]) == 0
    assert f"{files} to sketch" in run("plan", "demo.packages")
    assert (output["action"], output["inserted"]) == ("refreshed", 30)
    assert {shard["how"] for shard in output["shards"]} == {"copied", "built"}, "a delta"
    assert "30 to insert" in run("plan", "demo.packages", "embedding")
    assert lake.table.refresh().metadata_location == before
    done = json.loads(run("refresh", "demo.packages", "--json"))
    assert done["theta_sketches"]["estimate"]["files_sketched"] == done["theta_sketches"]["files_sketched"] == files
    report = done["indexes"]["embedding"]
    assert report["estimate"]["inserted"] == report["inserted"] == 30
    assert run("plan", "demo.packages").count("nothing to do: ") == 2
    assert json.loads(run("plan", "demo.packages", "--json"))["indexes"]["embedding"]["action"] == "reused"


def test_a_plan_meets_the_errors_of_an_index_that_the_table_does_not_have_yet(refused: Run, tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    with lake.table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("embedding")  # the snapshot still has it, and the table no more
    for command in ("plan", "refresh"):
        assert "no column 'embedding'" in refused(command, "demo.packages", "--dir", str(tmp_path))


def test_garbage_collection_goes_by_the_settings_and_the_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, object]] = []

    def collect(*_: object, **arguments: object) -> GcReport:
        asked.append({name: value for name, value in arguments.items() if name != "storage"})
        return GcReport("demo.packages", dry_run=True, deleted=(), bytes_freed=0, kept_young=0)

    monkeypatch.setattr(maintenance, "collect_table_garbage", collect)
    for name, value in (
        ("RETENTION__GARBAGE_GRACE_HOURS", "7.5"),
        ("TABLES__PACKAGES__KEEP__LAST", "2"),
        ("TABLES__PACKAGES__RECALL_REPORTS", f"{tmp_path}/reports"),
    ):
        monkeypatch.setenv(f"ICEPUFFIN__{name}", value)
    by_settings = {"retentions": {}, "default": RetentionPolicy(last=2), "recall_reports": f"{tmp_path}/reports"}
    for options, dry_run in (((), False), (("--dry-run",), True)):
        run("gc", "demo.packages", *options)
        assert asked.pop() == {**by_settings, "grace_hours": 7.5, "dry_run": dry_run}


def test_a_refresh_and_its_plan_go_by_the_settings_and_the_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def refresh(*, run: RunContext, snapshot_id: SnapshotId, definitions: Any, **options: Any) -> RefreshReport:
        names = [definition.name for definition in definitions]
        asked.append((names, *(options[name] for name in ("sketches", "requested", "verify", "again")), run.ref))
        return RefreshReport("demo.packages", snapshot_id, None, {})

    monkeypatch.setattr(snapshot, "refresh_snapshot", refresh)
    monkeypatch.setenv("ICEPUFFIN__TABLES__PACKAGES__STATISTICS__NDV", '["id"]')
    run("refresh", "demo.packages", "--verify", "--json")
    run("refresh", "demo.packages", "--index", "embedding", "--json")
    names, *others = asked[0]
    assert "embedding" in names  # type: ignore[operator]
    only = RequestedStatistics(("id",), (), (), (), ())
    assert others == [True, only, True, False, "main"]
    assert asked[1] == (["embedding"], False, only, False, True, "main")
    estimated: list[object] = []

    def estimate(*_: object, requested: object, **__: object) -> ThetaEstimate:
        estimated.append(requested)
        return ThetaEstimate(ThetaOutcome.OFF)

    monkeypatch.setattr(refresh_plan, "estimate_theta_sketches", estimate)
    assert "theta_sketches" in json.loads(run("plan", "demo.packages", "--json"))
    assert "theta_sketches" not in json.loads(run("plan", "demo.packages", "embedding", "--json"))
    assert estimated == [only]


def test_a_refresh_and_its_plan_are_of_the_ref_that_the_settings_follow_or_of_the_snapshot_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    lake.table.manage_snapshots().create_branch(lake.head(), "prod").commit()
    lake.table.refresh().append(make_rows(1_000, 60), branch="prod")
    lake.append()
    lake.write_settings(watched_refs=["prod", "main"])
    heads = {ref: str(snapshot.snapshot_id) for ref, snapshot in lake.table.refresh().metadata.refs.items()}
    for command in ("plan", "refresh"):
        for named, ref in (((), "prod"), (("--snapshot", "main"), "main"), (("--snapshot", "prod"), "prod")):
            main([command, "demo.packages", "--dir", str(tmp_path), "--json", *named])
            assert json.loads(capsys.readouterr().out)["snapshot_id"] == heads[ref]
    version = tagged_version(lake.table.refresh(), "embedding")
    assert version is not None
    assert str(version.base_snapshot_id) == heads["prod"], "a refresh of another snapshot leaves the tag"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (click.Abort(), 130, "stopped"),
        (click.UsageError("two indexes are named"), 2, "two indexes are named"),
        (click.ClickException("no such index"), 1, "error: no such index"),
        (IcepuffinError("it is gone;\n try again"), 1, "error: it is gone; try again"),
        (FileNotFoundError(2, "No such file or directory", "logged.npy"), 1, "error: logged.npy: No such file"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
        (ValueError("k is 0"), 1, "error: k is 0"),
        (RuntimeError(), 1, "error: RuntimeError: no message (--debug shows where)"),
        (KeyError("rows"), 1, "error: KeyError: 'rows' (--debug shows where)"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Exception) else None,
)
def test_a_command_that_fails_ends_with_a_line_and_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, words: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(group, "main", fail)
    with pytest.raises(SystemExit) as exited:
        main(["stats", "demo.packages"])
    assert exited.value.code == code
    assert words in capsys.readouterr().err
    if isinstance(error, KeyError):
        with pytest.raises(KeyError):
            main(["stats", "demo.packages", "--debug"])


def test_garbage_collection_leaves_published_versions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__RETENTION__GARBAGE_GRACE_HOURS", "0")
    document = json.loads(run("gc", "demo.packages", "--json"))
    assert document["dry_run"] is False
    assert {(item["name"], item["why"]) for item in document["retired"]} <= {
        ("second", "its index was dropped"),
        ("balls", "its index was dropped"),
        ("embedding", "a newer version of the same snapshot exists"),
    }
    assert json.loads(run("search", "demo.packages", "--like-id", "5", "--json"))["coverage"] == "exact-version"


def test_garbage_collection_says_which_versions_would_go_and_why(run: Run, lake: Lake) -> None:
    versions = len(json.loads(run("index", "show", "demo.packages", "--json"))["versions"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICEPUFFIN__TABLES__PACKAGES__KEEP__LAST", "2")
        patch.setenv("ICEPUFFIN__RETENTION__GARBAGE_GRACE_HOURS", "0")
        arguments = ("gc", "demo.packages", "--dry-run")
        document = json.loads(run(*arguments, "--json"))
        assert all(isinstance(item["base_snapshot_id"], str) for item in document["retired"])
        assert all(isinstance(item["index_snapshot_id"], str) for item in document["retired"])
        why = [item["why"] for item in document["retired"] if item["name"] == "embedding"]
        assert why == ["there are 2 newer ones"] * (versions - 2)
        assert len(document["deleted"]) >= 2 * (versions - 2), "the index file and the manifest list of each"
        assert "would expire embedding's version of snapshot" in run(*arguments)
        patch.delenv("ICEPUFFIN__RETENTION__GARBAGE_GRACE_HOURS")
        document = run("gc", "demo.packages", "--dry-run")
        assert "demo.packages: would expire versions: 0, would delete files: 0, 0 bytes\n" in document
        (later,) = re.findall(r"to go after the grace period: versions: (\d+), files: 0\n", document)
        assert int(later) >= versions - 2
    assert len(json.loads(run("index", "show", "demo.packages", "--json"))["versions"]) == versions


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("search", "demo.absent", "--like-id", "1", "--index", "x"), "there is no table demo.absent"),
        (
            ("search", "demo.packages", "--like-id", "1", "--index", "absent"),
            "has no index 'absent'; it has: embedding",
        ),
        (("stats", "packages"), "name one as namespace.table"),
        (("search", "demo.packages", "--like-id", "1", "-k", "10001"), "10001 is not in the range 1<=x<=10000"),
        (("search", "demo.packages", "--like-id", "-1"), "no row has id = -1"),
        (
            ("search", "demo.packages", "--like-id", "package 3", "--id-column", "name"),
            "rows have name = package 3; name a column that tells rows apart with --id-column",
        ),
        (("search", "demo.packages", "--like-id", "one"), "id = one cannot be looked up, id is long"),
        (("search", "demo.packages", "--like-id", "1", "--snapshot", "99"), "99"),
        (("search", "demo.packages"), "give one of --like-id, --vector and --query-file"),
        (
            ("search", "demo.packages", "--vector", "[1, 2"),
            "the query is no vector: --vector is not JSON (Expecting ',' delimiter at character 6); give a JSON list",
        ),
        (("search", "demo.packages", "--vector", '"word"'), "--vector is a text, not a list; give a JSON list"),
        (("search", "demo.packages", "--vector", "{}"), "--vector is an object, not a list"),
        (("search", "demo.packages", "--vector", "[]"), "--vector is an empty list"),
        (("search", "demo.packages", "--vector", "[1, null]"), "--vector has null at position 2, not a number"),
        (("search", "demo.packages", "--vector", "[[1, 2], [3]]"), "--vector has lists of 2 and of 1 numbers"),
        (("search", "demo.packages", "--query-file", __file__), "test_cli.py is not JSON"),
        (("search", "demo.packages", "--like-id", "1", "--shards", "0"), "'--shards': 0 is not in the range x>=1"),
        (("search", "demo.packages", "--like-id", "1", "--metric", "l2"), "--metric goes with --exact --vector-column"),
        (("sql", "SELECT 1", "--param", "q"), "--param q: write NAME=JSON"),
        (("sql", "SELECT 1", "--param", "q=[1, 2"), "--param q: the value is not JSON"),
        (("sql", "SELECT 1", "--param", 'q={"a": 1'), "--param q: the value is not JSON"),
        (("search", "demo.packages", "--vector", "[1, 2]"), "dim"),
        (("search", "demo.packages", "--like-id", "1", "--columns", "absent"), "has no column 'absent'"),
        (("index", "create", "demo.packages", "--name", "a/b", "--column", "embedding"), "cannot name an index"),
        (("index", "create", "demo.packages", "--name", "c", "--column", "absent"), "absent"),
        (("index", "create", "demo.packages", "--name", "c", "--column", "v", "--max-degree", "3"), "4<=x<=512"),
        (("index", "create", "demo.packages", "--name", "embedding", "--column", "embedding"), "and would win; change"),
        (("index", "show", "demo.packages", "absent"), "has no index 'absent'"),
        (("report", "demo.packages", "-o", "/no/such/x.html"), "there is no folder /no/such"),
        (("plan", "demo.packages", "absent"), "has no index 'absent'"),
        (("search", "demo.packages", "--like-id", "1", "--where", "absent = 1"), "it has no column 'absent'"),
        (("stats", "demo.packages", "--snapshot", "absent"), "its branches and tags are "),
        (("sql", "SELEC 1"), "no statement begins with 'SELEC'. Statements are SELECT"),
        (("sql", "SELEC 1"), "--spark"),
        (("stats", "demo.packages", "--settings", "/dev"), "/dev cannot be read: Is a directory"),
        (("stats", "demo.packages", "--catalog", "absent"), "no catalog 'absent'"),
        (("stats", "demo.packages", "--dir", "/no/such/folder"), "does not exist: make it with `icepuffin init`"),
        (("absent",), "No such command"),
        (("statz",), "No such command 'statz'. Did you mean 'stats'?"),
        (("snapshots", "demo.packages", "--since", "yesterday"), "is no time; write one such as 2026-11-20 or"),
        (("snapshots", "demo.packages", "--operation", "upsert"), "is not one of 'append', 'overwrite'"),
        (("search", "demo.packages", "--vector", "[1]", "--exact", "--vector-column", "name"), "a column of vectors"),
        (("search", "demo.packages", "--like-i", "3"), "Did you mean '--like-id'?"),
    ],
)
def test_an_error_says_what_and_exits_with_a_code(
    refused: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    message = refused(*arguments)
    assert expected in message
    assert "Traceback" not in message


def test_help_and_wrong_usage_load_neither_arrays_nor_catalogs() -> None:
    commands = (
        (),
        ("--help",),
        ("absent",),
        ("search", "demo.packages"),
        ("search", "packages", "--like-id", "1"),
        ("search", "demo.packages", "--vector", "word"),
        ("search", "demo.packages", "--like-id", "1", "--metric", "l2"),
        ("sql", "SELECT 1", "--param", "q"),
        ("tune", "demo.packages"),
        ("sql", "SELEC 1"),
        ("sql", "EXPLAIN SELECT FROM"),
        ("sql", "CREATE INDEX i ON demo.packages (v)"),
        ("refresh", "demo.packages", "--absent"),
        ("ui", "--port", "0"),
    )
    heavy = {"numpy", "pandas", "pyarrow", "pyiceberg", "sqlalchemy", "numba", "dagster", "pyspark"}
    assert imports_of(commands, heavy) == {" ".join(command): [] for command in commands}


def test_sql_searches_the_index(run: Run) -> None:
    vector = json.dumps([0.5] * DIMS)
    text = "SELECT name, cosine_distance(embedding, :q) AS d FROM demo.packages WHERE id < 20 ORDER BY d LIMIT 3"
    document = json.loads(run("sql", text, "--param", f"q={vector}", "--json"))
    assert len(document["rows"]) == 3
    assert document["rows"] == sorted(document["rows"], key=lambda row: row["d"])
    assert "exact-version" in document["how"]
    assert "index embedding" in run("sql", f"EXPLAIN {text}", "--param", f"q={vector}")


def test_a_refresh_in_sql_runs_where_the_command_runs_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spark from so many rows on, as the settings say."""
    counts: list[int] = []

    def runner(_: Engine, rows: int) -> LocalRunner:
        counts.append(rows)
        return LocalRunner()

    monkeypatch.setattr(Engine, "runner", runner)
    run("sql", "REFRESH INDEX embedding ON demo.packages")
    run("refresh", "demo.packages", "--index", "embedding")
    assert counts[0] == counts[1] > 0


def test_the_ui_command_names_the_instance(run: Run, lake: Lake) -> None:
    output = run("ui")
    assert f"DAGSTER_HOME={lake.directory}/dagster_home" in output
    assert f"ICEPUFFIN_SETTINGS={lake.settings_file}" in output
    assert f"request_guard -w {lake.directory}/dagster_home/workspace.yaml -h 127.0.0.1 " in output


def test_the_ui_starts_where_its_extra_is_installed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ui, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        main(["ui", "--start", "--settings", str(lake.settings_file)])
    assert "pip install 'icepuffin[ui]'" in capsys.readouterr().err


def test_the_ui_command_can_be_pasted_into_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my lake's"
    folder.mkdir()
    settings = folder / "icepuffin.toml"
    settings.write_text('dagster_home = "home"\n[catalogs.c]\ntype = "rest"\n', encoding="utf-8")
    main(["ui", "--dir", str(folder), "--port", "3005"])
    command, short = capsys.readouterr().out.splitlines()[1:3]
    variables = [f"DAGSTER_HOME={folder}/home", f"ICEPUFFIN_SETTINGS={settings}"]
    program = [sys.executable, "-P", "-m", "icepuffin.orchestration.request_guard"]
    assert shlex.split(command)[:8] == [*variables, *program, "-w", str(folder / "home" / "workspace.yaml")]
    assert shlex.split(short)[1:] == ["icepuffin", "ui", "--start", "--port", "3005", "--settings", str(settings)]


def test_the_ui_starts_on_a_free_port_alone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dagster would go on without a webserver, and with a second daemon where the first one is of the same instance."""
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it was started"))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process's own stay as they are
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SystemExit):
            main(["ui", "--start", "--port", str(port), "--settings", str(lake.settings_file)])
    assert f"port {port} of 127.0.0.1 is taken" in capsys.readouterr().err


def test_an_unreachable_catalog_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "icepuffin.toml").write_text(
        '[catalogs.away]\ntype = "sql"\nuri = "sqlite:////no/such/lake.db"\nwarehouse = "file:///x"\n', encoding="utf-8"
    )
    program = str(Path(sys.executable).with_name("icepuffin"))
    run = subprocess.run(
        [program, "stats", "a.b"], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "error: catalog 'away'" in run.stderr
    assert "Traceback" not in run.stderr


def test_starting_the_ui_ends_runs_whose_process_is_gone(run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    import dagster as dg  # noqa: PLC0415
    from dagster._core.test_utils import create_run_for_test  # noqa: PLC0415

    from icepuffin.orchestration.instance import open_instance  # noqa: PLC0415
    from icepuffin.orchestration.processes import PROCESS_TAG, this_process  # noqa: PLC0415

    here = this_process()
    assert here is not None
    home = lake.directory / "dagster_home"
    with open_instance(home) as instance:
        lost_run = create_run_for_test(instance, job_name="refresh", status=dg.DagsterRunStatus.STARTED)
        noted = {"run": lost_run.run_id, **dataclasses.asdict(here), "boot": "the boot before"}
        instance.add_run_tags(lost_run.run_id, {PROCESS_TAG: json.dumps(noted)})
    started: list[str] = []
    monkeypatch.setattr(os, "execve", lambda _, arguments, __: started.extend(arguments))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process's own stay as they are
    assert lost_run.run_id in run("ui", "--start", "--port", str(free_port()))
    assert started[started.index("-h") :][:2] == ["-h", "127.0.0.1"], "nobody from elsewhere reaches it"
    with open_instance(home) as instance:
        ended = instance.get_run_by_id(lost_run.run_id)
        assert ended is not None
        assert ended.status == dg.DagsterRunStatus.FAILURE


def test_an_index_is_named_after_the_table_or_by_the_option(run: Run, refused: Run) -> None:
    for command in (("plan",), ("index", "show"), ("index", "verify")):
        after, by_option = (
            run(*command, "demo.packages", *named, "--json") for named in (["embedding"], ["--index", "embedding"])
        )
        assert json.loads(after) == json.loads(by_option)
    search = ("search", "demo.packages", "embedding", "--exact", "--like-id")
    assert "two indexes are named: embedding and other" in refused(*search, "1", "--index", "other")


def test_one_of_several_indexes_is_to_be_named(run: Run, refused: Run) -> None:
    run("index", "create", "demo.packages", "--name", "another", "--column", "embedding")
    message = refused("index", "verify", "demo.packages")
    assert "demo.packages has several indexes, name one: " in message
    assert {"another", "embedding"} <= set(message.replace(",", " ").split())
    remedy = "icepuffin refresh demo.packages --index another --snapshot "
    assert f"has no version of snapshot 1; make one with: {remedy}1" in re.sub(
        r"\d{9,}", "1", refused("index", "export", "demo.packages", "another")
    )
    dropped = json.loads(run("index", "drop", "demo.packages", "another", "--yes", "--json"))
    assert dropped == {"dropped": "another", "in_settings": False}


def test_a_table_without_an_index_says_how_to_make_one(run: Run, refused: Run, pages: Lake) -> None:
    pages.append()
    bare, _, _ = pages.settings(statistics={"ndv": "off"}).partition("[tables.packages.indexes")
    pages.settings_file.write_text(bare, encoding="utf-8")
    made = "make one with: icepuffin index create demo.packages --name NAME --column COLUMN"
    assert f"demo.packages has no index; {made}" in refused("index", "verify", "demo.packages")
    assert "demo.packages: nothing to make, sketches are off and there is no index" in run("refresh", "demo.packages")
    assert "demo.packages has no index; make one with" in run("plan", "demo.packages")
    with pages.table.refresh().transaction() as transaction:
        transaction.set_properties({"ann.index.a.colum": "embedding"})
    assert "'ann.index.a.colum' is no parameter of an index" in refused("index", "verify", "demo.packages")


@pytest.mark.parametrize("command", ["refresh", "plan"])
def test_an_empty_name_stands_for_nothing_else(refused: Run, command: str) -> None:
    """As a shell gives it for a variable that is not set."""
    assert "demo.packages has no ref ''" in refused(command, "demo.packages", "--snapshot", "")
    assert "demo.packages has no index ''" in refused(command, "demo.packages", "--index", "")


HEAVY = {"numba", "pandas", "requests", "dagster", "pyspark"}


def imports_of(commands: Sequence[Sequence[str]], modules: set[str]) -> dict[str, list[str]]:
    """By command, which of the modules are imported after it, in one process that runs them in this order."""
    program = (
        "import json, sys\n"
        "from icepuffin.orchestration.cli import main\n"
        "imported = {}\n"
        f"for command in {[list(command) for command in commands]!r}:\n"
        "    try:\n"
        "        main(command)\n"
        "    except SystemExit:\n"
        "        pass\n"
        f"    imported[' '.join(command)] = sorted({modules!r} & set(sys.modules))\n"
        "print()\n"
        "print(json.dumps(imported))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def in_a_process(arguments: Sequence[str], modules: set[str]) -> tuple[str, str, str]:
    """(what a command in a process of its own prints, which of the modules it imports, its errors)."""
    program = (
        f"import sys; from icepuffin.orchestration.cli import main\nmain({[*arguments]!r})\n"
        f"print(sorted({modules!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    printed, _, imported = done.stdout.removesuffix("\n").rpartition("\n")
    return printed, imported, done.stderr


def test_what_reads_metadata_alone_loads_no_kernels(lake: Lake) -> None:
    """A plan, too, where no row is gone: numba takes a third of a second, pandas and an HTTP client another."""
    names = (("plan",), ("stats",), ("snapshots",), ("index", "list"), ("index", "show"), ("gc", "--dry-run"))
    commands = [(*name, "demo.packages", "--dir", str(lake.directory)) for name in names]
    commands += [("sql", "SHOW INDEXES ON demo.packages", "--dir", str(lake.directory))]
    commands += [("ui", "--dir", str(lake.directory))]
    assert imports_of(commands, HEAVY) == {" ".join(command): [] for command in commands}


def test_a_terminal_without_unicode_gets_values_with_escapes(tmp_path: Path) -> None:
    other = make_lake(tmp_path, snapshots=0)
    names = pa.array(["Zürich"])
    other.table.append(make_rows(0, 1).set_column(1, "name", names))
    command = ("search", "demo.packages", "--like-id", "0", "--exact", "--dir", str(tmp_path))
    answer = subprocess.run(
        [sys.executable, "-c", "from icepuffin.orchestration.cli import main; main()", *command],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, encoding="ascii", check=True,
    ).stdout  # fmt: skip
    assert "Z\\xfcrich" in answer


def test_a_refresh_that_has_nothing_to_do_loads_no_kernels(run: Run, lake: Lake) -> None:
    run("refresh", "demo.packages")
    arguments = ["refresh", "demo.packages", "--json", "--dir", str(lake.directory)]
    document, imported, errors = in_a_process(arguments, HEAVY)
    assert imported == "[]", errors
    assert json.loads(document)["indexes"]["embedding"]["action"] == "reused"
    assert json.loads(document)["theta_sketches"]["outcome"] == "current"


def test_wrong_settings_are_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "icepuffin.toml").write_text("[catalog.typo]\n")
    program = (
        "import sys\n"
        "from icepuffin.orchestration.cli import main\n"
        "try:\n"
        f"    main(['stats', 'demo.packages', '--dir', {str(tmp_path)!r}])\n"
        "finally:\n"
        "    print(sorted({'pyiceberg', 'pyarrow', 'numba', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "catalog: no such setting" in done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("partitions", [True, False])
def test_partition_statistics_are_a_choice_of_the_settings(run: Run, pages: Lake, partitions: bool) -> None:
    pages.write_settings(statistics={"partitions": partitions})
    with pages.table.update_spec() as update:
        update.add_field("name", IdentityTransform())
    pages.append(60)
    said = json.loads(run("refresh", "demo.packages", "--json"))["theta_sketches"]["partitions"]
    assert said.startswith("7 rows, ") if partitions else said == ""
    assert len(pages.table.refresh().metadata.partition_statistics) == partitions
