"""`import icepuffin`: what it offers, what it costs, and that each example in its docstrings is true."""

import doctest
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import icepuffin
from icepuffin.ops.index.definitions.index_definition import INDEX_PARAMETERS
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import STORAGE, make_rows, queries
from tests.extras import EXTRAS, without_extras
from tests.patience import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[1]
ON_SPARK = ("knn_join", "register_vector_search", "SparkRunner")
ON_DAGSTER = ("build_defs", "IcepuffinTableComponent")
DEFINITION = icepuffin.IndexDefinition(name="e", column="embedding", metric="l2")


def load(path: Path) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The table of the examples, with its index and sketches."""
    lake = load(REPOSITORY / "examples" / "lake.py")
    table: Table = lake.packages(tmp_path_factory.mktemp("lake"))
    return table


def names_of_docstrings() -> list[str]:
    """Each public name, and each public method of a class among them, that has an example."""
    out = []
    for name in icepuffin.__all__:
        value = getattr(icepuffin, name)
        out.append(name)
        if inspect.isclass(value):
            out += [f"{name}.{key}" for key, item in vars(value).items() if not key.startswith("_") and callable(item)]
    return out


def resolve(name: str) -> Any:
    value: Any = icepuffin
    for part in name.split("."):
        value = getattr(value, part)
    return value


def run_examples(name: str, context: dict[str, Any]) -> int:
    """Run the examples of one docstring. Returns the number of examples."""
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(resolve(name)) or "", context, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    message: list[str] = []
    runner.run(example, out=message.append)
    assert not runner.failures, "".join(message)
    return len(example.examples)


def context_of(table: Table) -> dict[str, Any]:
    return {
        "icepuffin": icepuffin,
        "table": table,
        "reader": icepuffin.open_index(table),
        "query": table.scan("name = 'postgresql'").to_arrow()["embedding"][0].as_py(),
    }


@pytest.mark.parametrize("name", [name for name in names_of_docstrings() if name not in (*ON_SPARK, "drop_index")])
def test_an_example_gives_what_it_says(
    packages: Table, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where some write
    has_to_have_one = "." not in name and name != "errors"
    assert run_examples(name, context_of(packages)) or not has_to_have_one


def test_the_example_of_a_drop_gives_what_it_says(tmp_path: Path) -> None:
    assert run_examples("drop_index", context_of(load(REPOSITORY / "examples" / "lake.py").packages(tmp_path)))


@pytest.mark.jvm
@pytest.mark.parametrize("name", ON_SPARK)
def test_an_example_on_spark_gives_what_it_says(packages: Table, spark: "SparkSession", name: str) -> None:
    assert run_examples(name, {**context_of(packages), "spark": spark})


PUBLIC_ERRORS = {name for name in vars(icepuffin.errors) if not name.startswith("_")}


def test_errors_are_few_and_each_is_of_one_group_that_says_what_a_caller_does() -> None:
    errors = icepuffin.errors
    public = [getattr(errors, name) for name in PUBLIC_ERRORS]
    assert len(public) <= 40
    groups = {item for item in public if item.__base__ is errors.IcepuffinError}
    assert {group.__name__ for group in groups} == {
        name for name in re.findall(r"`(\w+)`", errors.__doc__ or "") if name.endswith("Error")
    } - {"IcepuffinError", "KernelError", "PuffinError", "ValueError"}
    for error in set(public) - groups - {errors.IcepuffinError, errors.KernelError, errors.PuffinError}:
        assert len(groups & set(error.__mro__)) == 1, error
    sources = [path for folder in ("ops", "assets", "orchestration") for path in (REPOSITORY / folder).rglob("*.py")]
    bases = {path.stem for path in sources if "Error(IcepuffinError):" in path.read_text(encoding="utf-8")}
    assert bases == {"errors"}, "an error of the product is of a group, or a group"


FUNCTIONS = [name for name in icepuffin.__all__ if inspect.isfunction(getattr(icepuffin, name))]
CONSTRUCTED_BY_USERS = ("IndexDefinition", "StorageConfig", "SparkRunner")
METHODS = (
    "IndexReader.search",
    "IndexReader.within",
    "IndexReader.follow",
    "FollowingReader.search",
    "FollowingReader.within",
    "SqlSession.on",
    "SqlSession.sql",
)


@pytest.mark.parametrize("name", [*FUNCTIONS, *CONSTRUCTED_BY_USERS, *METHODS])
def test_each_parameter_is_documented(name: str) -> None:
    section = (inspect.getdoc(resolve(name)) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    documented = {
        part.strip() for line in section.splitlines() if line[:1].strip() for part in line.partition(" :")[0].split(",")
    }
    assert documented == set(inspect.signature(resolve(name)).parameters) - {"self"}


@pytest.mark.parametrize("method", ["search", "within"])
def test_a_following_reader_is_searched_like_the_reader_that_it_has(method: str) -> None:
    of_reader, of_following = (
        inspect.signature(resolve(f"{kind}.{method}")) for kind in ("IndexReader", "FollowingReader")
    )
    assert of_following == of_reader


def test_a_definition_documents_its_parameters_as_the_command_line_does() -> None:
    documented = " ".join((inspect.getdoc(icepuffin.IndexDefinition) or "").split())
    for name, parameter in INDEX_PARAMETERS.items():
        default = "" if parameter.default is None else f" Default: {parameter.default}."
        about = parameter.about.replace("Left out:", "Default:")
        assert f"{about}{default}" in documented, name
        assert not parameter.choices or f"{name} : {_listed(name)} {about}" in documented, name


def test_an_exact_reader_documents_the_values_of_its_parameters() -> None:
    documented = inspect.getdoc(icepuffin.open_exact) or ""
    for name in ("metric", "element_type"):
        assert f"{name} : {{{_listed(name)}}}" in documented


def _listed(name: str) -> str:
    """All values of an index parameter, as docstrings have them."""
    return ", ".join(map(json.dumps, INDEX_PARAMETERS[name].choices))


def test_the_page_of_the_interface_is_what_the_docstrings_say() -> None:
    page = load(REPOSITORY / "docs" / "make_api.py")
    assert set(page.ORDER) == set(icepuffin.__all__)
    written = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == page.page(), "run `python docs/make_api.py`"
    assert set(re.findall(r"^## (\w+)$", written, re.MULTILINE)) == set(icepuffin.__all__)


def test_importing_it_imports_nothing_heavy() -> None:
    program = "import sys; before = set(sys.modules); import icepuffin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "icepuffin" in loaded
    assert not loaded & {
        "numpy",
        "numba",
        "pyarrow",
        "pyiceberg",
        "pandas",
        "pyspark",
        "dagster",
    }


def test_reading_needs_neither_spark_nor_dagster() -> None:
    light = [name for name in icepuffin.__all__ if name not in (*ON_SPARK, *ON_DAGSTER)]
    program = f"import sys, icepuffin\nfor name in {light}: getattr(icepuffin, name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & {"pyspark", "dagster", "dagster_pyspark"}


def test_names_of_extras_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    absent = {"SqlSession", "knn_join", "register_vector_search", "build_defs", "IcepuffinTableComponent"}
    program = (
        "import icepuffin\n"
        "for name in dir(icepuffin): getattr(icepuffin, name)\n"
        "print(*set(icepuffin.__all__) - set(dir(icepuffin)))\n"
    )
    environment = {**os.environ, **without_extras(tmp_path, *EXTRAS)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == absent


def test_a_name_whose_extra_is_not_installed_says_which(tmp_path: Path) -> None:
    program = (
        "import icepuffin\n"
        "for name in ('SqlSession', 'knn_join'):\n"
        "    for line in ('icepuffin.' + name, 'from icepuffin import ' + name):\n"
        "        try: exec(line)\n"
        "        except ModuleNotFoundError as error: print(error)\n"
    )
    environment = {**os.environ, **without_extras(tmp_path, "spark", "sql")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *2 * ["icepuffin.SqlSession needs sqlglot: pip install 'icepuffin[sql]'"],
        *2 * ["icepuffin.knn_join needs pyspark: pip install 'icepuffin[spark]'"],
    ]


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_indx'"):
        icepuffin.open_indx  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'open_indx'"):
        from icepuffin import open_indx  # type: ignore[attr-defined]  # noqa: F401, PLC0415
    assert set(icepuffin.__all__) <= set(dir(icepuffin))


def test_the_version_is_that_of_the_installed_package() -> None:
    assert icepuffin.__version__ == importlib.metadata.version("icepuffin")
    assert "__version__" in dir(icepuffin)
    done = subprocess.run(
        [Path(sys.executable).with_name("icepuffin"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"icepuffin, version {icepuffin.__version__}\n"


def test_every_error_can_be_caught_by_its_public_name() -> None:
    for name in PUBLIC_ERRORS:
        assert issubclass(getattr(icepuffin.errors, name), Exception)


def test_every_kind_of_error_is_public_that_is_not_of_the_services_in_dagster() -> None:
    kinds = set()
    for path in (Path(__file__).parents[1] / "ops").rglob("*.py"):
        if path.name != "resources.py":
            kinds |= set(re.findall(r"^class (\w+)\(IcepuffinError\):", path.read_text(), re.MULTILINE))
    assert "TableStateError" in kinds
    assert kinds <= PUBLIC_ERRORS


@pytest.fixture
def table(sql_catalog: Catalog) -> Table:
    made = sql_catalog.create_table("db.t", make_rows(0, 1).schema)
    made.append(make_rows(0, 300))
    return made


def test_the_only_index_needs_no_name(table: Table) -> None:
    with pytest.raises(icepuffin.errors.DefinitionError, match="has no index"):
        icepuffin.open_index(table)
    icepuffin.refresh(table, DEFINITION)
    assert icepuffin.open_index(table).definition.name == "e"
    icepuffin.create_index(table, icepuffin.IndexDefinition(name="other", column="embedding"))
    with pytest.raises(icepuffin.errors.DefinitionError, match="several indexes, name one: e, other"):
        icepuffin.open_index(table)


def test_an_index_is_defined_by_its_parameters_as_by_a_definition(table: Table) -> None:
    made = icepuffin.create_index(table, name="e", column="embedding", metric="l2")
    assert made == icepuffin.create_index(table, DEFINITION)
    with pytest.raises(icepuffin.errors.DefinitionError, match=r"'filter' \(there is filters\); it has: name"):
        icepuffin.create_index(table, name="f", column="embedding", filter=["id"])
    with pytest.raises(icepuffin.errors.DefinitionError, match="column is given beside a definition"):
        icepuffin.create_index(table, DEFINITION, column="embedding")
    with pytest.raises(TypeError, match="an index has a name"):
        icepuffin.create_index(table, column="embedding")


def test_python_plans_lists_proves_and_clears_what_the_shell_does(table: Table) -> None:
    icepuffin.create_index(table, name="e", column="embedding", metric="l2")
    planned = icepuffin.plan(table)
    assert planned.indexes["e"].inserted == 300
    assert planned.sketches is not None
    assert planned.sketches.files_sketched == 1
    assert icepuffin.plan(table, "e").sketches is None
    (listed,) = icepuffin.list_indexes(table)
    assert (listed.versions, listed.snapshot_id, listed.lag and listed.lag.snapshots) == ((), None, 1)
    with pytest.raises(icepuffin.errors.IndexUnavailableError, match="no version at the tag of index e; make one"):
        icepuffin.verify(table)
    snapshot_id = icepuffin.refresh(table).snapshot_id
    (listed,) = icepuffin.list_indexes(table.refresh())
    assert (listed.versions, listed.snapshot_id) == ((snapshot_id,), snapshot_id)
    assert listed.lag is not None
    assert listed.lag.snapshots == 0
    assert repr(icepuffin.list_indexes(table)) == "IndexList(e)"
    proof = icepuffin.verify(table)
    assert (proof.faults, proof.rows, proof.remedy) == ((), 300, "")
    assert "whole, 1 shard, 300 rows compared" in repr(proof)
    assert 'icepuffin_index_versions{catalog="test",table="db.t",index="e"} 1' in icepuffin.metrics(table)
    assert "icepuffin_index" not in icepuffin.metrics()
    table.append(make_rows(300, 310))
    icepuffin.refresh(table, "e")
    assert not icepuffin.gc(table, grace_hours=0, dry_run=True).retired, "all versions stay by default"
    (old,) = icepuffin.gc(table, versions="newest", grace_hours=0, dry_run=True).retired
    assert old.base_snapshot_id == snapshot_id
    assert len(icepuffin.list_indexes(table.refresh())[0].versions) == 2, "a dry run expires nothing"
    icepuffin.gc(table, versions="newest", grace_hours=0)
    assert len(icepuffin.list_indexes(table.refresh())[0].versions) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"versions": "none"},
        {"last": 0},
        {"days": 0.0},
        {"grace_hours": -1.0},
        {"grace_hours": 876_601.0},
        {"grace_hours": float("nan")},
    ],
)
def test_garbage_is_collected_by_what_makes_sense_alone(table: Table, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        icepuffin.gc(table, **wrong)


def test_a_damaged_file_is_named_with_the_command_that_makes_it_anew(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    file = Path(icepuffin.verify(table).path.removeprefix("file://"))
    content = file.read_bytes()
    file.write_bytes(content[:300] + bytes(64) + content[364:])
    proof = icepuffin.verify(table)
    assert proof.faults
    assert re.fullmatch(r"make it anew with: icepuffin refresh db.t --index e --snapshot \d+ --verify", proof.remedy)
    assert "icepuffin refresh db.t" in proof._repr_html_()


def test_a_reader_shows_itself_in_a_notebook(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    page = icepuffin.open_index(table)._repr_html_()
    assert "300 rows" in page
    assert "exact-version: " in page


def test_a_refresh_makes_all_that_is_defined_and_the_sketches(table: Table) -> None:
    icepuffin.create_index(table, DEFINITION)
    stages: list[str] = []
    report = icepuffin.refresh(table, progress=lambda what, *_: stages.append(what))
    assert report.snapshot_id == icepuffin.open_index(table).snapshot_id
    assert report.indexes["e"].rows == 300
    assert report.sketches is not None
    assert report.sketches.ndv["id"] == 300
    assert {"sketches", "e"} == set(stages)
    assert icepuffin.refresh(table, "e").sketches is None
    assert icepuffin.refresh(table).indexes["e"].action == "reused"


def test_a_result_is_its_rows(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    result = icepuffin.open_index(table).search(queries(2), k=3, columns=["id"])
    assert len(result) == 6
    assert list(result) == result.rows.to_pylist()
    assert result.to_pandas()["id"].tolist() == result.rows["id"].to_pylist()
    assert result.to_polars().equals(pl.DataFrame(result.rows))
    assert repr(result) == f"SearchResult(6 rows of 2 queries, snapshot {result.snapshot_id}, exact-version)"
    page = result._repr_html_()
    assert page.count("<tr>") == 7
    assert "exact-version" in page


def test_html_of_a_result_escapes_what_rows_hold(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 3).append_column("text", pa.array(["<script>", "&", "b"]))
    made = sql_catalog.create_table("db.html", rows.schema)
    made.append(rows)
    page = icepuffin.open_exact(made, "embedding", "l2").search(queries(1), k=3)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_a_follower_moves_to_what_is_newer(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    other = table.catalog.load_table(table.name())
    with icepuffin.open_index(table).follow(interval=3600) as following:
        first = following.reader
        assert not following.update()
        assert following.reader is first
        other.append(make_rows(300, 320))
        assert following.update()
        assert following.search(queries(1), k=1).coverage == "nearest-version+tail"
        icepuffin.refresh(other)
        assert following.update()
        result = following.search(queries(1), k=320, columns=["id"])
        assert result.coverage == "exact-version"
        assert sorted(result.rows["id"].to_pylist()) == list(range(320))
        assert len(first.search(queries(1), k=400)) == 300, "a reader that was taken stays what it is"


def test_a_follower_sees_that_a_column_was_renamed(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    other = table.catalog.load_table(table.name())
    with icepuffin.open_index(table).follow(interval=3600) as following:
        with other.update_schema() as update:
            update.rename_column("name", "title")
        assert following.update(), "no snapshot is newer, and the schema is"
        assert following.search(queries(1), k=1, columns=["title"]).rows.column_names[-1] == "title"


def test_a_follower_moves_by_itself(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    with icepuffin.open_index(table).follow(interval=0.05) as following:
        table.append(make_rows(300, 310))
        newest = table.refresh().current_snapshot()
        assert newest is not None
        until(lambda: following.reader.snapshot_id == newest.snapshot_id)
    assert not following._thread.is_alive()


def test_a_follower_that_cannot_read_the_catalog_warns_in_each_answer(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    metadata = to_path(table.refresh().metadata_location)
    with icepuffin.open_index(table).follow(interval=3600) as following:
        away = metadata.rename(metadata.with_suffix(".away"))
        with pytest.raises(FileNotFoundError):
            following.update()
        result = following.search(queries(1), k=1)
        assert len(result) == 1
        assert "not checked for newer snapshots since" in result.warnings[-1]
        assert metadata.name in result.warnings[-1]
        assert following.error is not None
        away.rename(metadata)
        following.update()
        assert following.error is None
        assert not following.search(queries(1), k=1).warnings


def test_a_follower_that_hangs_warns(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    following = icepuffin.open_index(table).follow(interval=3600)
    following.close()
    checked, error = following._last_check
    following._last_check = checked - 4 * 3600, error
    assert "has not ended, or the reader was closed" in following.within(queries(1), 1.0).warnings[-1]


def test_each_follower_of_a_reader_moves(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    reader = icepuffin.open_index(table)
    other = table.catalog.load_table(table.name())
    with reader.follow(interval=3600) as first, reader.follow(interval=3600) as second:
        other.append(make_rows(300, 320))
        assert first.update()
        assert second.update()
        assert first.reader.snapshot_id == second.reader.snapshot_id != reader.snapshot_id
    with reader.follow(interval=3600) as third:
        assert third.update()


@pytest.mark.parametrize("built", [True, False])
def test_a_follower_sees_that_its_index_is_dropped_and_made_anew(table: Table, built: bool) -> None:
    icepuffin.create_index(table, DEFINITION)
    if built:
        icepuffin.refresh(table)
    other = table.catalog.load_table(table.name())
    with icepuffin.open_index(table).follow(interval=3600) as following:
        icepuffin.drop_index(other, "e")
        with pytest.raises(icepuffin.errors.DefinitionError, match="has no index 'e'"):
            following.update()
        assert "has no index 'e'" in following.search(queries(1), k=1).warnings[-1]
        icepuffin.create_index(other.refresh(), replace(DEFINITION, metric="cosine"))
        assert following.update()
        assert following.reader.metric == "cosine"
        assert not following.search(queries(1), k=1).warnings


def test_a_follower_tries_again_a_version_that_could_not_be_read(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    other = table.catalog.load_table(table.name())
    with icepuffin.open_index(table).follow(interval=3600) as following:
        other.append(make_rows(300, 320))
        icepuffin.refresh(other)
        files = list(Path(other.location().removeprefix("file://")).rglob("*.puffin"))
        for file in files:
            file.rename(f"{file}.away")
        assert following.update()
        scanning = following.reader
        assert scanning.coverage == "exact-scan"
        assert not following.update()
        assert following.reader is scanning
        for file in files:
            Path(f"{file}.away").rename(file)
        assert following.update()
        assert following.reader.coverage == "exact-version"
        assert not following.update()


@pytest.mark.parametrize("interval", [1e10, float("inf")])
def test_a_follower_may_wait_for_any_time(table: Table, interval: float) -> None:
    with icepuffin.open_exact(table, "embedding", "l2").follow(interval=interval) as following:
        following._thread.join(0.1)
        assert following._thread.is_alive()


def test_a_moment_cannot_be_followed(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    snapshot = icepuffin.open_index(table).snapshot_id
    with pytest.raises(icepuffin.errors.QueryError, match="stays what it is"):
        icepuffin.open_index(table, snapshot=snapshot).follow()


@pytest.mark.parametrize("interval", [0, -1.0, float("nan"), "often", None, 10**400])
def test_an_interval_is_a_number_of_seconds(table: Table, interval: Any) -> None:
    with pytest.raises(
        icepuffin.errors.QueryError, match=f"interval is {interval!r}; it is a number of seconds above 0"
    ):
        icepuffin.open_exact(table, "embedding", "l2").follow(interval=interval)


def test_a_reader_says_what_it_reads(table: Table) -> None:
    icepuffin.refresh(table, DEFINITION)
    reader = icepuffin.open_index(table, storage=STORAGE)
    assert repr(reader) == (
        f"IndexReader('db.t', index 'e', snapshot {reader.snapshot_id}, 300 rows, {reader.dims} dimensions, l2, "
        "exact-version)"
    )
    table.delete("id < 100")
    assert icepuffin.open_index(table).row_count == 200
