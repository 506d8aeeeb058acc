import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import graph_search, vamana
from icepuffin.ann_kernels.graphs.graph import spread_indices
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED, Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.recall.curves import MEASURED_K, widths
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.tasks import recall_gate
from icepuffin.ops.tasks.recall_gate import (
    curve_queries,
    measure_curve,
    measure_recall,
    recall_of_nodes,
    search_by_defaults,
    searcher_of,
)
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.conftest import make_rows
from tests.ops.cache.stored import coded, lean
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.tasks.searchable import searchable_shard


@pytest.mark.parametrize("metric", list(Metric))
def test_a_search_that_finds_all_has_recall_one(metric: Metric) -> None:
    shard, vectors = searchable_shard(metric, rows=300)
    live = np.ones(shard.count, np.bool_)
    assert measure_recall(shard, vectors, live, seed=0, threads=1).recall == 1.0
    assert json.loads(measure_curve(shard, vectors, live, seed=0, threads=1))[-1][2] > 0.99


@pytest.mark.parametrize(("scale", "offset"), [(1e-8, 0.0), (0.01, 100.0)])
def test_measured_is_what_the_shard_holds_and_not_what_it_was_made_of(scale: float, offset: float) -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=300, scale=scale, offset=offset)
    live = np.ones(shard.count, np.bool_)
    assert measure_recall(shard, vectors, live, seed=0, threads=1).recall == 1.0
    rounded = replace(shard, vectors=vectors.astype(np.float16))
    recall = measure_recall(rounded, vectors, live, seed=0, threads=1)
    assert recall.recall < 0.6
    assert (recall.queries, recall.wide_queries) == (64, 16)
    assert measure_recall(rounded, vectors, live, seed=0, threads=1, at_once=7) == recall, "parts make no difference"
    assert json.loads(measure_curve(rounded, vectors, live, seed=0, threads=1))[-1][2] < 0.6


def test_the_row_that_is_searched_for_is_no_hit_wherever_it_stands_among_the_answers() -> None:
    """Answers are in the order of rounded vectors, where a row need not be the nearest to itself."""
    shard, vectors = searchable_shard(Metric.L2, rows=300, scale=0.01, offset=100.0)
    rounded = replace(shard, vectors=vectors.astype(np.float16))
    live, nodes = np.ones(shard.count, np.bool_), np.arange(100)
    searcher = searcher_of(rounded, vectors, live)
    recall = recall_of_nodes(searcher, rounded, vectors, live, nodes, threads=1)
    answers, _ = search_by_defaults(searcher, rounded, vectors[nodes], MEASURED_K + 1, threads=1)
    exact = np.linalg.norm(vectors[nodes, None].astype(float) - vectors, axis=2)
    nearest = np.argsort(exact, axis=1)[:, 1 : MEASURED_K + 1]
    assert (answers[:, 0] != nodes).any()
    hits = [len(set(found) & set(near)) for found, near in zip(answers, nearest, strict=True)]
    np.testing.assert_allclose(recall, np.array(hits) / MEASURED_K)


def test_recall_is_of_the_nearest_ten_and_hundred_live_rows() -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=400, scale=0.01, offset=100.0)
    rounded = replace(shard, vectors=vectors.astype(np.float16))
    live = np.arange(400) % 3 > 0
    nodes = np.flatnonzero(live)
    searcher = searcher_of(rounded, vectors, live)

    def by_brute_force(query_nodes: np.ndarray, rows: int) -> float:
        answers, _ = search_by_defaults(searcher, rounded, vectors[query_nodes], rows + 1, threads=1)
        exact = np.linalg.norm(vectors[query_nodes, None].astype(float) - vectors[nodes], axis=2)
        nearest = nodes[np.argsort(exact, axis=1)[:, 1 : rows + 1]]
        return float(np.mean([np.isin(own, true).sum() / rows for own, true in zip(answers, nearest, strict=True)]))

    measured = measure_recall(rounded, vectors, live, seed=0, threads=1, queries=len(nodes))
    assert measured.recall == pytest.approx(by_brute_force(nodes, 10))
    assert measured.wide_recall == pytest.approx(by_brute_force(nodes[::4], 100))
    assert measured.recall + 0.1 < measured.wide_recall < 0.95


def test_a_row_is_not_among_its_own_neighbours() -> None:
    """All edges lead to eleven rows, which lie far from each other: a search finds them, and none of them is near."""
    hubs, rows = 11, 44
    vectors = np.random.default_rng(0).standard_normal((rows, hubs)).astype(np.float32)
    vectors[:hubs] += 100 * np.eye(hubs, dtype=np.float32)
    neighbors = np.tile(np.arange(hubs, dtype=np.int32), (rows, 1))
    shard = replace(
        searchable_shard(Metric.L2, rows=rows)[0],
        dims=hubs, max_degree=hubs, search_list=hubs, medoid=0, neighbors=neighbors,
        degrees=np.full(rows, hubs, np.int32), vectors=vectors,
    )  # fmt: skip
    assert measure_recall(shard, vectors, np.ones(rows, np.bool_), seed=0, threads=1).recall == 0.0


def test_rows_that_are_farther_are_no_hits_where_all_distances_are_large() -> None:
    """As inner products with a constant feature are: a millionth of a distance is more than what lies between them."""
    shard, vectors = searchable_shard(Metric.INNER_PRODUCT, rows=2_000, search_list=10, constant=1_000.0)
    live, nodes = np.ones(shard.count, np.bool_), np.arange(0, 2_000, 20)
    searcher = searcher_of(shard, vectors, live)
    recall = recall_of_nodes(searcher, shard, vectors, live, nodes, threads=1)
    products = vectors[nodes].astype(float) @ vectors.T.astype(float)
    products[np.arange(len(nodes)), nodes] = -np.inf
    nearest = np.argsort(-products, axis=1)[:, :MEASURED_K]
    answers, _ = search_by_defaults(searcher, shard, vectors[nodes], MEASURED_K + 1, threads=1)
    hits = [len(set(found) & set(near)) for found, near in zip(answers, nearest, strict=True)]
    np.testing.assert_allclose(recall, np.array(hits) / MEASURED_K)
    assert recall.mean() < 0.99


def shard_of_pairs(pairs: int, reached: int) -> tuple[Shard, np.ndarray]:
    """Two rows in each direction; each pair is as far from one as from another. Edges lead to the first rows alone."""
    vectors = np.repeat(np.eye(pairs, dtype=np.float32), 2, axis=0)
    neighbors = np.tile(np.arange(reached, dtype=np.int32), (2 * pairs, 1))
    shard = replace(
        searchable_shard(Metric.L2, rows=2 * pairs)[0],
        dims=pairs, max_degree=reached, search_list=reached + 20, medoid=0, neighbors=neighbors,
        degrees=np.full(2 * pairs, reached, np.int32), vectors=vectors,
    )  # fmt: skip
    return shard, vectors


def test_rows_as_far_as_the_tenth_stand_for_no_nearer_row() -> None:
    shard, vectors = shard_of_pairs(30, 14)
    live, nodes = np.ones(60, np.bool_), np.array([2, 40, 41])
    recall = recall_of_nodes(searcher_of(shard, vectors, live), shard, vectors, live, nodes, threads=1)
    assert recall.tolist() == [1.0, 0.9, 0.9], "the other row of its pair, and nine of those that are farther"


def test_a_curve_counts_no_tie_for_a_nearer_row() -> None:
    shard, vectors = shard_of_pairs(30, 14)
    points = widths(measure_curve(shard, vectors, np.ones(60, np.bool_), seed=0, threads=1, queries=4))
    held_out = np.sort(np.random.default_rng([0, 1]).choice(np.arange(1, 60), 4, replace=False))
    others = held_out ^ 1
    missed = [other >= 14 and other not in held_out for other in others.tolist()]
    assert sum(missed) > 1
    widest = max(points, key=lambda point: point.search_list)
    assert widest.recall == pytest.approx(1 - 0.1 * np.mean(missed))


def test_beams_of_a_curve_are_as_wide_as_it_says() -> None:
    """For rows that are held out no beam is widened, as it is for tombstones: no walk meets them."""
    shard, vectors = searchable_shard(Metric.L2, rows=2_000, search_list=10)
    live = np.ones(shard.count, np.bool_)
    narrow, *_ = widths(measure_curve(shard, vectors, live, seed=0, threads=1))
    entries = [shard.medoid, *spread_indices(shard.count)]
    nodes = np.setdiff1d(np.arange(shard.count), entries)
    held_out = np.sort(np.random.default_rng([0, 1]).choice(nodes, 128, replace=False))
    others = live.copy()
    others[held_out] = False
    _, exact = exact_top_k(vectors[held_out], vectors, 10, Metric.L2, is_live=others)
    with recall_gate.held_out(shard, held_out):
        searcher = searcher_of(shard, vectors, live)
        answers, distances, stats = searcher.search(vectors[held_out], 10, search_list=10)
        _, wider, _ = searcher.masked(Bitmap.from_mask(others)).search(vectors[held_out], 10, search_list=10)
    assert not np.isin(answers, held_out).any()
    assert narrow.search_list == 10
    assert narrow.recall == pytest.approx(recalls_of(distances, exact).mean(), abs=1e-3)
    assert narrow.recall < recalls_of(wider, exact).mean() - 0.005
    assert narrow.distances == pytest.approx(stats.distances.mean(), abs=1)


def test_copies_are_found_by_the_walks_of_a_curve() -> None:
    """What stands for equal rows is not held out: nothing would lead to the others."""
    shard, vectors = searchable_shard(Metric.L2, rows=1_200, search_list=40, copies=4)
    live = np.ones(shard.count, np.bool_)
    assert measure_recall(shard, vectors, live, seed=0, threads=1).recall >= 0.99
    points = [
        point for point in widths(measure_curve(shard, vectors, live, seed=0, threads=1)) if point.k == MEASURED_K
    ]
    assert max(point.recall for point in points) >= 0.99


def test_no_edge_leads_to_a_row_that_is_held_out() -> None:
    shard, _ = searchable_shard(Metric.L2, rows=60)
    neighbors, degrees, nodes = shard.neighbors.copy(), shard.degrees.copy(), np.array([0, 7, 59])
    with recall_gate.held_out(shard, nodes):
        assert np.isin(neighbors, nodes).any()
        assert not np.isin(shard.neighbors, nodes).any()
        assert ((shard.neighbors >= 0).sum(axis=1) == shard.degrees).all()
    assert (shard.neighbors == neighbors).all()
    assert (shard.degrees == degrees).all()


def test_edges_of_a_large_shard_come_back_whatever_is_raised_meanwhile() -> None:
    rows, nodes = 20_000, np.array([5, 17_000])
    shard, _ = searchable_shard(Metric.L2, rows=60)
    ring = ((np.arange(rows)[:, None] + [[1, 2]]) % rows).astype(np.int32)
    large = replace(shard, neighbors=ring.copy(), degrees=np.full(rows, 2, np.int32), file_slots=np.zeros(rows, "u4"))
    with contextlib.suppress(KeyboardInterrupt), recall_gate.held_out(large, nodes):
        degrees, leads_there = large.degrees.copy(), np.isin(large.neighbors, nodes).any()
        raise KeyboardInterrupt
    assert (np.flatnonzero(degrees < 2).tolist(), leads_there) == ([3, 4, 16_998, 16_999], False)
    assert (large.neighbors == ring).all()
    assert (large.degrees == 2).all()


@pytest.mark.parametrize(("live", "queries", "wide_queries"), [(1, 0, 0), (2, 2, 0), (100, 64, 0), (101, 64, 16)])
def test_recall_is_measured_where_there_are_as_many_other_rows(live: int, queries: int, wide_queries: int) -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=110)
    measured = measure_recall(shard, vectors, np.arange(110) < live, seed=0, threads=1)
    assert measured == ShardRecall(1.0, queries, 1.0, wide_queries)


def test_a_curve_of_few_rows_leaves_ten_to_be_found_for_each_query() -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=30)
    assert [point.recall for point in widths(measure_curve(shard, vectors, np.ones(30, "?"), seed=0, threads=1))][-1:]


def test_widths_of_a_curve_are_those_of_what_the_shard_holds() -> None:
    shard = replace(searchable_shard(Metric.L2, rows=30)[0], search_list=200)
    by_codes = [(200, 1), (200, 2), (200, 3), (200, 5), (200, 8), (320, 16)]
    assert recall_gate.curve_settings(lean(shard), 10) == by_codes
    assert recall_gate.curve_settings(lean(shard), 100) == [(200, 1), (400, 2), (600, 3), (1_000, 5)]
    for k, reranked in ((10, [(100, 2), (100, 3), (160, 3), (250, 5)]), (100, [(280, 2), (400, 3)])):
        exact = recall_gate.curve_settings(shard, k)
        assert {oversample for _, oversample in exact} == {1}
        assert recall_gate.curve_settings(coded(shard, 4), k) == [*exact, *reranked]


def test_only_codes_hand_over_more_candidates_than_rows() -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=300)
    for it, count in ((shard, 10), (coded(shard, 4), 10), (lean(shard), 30)):
        searcher = searcher_of(it, vectors, np.ones(300, np.bool_))
        assert search_by_defaults(searcher, it, vectors[:4], 10, threads=1)[0].shape == (4, count)


@pytest.mark.parametrize("scale", [1e-8, 1.0])
def test_a_bad_graph_is_a_bad_graph_at_any_scale(scale: float) -> None:
    """A slack of 1e-7 took every row for a hit where all distances were smaller."""
    rows = 300
    vectors = (scale * np.random.default_rng(0).standard_normal((rows, 8))).astype(np.float32)
    ring = np.arange(rows)[:, None] + np.array([[1, -1, 2, -2]])
    shard = Shard(
        metric=Metric.L2.code, dims=8, max_degree=4, search_list=12, alpha=1.2, medoid=0,
        neighbors=(ring % rows).astype(np.int32), degrees=np.full(rows, 4, np.int32),
        file_slots=np.zeros(rows, np.uint32), row_positions=np.arange(rows),
        content_hashes=np.zeros(rows, np.uint64), vectors=vectors,
    )  # fmt: skip
    assert measure_recall(shard, vectors, np.ones(rows, np.bool_), seed=0, threads=1).recall < 0.6


@pytest.mark.parametrize(("shards", "queries"), [(0, 128), (1, 128), (8, 128), (16, 64), (64, 32), (1_000, 32)])
def test_curves_of_many_shards_take_fewer_queries_each(shards: int, queries: int) -> None:
    assert curve_queries(shards) == queries


def test_a_curve_is_of_as_many_queries_as_it_is_given() -> None:
    """Recall is a share of 3 x 10 neighbours, or of 3 x 100."""
    shard, vectors = searchable_shard(Metric.L2, rows=900, search_list=10)
    live = np.ones(shard.count, np.bool_)
    points = json.loads(measure_curve(shard, vectors, live, seed=0, threads=1, queries=3))
    assert all(len(row) == 4 for row in points), "a quarter of three queries is none"
    assert all((row[2] * 30) == pytest.approx(round(row[2] * 30), abs=0.01) for row in points)
    wide = [row for row in json.loads(measure_curve(shard, vectors, live, seed=0, threads=1, queries=12)) if row[4:]]
    assert wide
    assert all(row[2] * 300 == pytest.approx(round(row[2] * 300), abs=0.03) for row in wide)


def test_one_searcher_measures_all_that_is_measured_of_a_shard(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recall, both curves and the distances of the routing curve: making its codes takes reading all vectors."""
    coded_from: list[int] = []

    class CountingSearcher(Searcher):
        def __init__(self, *args: Any, **options: Any) -> None:
            coded_from.append(options["coded_from"])
            super().__init__(*args, **options)

    table = table_factory()
    table.append(make_rows(0, 1_200))
    monkeypatch.setattr(recall_gate, "Searcher", CountingSearcher)
    index_head(table, replace(DEFINITION, shards=2))
    assert coded_from.count(MIN_CODED) == 2  # that of the check of the file makes no codes


@pytest.mark.parametrize("metric", list(Metric))
def test_where_all_rows_are_equally_far_recall_tells_whether_they_find_themselves(
    metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other rows are as near as the nearest ones: those alone would make a recall of 1 of every search."""
    vectors = np.eye(600, dtype=np.float32)
    graph = vamana.build(vectors, metric, vamana.VamanaParams(max_degree=8, search_list=16))
    zeros = np.zeros(600, np.uint32)
    shard = Shard(
        metric=metric.code, dims=600, max_degree=8, search_list=16, alpha=1.2, medoid=graph.medoid,
        neighbors=graph.neighbors, degrees=graph.degrees, file_slots=zeros, row_positions=np.arange(600),
        content_hashes=zeros.astype(np.uint64), vectors=vectors,
    )  # fmt: skip
    live, nodes = np.ones(600, np.bool_), np.arange(64)
    assert measure_recall(shard, vectors, live, seed=0, threads=1).recall == 1.0
    monkeypatch.setattr(graph_search, "_COMPARED_WHERE_LOST", 0)  # a walk alone meets some of them
    searcher = searcher_of(shard, vectors, live)
    answers, _ = search_by_defaults(searcher, shard, vectors[nodes], 11, threads=1)
    found = (answers == nodes[:, None]).any(axis=1)
    recalls = recall_of_nodes(searcher, shard, vectors, live, nodes, threads=1)
    assert recalls.tolist() == found.astype(float).tolist()
    assert found.mean() < 0.9
