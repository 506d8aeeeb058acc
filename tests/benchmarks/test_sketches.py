"""The benchmark of sketches: figures of every column, for any number of repeats."""

import json
from pathlib import Path

import pytest

from benchmarks import sketch_memory, sketches
from tests.selection import nightly


@nightly
def test_every_column_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sketches.json"
    options = ["--out", str(out), "--rows", "5000", "--repeats", "5", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["sketches", *options, "--systems", "icepuffin"])
    sketches.main()
    for figures in json.loads(out.read_text()).values():
        assert set(figures["columns"]) == set(sketches.DISTINCT)
        assert all(abs(column["error"]) < 0.05 for column in figures["columns"].values())
        assert figures["all_seconds"] > 0


def test_the_memory_of_many_files_is_measured_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "memory.json"
    monkeypatch.setattr(
        "sys.argv", ["sketch_memory", "--files", "60", "--columns", "2", "--rows", "50", "--out", str(out)]
    )
    sketch_memory.main()
    figures = json.loads(out.read_text())
    assert figures["ndv"] == {"c0": 50 * 50, "c1": 50 * 50}
    assert figures["kept"] == 60
    assert figures["peak_mb"] >= figures["before_mb"] > 0
