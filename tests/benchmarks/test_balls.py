"""The benchmark of balls: figures under the names that documents use."""

import json
from pathlib import Path

from benchmarks.balls import main


def test_probe_and_table_have_their_figures(tmp_path: Path) -> None:
    out = tmp_path / "balls.json"
    main(["--files", "50", "--dims", "16", "--table-files", "4", "--rows-per-file", "40", "--out", str(out)])
    figures = json.loads(out.read_text())
    assert figures["probe"]["bytes_moved"] == 50 * 64  # rows of codes are whole cache lines
    assert figures["probe"]["bytes_of_balls"] == 50 * (4 * 16 + 8)
    assert figures["probe"]["p50_ms"] > 0
    assert figures["table"]["rows"] == 160
    assert 1 <= figures["table"]["files_scanned"] <= 4
