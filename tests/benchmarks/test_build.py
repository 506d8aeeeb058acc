"""The benchmark of builds: a peer that is not installed is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import build


def test_a_peer_that_is_missing_is_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((10, 4), np.float32))
    options = ["--vectors", f"{tmp_path}/rows.npy", "--out", f"{tmp_path}/out.json"]
    monkeypatch.setattr("sys.argv", ["build", *options, "--systems", "diskannpy", "--diskannpy", f"{tmp_path}/python"])
    build.main()
    outcome = json.loads((tmp_path / "out.json").read_text())["systems"]["diskannpy"]
    assert "requirements-diskannpy.txt" in outcome["skipped"]
