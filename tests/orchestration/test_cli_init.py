"""`icepuffin init`: a settings file that commands read, for a table that is there, or none."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.orchestration.cli import init as init_command
from icepuffin.orchestration.cli import main
from icepuffin.orchestration.settings import load

Init = Callable[..., str]


@pytest.fixture
def init(
    table_factory: Callable[..., Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Init:
    """Run the command in a folder beside a catalog that has `db.t`. Returns what it says, on stdout or stderr."""
    table_factory("t")
    monkeypatch.delenv("ICEPUFFIN_SETTINGS", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments: str, table: str = "db.t", column: str = "embedding", uri: str = "", fails: bool = False) -> str:
        given = ["--uri", uri or f"sqlite:///{tmp_path}/catalog.db", "--catalog", "test"]
        command = ["init", *given, "--table", table, "--column", column, *arguments]
        if not fails:
            main(command)
            return capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(command)
        return capsys.readouterr().err

    return run


def test_commands_read_the_file_and_it_ends_with_the_next_one(init: Init, capsys: pytest.CaptureFixture[str]) -> None:
    said = init("--index", "e", "--metric", "l2", "--property", "s3.endpoint=http://127.0.0.1:9000")
    assert said.endswith("Make it: icepuffin refresh db.t\n")
    settings = load(Path("icepuffin.toml"))
    assert settings.catalogs["test"].properties["s3.endpoint"] == "http://127.0.0.1:9000"
    (table,) = settings.tables.values()
    assert (table.name, table.catalog, table.snapshots) == ("db.t", "test", "every")
    assert (table.indexes["e"].column, table.indexes["e"].metric) == ("embedding", "l2")
    main(["index", "list", "db.t"])
    assert "e" in capsys.readouterr().out
    assert [path.name for path in Path().iterdir()] == ["icepuffin.toml"], "nothing else is left"


def test_nobody_else_may_read_the_file_at_any_moment(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text, modes = Path.write_text, []

    def written(path: Path, *arguments: Any, **named: Any) -> int:
        modes.append(path.stat().st_mode & 0o777 if path.exists() else None)
        return write_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", written)
    before = os.umask(0)
    try:
        init("--property", "s3.secret-access-key=hidden")
    finally:
        os.umask(before)
    assert "hidden" in Path("icepuffin.toml").read_text()
    assert (modes, Path("icepuffin.toml").stat().st_mode & 0o777) == ([0o600], 0o600)


def test_a_file_that_is_there_stays(init: Init) -> None:
    file = Path("icepuffin.toml")
    file.write_text("mine")
    said = init(uri="http://127.0.0.1:1", fails=True)
    assert "is there: change it, remove it, or name another folder with --dir" in said, "before a catalog is asked"
    assert file.read_text() == "mine"


def test_a_file_that_came_while_questions_were_asked_stays(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("icepuffin.toml")
    monkeypatch.setattr(click, "prompt", lambda *_, **__: file.write_text("mine") and "embedding")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert "is there: change it" in init(column="", fails=True)
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [("icepuffin.toml", "mine")]


@pytest.mark.parametrize(
    ("uri", "arguments"),
    [("lake://me:hidden@host/base", []), ("", ["--property", "a=b", "--property", "s3.secret-access-key:hidden"])],
)
def test_an_error_repeats_no_password(init: Init, uri: str, arguments: list[str]) -> None:
    assert "hidden" not in init(*arguments, uri=uri, fails=True)


def test_a_folder_that_is_named_gets_the_file(init: Init) -> None:
    said = init("--dir", "other/my place")
    for command in ("plan", "refresh"):
        assert f"icepuffin {command} db.t --dir '{Path.cwd()}/other/my place'\n" in said
    assert Path("other/my place/icepuffin.toml").is_file()


def test_a_name_with_a_space_is_one_word_of_the_next_commands(init: Init, table_factory: Callable[..., Table]) -> None:
    table_factory("my t")
    said = init(table="db.my t")
    for command in ("plan", "refresh"):
        assert f"icepuffin {command} 'db.my t'\n" in said
    assert load(Path("icepuffin.toml")).tables.keys() == {"my t"}
    text = init_command._text({}, catalog="c", table="a.b.t", column="v", index="i", metric="l2")
    assert "[tables.t]\n" in text, "the last of its names, however deep its namespace"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"table": "db.nowhere"}, "there is no table db.nowhere"),
        ({"table": "t"}, "'t' is no table; name one as namespace.table"),
        ({"column": "vector"}, "db.t has no column 'vector'"),
        ({"column": "name"}, "name"),
        ({"uri": "sqlite:////no/such/lake.db"}, "there is no SQLite database"),
        ({"uri": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"uri": "ftp://host"}, "does not say the catalog's type: give --type"),
        ({"--index": "a/b"}, "a/b"),
        ({"--property": "endpoint"}, "--property, the 1. of them: write KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(init: Init, options: dict[str, str], expected: str) -> None:
    words = [word for option, value in options.items() if option[0] == "-" for word in (option, value)]
    named = {option: value for option, value in options.items() if option[0] != "-"}
    assert expected in init(*words, **named, fails=True)
    assert not list(Path().iterdir())


def test_without_a_terminal_the_missing_options_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["init", "--table", "db.t", "--dir", str(tmp_path)])
    assert exited.value.code == 2
    assert "without a terminal, give --uri, --column" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["init", "--type", "glue", "--dir", str(tmp_path)])
    assert "without a terminal, give --table, --column" in capsys.readouterr().err, "some types need no uri"


def test_the_type_of_a_catalog_is_the_one_that_is_named_or_that_of_its_uri() -> None:
    uri = "postgresql+psycopg2://host/base"
    assert init_command._catalog(uri, None, ()) == {"type": "sql", "uri": uri}
    assert init_command._catalog("thrift://host", "rest", ("a=b=c",)) == {
        "type": "rest",
        "uri": "thrift://host",
        "a": "b=c",
    }
    assert init_command._catalog(None, "glue", ()) == {"type": "glue"}


def test_a_name_with_a_dot_is_one_name(init: Init) -> None:
    init("--index", "v.1", "--property", "s3.endpoint=https://lake/\u00e4")
    settings = load(Path("icepuffin.toml"))
    assert settings.tables["t"].indexes.keys() == {"v.1"}
    assert settings.catalogs["test"].properties["s3.endpoint"] == "https://lake/\u00e4"


def test_an_index_has_the_name_of_its_column_unless_another_is_given(init: Init) -> None:
    assert "table db.t, index embedding.\nSee what its first version takes: icepuffin plan db.t\n" in init()
    assert load(Path("icepuffin.toml")).tables["t"].indexes.keys() == {"embedding"}


def test_a_terminal_is_asked_for_the_rest_and_offers_the_vector_column(
    table_factory: Callable[..., Table], sql_catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_factory("t")
    asked: dict[str, object] = {}
    answers = {
        "URI of the catalog": sql_catalog.properties["uri"],
        "Name of the catalog": "test",
        "Table, as namespace.table": "db.t",
    }

    def prompt(question: str, default: object = None) -> object:
        asked[question] = default
        return answers.get(question, default)

    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    main(["init", "--dir", str(tmp_path / "new")])
    assert asked["Name of the catalog"] == "lake"
    assert asked["Vector column"] == "embedding"
    assert asked["Name of the index"] == "embedding"
    (table,) = load(tmp_path / "new" / "icepuffin.toml").tables.values()
    assert table.indexes["embedding"].column == "embedding"
    asked.clear()
    given = ["--index", "mine", "--uri", sql_catalog.properties["uri"], "--catalog", "test", "--table", "db.t"]
    main(["init", *given, "--dir", str(tmp_path / "given")])
    assert asked == {"Vector column": "embedding"}
    (table,) = load(tmp_path / "given" / "icepuffin.toml").tables.values()
    assert table.indexes["mine"].column == "embedding"
    asked.clear()
    with pytest.raises(SystemExit):
        main(["init", *given[:4], "--table", "db.t", "--dir", str(tmp_path / "named")])
    assert not asked, "who gives a uri is asked for no name"
    answers["URI of the catalog"] = "http://127.0.0.1:1"
    with pytest.raises(SystemExit):
        main(["init", "--dir", str(tmp_path / "rest")])
    assert [*asked] == ["URI of the catalog", "Table, as namespace.table"], "the name means something to SQL alone"
