"""The benchmark of scale: figures under the promised names, and not out of this world."""

import json
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import scale, simulated_vectors
from benchmarks.scale import Plan, Report, measure, merged_nearest, nearest
from benchmarks.simulated_vectors import BLOCK, SimulatedVectors, near_neighbors, prepare
from benchmarks.step_costs import Meter, StepCosts, run_step
from icepuffin.ops.cache.cache_settings import DIRECTORY, DISK_MB, LAYOUT
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from tests.selection import nightly

ROWS, DIMS = 5_000, 24


@pytest.fixture
def base(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((20, DIMS))
    np.save(tmp_path / "vectors.npy", centers[rng.integers(0, 20, 3_000)] + 0.3 * rng.standard_normal((3_000, DIMS)))
    return tmp_path / "vectors.npy"


@nightly
def test_every_figure_has_its_name_and_a_sane_value(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process: a new one for each step takes seconds, and is tested by itself."""
    monkeypatch.setattr(scale, "run_step", in_this_process)
    for name, value in ((DIRECTORY, str(tmp_path / "cache")), (DISK_MB, "1000"), (LAYOUT, "fast")):
        monkeypatch.setenv(name, value)  # and back after the test
    folder = tmp_path / "lake"
    folder.mkdir()
    definition = IndexDefinition(name="bench", column="embedding", metric="l2", shards=2, target_recall=0.0)
    plan = Plan(folder, base, ROWS, None, 3, definition, 2, queries=40, versions=3, seed=0, byte_valued=False)
    measure(plan, Report(plan, tmp_path / "scale.json", {"rows": ROWS}), [0.95], 0.95)
    figures = json.loads((tmp_path / "scale.json").read_text())
    assert figures["dims"] == DIMS
    assert set(figures["build"]) == {"seconds", "core_us_per_vector", "peak_bytes"}
    assert 4 * DIMS < figures["index"]["bytes_per_vector"] < 4 * DIMS + 200
    for opening in (*figures["open"].values(), *figures["open_every_shard"].values()):
        assert set(opening) == {"seconds", "anonymous_bytes", "bytes_read"}
        assert min(opening.values()) > 0
    assert set(figures["open"]) == {"cold", "warm"}
    searches = [(point["layout"], point["k"]) for point in figures["search"]]
    assert searches == [("fast", 10), ("fast", 100), ("compact", 10), ("compact", 100)]
    for point in figures["search"]:
        assert set(point) == {"k", "target", "layout", "recall", "p50_ms", "p99_ms", "resident_bytes"}
        assert 0.9 < point["recall"] <= 1
        assert 0 < point["p50_ms"] <= point["p99_ms"]
    assert set(figures["refresh"]) == {"append", "delete", "compact", "rollback"}
    for change in figures["refresh"].values():
        assert set(change) == {"seconds", "ratio_to_rebuild", "bytes_written"}
        assert min(change.values()) > 0
    assert figures["refresh"]["rollback"]["bytes_written"] < figures["index"]["bytes_per_vector"] * ROWS / 2
    assert figures["versions"]["count"] == 3
    assert 1 < figures["versions"]["storage_ratio"] < 4
    for name, step in figures["steps"].items():
        assert set(step) == {
            "seconds", "core_us_per_vector", "peak_bytes", "anonymous_bytes", "mapped_bytes", "bytes_read",
            "bytes_written", "storage_bytes",
        }, name  # fmt: skip


def in_this_process(step: Callable[..., Any], *arguments: Any) -> tuple[Any, StepCosts]:
    here, there = Pipe()
    with here, there:
        meter = Meter(there)
        return step(meter, *arguments), meter.costs


def take_memory(meter: Meter, megabytes: int) -> int:
    """A step that takes memory and processor time for a moment."""
    before = np.ones(megabytes << 17)
    del before
    with meter.measured():
        return int(np.ones(megabytes << 17).sum())


def test_a_step_is_measured_in_a_process_of_its_own() -> None:
    total, costs = run_step(take_memory, 200)
    assert total == 200 << 17
    assert costs.seconds > 0
    assert costs.cpu_seconds > 0
    assert 200 << 20 < costs.peak_bytes < 200 << 24


def test_a_step_that_fails_is_reported() -> None:
    with pytest.raises(RuntimeError, match="take_memory failed"):
        run_step(take_memory, "many")


def test_rows_depend_on_their_numbers_alone(base: Path, tmp_path: Path) -> None:
    assert prepare(base, None, tmp_path) == DIMS
    vectors = SimulatedVectors(tmp_path, 3 * BLOCK)
    every = vectors[:]
    assert every.shape == (3 * BLOCK, DIMS)
    np.testing.assert_array_equal(vectors[BLOCK - 5 : BLOCK + 5], every[BLOCK - 5 : BLOCK + 5])
    some = np.array([7, 2 * BLOCK, 3, BLOCK])
    np.testing.assert_array_equal(vectors[some], every[some])
    assert len(np.unique(every, axis=0)) == len(every)
    assert not np.array_equal(SimulatedVectors(tmp_path, BLOCK, seed=1)[:10], every[:10])
    coded = SimulatedVectors(tmp_path, 100, byte_valued=True)[:]
    assert ((coded >= 0) & (coded <= 255) & (coded == np.rint(coded))).all()


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_rows_that_a_command_writes_are_those_that_are_read(base: Path, tmp_path: Path, kind: type) -> None:
    rows, out = BLOCK + 7, tmp_path / "out.npy"
    options = ["--byte-valued"] if kind is np.uint8 else []
    simulated_vectors.main(["--base", str(base), "--rows", str(rows), "--dims", "10", "--out", str(out), *options])
    prepare(base, 10, tmp_path)
    vectors = SimulatedVectors(tmp_path, rows, byte_valued=kind is np.uint8)
    written = np.load(out)
    assert written.dtype == kind
    np.testing.assert_array_equal(written, vectors[:])


@pytest.mark.parametrize("dims", [8, 40])
def test_other_dimensions_keep_distances(base: Path, tmp_path: Path, dims: int) -> None:
    assert prepare(base, dims, tmp_path) == dims
    mapped, vectors = np.load(tmp_path / "base.npy"), np.load(base)
    gaps, true = np.linalg.norm(mapped[1:] - mapped[:-1], axis=1), np.linalg.norm(vectors[1:] - vectors[:-1], axis=1)
    if dims >= DIMS:
        np.testing.assert_allclose(gaps, true, rtol=1e-4)
    else:
        assert 0.8 < np.median(gaps / true) / np.sqrt(dims / DIMS) < 1.2


def test_neighbours_are_near(base: Path) -> None:
    vectors = np.load(base).astype(np.float32)
    found = near_neighbors(vectors)
    assert (found != np.arange(len(vectors))[:, None]).all()
    distances = np.linalg.norm(vectors[found[:, 0]] - vectors, axis=1)
    others = np.linalg.norm(vectors[::-1] - vectors, axis=1)
    assert np.median(distances) < 0.5 * np.median(others)


def test_true_neighbours_are_those_of_a_plain_comparison() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((2 * BLOCK + 100, 6), np.float32), rng.standard_normal((9, 6), np.float32)
    parts = [
        nearest(vectors, range(*ends), queries, 30) for ends in ((0, 20), (20, BLOCK + 7), (BLOCK + 7, len(vectors)))
    ]
    ids, distances = merged_nearest(parts, 30)
    plain = ((vectors[None].astype(np.float64) - queries[:, None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(ids, np.argsort(plain, axis=1, kind="stable")[:, :30])
    np.testing.assert_allclose(distances, np.sort(plain, axis=1)[:, :30])
