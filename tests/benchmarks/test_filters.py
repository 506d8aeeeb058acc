"""The benchmark of conditions: figures under the promised names, of conditions that no cache can answer."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.filter_columns import SHAPES, Columns
from benchmarks.filters import counted_parquet, main
from icepuffin.ops.cache.cache_settings import DIRECTORY
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import make_rows

ROWS, DIMS, QUERIES = 4_000, 12, 20


@pytest.fixture
def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((15, DIMS))
    return (centers[rng.integers(0, 15, ROWS)] + 0.3 * rng.standard_normal((ROWS, DIMS))).astype(np.float32)


def test_every_shape_has_its_figures(vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "cache"))  # and back after the test
    np.save(tmp_path / "vectors.npy", vectors)
    out = tmp_path / "filters.json"
    main(["--vectors", f"{tmp_path}/vectors.npy", "--out", str(out), "--queries", str(QUERIES), "--files", "3"])
    figures = json.loads(out.read_text())
    assert set(figures) == {"shapes", "build_ratio"}
    assert figures["build_ratio"] > 0
    assert [shape["name"] for shape in figures["shapes"]] == [shape.name for shape in SHAPES]
    for shape in figures["shapes"]:
        assert set(shape) == {"name", "share", "recall", "p50_ms", "first_ms", "parquet_bytes"}
        assert shape["p50_ms"] > 0
        assert shape["first_ms"] > 0
        assert 0.95 < shape["recall"] <= 1
        assert shape["parquet_bytes"] >= 0
    shares = {shape["name"]: shape["share"] for shape in figures["shapes"]}
    for name, share in shares.items():
        if name.endswith("%"):
            named = float(name.split()[-2]) / 100
            assert abs(share - named) < 0.3 * named + 4 / ROWS


def test_no_condition_repeats_and_all_of_a_query_select_the_same_rows(vectors: np.ndarray) -> None:
    columns = Columns(vectors, vectors[:QUERIES], seed=0)
    database = duckdb.connect()
    database.register("rows", pa.table(columns.of_rows(np.arange(ROWS))).append_column("row", pa.array(range(ROWS))))
    conditions = set()
    for shape in SHAPES:
        for query in range(0, QUERIES, 4):
            for _ in range(2):
                where = shape.condition(columns, query)
                assert where not in conditions
                conditions.add(where)
                text = where.replace("array_contains", "list_contains")
                rows = database.sql(f"SELECT row FROM rows WHERE {text} ORDER BY row").fetchnumpy()["row"]
                np.testing.assert_array_equal(rows, shape.matching(columns, query))


def test_clusters_lie_near_a_query_and_far_from_it(vectors: np.ndarray) -> None:
    columns = Columns(vectors, vectors[:QUERIES], seed=0)
    correlated, opposite = (shape for shape in SHAPES if "correlated" in shape.name)
    for query in range(QUERIES):
        distances = np.linalg.norm(vectors - vectors[query], axis=1)
        assert distances[correlated.matching(columns, query)].mean() < distances.mean()
        assert distances[opposite.matching(columns, query)].mean() > distances.mean()


def test_reads_of_parquet_are_counted(table_factory) -> None:  # type: ignore[no-untyped-def]
    table = table_factory()
    table.append(make_rows(0, 1000))
    (file,) = table.scan().plan_files()
    size = to_path(file.file.file_path).stat().st_size
    from icepuffin.ops.search.opening import open_exact  # noqa: PLC0415

    with counted_parquet() as read:
        open_exact(table, "embedding", "l2").search(np.ones(16), 3, columns=[])
    assert 0.5 * size < read[0] < 2 * size
    before = read[0]
    open_exact(table, "embedding", "l2").search(np.ones(16), 3, columns=[])
    assert read[0] == before


def test_help_says_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "parquet_bytes" in capsys.readouterr().out
