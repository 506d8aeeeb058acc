"""Where the Dagster instance of a settings file lives."""

from pathlib import Path

import pytest

from icepuffin.orchestration.instance import home_of, prepare_home
from icepuffin.orchestration.settings import Settings

FILE = Path("/etc/lake/icepuffin.toml")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/srv/somebody")
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


def settings(**own: str) -> Settings:
    return Settings.model_validate({"catalogs": {"c": {"type": "rest"}}, **own})


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("instance", "/etc/lake/instance"),
        ("../instance", "/etc/instance"),
        ("/srv/instance", "/srv/instance"),
        ("~/instance", "/srv/somebody/instance"),
    ],
)
def test_the_settings_name_a_folder_beside_their_file(name: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/srv/other")
    assert home_of(settings(dagster_home=name), FILE) == Path(home)


@pytest.mark.parametrize(("name", "home"), [("/srv/instance", "/srv/instance"), ("~/one", "/srv/somebody/one")])
def test_the_variable_names_the_folder_that_dagster_takes(
    name: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of variables, such as one of systemd or Docker, expands no tilde, and Dagster does."""
    monkeypatch.setenv("DAGSTER_HOME", name)
    assert home_of(settings(), FILE) == Path(home)


def test_dagster_gets_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "instance")
    assert home_of(settings(), FILE) == tmp_path / "instance"


def test_without_either_it_lies_beside_the_settings() -> None:
    assert home_of(settings(), FILE) == Path("/etc/lake/dagster_home")


def test_what_is_in_the_folder_stays_and_what_is_missing_is_written(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "a" / "home")
    (home / "dagster.yaml").write_text("# ours")
    (home / "workspace.yaml").unlink()
    prepare_home(home)
    assert (home / "dagster.yaml").read_text() == "# ours"
    assert "icepuffin.orchestration.definitions" in (home / "workspace.yaml").read_text()
