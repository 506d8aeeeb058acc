"""Graphs of vectors of which most are equally far from one another."""

import numpy as np
import pytest

from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import graph_search, vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.tie_order import tie_order
from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.metric import Metric
from tests.naive import vectors as naive

KINDS = 128


@pytest.fixture(scope="module")
def one_hot() -> np.ndarray:
    """About six rows of each kind, f32[6 KINDS, KINDS]."""
    return np.eye(KINDS, dtype=np.float32)[np.random.default_rng(1).integers(0, KINDS, 6 * KINDS)]


def searched(graph: vamana.Graph, vectors: np.ndarray, metric: Metric, search_list: int) -> tuple[np.ndarray, float]:
    """(recall by query, rows compared per query) of searches by each kind."""
    queries = np.eye(KINDS, dtype=np.float32)
    _, distances, stats = Searcher(graph, vectors, metric).search(queries, 10, search_list=search_list)
    return recalls_of(distances, exact_top_k(queries, vectors, 10, metric)[1]), float(stats.distances.mean())


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT])
def test_a_stored_vector_finds_its_equals_where_all_others_are_equally_far(
    one_hot: np.ndarray, metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = vamana.build(one_hot, metric, VamanaParams(max_degree=16, search_list=32))
    recalls, distances = searched(graph, one_hot, metric, 16)
    assert (recalls == 1).all()
    assert distances <= 1.5 * len(one_hot)
    monkeypatch.setattr(graph_search, "_COMPARED_WHERE_LOST", 0)
    walked, fewer = searched(graph, one_hot, metric, 16)
    assert walked.min() < 0.5, "a walk alone meets too few"
    assert fewer < distances


def test_a_narrow_beam_that_is_full_of_equals_costs_no_more_than_a_wide_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of binary rows some tie anywhere: a wider beam goes past them, where a narrow one had all rows compared."""
    rows = np.random.default_rng(5).integers(0, 2, (6_064, 24)).astype(np.float32)
    vectors, queries = rows[64:], rows[:64]
    graph = vamana.build(vectors, Metric.L2, VamanaParams(max_degree=24, search_list=64))
    searcher = Searcher(graph, vectors, Metric.L2)

    def measured(k: int, search_list: int) -> tuple[float, float]:
        _, distances, stats = searcher.search(queries, k, search_list=search_list)
        recall = recalls_of(distances, exact_top_k(queries, vectors, k, Metric.L2)[1]).mean()
        return float(recall), float(stats.distances.mean())

    for k, narrow, wide in ((10, 13, 40), (10, 16, 40), (15, 20, 64), (30, 40, 100)):
        (recall, distances), (_, of_wide) = measured(k, narrow), measured(k, wide)
        assert distances < 1.5 * of_wide
        assert recall > 0.95
    monkeypatch.setattr(graph_search, "_WALKED_WHERE_LOST", len(vectors))
    assert measured(10, 13)[1] > 4 * measured(10, 40)[1], "all rows were compared at once"


@pytest.mark.parametrize("search_list", [10, 16, 20])
def test_where_wider_beams_are_no_less_full_all_rows_are_compared(search_list: int) -> None:
    kinds = np.eye(1_024, dtype=np.float32)
    graph = vamana.build(kinds, Metric.L2, VamanaParams(max_degree=16, search_list=32))
    ids, _, stats = Searcher(graph, kinds, Metric.L2).search(kinds[:50], 10, search_list=search_list)
    assert (ids[:, 0] == np.arange(50)).all()
    assert stats.distances.max() < 2 * len(kinds)


def test_as_many_rows_are_compared_whatever_the_codes() -> None:
    """What the recall gate measures by codes of one byte holds for readers that have others, or none."""
    vectors = np.repeat(np.eye(255, dtype=np.float32), 6, axis=0)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(max_degree=16, search_list=32))
    queries = vectors[:: 6 * 4]
    coded, plain = (Searcher(graph, vectors, Metric.L2, coded_from=fewest) for fewest in (1, len(vectors) + 1))
    assert coded.compares_codes
    assert not plain.compares_codes
    for searcher in (coded, plain):
        _, distances, stats = searcher.search(queries, 6, search_list=12)
        assert (distances == 0).all()
        assert stats.distances.max() >= 255, "one row of each kind"


def test_ties_make_no_hubs() -> None:
    """Where ties went to the smaller id, a few nodes were everyone's neighbours, and most nobody's."""
    kinds = np.eye(4 * KINDS, dtype=np.float32)
    graph = vamana.build(kinds, Metric.L2, VamanaParams(max_degree=16, search_list=32))
    incoming = np.bincount(graph.neighbors[graph.neighbors >= 0], minlength=len(kinds))
    assert np.median(incoming) >= 8
    assert incoming.max() < len(kinds) // 2


def test_a_query_that_has_found_equal_rows_compares_no_others() -> None:
    """Nothing is nearer than a distance of zero."""
    vectors = np.repeat(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32), 100, axis=0)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(max_degree=16, search_list=32))
    _, distances, stats = Searcher(graph, vectors, Metric.L2).search(vectors[::100], 10, search_list=32)
    assert (distances == 0).all()
    assert stats.distances.max() < len(vectors) // 2


def test_each_node_orders_all_others_in_its_own_way() -> None:
    for node in (0, 1, 2**31 - 2):
        order = [int(tie_order(np.int32(node), np.int32(other))) for other in range(200)]
        assert order == [naive.tie_order(node, other) for other in range(200)]
        assert len(set(order)) == 200
    first = {min(range(200), key=lambda other: naive.tie_order(node, other)) for node in range(200)}
    assert len(first) > 100
