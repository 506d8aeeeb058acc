"""docs/quickstart.md works as it is written: the table, the settings and the commands of one machine."""

import re
import tomllib
from pathlib import Path

import pytest

from icepuffin.orchestration.cli import main
from icepuffin.orchestration.settings import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def blocks(section: str, language: str) -> list[str]:
    """The blocks of that language in a section."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", body, re.MULTILINE | re.DOTALL)


def test_a_table_of_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = "3. Your own table, on a laptop"
    monkeypatch.chdir(tmp_path)
    exec(blocks(section, "python")[0], {})  # noqa: S102  our own page
    commands = "".join(blocks(section, "sh")).splitlines()
    assert [line.split()[1] for line in commands] == ["init", "plan", "refresh", "search"]
    for line in commands:
        capsys.readouterr()
        main(line.split()[1:])
    (shown,) = blocks(section, "toml")
    written = tomllib.loads(Path("icepuffin.toml").read_text(encoding="utf-8"))
    for part, values in tomllib.loads(shown).items():
        assert written[part].keys() == values.keys()
    assert written["catalogs"] == tomllib.loads(shown)["catalogs"]
    assert "exact-version" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/settings.md"])
def test_settings_of_a_document_load(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKE_TOKEN", "LAKE_CREDENTIAL", "S3_KEY", "S3_SECRET"):
        monkeypatch.setenv(name, "x")
    text = (ROOT / page).read_text(encoding="utf-8")
    examples = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        file = tmp_path / "icepuffin.toml"
        file.write_text(example, encoding="utf-8")
        assert load(file).catalogs
