"""Definitions: they load without a JVM, hold what was promised, and survive a catalog that is away."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from examples.demo.local_sensor import tick
from icepuffin.assets.spec import AssetAttributes, TableSpec, mark_of
from icepuffin.assets.table_settings import IndexSettings, TableSettings
from icepuffin.ops.index.definitions.ddl import create_index, drop_index, list_definitions
from icepuffin.ops.index.definitions.index_definition import CHECKS, DefinitionError, IndexDefinition
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration import definitions as entry_point
from icepuffin.orchestration import factory
from icepuffin.orchestration.discovery import (
    PropertyIndexes,
    TableListing,
    from_text,
    list_tables,
    listed_tables,
    shown_spec,
    to_text,
)
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.settings import load
from tests.orchestration.lake import Lake, make_lake

REPOSITORY = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("asset_graph.json")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_lake(tmp_path_factory.mktemp("lake"), snapshots=1)


def environment(lake: Lake) -> dict[str, str]:
    return {**os.environ, "ICEPUFFIN_SETTINGS": str(lake.settings_file), "DAGSTER_HOME": str(lake.directory)}


def asset_graph(definitions: dg.Definitions) -> dict[str, object]:
    graph = definitions.resolve_asset_graph()
    return {
        "assets": {
            key.to_user_string(): {
                "parents": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
                "partitions": graph.get(key).partitions_def.name,  # type: ignore[union-attr]
                "executable": graph.get(key).is_executable,
                "kinds": sorted(graph.get(key).kinds),
            }
            for key in sorted(graph.get_all_asset_keys())
        },
        "checks": sorted(f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys),
        "jobs": sorted(job.name for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")),
        "sensors": sorted(sensor.name for sensor in definitions.sensors or ()),
        "schedules": sorted(schedule.name for schedule in definitions.schedules or ()),
    }


def test_the_asset_graph_is_as_recorded(lake: Lake) -> None:
    """After a change on purpose: write `asset_graph(...)` to asset_graph.json again, and read the difference."""
    found = asset_graph(build(load(lake.settings_file)))
    assert found == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_definitions_load_without_a_jvm(lake: Lake) -> None:
    program = (
        "import os, sys\n"
        "from icepuffin.orchestration.definitions import defs\n"
        "defs()\n"
        "try:\n"
        "    started = os.waitpid(-1, os.WNOHANG) is not None\n"
        "except ChildProcessError:  # it has none\n"
        "    started = False\n"
        "print(started, 'pyspark' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(lake),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["False", "False"], run.stderr


def test_dg_check_defs_passes(lake: Lake) -> None:
    run = subprocess.run(
        [str(Path(sys.executable).with_name("dg")), "check", "defs"],
        env={**environment(lake), "DG_CLI_DISABLE_TELEMETRY": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_unreachable_catalog_still_loads_and_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "icepuffin.toml"
    file.write_text(
        '[catalogs.away]\ntype = "sql"\nuri = "sqlite:////no/such/folder/lake.db?secret=hunter2"\nwarehouse = "file:///x"\n'
        '[tables.t]\ncatalog = "away"\nname = "a.b"\n[tables.t.indexes.i]\ncolumn = "v"\n',
        encoding="utf-8",
    )
    graph = build(load(file)).resolve_asset_graph()
    assert dg.AssetKey(["away", "a", "b", "ann_index", "i"]) in graph.get_all_asset_keys()
    description = str(graph.get(dg.AssetKey(["away", "a", "b"])).description)
    assert "Indexes in table properties are not shown: catalog 'away'" in description
    assert "hunter2" not in description


def test_a_run_process_receives_what_the_code_server_listed_and_calls_no_catalog(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._core.definitions.definitions_load_context import (  # noqa: PLC0415
        DefinitionsLoadContext,
        DefinitionsLoadType,
    )
    from dagster._core.definitions.repository_definition.repository_definition import (  # noqa: PLC0415
        RepositoryLoadData,
    )

    create_index(lake.table, IndexDefinition(name="second", column="embedding"))
    monkeypatch.setenv("ICEPUFFIN_SETTINGS", str(lake.settings_file))
    server = DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION)
    with DefinitionsLoadContext.scoped(server):
        result = entry_point.defs()
    assert isinstance(result, dg.Definitions)
    monkeypatch.setattr(Catalogs, "poll", lambda *_: pytest.fail("the catalog was queried"))
    context = DefinitionsLoadContext(
        DefinitionsLoadType.RECONSTRUCTION,
        RepositoryLoadData(
            reconstruction_metadata=server.get_pending_reconstruction_metadata(),
            defs_state_info=server.accessed_defs_state_info,
        ),
    )
    with DefinitionsLoadContext.scoped(context):
        again = entry_point.defs()
    assert isinstance(again, dg.Definitions)
    keys = again.resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey(["demo", "demo", "packages", "ann_index", "second"]) in keys
    assert keys == result.resolve_asset_graph().get_all_asset_keys()
    drop_index(lake.table, "second")


def test_sensor_and_schedules_run_only_where_it_is_set(lake: Lake) -> None:
    stopped = build(load(lake.settings_file))
    assert [sensor.default_status for sensor in stopped.sensors or ()] == [dg.DefaultSensorStatus.STOPPED]
    file = lake.directory / "running.toml"
    file.write_text(lake.settings(sensor_running=True, schedules_running=True), encoding="utf-8")
    running = build(load(file))
    assert [sensor.default_status for sensor in running.sensors or ()] == [dg.DefaultSensorStatus.RUNNING]
    assert {schedule.default_status for schedule in running.schedules or ()} == {dg.DefaultScheduleStatus.RUNNING}


def test_a_run_that_hangs_is_ended_whatever_started_it(lake: Lake, tmp_path: Path) -> None:
    jobs = [job for job in build(load(lake.settings_file)).resolve_all_job_defs() if not job.name.startswith("__")]
    assert {job.tags["dagster/max_runtime"] for job in jobs} == {"86400"}
    assert len(jobs) == 3
    with open_instance(tmp_path) as instance:
        assert instance.run_monitoring_max_runtime_seconds == 86_400, "backfills are no job's runs"


def test_table_names_may_hold_what_dagster_refuses(lake: Lake, tmp_path: Path) -> None:
    text = lake.settings().replace('name = "demo.packages"', 'name = "My Space.packages-größe 1"')
    (tmp_path / "icepuffin.toml").write_text(text, encoding="utf-8")
    keys = build(load(tmp_path / "icepuffin.toml")).resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey(["demo", "My_Space", "packages-gr__e_1_ff7249a7", "ann_index", "embedding"]) in keys


def two_tables(tmp_path: Path) -> Lake:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    other = lake.catalog.create_table("demo.other", lake.table.schema())
    text = '[tables.other]\ncatalog = "demo"\nname = "demo.other"\n[tables.other.indexes.e]\ncolumn = "embedding"\n'
    lake.settings_file.write_text(lake.settings() + text, encoding="utf-8")
    assert other.name() == ("demo", "other")
    return lake


@pytest.mark.parametrize(
    ("first", "second"), [("a.b", "a_b"), ("a", "a_freshness"), ("a.b", "a_b.integrity"), ("a", "a.freshness")]
)
def test_indexes_in_properties_that_are_one_in_dagster_keep_nothing_else_from_loading(
    tmp_path: Path, instance: dg.DagsterInstance, first: str, second: str
) -> None:
    """A check of an index has a name of its own there, which another index may have."""
    lake = two_tables(tmp_path)
    properties = {f"ann.index.{name}.column": "embedding" for name in (first, second)}
    with lake.table.transaction() as transaction:
        transaction.set_properties(properties)
    definitions = build(load(lake.settings_file))
    definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    table = dg.AssetKey(["demo", "demo", "packages"])
    assert dg.AssetKey([*table.path, "ann_index", first]) in keys
    assert dg.AssetKey([*table.path, "ann_index", second]) not in keys
    assert dg.AssetKey([*table.path, "ann_index", "embedding"]) in keys
    assert dg.AssetKey(["demo", "demo", "other", "ann_index", "e"]) in keys
    assert {key.name for key in graph.asset_check_keys} == {*CHECKS, "recall", "tombstones", "layout"} - {"live_recall"}
    assert f"Index '{second}' is not shown" in str(graph.get(table).description)
    runs = tick(load(lake.settings_file), instance)
    assert [run.succeeded for run in runs] == [True]


def test_an_index_of_the_settings_is_shown_before_one_that_others_may_write(tmp_path: Path) -> None:
    lake = two_tables(tmp_path)
    text = lake.settings_file.read_text(encoding="utf-8").replace("indexes.embedding]", "indexes.z_z]")
    lake.settings_file.write_text(text, encoding="utf-8")
    with lake.table.transaction() as transaction:
        transaction.set_properties({"ann.index.z.z.column": "embedding"})
    keys = build(load(lake.settings_file)).resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey(["demo", "demo", "packages", "ann_index", "z_z"]) in keys
    assert dg.AssetKey(["demo", "demo", "packages", "ann_index", "z.z"]) not in keys


def test_a_table_that_dagster_does_not_take_is_explained_and_the_others_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = two_tables(tmp_path)
    through = factory.table_definitions

    def table_definitions(spec: TableSpec, *rest: Any) -> dg.Definitions:
        if spec.identifier == "demo.packages":
            raise dg.DagsterInvalidDefinitionError("the cron is wrong")
        return through(spec, *rest)

    monkeypatch.setattr(factory, "table_definitions", table_definitions)
    definitions = build(load(lake.settings_file))
    definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    assert "the cron is wrong" in str(graph.get(dg.AssetKey(["demo", "demo", "packages"])).description)
    assert dg.AssetKey(["demo", "demo", "other", "ann_index", "e"]) in graph.get_all_asset_keys()
    assert [sensor.name for sensor in definitions.sensors or ()] == ["watch_demo_demo_other"]


def test_a_table_that_is_not_recorded_here_is_explained_by_its_sketches(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table's own asset is another's."""

    def table_definitions(*_: Any) -> dg.Definitions:
        raise dg.DagsterInvalidDefinitionError("the cron is wrong")

    monkeypatch.setattr(factory, "table_definitions", table_definitions)
    definitions = build(load(lake.settings_file), attributes=AssetAttributes(upstream=("docs",)))
    graph, docs = definitions.resolve_asset_graph(), dg.AssetKey("docs")
    sketches = dg.AssetKey(["docs", "theta_sketches"])
    assert graph.get_all_asset_keys() == {docs, sketches}
    assert graph.get(sketches).parent_keys == {docs}
    assert "the cron is wrong" in str(graph.get(sketches).description)
    assert not graph.get(docs).description
    (entry,) = (entry for entry in caplog.records if "demo.packages: Dagster refuses its" in entry.getMessage())
    assert entry.levelname == "ERROR"


def test_each_pattern_that_is_not_listed_is_an_asset_that_says_so(lake: Lake) -> None:
    patterns = {name: TableSettings(catalog="demo", name=f"{name}.*") for name in "abc"}
    settings = load(lake.settings_file).model_copy(update={"tables": patterns})
    listings = {"a": TableListing({}), "b": TableListing({}, "it is away"), "c": TableListing({}, "it is gone")}
    said = [str(spec.description) for spec in build(settings, listings).resolve_all_asset_specs()]
    assert len(said) == 2
    assert said[0].endswith("are not shown: it is away. Reload the code location to try again.")
    assert "c.\\* are not shown: it is gone" in said[1]


def test_a_table_of_which_nothing_is_derived_has_no_sensor(lake: Lake) -> None:
    bare = TableSettings(catalog="demo", name="demo.packages", statistics={"ndv": "off"}, indexes_from_table=False)
    settings = load(lake.settings_file).model_copy(update={"tables": {"t": bare}})
    definitions = build(settings)
    definitions.get_repository_def()
    assert (list(definitions.sensors or ()), list(definitions.schedules or ())) == ([], [])


def test_what_was_listed_is_the_same_after_it_was_kept() -> None:
    index = IndexDefinition(name="e", column="v", shards=3)
    tables = {
        "n.a": PropertyIndexes((index, replace(index, name="f")), columns=("id", "v")),
        "n.b": PropertyIndexes(unknown="it is away", columns=()),
        "n.c": PropertyIndexes(),
    }
    listings = {"t": TableListing(tables), "u": TableListing({}, "it is away")}
    assert from_text(to_text(listings)) == listings


def test_indexes_that_only_a_tables_properties_have_are_shown_where_the_settings_say(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    plain = lake.catalog.create_table("demo.plain", lake.table.schema().select("id"))
    for name in ("a", "b", "c"):
        create_index(lake.table, IndexDefinition(name=name, column="embedding"))
    indexes = {name: IndexSettings(column="embedding") for name in ("a", "b")}
    tables = {
        key: TableSettings(catalog="demo", name=name, indexes=indexes, indexes_from_table=key == "all")
        for key, name in (
            ("own", "demo.packages"),
            ("some", "demo.pa*"),
            ("plain", "demo.pl*"),
            ("all", "demo.packages"),
        )
    }
    catalogs = catalogs_of(load(lake.settings_file))
    try:
        listings = list_tables(tables, catalogs)
    finally:
        for name in ("a", "b", "c"):
            drop_index(lake.table, name)
        lake.catalog.drop_table("demo.plain")
    shown = {
        (key, table.name): [index.name for index in shown_spec(table, found).indexes]
        for key, table, found in (
            (key, tables[key].model_copy(update={"name": name}), found)
            for key, listing in listings.items()
            for name, found in listing.tables.items()
        )
    }
    assert plain.name() == ("demo", "plain")
    assert shown == {
        ("own", "demo.packages"): ["a", "b"],
        ("some", "demo.packages"): ["a", "b"],
        ("plain", "demo.plain"): [],
        ("all", "demo.packages"): ["a", "b", "c"],
    }
    kept = PropertyIndexes((IndexDefinition(name="c", column="embedding"),), columns=("embedding",))
    assert [index.name for index in shown_spec(tables["some"], kept).indexes] == ["a", "b"], "of an earlier setting"


def test_each_index_that_is_hidden_is_named_with_the_one_that_hides_it() -> None:
    found = PropertyIndexes(
        tuple(IndexDefinition(name=name, column="v") for name in ("a.b", "a_b", "c", "c_freshness"))
    )
    note = shown_spec(TableSettings(catalog="demo", name="n.a"), found).note
    assert note.startswith(
        "Index 'a_b' is not shown, its name and that of 'a.b' are one in Dagster. Index 'c_freshness' "
    )


def test_an_index_whose_name_would_meet_another_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    create_index(lake.table, IndexDefinition(name="a.b", column="embedding"))
    with pytest.raises(
        DefinitionError,
        match=r"has an index 'a.b', which is one with 'a_b' in Dagster: take a name that differs in more",
    ):
        create_index(lake.table, IndexDefinition(name="a_b", column="embedding"))
    with pytest.raises(DefinitionError, match=r"has an index 'a.b', which is one with 'a_b_integrity' in Dagster"):
        create_index(lake.table, IndexDefinition(name="a_b_integrity", column="embedding"))
    create_index(lake.table, IndexDefinition(name="a.b", column="embedding"))
    assert [item.name for item in list_definitions(lake.table.refresh())] == ["a.b"]


def test_tables_whose_names_are_one_in_dagster_have_assets_of_their_own(lake: Lake) -> None:
    """Whichever the catalog lists first; a name that no other table has stays as it is."""
    pattern = {"t": TableSettings(catalog="demo", name="n.*", indexes={"e": IndexSettings(column="v")})}
    settings = load(lake.settings_file).model_copy(update={"tables": pattern})
    names = ("n.a-b", "n.a_b", "n.a b", "n.a_b.theta_sketches", "n.c-d", "n.日本語")
    graphs = []
    for order in (names, names[::-1]):
        tables = {name: PropertyIndexes(columns=("v",)) for name in order}
        definitions = build(settings, {"t": TableListing(tables)})
        dg.Definitions.validate_loadable(definitions)
        graphs.append(asset_graph(definitions))
    assert graphs[0] == graphs[1]
    sensors: Any = graphs[0]["sensors"]
    assets: Any = graphs[0]["assets"]
    assert len(set(sensors)) == len(names)
    assert {"watch_demo_n_a_b", "watch_demo_n_c_d"} < set(sensors)
    mark = mark_of("demo", "n.a-b")
    assert f"watch_demo_n_a_b{mark}" in sensors
    assert {f"demo/n/a-b{mark}/ann_index/e", "demo/n/a_b/ann_index/e", "demo/n/c-d/theta_sketches"} < set(assets)


def test_tables_that_the_settings_name_keep_their_names(lake: Lake) -> None:
    tables = {"all": TableSettings(catalog="demo", name="n.*"), "own": TableSettings(catalog="demo", name="n.a-b")}
    listings = {
        "all": TableListing({name: PropertyIndexes() for name in ("n.a_b", "n.a-b")}),
        "own": TableListing({"n.a-b": PropertyIndexes()}),
    }
    listed = [(key, table.name, bool(indexes.mark)) for key, table, indexes in listed_tables(tables, listings)]
    assert listed == [("own", "n.a-b", False), ("all", "n.a_b", True)]


@pytest.mark.parametrize(
    ("entries", "marked"),
    [
        ([("demo", "n.a"), ("other", "n.a")], []),
        ([("demo", "n.a.theta_sketches"), ("demo", "n.*", "n.a")], ["n.a"]),
        ([("demo", "n.a"), ("demo", "n.*", "n.a.theta_sketches")], ["n.a.theta_sketches"]),
        ([("demo", "n.a-b"), ("demo", "n.a_b")], ["n.a-b"]),
        ([("demo", "n.*", "n.a b", "n.a_b")], ["n.a b"]),
    ],
    ids=["two catalogs", "above the other", "below the other", "named", "of a pattern"],
)
def test_of_two_names_that_are_one_in_dagster_the_less_plain_has_a_mark(
    entries: list[tuple[str, ...]], marked: list[str]
) -> None:
    tables = {str(number): TableSettings(catalog=of, name=name) for number, (of, name, *_) in enumerate(entries)}
    listings = {
        str(number): TableListing({found: PropertyIndexes() for found in names or (name,)})
        for number, (_, name, *names) in enumerate(entries)
    }
    listed = [(table.name, indexes.mark) for _, table, indexes in listed_tables(tables, listings)]
    assert len(listed) == 2
    assert [name for name, mark in listed if mark] == marked
