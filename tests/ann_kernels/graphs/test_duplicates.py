"""Data with many equal vectors: one node of each group has edges, and answers have them all."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.duplicates import (
    NO_COPIES,
    Copies,
    CopyGroups,
    copies_of,
    find_duplicates,
    find_new_duplicates,
)
from icepuffin.ann_kernels.graphs.graph import Graph, PackedGraph, VamanaParams
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from tests.ann_kernels.data import clustered, packed, reached, well_formed
from tests.naive import duplicates as naive
from tests.naive.walks import edges_of
from tests.selection import some

PARAMS = VamanaParams(max_degree=16, search_list=32)
METRICS = list(Metric)[:3]
SEED = st.integers(0, 2**31)


def grouped(count: int, dims: int, group: int, seed: int = 0) -> np.ndarray:
    """Groups of so many equal rows, in any order."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.standard_normal((-(-count // group), dims)), group, axis=0)[:count]
    return rng.permutation(rows).astype(np.float32)


def by_node(copies: Copies) -> dict[int, int]:
    assert (np.diff(copies.nodes) > 0).all()
    return dict(zip(copies.nodes.tolist(), copies.originals.tolist(), strict=True))


def grown(vectors: np.ndarray, metric: Metric, before: int, params: VamanaParams = PARAMS) -> Graph:
    """A build of the first rows, into which the others are inserted."""
    graph = vamana.build(vectors[:before], metric, params, threads=2)
    return vamana.insert(graph, vectors, metric, params, threads=2)


def recall_of(searcher: Searcher, vectors: np.ndarray, queries: np.ndarray, k: int, live: np.ndarray) -> float:
    """Recall of a search by a beam of 64; no row twice, and none that is not live."""
    found, distances, _ = searcher.search(queries, k, search_list=64)
    exact = exact_top_k(queries, vectors, k, searcher.metric, is_live=live)[1]
    for row in found:
        nodes = row[row >= 0]
        assert len(set(nodes.tolist())) == len(nodes) == min(k, live.sum())
        assert live[nodes].all()
    assert (distances[:, 1:] >= distances[:, :-1]).all()
    return float(recalls_of(distances, exact, 1e-5).mean())


# ------------------------------------------------------------------------------------------------------- the parts


@settings(max_examples=60, deadline=None)
@given(seed=SEED, count=st.integers(1, 60), dims=st.sampled_from([1, 3, 7]), values=st.integers(1, 4), data=st.data())
def test_each_row_that_equals_another_is_its_copy(
    seed: int, count: int, dims: int, values: int, data: st.DataObject
) -> None:
    vectors = np.random.default_rng(seed).integers(0, values, (count, dims)).astype(np.float32)
    first = data.draw(st.integers(-1, count - 1))
    assert by_node(find_duplicates(vectors, first=first)) == naive.copies(vectors, first)
    before = data.draw(st.integers(0, count))
    old = find_duplicates(vectors[:before], first=-1) if before else NO_COPIES
    expected = {node: original for node, original in naive.copies(vectors).items() if node >= before}
    assert by_node(find_new_duplicates(vectors, before, old)) == expected


def test_rows_whose_hashes_collide_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "icepuffin.ann_kernels.graphs.duplicates.content_hash", lambda rows: np.zeros(len(rows), np.uint64)
    )
    vectors = np.array([[1], [2], [1], [2], [3]], np.float32)
    assert by_node(find_duplicates(vectors, first=-1)) == {2: 0}


@settings(max_examples=60, deadline=None)
@given(seed=SEED, count=st.integers(1, 300), most=st.integers(1, 3))
def test_a_graph_tells_its_copies(seed: int, count: int, most: int) -> None:
    """Nodes with one edge are many here, and ids of two bytes."""
    rng = np.random.default_rng(seed)
    edges = [rng.choice(count, min(count, int(rng.integers(0, most + 1))), replace=False) for _ in range(count)]
    edges = [row[row != node] for node, row in enumerate(edges)]
    neighbors = np.full((count, most), -1, np.int32)
    for node, row in enumerate(edges):
        neighbors[node, : len(row)] = row
    graph = Graph(neighbors, np.array([len(row) for row in edges], np.int32), int(rng.integers(count)))
    expected = naive.copies_in(edges_of(graph.neighbors, graph.degrees), graph.medoid)
    for form in (graph, packed(graph)):
        assert by_node(copies_of(form.adjacency, graph.medoid)) == expected


@settings(max_examples=60, deadline=None)
@given(seed=SEED, k=st.integers(1, 12), data=st.data())
def test_results_have_the_live_copies_of_their_nodes(seed: int, k: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    count = 40
    vectors = rng.integers(0, data.draw(st.sampled_from([2, 8])), (count, 2)).astype(np.float32)
    copies = find_duplicates(vectors, first=-1)
    if not len(copies.nodes):
        return
    live = rng.random(count) < data.draw(st.sampled_from([0, 0.3, 1]))
    sought, groups = CopyGroups.from_copies(copies).of_live(Bitmap.from_mask(live))
    of_original: dict[int, list[int]] = {}
    for node in range(count):
        of_original.setdefault(naive.copies(vectors).get(node, node), []).append(node)
    alive = {node: [member for member in members if live[member]] for node, members in of_original.items()}
    assert sought.indices().tolist() == sorted(node for node, members in alive.items() if members)
    found, distances = np.full((3, k), -1, np.int64), np.full((3, k), np.inf)
    for row in range(3):
        nodes = rng.permutation(sought.indices())[: rng.integers(k + 1)]
        ranked = sorted(
            (float(distance), node) for distance, node in zip(rng.integers(0, 6, len(nodes)), nodes, strict=True)
        )
        for place, (distance, node) in enumerate(ranked):
            found[row, place], distances[row, place] = node, distance
    ids, out = groups.filled(found, distances)
    for row in range(3):
        expected = naive.with_copies(found[row].tolist(), distances[row].tolist(), alive, k)
        kept = ids[row] >= 0
        assert list(zip(out[row][kept].tolist(), ids[row][kept].tolist(), strict=True)) == expected
        assert np.isinf(out[row][~kept]).all()


def test_results_of_large_groups_take_memory_for_their_places_alone() -> None:
    """A thousand queries for a thousand rows each took tens of gigabytes."""
    k = group = 600
    members = np.arange(k * group).reshape(k, group)
    copies = Copies(members[:, 1:].ravel().astype(np.int32), np.repeat(members[:, 0], group - 1).astype(np.int32))
    _, groups = CopyGroups.from_copies(copies).of_live(Bitmap.from_mask(np.ones(k * group, np.bool_)))
    found, distances = members[:, 0][None].copy(), np.arange(k, dtype=np.float64)[None]
    tracemalloc.start()
    try:
        ids, out = groups.filled(found, distances)
        assert tracemalloc.get_traced_memory()[1] < 40 * 8 * k
    finally:
        tracemalloc.stop()
    assert ids.tolist() == [members[0].tolist()]
    assert (out == 0).all()


# --------------------------------------------------------------------------------------------------------- the law


@settings(max_examples=12, deadline=None)
@given(
    seed=SEED,
    sizes=st.lists(st.sampled_from([1, 1, 2, 5, 20, 90, 400]), min_size=1, max_size=60),
    metric=st.sampled_from(METRICS),
    k=st.sampled_from([1, 10, 50]),
    live_share=st.sampled_from([1.0, 0.7, 0.1]),
    built_share=st.sampled_from([1.0, 0.5, 0.05]),
)
def test_stored_vectors_find_rows_as_near_as_the_nearest(
    seed: int, sizes: list[int], metric: Metric, k: int, live_share: float, built_share: float
) -> None:
    rng = np.random.default_rng(seed)
    distinct = rng.standard_normal((len(sizes) * 8, 12))
    vectors = prepare(rng.permutation(np.repeat(distinct, sizes * 8, axis=0)).astype(np.float32), metric)
    graph = grown(vectors, metric, max(1, int(built_share * len(vectors))))
    assert well_formed(graph)
    assert len(reached(graph)) == len(vectors)
    live = rng.random(len(vectors)) < live_share
    live[rng.integers(len(vectors))] = True
    queries = vectors[rng.choice(len(vectors), 40)]
    assert recall_of(Searcher(graph, vectors, metric, is_live=live), vectors, queries, k, live) >= 0.95


@pytest.mark.parametrize(("group", "before"), some(list(product([5, 20, 50, 2_000], [6_000, 3_000])), 3))
def test_new_vectors_find_their_nearest_groups(group: int, before: int) -> None:
    """The beam was full of the rows of one group: recall was .7 for groups of 50."""
    vectors, queries = grouped(6_000, 64, group), np.random.default_rng(1).standard_normal((60, 64)).astype(np.float32)
    graph, live = grown(vectors, Metric.L2, before), np.ones(6_000, bool)
    for compact in (False, True):
        searcher = Searcher(graph, vectors, Metric.L2, compact=compact)
        assert recall_of(searcher, vectors, queries, 10, live) >= 0.95


def test_one_group_of_many_rows_hides_no_others() -> None:
    """A default vector among distinct ones."""
    vectors = clustered(6_000, 16)
    vectors[np.random.default_rng(2).random(6_000) < 0.3] = vectors[7]
    queries = np.concatenate([clustered(50, 16, seed=1), vectors[7:8], vectors[7:8] + np.float32(0.01)])
    for before in (6_000, 3_000):
        searcher = Searcher(grown(vectors, Metric.L2, before), vectors, Metric.L2)
        assert recall_of(searcher, vectors, queries, 10, np.ones(6_000, bool)) >= 0.95
        _, distances, stats = searcher.search(queries[-2:], 10, search_list=64)
        assert stats.distances.max() < 4_000, "the group is compared once"
        assert (distances[0] == 0).all()


@pytest.mark.parametrize("form", ["rows", "packed"])
def test_a_copy_is_found_though_its_original_is_gone(form: str) -> None:
    """A tombstone, and a row outside of a condition."""
    vectors = grouped(3_000, 16, 30)
    graph: Graph | PackedGraph = grown(vectors, Metric.L2, 2_000)
    copies = copies_of(graph.adjacency, graph.medoid)
    assert len(copies.nodes) == 2_900
    searcher = Searcher(packed(graph) if form == "packed" else graph, vectors, Metric.L2)
    live = np.ones(len(vectors), bool)
    live[copies.originals] = False
    for kept in (live, live & (np.arange(3_000) % 13 == 0)):
        masked = searcher.masked(Bitmap.from_mask(kept))
        assert masked.live_count == kept.sum()
        assert recall_of(masked, vectors, vectors[copies.originals[::50]], 40, kept) == 1.0


def test_rows_of_one_vector_are_all_found_in_order_of_their_ids() -> None:
    vectors = np.ones((700, 4), np.float32)
    for before in (700, 1):
        found, distances, stats = Searcher(grown(vectors, Metric.L2, before), vectors, Metric.L2).search(
            vectors[:1], 700, search_list=32
        )
        assert found[0].tolist() == list(range(700))
        assert (distances == 0).all()
        assert stats.distances[0] < 10


def test_what_is_inserted_without_equals_gives_the_graph_as_before() -> None:
    vectors = clustered(400, 8)
    graph = grown(vectors, Metric.L2, 300)
    assert copies_of(graph.adjacency, graph.medoid) is NO_COPIES
    assert find_new_duplicates(vectors, 400, NO_COPIES) is NO_COPIES
