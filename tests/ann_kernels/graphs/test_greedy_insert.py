"""Greedy insert in batches, beside plain Python; and the steps that its threads share."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.distances.distance_computers import FloatSpace
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph, VamanaParams, empty_graph, spread_indices
from icepuffin.ann_kernels.graphs.greedy_insert import Workers, _batches, add_reverse_edges, insert_all
from tests.ann_kernels.data import well_formed
from tests.naive.vectors import robust_prune
from tests.naive.walks import Edges, Walk, edges_of, nearest_entry


def whole_numbers(count: int) -> np.ndarray:
    """Vectors whose distances are exact in any order of sums, and often equal."""
    return np.random.default_rng(0).integers(0, 12, (count, 3)).astype(np.float32)


def plain_reverse(edges: Edges, vectors: np.ndarray, nodes: list[int], params: VamanaParams) -> None:
    """Give the nodes that some nodes lead to edges back; prune where there are too many."""
    back: dict[int, list[int]] = {}
    for source in nodes:
        for target in edges[source]:
            back.setdefault(target, []).append(source)
    for target, sources in back.items():
        if len(edges[target]) + len(sources) > params.max_degree:
            offered = edges[target] + sources
            edges[target] = robust_prune(vectors, target, offered, params.alpha, params.max_degree)
        else:
            edges[target] += [source for source in sorted(sources) if source not in edges[target]]


def plain_insert(
    edges: Edges, vectors: np.ndarray, order: list[int], first: int, medoid: int, params: VamanaParams
) -> None:
    for start, end in _batches(first, len(order)):
        before = [list(row) for row in edges]
        entries = [medoid, *(order[place] for place in spread_indices(start))]
        for node in order[start:end]:
            distances = np.square(vectors - vectors[node]).sum(axis=1)
            walk = Walk(distances, before, [medoid, nearest_entry(distances, entries)])
            walk.go_on(params.search_list, params.search_list)
            path = walk.expanded[: 4 * params.search_list]
            edges[node] = robust_prune(vectors, node, path, params.alpha, params.max_degree)
        plain_reverse(edges, vectors, order[start:end], params)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("degree", "width", "alpha"), [(5, 8, 1.2), (3, 2, 1.0), (12, 20, 1.5)])
def test_an_insert_is_the_documented_one(degree: int, width: int, alpha: float, threads: int) -> None:
    params = VamanaParams(max_degree=degree, search_list=width, alpha=alpha)
    vectors = whole_numbers(170)
    space = FloatSpace(read_only(vectors))
    order = np.random.default_rng(1).permutation(170).astype(np.int32)
    graph, edges = empty_graph(170, degree, 0), [list[int]() for _ in vectors]
    for first, last, medoid in ((1, 90, int(order[0])), (90, 170, int(order[9]))):
        graph = Graph(graph.neighbors, graph.degrees, medoid)
        insert_all(graph, space, order[:last], first, params, threads=threads)
        plain_insert(edges, vectors, order[:last].tolist(), first, medoid, params)
    assert edges_of(graph.neighbors, graph.degrees) == edges
    assert well_formed(graph)


def test_reverse_edges_fill_a_list_once_each_and_a_full_one_is_pruned() -> None:
    vectors = np.array([[0], [1], [2], [-3], [9], [-4]], np.float32)
    graph = Graph(np.full((6, 3), -1, np.int32), np.zeros(6, np.int32), 0)
    graph.neighbors[0, :2], graph.degrees[0] = [1, 4], 2
    graph.neighbors[4, :2], graph.degrees[4] = [3, 0], 2
    edges = Adjacency(np.array([[0, -1], [0, 4], [0, -1]], np.int32), np.array([1, 2, 1], np.int32))
    with ThreadPoolExecutor(1) as executor:
        workers = Workers(executor, 1)
        sources = np.array([1, 3, 5], np.int32)
        params = VamanaParams(max_degree=3, alpha=1.0)
        add_reverse_edges(graph, FloatSpace(read_only(vectors)), sources, edges, params.alpha, workers)
    assert edges_of(graph.neighbors, graph.degrees) == [[1, 3], [], [], [], [3, 0], []]
    assert well_formed(graph)


@pytest.mark.parametrize(
    ("first", "count", "ends"),
    [
        (1, 10, [2, 4, 8, 10]),
        (1, 200, [2, 4, 8, 16, 32, 64, 128, 192, 200]),
        (9_900, 10_000, [10_000]),
        (9_000, 10_000, [9_200, 9_400, 9_600, 9_800, 10_000]),
        (5, 5, []),
    ],
)
def test_batches_double_and_are_at_most_a_fiftieth_of_many_nodes(first: int, count: int, ends: list[int]) -> None:
    assert list(_batches(first, count)) == list(zip([first, *ends], ends, strict=False))


@pytest.mark.parametrize(("threads", "pieces"), [(1, 1), (2, 8), (3, 12), (100, 50)])
def test_the_pieces_of_a_step_are_each_node_once(threads: int, pieces: int) -> None:
    done: list[tuple[int, int]] = []
    with ThreadPoolExecutor(threads) as executor:
        Workers(executor, threads).each(50, lambda low, high: done.append((low, high)))
    assert len(done) == pieces
    assert [node for low, high in sorted(done) for node in range(low, high)] == list(range(50))
