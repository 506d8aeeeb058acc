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
