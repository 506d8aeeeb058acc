"""What is called exact, through tables: the same rows and distances as float64, on every path and in every batch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.distances.distance import prepare, prepare_exact
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.sketches.hashing import content_hash
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.rows import datafile
from icepuffin.ops.rows.vector_column import exact_vectors
from icepuffin.ops.search.exact.pruning import FileBalls
from icepuffin.ops.search.exact.scan import RangeThresholds, VectorSource
from icepuffin.ops.search.indexed import distributed_search
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.range_search import index_rows
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.tasks.file_balls import ball_around
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.tasks.vectors import content_hashes
from tests.conftest import STORAGE
from tests.naive.vectors import assert_nearest, exact_distances
from tests.ops.index.comparison import DEFINITION, index_head
from tests.selection import some

Vectors = npt.NDArray[np.float64]
ALL = "id >= 0"


def offset(rng: np.random.Generator, count: int) -> Vectors:
    return 10_000 + rng.standard_normal((count, 16))


def metres(rng: np.random.Generator, count: int) -> Vectors:
    """Points on a map: 10 km square, 4,000 km north of the origin."""
    return np.array([500_000.0, 4_400_000.0]) + 10_000 * rng.random((count, 2))


def times(rng: np.random.Generator, count: int) -> Vectors:
    """Seconds since 1970, beside other features."""
    return np.column_stack([1.7e9 + 86_400 * 30 * rng.random(count), rng.standard_normal((count, 3))])


def large(rng: np.random.Generator, count: int) -> Vectors:
    return 1e20 * rng.standard_normal((count, 8))


def small(rng: np.random.Generator, count: int) -> Vectors:
    return 1e-23 * rng.standard_normal((count, 8))


def twins(rng: np.random.Generator, count: int) -> Vectors:
    """Every vector forty times."""
    return np.repeat(rng.standard_normal((-(-count // 40), 16)), 40, axis=0)[:count]


KINDS = [offset, metres, times, large, small, twins]


def rows(vectors: Vectors, element: pa.DataType, first: int = 0) -> pa.Table:
    column = pa.array(list(vectors), pa.list_(pa.float64())).cast(pa.list_(element))
    return pa.table({"id": np.arange(first, first + len(vectors)), "embedding": column})


def made(catalog: Catalog, vectors: Vectors, element: pa.DataType) -> Table:
    """In three files, some rows of the first deleted."""
    parts = np.array_split(vectors, 3)
    first = rows(parts[0], element)
    table = catalog.create_table("db.t", first.schema, properties={"format-version": "2"})
    start = 0
    for part in parts:
        table.append(rows(part, element, start))
        start += len(part)
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 200, 7)})
    return table.refresh()


class Truth:
    """The live rows of a table's head in the order of ties: by file, then by position."""

    def __init__(self, table: Table) -> None:
        live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
        schema = table.schema()
        fields = [schema.find_field(name).field_id for name in ("id", "embedding")]
        batches = [
            batch.columns
            for file in live.files
            for batch in read_live(open_storage(file.path, STORAGE), file, schema, fields)
        ]
        self.ids = np.concatenate([np.asarray(batch["id"]) for batch in batches])
        self.vectors = np.concatenate([exact_vectors(batch["embedding"]) for batch in batches])
        self._place = {int(row): place for place, row in enumerate(self.ids)}

    def check(self, result: SearchResult, queries: Vectors, k: int, metric: str) -> None:
        assert result.warnings == ()
        for number, query in enumerate(queries):
            answer = [row for row in result.rows.to_pylist() if row["query"] == number]
            places = [self._place[row["id"]] for row in answer]
            assert_nearest(places, [row["distance"] for row in answer], query, self.vectors, k, metric)

    def check_within(self, reader: IndexReader, queries: Vectors, metric: str) -> None:
        """Thresholds between the distances of two rows, and at the very distance of one."""
        for query in queries:
            true = np.sort(exact_distances(query, self.vectors, metric)).astype(np.float64)
            gap = int(np.argmax(np.diff(true[:200])))
            between = float((true[gap] + true[gap + 1]) / 2)
            result = reader.within(query, between, columns=["id"])
            assert result.warnings == ()
            assert result.rows.num_rows == gap + 1
            last = result.rows["distance"][-1].as_py()
            assert reader.within(query, last, inclusive=True, columns=["id"]).rows.num_rows == gap + 1
            assert reader.within(query, last, columns=["id"]).rows.num_rows <= gap


def near_vectors(vectors: Vectors, count: int = 12) -> Vectors:
    """Some rows themselves, and points between rows."""
    rng = np.random.default_rng(1)
    drawn = vectors[rng.integers(0, len(vectors), count)].copy()
    half = count // 2
    drawn[half:] = (drawn[half:] + vectors[rng.integers(0, len(vectors), count - half)]) / 2
    return drawn


def check_batches(search: Callable[[Vectors], SearchResult], queries: Vectors) -> None:
    """One query at a time gives what all together give."""
    together = search(queries).rows.to_pylist()
    for number in (0, len(queries) - 1):
        alone = search(queries[number : number + 1]).rows.to_pylist()
        assert [{**row, "query": number} for row in alone] == [row for row in together if row["query"] == number]


@pytest.mark.parametrize(
    ("metric", "element", "kind"),
    some(list(product(["l2", "cosine", "ip"], [pa.float32(), pa.float64()], KINDS)), 14),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_exact_scans_give_what_float64_gives(
    sql_catalog: Catalog, kind: Callable[..., Vectors], element: pa.DataType, metric: str
) -> None:
    table = made(sql_catalog, kind(np.random.default_rng(0), 1500), element)
    truth = Truth(table)
    queries = near_vectors(truth.vectors.astype(np.float64))
    reader = open_exact(table, "embedding", metric, storage=STORAGE)
    truth.check(reader.search(queries, 10, columns=["id"]), queries, 10, metric)
    truth.check(reader.search(queries[:2], 10, columns=["id"], where=ALL), queries[:2], 10, metric)
    check_batches(lambda some: reader.search(some, 10, columns=["id"]), queries)
    if kind is not twins or metric == "l2":
        truth.check_within(reader, queries[-3:], metric)


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("kind", [offset, metres, times, twins])
def test_conditions_tails_and_thresholds_of_an_index_give_what_float64_gives(
    sql_catalog: Catalog, kind: Callable[..., Vectors], metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition that every row meets turned recall 1.0 into .017."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")  # a warm index is searched in this process
    table = made(sql_catalog, kind(np.random.default_rng(0), 1500), pa.float32())
    definition = replace(DEFINITION, metric=metric, shards=2, target_recall=0.01)
    index_head(table, definition)
    truth = Truth(table)
    queries = near_vectors(truth.vectors.astype(np.float64))
    exact = open_exact(table, "embedding", metric, storage=STORAGE)
    local = open_index(table, definition, storage=STORAGE)
    remote = open_index(table, definition, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert (local.tier, remote.tier) == ("in-process", "distributed")
    for reader in (local, remote):
        result = reader.search(queries, 10, columns=["id"], where=ALL)
        assert result.profile.strategy == "exact over matches"
        truth.check(result, queries, 10, metric)
        assert result.rows.equals(exact.search(queries, 10, columns=["id"]).rows)
        check_batches(lambda some, reader=reader: reader.search(some, 10, columns=["id"], where=ALL), queries)
        truth.check_within(reader, queries[-2:], metric)
    table.append(rows(kind(np.random.default_rng(5), 300), pa.float32(), 1500))
    truth = Truth(table)
    for tier, runner in (("in-process", None), ("distributed", LocalRunner(1))):
        stale = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)
        assert stale.tier == tier
        result = stale.search(queries, 10, columns=["id"], where=ALL)
        assert result.profile.tail_rows == 300
        truth.check(result, queries, 10, metric)
        truth.check_within(stale, queries[-2:], metric)


@given(
    seed=st.integers(0, 2**32), metric=st.sampled_from([Metric.L2, Metric.COSINE]), dims=st.sampled_from([1, 3, 64]),
    offset=st.sampled_from([0.0, 1e4, 1e9]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_ball_of_floats_never_hides_a_row_of_doubles(seed: int, metric: Metric, dims: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    raw = offset + rng.standard_normal((40, dims)) * rng.choice([1e-3, 1.0, 100.0])
    center, radius = ball_around(prepare(raw, metric))
    balls = FileBalls(
        1,
        np.zeros(1, np.int64),
        center[None],
        np.array([radius], np.float32).astype(np.float64),
        metric,
        is_rounded=True,
    )
    query = prepare_exact(offset + 500 * rng.standard_normal((1, dims)), metric)
    each = np.zeros(40, np.int64), np.arange(40)
    for far in pair_distances(query, raw, *each, metric, raw=True):
        assert balls.reachable(query, RangeThresholds.from_distance(float(far), 1, metric, inclusive=True))[0]


@pytest.mark.parametrize("method", ["centroid", "diskann"])
@pytest.mark.parametrize("scale", [3e-44, 1e-60])
def test_directions_of_tiny_doubles_are_exact(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, scale: float, method: str
) -> None:
    """As floats they are some dozen directions, or zero. Then all rows move, in another order."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    rng = np.random.default_rng(1)
    vectors = scale * (np.repeat(rng.standard_normal((3, 4)), 20, axis=0) + 0.01 * rng.standard_normal((60, 4)))
    table = sql_catalog.create_table("db.t", rows(vectors, pa.float64()).schema, properties={"format-version": "2"})
    for first in range(0, 60, 20):
        table.append(rows(vectors[first : first + 20], pa.float64(), first))
    definition = replace(DEFINITION, metric="cosine", method=method, shards=1)
    exact = open_exact(table, "embedding", "cosine", storage=STORAGE)
    expected = exact.search(vectors[::7], 3, columns=["id"])
    for backwards in (False, True):
        if backwards:
            table.overwrite(rows(vectors, pa.float64()).take(np.arange(60)[::-1]))
        index_head(table, definition)
        version = tagged_version(table, definition.name)
        assert version is not None
        assert check_integrity(RunContext(table, STORAGE), version).faults == ()
        reader = open_index(table, definition, storage=STORAGE)
        assert reader.search(vectors[::7], 3, certified=True, columns=["id"]).rows.equals(expected.rows)
        limit = expected.rows["distance"].to_pylist()[2]
        within = reader.within(vectors[:1], limit, inclusive=True, columns=["id"])
        assert within.rows["id"].to_pylist() == expected.rows["id"].to_pylist()[:3]


def test_hashes_of_tiny_doubles_tell_their_directions_and_lengths_apart() -> None:
    ordinary = np.array([[1.0, 1e-300], [3e-38, 0.0], [0.0, -0.0], [-5.0, 1e-40]])
    assert content_hashes(ordinary).tolist() == content_hash(ordinary.astype(np.float32)).tolist()
    tiny = np.array([[3e-60, 1e-60], [6e-60, 2e-60], [1e-60, 3e-60], [-1e-60, -3e-60]])
    hashes = content_hashes(tiny).tolist()
    assert len(set(hashes)) == 4
    exponent = 1 + np.floor(np.log2(3e-60))
    scaled = np.array([[3e-60, 1e-60]]) / 2.0**exponent
    assert hashes[0] == content_hash(np.append(scaled, [[exponent]], axis=1).astype(np.float32))[0]
    assert hashes[0] not in content_hashes(scaled)


def test_doubles_that_are_one_float_are_told_apart(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three were at a distance of 0 from the second, and within 1.0 of it."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    vectors = np.array([[1e9, 0.0], [1e9 + 20, 0.0], [1e9 + 100, 0.0]])
    table = sql_catalog.create_table("db.t", rows(vectors, pa.float64()).schema, properties={"format-version": "2"})
    table.append(rows(vectors, pa.float64()))
    index_head(table, replace(DEFINITION, shards=1))
    exact = open_exact(table, "embedding", "l2", storage=STORAGE)
    index = open_index(table, replace(DEFINITION, shards=1), storage=STORAGE)
    for reader in (exact, index):
        near = reader.within(vectors[1], 1.0, columns=["id"])
        assert (near.rows["id"].to_pylist(), near.rows["distance"].to_pylist()) == ([1], [0.0])
        assert near.warnings == ()
    scanned = exact.search(vectors[1], 3, columns=["id"])
    assert scanned.rows["distance"].to_pylist() == [0.0, 20.0, 80.0]
    assert scanned.profile.bytes_read["scan"] == vectors.nbytes
    ranked = index.search(vectors[1], 3, columns=["id"], rerank=True)
    assert ranked.rows["distance"].to_pylist() == [0.0, 20.0, 80.0]
    assert ranked.warnings == ()
    (warning,) = index.search(vectors[1], 3).warnings
    assert "rounded to float" in warning
    remote = open_index(table, replace(DEFINITION, shards=1), storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert remote.tier == "distributed"
    assert remote.search(vectors[1], 3).warnings == (warning,)
    assert remote.within(vectors[1], 1.0, columns=["id"]).rows["id"].to_pylist() == [1]


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_candidates_that_floats_cannot_tell_apart_are_reported(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    """Seconds since 1970: half a minute's rows are one float, and the thirty that were ranked again are any of them."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    rng = np.random.default_rng(0)
    times, apart = 1.7e9 + 30 * rng.random((200, 3)), rng.standard_normal((200, 3))
    definition = replace(DEFINITION, metric=metric, shards=1, target_recall=0.5)
    for number, (vectors, expected) in enumerate(((times, True), (apart, False))):
        table = sql_catalog.create_table(f"db.t{number}", rows(vectors, pa.float64()).schema)
        table.append(rows(vectors, pa.float64()))
        index_head(table, definition)
        here = open_index(table, definition, storage=STORAGE)
        there = open_index(table, definition, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
        assert there.tier == "distributed"
        for reader, where, ranked_here in product((here, there), (None, ALL), (4_096, 0)):
            monkeypatch.setattr(distributed_search, "_RANKED_HERE", ranked_here)
            ranked = reader.search(vectors[:5], 10, columns=["id"], rerank=True, where=where)
            assert [("cannot tell" in warning) for warning in ranked.warnings] == [True] * expected
            assert not reader.search(vectors[:5], 10, rerank=True, oversample=21, where=where).warnings


@pytest.mark.parametrize("vectors", ["none", "rq8", "f16"])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_candidates_of_codes_that_floats_cannot_tell_apart_are_reported_too(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, metric: str, vectors: str
) -> None:
    """The gate compares floats, and had a recall of 1; without a word 7 % of the nearest rows were found."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    rng = np.random.default_rng(0)
    alike, apart = 1_000 + 1e-6 * rng.standard_normal((200, 8)), rng.standard_normal((200, 8))
    definition = replace(DEFINITION, metric=metric, vectors=vectors, shards=1, target_recall=0.01)
    for number, (own, expected) in enumerate(((alike, True), (apart, False))):
        table = sql_catalog.create_table(f"db.t{number}", rows(own, pa.float64()).schema)
        table.append(rows(own, pa.float64()))
        index_head(table, definition)
        for runner, ranked_here in product((None, LocalRunner(1)), (4_096, 0)):
            monkeypatch.setattr(distributed_search, "_RANKED_HERE", ranked_here)
            reader = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)
            ranked = reader.search(own[:5], 10, rerank=True, oversample=3)
            assert [("cannot tell" in warning) for warning in ranked.warnings] == [True] * expected
            assert not reader.search(own[:5], 10, rerank=True, oversample=21).warnings


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_candidates_that_floats_change_more_than_their_distances_are_reported(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    """Products that cancel are small, and their rounding errors are not; tiny numbers have few bits as floats."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    rng = np.random.default_rng(0)
    cancelling = np.array([1e8, -1e8]) + rng.uniform(-3.9, 3.9, (400, 1)) * np.array([1.0, 0.0])
    vectors = cancelling if metric == "ip" else 2e-45 * rng.standard_normal((400, 4))
    query = [1.0, 1.0] if metric == "ip" else vectors[3]
    definition = replace(DEFINITION, metric=metric, shards=2, target_recall=0.01)
    table = sql_catalog.create_table("db.t", rows(vectors, pa.float64()).schema)
    table.append(rows(vectors, pa.float64()))
    index_head(table, definition)
    nearest = open_exact(table, "embedding", metric, storage=STORAGE).search(query, 5, columns=["id"]).rows
    for runner in (None, LocalRunner(2)):
        reader = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)
        (warning,) = reader.search(query, 5, rerank=True, where=ALL).warnings
        assert "cannot tell" in warning
        every = reader.search(query, 5, columns=["id"], rerank=True, where=ALL, oversample=81)
        assert every.warnings == ()
        assert every.rows.equals(nearest)


@pytest.mark.parametrize("tier", ["in-process", "distributed"])
def test_directions_that_are_one_in_floats_are_ranked_by_the_vectors(
    sql_catalog: Catalog, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the rows point the same way but for the last bits: more rows than are compared at first."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    rng = np.random.default_rng(3)
    center = rng.standard_normal(16)
    vectors = center * rng.uniform(0.5, 2.0, (300, 1)) + 1e-7 * rng.standard_normal((300, 16))
    vectors[::2] += 0.3 * rng.standard_normal((150, 16))
    table = made(sql_catalog, vectors, pa.float32())
    definition = replace(DEFINITION, metric="cosine", target_recall=0.01)
    index_head(table, definition)
    runner = LocalRunner(2) if tier == "distributed" else None
    reader = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)
    assert reader.tier == tier
    exact = open_exact(table, "embedding", "cosine", storage=STORAGE)
    queries = np.concatenate([center[None], center + 0.2 * rng.standard_normal((3, 16))])
    for k in (1, 3, 60):
        ranked = reader.search(queries, k, columns=["id"], where=ALL)
        assert ranked.profile.strategy == "exact over matches"
        assert ranked.rows["id"].equals(exact.search(queries, k, columns=["id"]).rows["id"])


def test_long_vectors_are_read_in_batches_of_few(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 65,536 dimensions 8,192 rows were 2 GB."""
    assert [datafile.batch_rows(dims) for dims in (None, 16, 1_536, 65_536)] == [8_192, 8_192, 8_192, 256]
    vectors = np.random.default_rng(0).standard_normal((750, 8))
    table = made(sql_catalog, vectors, pa.float32())
    index_head(table, DEFINITION)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    monkeypatch.setattr(datafile, "BATCH_BYTES", 100 * 8 * 4)
    field_id = table.schema().find_field("embedding").field_id
    source = VectorSource(live, table.schema(), field_id, Metric.L2, STORAGE)
    sizes = [len(rows.positions) for rows in source.rows(range(3), 8, None)]
    assert (sum(sizes), max(sizes)) == (len(table.scan().to_arrow()), 100)
    loaded = open_index(table, DEFINITION, storage=STORAGE)._choice.loaded
    assert isinstance(loaded, LoadedVersion)
    sizes = [len(rows.positions) for rows in index_rows(loaded, np.ones(len(live.files), np.bool_), None)]
    assert (sum(sizes), max(sizes)) == (len(table.scan().to_arrow()), 100)
