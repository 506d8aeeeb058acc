"""The benchmark of sketches: figures of every column, for any number of repeats."""

import json
from pathlib import Path

import pytest

from benchmarks import sketches


def test_every_column_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "sketches.json"
    options = ["--out", str(out), "--rows", "5000", "--repeats", "5", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["sketches", *options, "--systems", "icepuffin"])
    sketches.main()
    for figures in json.loads(out.read_text()).values():
        assert set(figures["columns"]) == set(sketches.DISTINCT)
        assert all(abs(column["error"]) < 0.05 for column in figures["columns"].values())
        assert figures["all_seconds"] > 0
