"""The benchmark of kernels: what it refuses, and which graphs it builds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import kernels
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.locality import locality_order


def test_a_k_wider_than_every_beam_is_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--k", "10", "100", "--widths", "20", "70", "--systems", ""])
    assert "no width is 100 or more" in capsys.readouterr().err


def test_graphs_of_seeds_are_built_over_rows_in_the_order_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 16))[rng.integers(0, 40, 3_000)] + 0.3 * rng.standard_normal((3_000, 16))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    built, build = [], vamana.build

    def recorded(vectors: np.ndarray, *arguments: Any, **named: Any) -> Any:
        built.append(vectors.copy())
        return build(vectors, *arguments, **named)

    monkeypatch.setattr(vamana, "build", recorded)
    kernels.main(["--vectors", f"{tmp_path}/rows.npy", "--seeds", "2", "--systems", "", "--queries", "50"])
    order = np.random.default_rng(1).permutation(len(rows))[50:]
    base = rows.astype(np.float32)[order]
    assert len(built) == 2
    for vectors in built:
        np.testing.assert_array_equal(vectors, base[locality_order(base)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("recall of 2 seeds")]
    assert float(line.rpartition("200: ")[2].split()[0]) > 0.98
