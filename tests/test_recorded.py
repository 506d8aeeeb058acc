"""Recorded pages: a change is shown by its lines, and what nothing compares is not kept."""

import re
from pathlib import Path

import pytest

from tests import recorded
from tests.repository import REPOSITORY


def test_a_change_is_shown_by_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "REPOSITORY", tmp_path)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "recorded")
    monkeypatch.delenv(recorded.VARIABLE, raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)\+a\n\+b.*ICEPUFFIN_RECORD=1"):
        recorded.recorded("new.txt", "a\nb\n")
    monkeypatch.setenv(recorded.VARIABLE, "1")
    recorded.recorded("page.txt", f"one\nof {tmp_path} \nafter 1,234.56 ms\n", {str(tmp_path): "FOLDER"})
    monkeypatch.delenv(recorded.VARIABLE)
    assert (tmp_path / "recorded" / "page.txt").read_text() == "one\nof FOLDER\nafter SOME ms\n"
    recorded.recorded("page.txt", "one\nof FOLDER\nafter 7 ms")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-of FOLDER\n\+of folder"):
        recorded.recorded("page.txt", "one\nof folder\nafter 7 ms")


def test_each_recorded_file_is_compared_and_says_nothing_of_a_machine() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [path.name for path in recorded.file_names() if f'"{path.name}"' not in tests] == []
    texts = {path.name: path.read_text(encoding="utf-8") for path in recorded.file_names()}
    assert sum(map(len, texts.values())) <= 250_000
    machine = re.compile(r"/(?:tmp|home|root|work|var|Users)/|[0-9]+\.[0-9]+ ms\b")
    assert {name: found[0] for name, text in texts.items() if (found := machine.search(text))} == {}
