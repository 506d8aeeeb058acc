"""The routing curve that is measured in the table: the share of a query's nearest rows in the shards near it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.routing_recall import curve_in_table, routing_queries, split_off_queries
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.recall.curves import ShardCentroids, reaches
from icepuffin.ops.search.tuning import RecallModel
from icepuffin.ops.tasks.routing_distances import RoutingDistances
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

ROWS, SHARDS = 3_000, 6
SHARDED = replace(DEFINITION, shards=SHARDS, search_list=60)


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, ROWS))
    return made


def opened(table: Table, name: str = "e") -> OpenVersion:
    return open_version(index_versions(table.refresh(), name)[-1], STORAGE)


@pytest.mark.parametrize("k", [10, 100])
def test_the_curve_counts_the_nearest_rows_in_near_shards(k: int) -> None:
    """Beside a count by loops: the shards of all rows, the distances of all pairs."""
    rng = np.random.default_rng(k)
    vectors = rng.standard_normal((700, 6)).astype(np.float32)
    codebook = rng.standard_normal((12, 6)).astype(np.float32)
    to_shard = rng.permutation(np.arange(12) % 4).astype(np.uint32)
    shard_of = to_shard[np.linalg.norm(vectors[:, None] - codebook, axis=2).argmin(axis=1)]
    queries = vectors[::10]
    pairs = np.linalg.norm(queries[:, None].astype(np.float64) - vectors, axis=2)
    parts = [np.sort(pairs[:, shard_of == shard], axis=1) for shard in range(4)]
    distances = [RoutingDistances(part[:, :11], part[:35, :101]) for part in parts]
    points = reaches(curve_in_table(codebook, to_shard, queries, distances, Metric.L2), k)
    assert points
    to_centroids = np.linalg.norm(queries[:, None] - codebook, axis=2)
    counted = range(len(queries) if k == 10 else 35)
    for point in points:
        hits, probed = [], []
        for query in counted:
            nearest = np.argsort(pairs[query])[1 : k + 1]
            by_shard = np.array([to_centroids[query, to_shard == shard].min() for shard in range(4)])
            near = set(np.flatnonzero(by_shard <= by_shard.min() * (1 + point.probe_slack)).tolist())
            hits += [int(shard_of[row]) in near for row in nearest]
            probed.append(len(near))
        assert point.recall == pytest.approx(np.mean(hits), abs=1e-4)
        assert point.shards == pytest.approx(np.mean(probed), abs=1e-4)


@pytest.mark.parametrize("rows", [1, 15, 30, 400, 5_000])
def test_queries_are_no_rows_that_the_codebook_is_trained_on(rows: int) -> None:
    sample = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    every = sample.copy()
    to_train, queries = split_off_queries(sample, 2, queries=256, seed=0)
    assert len(queries) == max(0, min(256, rows // 10 - 1))
    np.testing.assert_array_equal(np.sort(np.concatenate([to_train, queries]), axis=0), every)
    assert np.shares_memory(to_train, sample), "the sample may be large"
    assert not np.shares_memory(queries, sample), "else they would keep it"
    if len(queries) > 5:
        assert np.ptp(queries[:, 0]) > rows, "from all of the sample"


@pytest.mark.parametrize(
    ("rows", "shards", "expected"),
    [(0, 1, 256), (1_000_000, 64, 256), (1_000_000, 2, 1_000), (10_000_000, 15, 1_024), (500_000, 3, 333)],
)
def test_large_shards_are_searched_for_more_queries(rows: int, shards: int, expected: int) -> None:
    assert routing_queries(rows, shards) == expected


def test_without_a_choice_of_shards_there_are_no_queries() -> None:
    sample = np.arange(600, dtype=np.float32).reshape(200, 3)
    to_train, queries = split_off_queries(sample, 1, queries=256, seed=0)
    assert not len(queries)
    np.testing.assert_array_equal(to_train, np.arange(600, dtype=np.float32).reshape(200, 3))


def test_too_few_rows_give_no_curve() -> None:
    """Of ten rows nine are neighbours."""
    codebook, queries = np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)
    part = np.sort(np.random.default_rng(0).random((2, 5)), axis=1)
    few = [RoutingDistances(part, part), RoutingDistances(part, part)]
    assert curve_in_table(codebook, np.array([0, 1], np.uint32), queries, few, Metric.L2) == ""
    padded = np.pad(part, ((0, 0), (0, 6)), constant_values=np.inf)
    few = [RoutingDistances(padded, padded), RoutingDistances(padded, padded)]
    assert curve_in_table(codebook, np.array([0, 1], np.uint32), queries, few, Metric.L2) == ""


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
@pytest.mark.parametrize("vectors", ["f32", "f16", "rq4", "none"])
def test_the_curve_of_a_version_is_that_of_new_queries(table: Table, vectors: str, metric: Metric) -> None:
    definition = replace(SHARDED, vectors=vectors, metric=metric, target_recall=0.3)
    index_head(table, definition)
    version = opened(table)
    rows = prepare(vectors_of(np.arange(ROWS)), metric)
    codebook, to_shard = version.routing.codebook, version.routing.partition_to_shard
    shard_of = to_shard[np.linalg.norm(rows[:, None] - codebook, axis=2).argmin(axis=1)].astype(np.int64)
    new = prepare(vectors_of(np.arange(ROWS, ROWS + 1_000)), metric)
    neighbors, _ = exact_top_k(new, rows, 100, metric)
    ratios = ShardCentroids.from_codebook(codebook, to_shard).distances(new)
    ratios /= np.maximum(ratios.min(axis=1, keepdims=True), np.float32(1e-12))
    for k in (10, 100):
        points = reaches(version.routing_curve, k)
        assert len(points) >= 5
        of_nearest = np.take_along_axis(ratios, shard_of[neighbors[:, :k]], axis=1)
        for point in points:
            assert point.recall == pytest.approx((of_nearest <= 1 + point.probe_slack).mean(), abs=0.06)
            assert point.shards == pytest.approx((ratios <= 1 + point.probe_slack).sum(axis=1).mean(), rel=0.2)


def test_inner_products_have_no_routing_curve(table: Table) -> None:
    index_head(table, replace(SHARDED, metric=Metric.INNER_PRODUCT))
    assert opened(table).routing_curve == opened(table).sample_curve == ""


def test_a_refresh_keeps_the_curve(table: Table) -> None:
    index_head(table, SHARDED)
    before = opened(table)
    table.refresh().append(make_rows(ROWS, ROWS + 5))
    index_head(table, SHARDED)
    assert before.routing_curve
    assert opened(table).bound.build_id != before.bound.build_id
    assert opened(table).routing_curve == before.routing_curve


def test_the_curve_that_holds_for_a_number_of_rows_is_taken(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table of a hundred times the sample the sample's ten nearest are about the thousand nearest."""
    index_head(table, SHARDED)
    version = opened(table)
    monkeypatch.setattr("icepuffin.ops.search.tuning.sample_size", lambda rows: rows // 100)
    model = RecallModel.from_version(version)
    ten, hundred = (reaches(version.routing_curve, k) for k in (10, 100))
    in_sample = reaches(version.sample_curve)
    assert len({ten, hundred, in_sample}) == 3
    assert [model.routing_for(k) for k in (1, 10, 11, 100, 101, 1_000, 1_001)] == [
        *(ten, ten), *(hundred, hundred), *(in_sample, in_sample), (),
    ]  # fmt: skip
    older = RecallModel.from_version(replace(version, routing_curve=""))
    assert [older.routing_for(k) for k in (1, 1_000, 1_001)] == [in_sample, in_sample, ()]
