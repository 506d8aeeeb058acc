"""What the demo finds in its folder before it begins."""

from pathlib import Path

import pytest
from rich.console import Console

from examples.demo import history
from examples.demo.demo_run import SETTINGS, run_demo
from icepuffin.ops.errors import IcepuffinError

OWN = "[catalogs.shop]\ntype = 'rest'\n"


@pytest.fixture(autouse=True)
def no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are missing, so that no demo goes further than that."""
    monkeypatch.setattr(history, "SHIPPED", tmp_path / "packages.parquet")


def refusal(folder: Path) -> str:
    """The message of a demo in a folder."""
    with pytest.raises(IcepuffinError) as caught:
        run_demo(folder, Console())
    return str(caught.value)


def test_settings_of_somebody_else_are_not_replaced(tmp_path: Path) -> None:
    settings = tmp_path / "icepuffin.toml"
    settings.write_text(OWN, encoding="utf-8")
    assert f"{settings} is not the demo's, which would replace it" in refusal(tmp_path)
    assert settings.read_text(encoding="utf-8") == OWN
    assert [*tmp_path.iterdir()] == [settings]


def test_a_demo_that_ended_before_its_first_table_begins_again(tmp_path: Path) -> None:
    assert "packages.parquet is missing" in refusal(tmp_path)
    (tmp_path / "icepuffin.toml").write_text(SETTINGS.format(directory=tmp_path), encoding="utf-8")
    assert "packages.parquet is missing" in refusal(tmp_path)
    (tmp_path / "catalog.db").touch()
    assert "holds a demo already" in refusal(tmp_path)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a?b", "a#b", "a%20b", "a\nb"])
def test_a_folder_that_no_uri_can_name_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    assert f"has {name[1]!r} in its name" in refusal(tmp_path / name)
    assert not list(tmp_path.iterdir())
