"""A project as `create-dagster` makes it, with the YAML and the Python of docs/dagster.md."""

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.repository_definition.repository_definition import RepositoryLoadData
from dagster.components.scaffold.scaffold import NoParams, get_scaffolder

import icepuffin
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.component import SettingsComponent
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.settings import Settings
from tests.extras import without_extras

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dagster.md").read_text(encoding="utf-8")
INDEX = dg.AssetKey(["lake", "search", "docs", "ann_index", "embedding"])
PYPROJECT = """\
[project]
name = "search_project"
version = "0.1.0"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "search_project"
registry_modules = ["search_project.components.*"]
"""
DEFINITIONS = """\
from pathlib import Path
from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

pytestmark = [  # Dagster warns of its own code, and of components of other packages
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning"),
]


def block(language: str, number: int = 0) -> str:
    """A block of that language on the page; the first one is number 0."""
    return str(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number])


@pytest.fixture
def project(tmp_path: Path, table: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a project whose only definition is the component."""
    root = tmp_path / "search_project"
    defs = root / "src" / "search_project" / "defs"
    (defs / "docs").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (defs.parent / "__init__.py").touch()
    (defs / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    (defs / "docs" / "defs.yaml").write_text(block("yaml"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(root / "src"))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "search_project"]:
        del sys.modules[name]


def dg_command(project: Path, *arguments: str, absent: Sequence[str] = ()) -> str:
    """What `dg` prints. `absent`: extras whose packages cannot be imported in it."""
    without_extras(project / "src", *absent)
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dg")), *arguments],
        env={**os.environ, "PYTHONPATH": str(project / "src"), "DG_CLI_DISABLE_TELEMETRY": "1", "COLUMNS": "200"},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def attributes(table: str = "search.docs") -> dict[str, Any]:
    return {"catalog": {"name": "lake", "type": "sql", "uri": os.environ["LAKE_URI"]}, "table": table}


def loaded(project: Path) -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=project)


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    watch: Any = definitions.resolve_sensor_def("watch_lake_search_docs")
    resources = {key: (definitions.resources or {})[key] for key in watch.required_resource_keys}
    return watch(dg.build_sensor_context(instance=instance, definitions=definitions, resources=resources))


def run_of_the_sensor_succeeds(definitions: dg.Definitions, instance: dg.DagsterInstance) -> bool:
    (request,) = tick(definitions, instance).run_requests
    job = definitions.resolve_job_def("refresh_lake_search_docs")
    return job.execute_in_process(instance=instance, partition_key=request.partition_key, tags=request.tags).success


def test_dg_checks_the_project_and_shows_the_component(project: Path) -> None:
    output = dg_command(project, "check", "defs", absent=("spark", "sql", "s3", "gcs"))
    assert "All component YAML validated successfully" in output
    assert "All definitions loaded successfully" in output
    listed = dg_command(project, "list", "components", "--package", "icepuffin")
    assert "icepuffin.IcepuffinTableComponent" in listed
    assert "Theta sketches and vector indexes of an Iceberg table" in listed


def test_the_component_makes_the_first_version(project: Path, table: Any, instance: dg.DagsterInstance) -> None:
    definitions = loaded(project)
    definitions.get_repository_def()
    (sensor,) = definitions.sensors or ()
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert run_of_the_sensor_succeeds(definitions, instance)
    reader = icepuffin.open_index(table.refresh())
    assert (reader.coverage, reader.row_count) == ("exact-version", 200)


def test_the_function_makes_the_first_version(table: Any, instance: dg.DagsterInstance) -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102  our own page
    definitions = names["defs"]
    definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey(["docs", "ann_index", "embedding"])).parent_keys == {dg.AssetKey("docs")}
    assert run_of_the_sensor_succeeds(definitions, instance)
    assert icepuffin.open_index(table.refresh()).coverage == "exact-version"


def test_a_subclass_does_something_beside_each_materialisation(table: Any, instance: dg.DagsterInstance) -> None:
    names: dict[str, Any] = {}
    exec(block("python", 1), names)  # noqa: S102  our own page
    definitions = dg.build_defs_for_component(names["AnnouncedTable"](**attributes(), statistics={"ndv": ["id"]}))
    assert run_of_the_sensor_succeeds(definitions, instance)
    (run,) = instance.get_runs()
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert f"theta_sketches has its snapshot {table.metadata.current_snapshot_id}" in messages
    assert icepuffin.read_ndv(table.refresh()).fresh


def test_the_page_has_at_most_ten_lines_of_yaml_and_of_python() -> None:
    assert len(block("yaml").splitlines()) <= 10
    call = block("python").partition("icepuffin.build_defs(")[2]
    assert len(call.splitlines()) <= 10


def test_the_component_of_the_readme_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_URI", "https://catalog.example.com")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    attributes = yaml.safe_load(example)["attributes"]
    component = icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes=attributes)
    assert component.table_settings.catalogs["lake"].properties["uri"] == "https://catalog.example.com"


def test_attributes_of_the_yaml_reach_the_settings(project: Path) -> None:
    file = project / "src" / "search_project" / "defs" / "docs" / "defs.yaml"
    lines = (
        "  upstream: warehouse/docs\n  group: search\n  owners: ['team:search']\n  tags: {tier: '1'}\n"
        "  automation: '{{ dg.AutomationCondition.on_missing() }}'\n  snapshots: newest\n  settings: {runs_ahead: 2}\n"
        "  statistics: {ndv: 'off'}\n"
    )
    file.write_text(file.read_text(encoding="utf-8") + lines, encoding="utf-8")
    graph = loaded(project).resolve_asset_graph()
    node = graph.get(dg.AssetKey(["warehouse", "docs", "ann_index", "embedding"]))
    assert (node.group_name, list(node.owners), node.tags["tier"]) == ("search", ["team:search"], "1")
    assert node.automation_condition is not None
    assert node.parent_keys == {dg.AssetKey(["warehouse", "docs"])}
    assert dg.AssetKey(["warehouse", "docs", "theta_sketches"]) not in graph.get_all_asset_keys()


def test_each_attribute_reaches_the_settings() -> None:
    component = icepuffin.IcepuffinTableComponent(
        catalog={"name": "lake", "uri": "here"},
        table="search.docs",
        indexes={"e": {"column": "v"}},
        snapshots="newest",
        sensor_running=True,
        statistics={"ndv": ["id"]},
        settings={"runs_ahead": 2},
        spark={"in_process_mb": 5},
        threads=3,
        retention={"garbage_grace_hours": 7.5, "dry_run": True},
    )
    (table,) = component.table_settings.tables.values()
    assert (table.catalog, table.name, table.snapshots, table.sensor_running) == ("lake", "search.docs", "newest", True)
    assert (table.runs_ahead, [*table.indexes], table.statistics.ndv) == (2, ["e"], ("id",))
    settings = component.table_settings
    assert (settings.threads, settings.spark.in_process_mb) == (3, 5)
    assert (settings.retention.garbage_grace_hours, settings.retention.dry_run) == (7.5, True)


def test_a_wrong_attribute_is_named_without_its_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "src" / "search_project" / "defs" / "docs" / "defs.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("type: sql", 'type: sql\n    token: "{{ env.NO_SUCH_TOKEN }}"'), encoding="utf-8")
    monkeypatch.setenv("LAKE_URI", "sqlite:///hunter2")
    with pytest.raises(Exception, match="IcepuffinTableComponent") as raised:
        loaded(project)
    lines = "".join(traceback.format_exception(raised.value))
    assert "SettingsError: icepuffin[lake/search.docs]: catalog: token is null; it takes a text (`{{ env.X }}`" in lines
    assert "where X is not set: set it in the environment, or in the project's `.env`" in lines
    assert "hunter2" not in lines


def test_an_unknown_parameter_of_an_index_is_named(project: Path) -> None:
    file = project / "src" / "search_project" / "defs" / "docs" / "defs.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("metric:", "metrik:"), encoding="utf-8")
    with pytest.raises(Exception, match="IcepuffinTableComponent") as raised:
        loaded(project)
    message = "icepuffin[lake/search.docs]: indexes.embedding.metrik: no such setting (there is metric)"
    assert message in "".join(traceback.format_exception(raised.value))


def test_an_unknown_kind_of_statistics_is_named(project: Path) -> None:
    with pytest.raises(SettingsError, match=r"statistics\.nvd: no such setting \(there is ndv\)"):
        icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes={**attributes(), "statistics": {"nvd": "*"}})


def test_a_setting_that_an_attribute_sets_is_refused(project: Path) -> None:
    twice = {"name": "search.other", "indexes": {}}
    with pytest.raises(SettingsError, match="settings has indexes, name, which the component has attributes for"):
        icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes={**attributes(), "settings": twice})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"automation": "on_missing"}, "Param \"automation_condition\" is not a AutomationCondition. Got 'on_missing'"),
        ({"owners": ["search"]}, "Invalid owner 'search'"),
        ({"tags": {"a tag": "x"}}, "invalid tag keys: ['a tag']"),
        ({"kinds": ["a kind"]}, "a kind"),
        ({"group": "a group"}, '"a group" is not a valid asset group name'),
        ({"key": "docs of/search"}, "is not a valid name in Dagster"),
    ],
)
def test_an_attribute_that_dagster_takes_of_no_asset_is_refused(
    table: Any, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)) as raised:
        icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes={**attributes(), **wrong})
    assert str(raised.value).startswith("icepuffin[lake/search.docs]: ")


def test_descriptions_of_attributes_name_keys_and_no_file_of_ours() -> None:
    schema = icepuffin.IcepuffinTableComponent.model().model_json_schema()
    assert not re.search(r"docs/|\[(?:tables|spark|retention)\b", json.dumps(schema))
    described = {name: attribute["description"] for name, attribute in schema["properties"].items()}
    for name, key in {"settings": "runs_ahead", "spark": "master"}.items():
        assert f"`{key}`" in described[name]
    assert "`indexes`" not in described["settings"], "which has an attribute of its own"


def test_the_page_lists_each_attribute() -> None:
    listed = re.search(r"^## Attributes\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert listed is not None
    named = {
        name
        for line in listed[1].splitlines()
        if line[:1] == "-"
        for name in re.findall(r"`(\w+)`", line.partition(":")[0])
    }
    assert named | {"catalog", "table"} == set(
        icepuffin.IcepuffinTableComponent.model().model_json_schema()["properties"]
    )


def test_dg_scaffolds_what_the_page_shows(tmp_path: Path) -> None:
    scaffolder = get_scaffolder(icepuffin.IcepuffinTableComponent)
    assert isinstance(scaffolder, dg.Scaffolder)
    scaffolder.scaffold(
        dg.ScaffoldRequest("icepuffin.IcepuffinTableComponent", tmp_path, "yaml", project_root=None, params=NoParams())
    )
    assert yaml.safe_load((tmp_path / "defs.yaml").read_text(encoding="utf-8")) == yaml.safe_load(block("yaml"))


@pytest.mark.parametrize("text", ["1e5", "0x1F", "True", "007", "('a', 'b')", "{}"])
def test_a_secret_stays_the_text_that_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", text)
    attributes = {
        "catalog": {"name": "lake", "token": "{{ env.LAKE_TOKEN }}", "credential": "id:{{ env.LAKE_TOKEN }}"},
        "table": "search.docs",
        "key_prefix": "prod",
        "spark": {"conf": {"spark.secret": "{{ env.LAKE_TOKEN }}"}},
    }
    component = icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes=attributes)
    assert component.table_settings.catalogs["lake"].properties == {"token": text, "credential": f"id:{text}"}
    assert component.table_settings.spark.conf["spark.secret"].get_secret_value() == text
    assert component.asset_attributes.key_prefix == ("prod",)


def test_a_run_process_receives_the_state_and_calls_no_catalog(
    project: Path, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_index(table, IndexDefinition(name="second", column="embedding"))
    server = DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION)
    with DefinitionsLoadContext.scoped(server):
        keys = loaded(project).resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey([*INDEX.path[:-1], "second"]) in keys
    monkeypatch.setattr(Catalogs, "poll", lambda *_: pytest.fail("the catalog was queried"))
    handed_over = RepositoryLoadData(
        reconstruction_metadata=server.get_pending_reconstruction_metadata(),
        defs_state_info=server.accessed_defs_state_info,
    )
    with DefinitionsLoadContext.scoped(DefinitionsLoadContext(DefinitionsLoadType.RECONSTRUCTION, handed_over)):
        assert loaded(project).resolve_asset_graph().get_all_asset_keys() == keys


def test_a_process_without_state_reads_the_catalog(project: Path, table: Any) -> None:
    """As `dagster job execute` has none, and a script."""
    create_index(table, IndexDefinition(name="second", column="embedding"))
    with DefinitionsLoadContext.scoped(DefinitionsLoadContext(DefinitionsLoadType.RECONSTRUCTION)):
        keys = loaded(project).resolve_asset_graph().get_all_asset_keys()
    assert dg.AssetKey([*INDEX.path[:-1], "second"]) in keys


def test_state_on_disk_is_refreshed_by_dagster_and_stays_where_the_catalog_is_away(
    project: Path, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versioned = {"defs_state": {"management_type": "VERSIONED_STATE_STORAGE"}}
    component = icepuffin.IcepuffinTableComponent.from_attributes_dict(
        attributes={**attributes("search.*"), **versioned}
    )
    state = project / "state"
    component.write_state_to_path(state)
    assert list(json.loads(state.read_text(encoding="utf-8"))["table"]["tables"]) == ["search.docs"]
    monkeypatch.setattr(Catalogs, "matching", lambda *_: (_ for _ in ()).throw(IcepuffinError("away")))
    with pytest.raises(IcepuffinError, match=r"the state of icepuffin\[lake/search\.\*\] is not refreshed: away"):
        component.write_state_to_path(state)
    monkeypatch.setattr(Catalogs, "poll", lambda *_: (_ for _ in ()).throw(IcepuffinError("away, too")))
    one = icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes={**attributes(), **versioned})
    with pytest.raises(IcepuffinError, match=r"\[lake/search\.docs\] is not refreshed: away, too"):
        one.write_state_to_path(state)
    definitions = component.build_defs_from_state(dg.ComponentTree.for_test().load_context, state)
    assert dg.AssetKey(["lake", "search", "docs"]) in definitions.resolve_asset_graph().get_all_asset_keys()
    assert "search.docs" in state.read_text(encoding="utf-8")


def test_kept_state_gives_no_index_to_a_table_without_its_column(project: Path) -> None:
    first = icepuffin.IcepuffinTableComponent.from_attributes_dict(attributes=attributes("search.*"))
    first.write_state_to_path(project / "state")
    indexes = {"embedding": {"column": "embedding"}, "other": {"column": "other"}}
    later = icepuffin.IcepuffinTableComponent.from_attributes_dict(
        attributes={**attributes("search.*"), "indexes": indexes}
    )
    definitions = later.build_defs_from_state(dg.ComponentTree.for_test().load_context, project / "state")
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    assert [key.path[-1] for key in keys if "ann_index" in key.path] == ["embedding"]


def test_a_table_of_later_settings_waits_for_the_state(
    project: Path, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    catalogs = {"lake": {"type": "sql", "uri": os.environ["LAKE_URI"]}}
    docs = {"catalog": "lake", "name": "search.docs"}
    before = SettingsComponent(Settings.model_validate({"catalogs": catalogs, "tables": {"docs": docs}}))
    before.write_state_to_path(project / "state")
    tables = {"docs": docs, "more": {**docs, "name": "search.more"}}
    after = SettingsComponent(Settings.model_validate({"catalogs": catalogs, "tables": tables}))
    definitions = after.build_defs_from_state(dg.ComponentTree.for_test().load_context, project / "state")
    keys = definitions.resolve_asset_graph().get_all_asset_keys()
    assert {key.path[2] for key in keys if len(key.path) > 2} == {"docs"}
    assert "tables.more of the settings is not shown" in caplog.text


@pytest.mark.parametrize("is_server", [True, False])
def test_many_tables_cost_one_call_each(table: Any, is_server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.definitions` times 500."""
    for number in range(20):
        table.catalog.create_table(f"search.t{number}", table.schema())
    calls: list[str] = []
    through = type(table.catalog).load_table
    monkeypatch.setattr(
        type(table.catalog),
        "load_table",
        lambda self, name: calls.append(name) or through(self, name),  # type: ignore[func-returns-value]
    )
    indexes = {"embedding": {"column": "embedding"}}
    catalog = {"name": "lake", "type": "sql", "uri": os.environ["LAKE_URI"]}
    server = DefinitionsLoadContext.scoped(DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION))
    with server if is_server else nullcontext():
        definitions = icepuffin.build_defs(catalog, "search.*", indexes=indexes)
    definitions.get_repository_def()
    assert sorted(calls) == sorted(["search.docs", *(f"search.t{number}" for number in range(20))])
