"""A walk over packed edges is the walk over the same edges in rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.codes.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.neighbor_lists import most_neighbors, take_unvisited
from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.graphs.walk_codes import walk_codes
from icepuffin.ann_kernels.metric import Metric
from tests.ann_kernels.data import packed, recall
from tests.ann_kernels.graphs.test_graph_search import clustered


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.sampled_from([2, 300, 20_000, 2_200_000]), longest=st.integers(1, 200))
def test_packed_lists_have_the_neighbours_of_rows(seed: int, count: int, longest: int) -> None:
    """Lists of no neighbour and of more than 127, and distances of ids of one to four bytes."""
    rng = np.random.default_rng(seed)
    rows = 40
    longest = min(longest, count - 1)
    degrees = rng.integers(0, longest + 1, rows).astype(np.int32)
    degrees[0] = longest
    neighbors = np.full((min(rows, count), longest), -1, np.int32)
    for row in range(len(neighbors)):
        others = rng.choice(count - 1, degrees[row], replace=False) if count < 1_000 else None
        drawn = np.unique(rng.integers(0, count - 1, degrees[row])) if others is None else np.sort(others)
        degrees[row] = len(drawn)
        neighbors[row, : len(drawn)] = drawn + (drawn >= row)
    graph = Graph(neighbors, degrees[: len(neighbors)], 0)
    lists = packed(graph).adjacency
    assert most_neighbors(lists) == graph.degrees.max() <= most_neighbors(graph.adjacency)
    for node in range(len(neighbors)):
        visited = (rng.random(count) < 0.3).astype(np.uint8)
        expected, own = _taken(graph.adjacency, node, visited, longest), _taken(lists, node, visited, longest)
        assert expected == own


def _taken(adjacency: Any, node: int, visited: Any, longest: int) -> tuple[list[int], int]:
    marks, fresh = visited.copy(), np.empty(longest, np.int32)
    count = take_unvisited(adjacency, node, marks, np.uint8(1), fresh)
    return fresh[:count].tolist(), int(marks.sum())


@pytest.mark.parametrize("metric", list(Metric)[:3])
@pytest.mark.parametrize("compact", [False, True])
def test_answers_are_those_of_a_graph_in_rows(metric: Metric, compact: bool) -> None:
    vectors, queries = clustered(1_500, 72), clustered(20, 72, seed=1)
    vectors[100:130] = vectors[100]
    if metric is Metric.COSINE:
        vectors, queries = (array / np.linalg.norm(array, axis=1)[:, None] for array in (vectors, queries))
    graph = vamana.build(vectors, metric, VamanaParams(max_degree=16, search_list=32))
    rows = np.where(graph.neighbors < 0, np.int32(2**31 - 1), graph.neighbors)  # in the order of packed lists
    rows = np.sort(rows, axis=1)
    graph = Graph(np.where(rows == 2**31 - 1, np.int32(-1), rows), graph.degrees, graph.medoid)
    codes = walk_codes(vectors, metric, compact=compact)
    plain = Searcher(graph, vectors, metric, codes=codes)
    over_lists = Searcher(packed(graph), vectors, metric, codes=codes)
    assert isinstance(codes, FourBitCodes if compact and metric is not Metric.INNER_PRODUCT else ScalarCodes)
    for width in (10, 60):
        expected, own = (searcher.search(queries, 10, search_list=width) for searcher in (plain, over_lists))
        for one, other in zip((*expected[:2], expected[2].distances), (*own[:2], own[2].distances), strict=True):
            np.testing.assert_array_equal(one, other)


def test_kernels_take_rows_and_lists_as_they_are_documented() -> None:
    graph = Graph(np.array([[1, 2], [0, -1], [0, 1]], np.int32), np.array([2, 1, 2], np.int32), 0)
    lists = packed(graph).adjacency
    assert (lists.lists.tolist(), lists.starts.tolist()) == ([2, 1, 1, 1, 0, 2, 0, 1], [0, 3, 5, 8])
    assert isinstance(graph.adjacency, Adjacency)


def test_a_beam_by_coarse_codes_finds_as_many() -> None:
    """Readers choose its width by what was measured with codes of one byte."""
    vectors, queries = clustered(6_000, 96), clustered(100, 96, seed=1)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(max_degree=32, search_list=64))
    truth = exact_top_k(queries, vectors, 100, Metric.L2)[0]
    by_bytes, coarse = Searcher(graph, vectors, Metric.L2), Searcher(packed(graph), vectors, Metric.L2, compact=True)
    assert isinstance(by_bytes.codes, ScalarCodes)
    assert isinstance(coarse.codes, FourBitCodes)
    for k, width in ((10, 10), (10, 40), (100, 100)):
        of_bytes, of_coarse = (
            recall(searcher.search(queries, k, search_list=width)[0], truth[:, :k]) for searcher in (by_bytes, coarse)
        )
        assert of_coarse > of_bytes - 0.01, (k, width)
    few_dims = np.ascontiguousarray(vectors[:, :64])  # codes of one byte have one cache line
    assert isinstance(walk_codes(few_dims, Metric.L2, compact=True), ScalarCodes)
