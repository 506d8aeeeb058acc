"""One table's metadata is broken in one place after the other: the healthy table beside it loses nothing."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import icepuffin
from icepuffin.ops.errors import IcepuffinError, TableFaultError, faults_of
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.orchestration.cli import main
from icepuffin.orchestration.discovery import list_tables
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from tests.orchestration.backlog import Backlog, make_backlog
from tests.orchestration.evaluation import evaluated
from tests.orchestration.lake import make_rows

VALUES: tuple[Any, ...] = (
    None, "", "abc", "[" * 5_000, "9" * 5_000, -1, 0, 2**63 - 1, 2**70, 1.5, True, [], {}, [[]], {"a": None}, "\ud800",
)  # fmt: skip
PROPERTIES = (
    "ann.index.e.column", "ann.index.e.filters", "ann.index.e.filter-ids", "ann.index.e.shards", "ann.tuning.e",
    "icepuffin.folder", "schema.name-mapping.default", "commit.retry.num-retries",
)  # fmt: skip
SUMMARY = (
    "ann.base-snapshot-id", "theta-sketches.pack", "icepuffin.kind", "ann.packs", "ann.took", "ann.sizes",
    "total-records", "added-records", "total-data-files", "total-files-size", "total-position-deletes", "operation",
)  # fmt: skip
MUTATIONS = 40
HEALTHY = 'icepuffin_index_versions{catalog="demo",table="demo.t1",index="y"} 0'


@pytest.fixture
def pair(tmp_path: Path) -> Backlog:
    """Two tables, each with a metadata file of its own."""
    made = make_backlog(tmp_path, tables=2, snapshots=1)
    made.grow("t0", 1)
    return made


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places of a JSON document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def mutants(metadata: dict[str, Any], count: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Copies of metadata with another value in one place, or in one that icepuffin reads."""
    drawn = random.Random(7)
    text = json.dumps(metadata)
    last = len(metadata["snapshots"]) - 1
    added = [("properties", key) for key in PROPERTIES] + [("snapshots", last, "summary", key) for key in SUMMARY]
    paths = [*added, *places(metadata)]
    for path in drawn.sample(paths, min(count, len(paths))):
        copy = json.loads(text)
        put(copy, path, drawn.choice(VALUES))
        yield path, copy


def test_a_healthy_table_loses_nothing_by_a_broken_one(pair: Backlog, instance: dg.DagsterInstance) -> None:
    settings = pair.settings(indexes_from_table=True)
    stored = Path(pair.catalog.load_table("demo.t0").metadata_location.removeprefix("file://"))
    whole = stored.read_bytes()
    outcomes = set()
    for path, mutant in mutants(json.loads(whole), MUTATIONS):
        stored.write_bytes(json.dumps(mutant).encode())
        assert len(evaluated(settings, instance, table="t1").run_requests or ()) == 1, path
        listings = list_tables(settings.tables, catalogs_of(settings))
        assert listings["t1"].tables["demo.t1"].unknown == "", path
        bad = listings["t0"].tables["demo.t0"].unknown
        outcomes.add(bool(bad))
        if bad:
            assert "demo.t0" in bad or "index e" in bad or "ann.index.e" in bad, (path, bad)
    assert outcomes == {False, True}


def test_metrics_and_definitions_have_the_healthy_indexes(
    pair: Backlog, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = pair.settings(indexes_from_table=True)
    for name in ("t0", "t1"):
        create_index(pair.catalog.load_table(f"demo.{name}"), name="y", column="embedding")
    table = pair.catalog.load_table("demo.t0")
    with table.transaction() as change:
        change.set_properties({"ann.index.x.column": "embedding", "ann.index.x.filters": "[" * 5_000})
    main(["metrics", "--dir", str(tmp_path)])
    up = {f'icepuffin_table_up{{catalog="demo",table="demo.{name}"}} 1' for name in ("t0", "t1")}
    for text in (capsys.readouterr().out, icepuffin.metrics(table, pair.catalog.load_table("demo.t1"))):
        assert {HEALTHY, HEALTHY.replace("t1", "t0"), *up} <= {*text.splitlines()}
        of_broken = {line.split("{")[0]: line.split()[-1] for line in text.splitlines() if 'index="x"' in line}
        assert of_broken == {"icepuffin_index_versions_behind": "+Inf", "icepuffin_index_seconds_behind": "+Inf"}
    assert [message.count("index x: filters is") for message in caplog.messages] == [1, 1]
    assert {sensor.name for sensor in build(settings).sensors or ()} >= {"watch_demo_demo_t1"}


def test_a_table_whose_snapshots_go_in_a_circle_ends_no_command(
    pair: Backlog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.settings(indexes_from_table=True)
    for name in ("t0", "t1"):
        create_index(pair.catalog.load_table(f"demo.{name}"), name="y", column="embedding")
    stored = Path(pair.catalog.load_table("demo.t0").metadata_location.removeprefix("file://"))
    metadata = json.loads(stored.read_bytes())
    for snapshot in metadata["snapshots"]:
        snapshot["parent-snapshot-id"] = metadata["current-snapshot-id"]
    stored.write_text(json.dumps(metadata), encoding="utf-8")
    main(["metrics", "--dir", str(tmp_path)])
    out, err = capsys.readouterr()
    assert {'icepuffin_table_up{catalog="demo",table="demo.t0"} 0', HEALTHY} <= {*out.splitlines()}
    assert "demo.t0: snapshot" in err
    assert "descends from itself" in err


@pytest.mark.parametrize("size", [10**400, 2**63, -1], ids=lambda size: str(size)[:9])
def test_a_size_that_no_file_has_costs_one_metric_of_its_table(
    pair: Backlog, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, size: int
) -> None:
    pair.settings(indexes_from_table=True)
    create_index(pair.catalog.load_table("demo.t1"), name="y", column="embedding")
    table = pair.catalog.load_table("demo.t0")
    table.append(make_rows(10, 20))
    create_index(table, name="e", column="embedding", metric="l2")
    icepuffin.refresh(table)
    stored = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(stored.read_bytes())
    for entry in metadata["statistics"]:
        entry["file-size-in-bytes"] = size
    stored.write_text(json.dumps(metadata), encoding="utf-8")
    table = pair.catalog.load_table("demo.t0")
    assert icepuffin.open_index(table, "e").search(make_rows(0, 1)["embedding"], 1).coverage == "exact-version"
    main(["metrics", "--dir", str(tmp_path)])
    for out in (capsys.readouterr().out, icepuffin.metrics(table, pair.catalog.load_table("demo.t1"))):
        assert HEALTHY in out
        assert 'icepuffin_index_versions{catalog="demo",table="demo.t0",index="e"} 1' in out
        assert 'in="file"' not in out
    assert f"has a file-size-in-bytes of {str(size)[:40]}, which no file has" in caplog.text


@pytest.mark.parametrize("milliseconds", [10**15, 10**400], ids=["microseconds", "400 digits"])
def test_an_error_names_the_table_where_nobody_foresaw_it(
    pair: Backlog, tmp_path: Path, capsys: pytest.CaptureFixture[str], milliseconds: int
) -> None:
    pair.settings(indexes_from_table=True)
    stored = Path(pair.catalog.load_table("demo.t0").metadata_location.removeprefix("file://"))
    metadata = json.loads(stored.read_bytes())
    metadata["snapshots"][0]["timestamp-ms"] = milliseconds
    stored.write_text(json.dumps(metadata), encoding="utf-8")
    for command in ("snapshots", "report"):
        with pytest.raises(SystemExit):
            main([command, "demo.t0", "--dir", str(tmp_path)])
        assert "demo.t0: its metadata has something that icepuffin cannot use" in capsys.readouterr().err
    table = pair.catalog.load_table("demo.t0")
    with pytest.raises(TableFaultError, match=r"^demo\.t0: its metadata has something that icepuffin cannot use"):
        icepuffin.write_report(table, tmp_path / "report.html")


def test_the_ui_can_send_what_it_shows_of_tables_whatever_text_one_has(pair: Backlog) -> None:
    """JSON can write half of a surrogate pair, and UTF-8 cannot: Dagster's answers about all assets would be errors."""
    settings = pair.settings(indexes_from_table=True)
    with pair.catalog.load_table("demo.t0").transaction() as change:
        change.set_properties({"ann.index.x.column": "embedding", "ann.index.x.filters": r'["\ud800", "\ud800"]'})
    specs = build(settings).resolve_all_asset_specs()
    shown = "\n".join(spec.description or "" for spec in specs)
    assert shown.encode()
    assert r"filters is \['\\ud800', '\\ud800'\]; it takes names of columns" in shown


def test_an_error_that_nobody_foresaw_names_the_table_and_its_own_errors_pass() -> None:
    message = r"^db\.t: its metadata has something .* \(OverflowError: too large\)\. Other tables are"
    with pytest.raises(TableFaultError, match=message), faults_of("db.t"):
        raise OverflowError("too large\nsecond line")
    with pytest.raises(TableFaultError, match=r"\(ValueError: x{200}\)\. Other"), faults_of("db.t"):
        raise ValueError(300 * "x")
    with pytest.raises(IcepuffinError, match=r"^as it is$"), faults_of("db.t"):
        raise IcepuffinError("as it is")
