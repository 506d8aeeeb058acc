from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import FloatSpace
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import bulk_build, vamana
from icepuffin.ann_kernels.graphs.bulk_build import BulkParams
from icepuffin.ann_kernels.graphs.carving import Carving
from icepuffin.ann_kernels.graphs.graph import Graph, VamanaParams, medoid_of
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.leaf_neighbors import nearest_columns, new_nearest
from icepuffin.ann_kernels.metric import Metric
from tests.ann_kernels.data import apart, clustered, near_duplicates, reached, recall, well_formed, widely_spread
from tests.selection import some

PARAMS = VamanaParams(max_degree=16, search_list=32)
SMALL = BulkParams(carving=Carving(fanout=4, leaf=100, largest=150, leaders=100), fewest_sampled=100)
METRICS = list(Metric)


def built(vectors: np.ndarray, metric: Metric = Metric.L2, *, threads: int = 2, params: VamanaParams = PARAMS) -> Graph:
    """A bulk build of vectors too few for one in the product."""
    ready = prepare(vectors, metric)
    space = vamana.build_space(ready, metric, threads)
    return bulk_build.build(space, ready, medoid_of(ready), params, bulk=SMALL, threads=threads)


def recall_of_search(graph: Graph, vectors: np.ndarray, queries: np.ndarray, metric: Metric, width: int) -> float:
    ready, query_vectors = prepare(vectors, metric), prepare(queries, metric)
    found, _, _ = Searcher(graph, ready, metric, coded_from=1).search(query_vectors, 10, search_list=width)
    return recall(found, exact_top_k(query_vectors, ready, 10, metric)[0])


@pytest.mark.parametrize("metric", METRICS)
def test_a_bulk_graph_finds_the_nearest(metric: Metric) -> None:
    vectors, queries = clustered(3000, 24), clustered(60, 24, seed=1)
    graph = built(vectors, metric)
    assert well_formed(graph)
    assert len(reached(graph)) == 3000
    assert recall_of_search(graph, vectors, queries, metric, 60) >= 0.95


def test_a_build_is_as_good_as_inserting_every_row() -> None:
    vectors, queries = clustered(5000, 24), clustered(100, 24, seed=1)
    in_bulk = vamana.build(vectors, Metric.L2, PARAMS, threads=2)
    greedy = vamana.insert(vamana.build(vectors[:1], Metric.L2, PARAMS), vectors, Metric.L2, PARAMS, threads=2)
    good, known = (recall_of_search(graph, vectors, queries, Metric.L2, 40) for graph in (in_bulk, greedy))
    assert good >= known - 0.02


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [40, 250, 1000, 4000])
def test_uneven_norms_are_found_in_a_build_of_any_size(count: int, metric: Metric) -> None:
    rng = np.random.default_rng(count)
    vectors = (rng.standard_normal((count, 32)) * np.exp(rng.standard_normal((count, 1)))).astype(np.float32)
    graph = vamana.build(prepare(vectors, metric), metric, VamanaParams(), threads=2)
    assert recall_of_search(graph, vectors, rng.standard_normal((50, 32)).astype(np.float32), metric, 100) >= 0.9


@pytest.mark.parametrize("vectors", [clustered(1200, 12), widely_spread(1200, 12)], ids=["codes", "floats"])
def test_a_bulk_graph_does_not_depend_on_the_number_of_threads(vectors: np.ndarray) -> None:
    first, second = (built(vectors, threads=threads) for threads in (1, 3))
    assert first.medoid == second.medoid
    assert (first.neighbors == second.neighbors).all()


def test_clusters_that_share_no_leaf_are_joined() -> None:
    vectors = apart(2000, 16, 8)
    queries = vectors[::50] + np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    graph = built(vectors)
    assert len(reached(graph)) == 2000
    assert recall_of_search(graph, vectors, queries, Metric.L2, 64) >= 0.9


def test_rows_that_are_inserted_lie_among_their_clusters() -> None:
    """From the medoid alone six of ten were not found by themselves: their edges led into other clusters."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((8, 128))
    vectors = (centers[rng.integers(0, 8, 8_400)] + rng.standard_normal((8_400, 128))).astype(np.float32)
    graph = vamana.build(vectors[:8_000], Metric.L2, VamanaParams(), threads=2)
    grown = vamana.insert(graph, vectors, Metric.L2, VamanaParams(), threads=2)
    assert recall_of_search(grown, vectors, vectors[8_000:], Metric.L2, 100) >= 0.99
    assert recall_of_search(grown, vectors, vectors[:8_000:20], Metric.L2, 100) >= 0.99


def test_clusters_of_more_rows_than_a_beam_is_wide_are_found() -> None:
    """A beam that is full of one cluster's rows does not leave it: the walk has to start in the right one."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((8, 384))
    vectors = (np.repeat(centers, 1000, axis=0) + rng.standard_normal((8000, 384))).astype(np.float32)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(), threads=2)
    assert recall_of_search(graph, vectors, vectors[::80], Metric.L2, 100) >= 0.95


@pytest.mark.parametrize(
    "vectors",
    [
        np.ones((700, 4), np.float32),
        np.repeat(clustered(7, 4), 100, axis=0),
        np.concatenate([clustered(300, 4), np.zeros((400, 4), np.float32)]),
    ],
    ids=["all equal", "seven values", "one heavy value"],
)
def test_equal_vectors_are_all_reached_and_found(vectors: np.ndarray) -> None:
    graph = built(vectors)
    assert well_formed(graph)
    assert len(reached(graph)) == len(vectors)
    for row in (0, len(vectors) - 1):
        result, distances, _ = Searcher(graph, vectors, Metric.L2, coded_from=1).search(
            vectors[row : row + 1], 10, search_list=32
        )
        exact = exact_top_k(vectors[row : row + 1], vectors, 10, Metric.L2)[1]
        np.testing.assert_allclose(distances, exact, rtol=1e-6)
        assert len(set(result[0])) == 10


@pytest.mark.parametrize("metric", METRICS)
def test_widely_spread_norms_are_built_and_found(metric: Metric) -> None:
    """Shares of .87 to 1: such vectors are compared as floats, whose sums differ between processors."""
    vectors, queries = widely_spread(1500, 16), widely_spread(400, 16, seed=1)
    graph = built(vectors, metric)
    assert len(reached(graph)) == 1500
    assert recall_of_search(graph, vectors, queries, metric, 80) >= 0.85


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize("dims", [1, 5, 4096])
def test_few_vectors_of_any_dimensions_are_built(count: int, dims: int) -> None:
    graph = built(clustered(count, dims))
    assert well_formed(graph)
    assert len(reached(graph)) == count


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_lists_of_few_edges_still_reach_everything(degree: int) -> None:
    vectors = np.concatenate([clustered(120, 3), np.ones((20, 3), np.float32)])
    graph = built(vectors, params=VamanaParams(max_degree=degree, search_list=8))
    assert len(reached(graph)) == 140


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_float_types_give_the_same_graph(dtype: type) -> None:
    vectors = clustered(300, 8).astype(dtype)
    assert (built(vectors).neighbors == built(vectors.astype(np.float32)).neighbors).all()


def test_the_length_of_vectors_does_not_matter_under_cosine() -> None:
    vectors = clustered(300, 8)
    lengths = 2.0 ** np.random.default_rng(0).integers(-5, 6, (300, 1)).astype(np.float32)
    first, second = built(vectors, Metric.COSINE), built(vectors * lengths, Metric.COSINE)
    assert (first.neighbors == second.neighbors).all()


@pytest.mark.parametrize(("group", "noise", "dims"), some(list(product([20, 80], [1e-4, 1e-2], [8, 64])), 3))
def test_near_duplicates_are_found_by_the_default_width(dims: int, noise: float, group: int) -> None:
    vectors = near_duplicates(20_000, dims, group, noise)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(), threads=2)
    sampled = np.random.default_rng(1).choice(len(vectors), 64, replace=False)
    _, result, _ = Searcher(graph, vectors, Metric.L2).search(vectors[sampled], 10, search_list=100)
    exact = np.sqrt(((vectors[None].astype(float) - vectors[sampled, None]) ** 2).sum(axis=2))
    limits = np.partition(exact, 9, axis=1)[:, 9:10]
    assert (result <= limits * (1 + 1e-5)).mean() >= 0.9


def test_far_from_zero_a_leaf_knows_what_is_near() -> None:
    vectors = (1_000 + 0.01 * np.random.default_rng(0).standard_normal((300, 4))).astype(np.float32)
    rows = np.arange(300, dtype=np.int32)
    nearest = new_nearest(300, 1)
    nearest_columns(FloatSpace(vectors), rows, rows, nearest, same=True)
    exact = ((vectors[:, None].astype(float) - vectors[None]) ** 2).sum(axis=2)
    np.fill_diagonal(exact, np.inf)
    assert (exact[rows, nearest.indices[:, 0]] <= exact.min(axis=1) * 1.01).all()


@pytest.mark.parametrize(("dims", "larger"), [(bulk_build.LONG - 1, False), (bulk_build.LONG, True)])
def test_long_vectors_share_larger_leaves(dims: int, larger: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, carve = [], bulk_build.carve

    def spy(space: Any, ids: Any, carving: Carving, *rest: Any) -> Any:
        leaves.append(carving.leaf)
        return carve(space, ids, carving, *rest)

    monkeypatch.setattr(bulk_build, "carve", spy)
    graph = vamana.build(clustered(1_100, dims), Metric.L2, vamana.VamanaParams())
    assert well_formed(graph)
    assert {leaf > BulkParams().carving.leaf for leaf in leaves} == {larger}


@pytest.mark.parametrize(("count", "least"), [(100, 30), (1_000, 100)])
def test_a_share_of_many_vectors_has_long_edges(count: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fewer per region than those of fewer vectors have."""
    sizes, sample = [], bulk_build._sample

    def spy(build: Any, rng: Any) -> Any:
        nodes = sample(build, rng)
        sizes.append(len(nodes))
        return nodes

    monkeypatch.setattr(bulk_build, "_sample", spy)
    few = replace(SMALL, sample=0.5, fewest_sampled=30, most_sampled=30, sample_of_many=0.1)
    monkeypatch.setattr(bulk_build, "DEFAULTS", few)
    vamana.build(clustered(count, 24), Metric.L2, PARAMS)
    assert least <= sizes[0] <= least + 25, "and a few of each cluster, and the medoid"


def test_the_medoid_may_lie_past_the_first_block() -> None:
    vectors = np.repeat(np.array([[-1], [1]], np.float32), 1_500, axis=0)
    vectors[2_500] = 0
    assert medoid_of(vectors) == 2_500
