"""Walks of a block of queries and the ranking of what they met, beside plain Python."""

from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.distances.distance_computers import L2Queries
from icepuffin.ann_kernels.distances.exact_distances import as_float64
from icepuffin.ann_kernels.graphs.block_search import (
    NO_GROUPS,
    Beam,
    GroupFields,
    Results,
    _widened,
    new_candidate_lists,
    new_scratch,
    rank_block,
    walk_block,
)
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.simd.sort_keys import KEY_LANES, NO_KEY, _plain_key_distance, _plain_sort_key
from tests.naive.shapes import limited
from tests.naive.vectors import distance
from tests.naive.walks import Edges, Walk, edges_of, nearest_entry

NODES, DEGREE = 60, 6
DEVIATIONS = 6
SAMPLED = 8
FLOATS = [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT]


def test_a_beam_is_widened_by_the_share_of_live_nodes_that_it_met() -> None:
    keys = np.array([_plain_sort_key(np.float32(1), node) for node in range(30)])
    half = np.array([0x5555_5555], np.uint64)
    for meeting, widest, width, met in ((16, 100, 46, 15), (16, 45, 45, 15), (15, 100, 0, 15), (60, 100, 80, 15)):
        assert widened(half, NO_GROUPS, keys, (5, widest, meeting, 10)) == (width, met)


def test_nodes_count_where_few_of_the_same_group_are_nearer() -> None:
    keys = np.array([_plain_sort_key(np.float32(1), node) for node in range(30)])
    half = np.array([0x5555_5555], np.uint64)
    of_ten = np.arange(30, dtype=np.int32) // 10
    assert widened(half, (of_ten, 2), keys, (5, 100, 9, 10)) == (55, 6), "two live ones of three groups"
    of_ten[20:] = -1
    assert widened(half, (of_ten, 2), keys, (5, 100, 9, 10)) == (0, 9), "all five of no group"


def widened(live: np.ndarray, groups: GroupFields, keys: np.ndarray, beam: tuple[int, int, int, int]) -> Any:
    """(the next width of a beam of 40, how many nodes it met)."""
    work, room = np.zeros(4, np.int64), np.empty(beam[2], np.int32)
    width = _widened(live, groups, keys, len(keys), 40, beam, room, np.empty(beam[2]), work)
    return width, work[2]


def whole_numbers(count: int, seed: int) -> np.ndarray:
    """Vectors whose distances are exact in any order of sums, and often equal."""
    return np.random.default_rng(seed).integers(0, 9, (count, 3)).astype(np.float32)


def random_edges(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(neighbours, degrees) of a graph whose lists differ in length."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(2, DEGREE + 1, NODES).astype(np.int32)
    neighbors = np.full((NODES, DEGREE), -1, np.int32)
    for node, degree in enumerate(degrees):
        neighbors[node, :degree] = rng.choice(np.delete(np.arange(NODES), node), degree, replace=False)
    return neighbors, degrees


def plain_walk(
    from_query: np.ndarray, edges: Edges, live: np.ndarray, entries: list[int], beam: Beam
) -> tuple[list[int], list[int]]:
    """(nodes of the candidate list, work of the walk): the beam is widened until it has met enough live nodes.

    It goes on from where it is: the list has all its places from the first.
    """
    width, widest, meeting, way = beam
    walk = Walk(from_query, edges, [entries[0], nearest_entry(from_query, entries)][:widest])
    while True:
        walk.go_on(width, widest)
        counted = walk.nodes[: width - way]
        live_count = int(live[counted].sum())
        if live_count >= meeting or width >= widest:
            return walk.nodes, [len(walk.expanded), len(walk.visited) + len(entries) - 1, min(live_count, meeting)]
        needed = way + len(counted) * meeting // max(1, live_count)
        width = min(widest, max(min(needed, 2 * width), width + width // 8 + 1))


FIXED = [Beam(1, 1, 0, 0), Beam(4, 4, 0, 2), Beam(8, 8, 8, 0)]
FINDING_A_WAY = [Beam(4, 30, 3, 2), Beam(5, 24, 9, 2), Beam(9, 60, 40, 4)]
WITH_SPARE_PLACES = [Beam(2, 3, 2, 0), Beam(8, 13, 8, 0), Beam(10, 50, 10, 0)]


@pytest.mark.parametrize("entries", [[7], [7, 0], [7, 0, 20, 40], [7, 7, 33]])
@pytest.mark.parametrize("beam", FIXED + FINDING_A_WAY + WITH_SPARE_PLACES)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_walk_is_the_documented_one(share: float, beam: Beam, entries: list[int]) -> None:
    vectors, queries, edges = whole_numbers(NODES, 0), whole_numbers(12, 1), random_edges(2)
    live = np.random.default_rng(3).random(NODES) < share
    block = L2Queries(read_only(vectors), read_only(queries))
    entry_nodes = np.array(entries, np.int32)
    entry_data = (read_only(vectors[entry_nodes]),)
    lists, work = new_candidate_lists(len(queries), beam.widest), np.empty((len(queries), 4), np.int64)
    scratch = new_scratch(NODES, DEGREE)
    scratch[1][0] = 250  # stamps of eight bits begin anew in the midst of the queries
    walk_block(
        block,
        entry_data,
        edges,
        Bitmap.from_mask(live).words,
        entry_nodes,
        tuple(beam),
        scratch,
        lists,
        work,
        NO_GROUPS,
    )
    for row, query in enumerate(queries):
        from_query = np.square(vectors - query).sum(axis=1)
        nodes, expected_work = plain_walk(from_query, edges_of(*edges), live, entries, beam)
        keys = [key for key in lists[row, : beam.widest].tolist() if key != NO_KEY]
        assert [key >> 1 & 0x7FFFFFFF for key in keys] == nodes
        assert [_plain_key_distance(key) for key in keys] == from_query[nodes].tolist()
        assert work[row, :3].tolist() == expected_work


def test_a_candidate_list_fills_whole_registers() -> None:
    for width in (1, KEY_LANES - 1, KEY_LANES, KEY_LANES + 1, 100):
        places = new_candidate_lists(3, width).shape
        assert places == (3, -(-width // KEY_LANES) * KEY_LANES)


def squared(exact: Any, metric: Metric) -> Any:
    """What a beam computes of distances that are reported."""
    return exact**2 if metric is Metric.L2 else 2 * exact if metric is Metric.COSINE else exact


def sorted_keys(coarse: np.ndarray, width: int) -> np.ndarray:
    """A candidate list int64[1, ..] of nodes that lie in the order of their coarse distances."""
    lists = new_candidate_lists(1, width)
    lists[:] = NO_KEY
    lists[0, : len(coarse)] = sorted(_plain_sort_key(far, node) for node, far in enumerate(coarse))
    return lists


def ranked(
    lists: np.ndarray, widths: tuple[int, int], live: np.ndarray, k: int, ranking: Any, groups: GroupFields = NO_GROUPS
) -> Results:
    results = Results.unfilled(len(lists), k)
    results.work[:] = -1
    rank_block(ranking, Bitmap.from_mask(live).words, lists, widths, *results, groups)
    return results


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("unit", [0.0, 0.25])
@pytest.mark.parametrize("noise", [0.0, 0.5, 3.0])
def test_as_many_nodes_are_ranked_by_exact_distances_as_may_be_among_the_nearest(
    metric: Metric, unit: float, noise: float
) -> None:
    k, most, count = 3, 8, 80
    beyond_first = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        vectors, query = (rng.standard_normal((number, 4)).astype(np.float32) for number in (count, 1))
        if metric is Metric.COSINE:
            vectors, query = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (vectors, query))
        exact = np.array([distance(query[0], vector, metric.value) for vector in vectors])
        coarse = squared(exact, metric) / (unit or 1.0) + noise * (2 + rng.standard_t(1.2, count))
        order = np.argsort(coarse)
        vectors, exact, coarse = vectors[order], exact[order], coarse[order].astype(np.float32)
        live = rng.random(count) < 0.6
        nodes = np.flatnonzero(live).tolist()
        chosen = nodes[:most]
        if unit:
            gaps = squared(exact[chosen], metric) / unit - coarse[chosen]
            kth = squared(np.sort(exact[chosen])[k - 1], metric) / unit
            reach = kth - gaps.mean() + DEVIATIONS * gaps.std()
            chosen += [node for node in nodes[most:] if coarse[node] <= reach]
            beyond_first += len(chosen) > most
        expected = sorted(chosen, key=lambda node: exact[node])[:k]
        ranking = read_only(vectors), read_only(as_float64(query)), metric.code, most, unit
        results = ranked(sorted_keys(coarse, count), (count, count), live, k, ranking)
        assert results.ids[0].tolist() == expected
        np.testing.assert_allclose(results.distances[0], exact[expected], rtol=1e-5, atol=1e-5)
    assert (beyond_first > 0) == (unit > 0 and noise > 0), "of codes that tell the truth the first are enough"


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("has_vectors", [True, False])
def test_few_nodes_of_a_group_are_ranked(limit: int, has_vectors: bool) -> None:
    """Twice as many by the beam's distances, and of these the nearest ones."""
    k, most, count = 6, 15, 80
    for seed in range(30):
        rng = np.random.default_rng(seed)
        vectors, query = rng.standard_normal((count, 4)).astype(np.float32), np.zeros((1, 4))
        exact = np.linalg.norm(vectors.astype(np.float64), axis=1)
        order = np.argsort(exact**2 + 0.3 * rng.standard_normal(count))
        vectors, exact, coarse = vectors[order], exact[order], np.arange(count, dtype=np.float32)
        live, groups = rng.random(count) < 0.7, rng.integers(-1, 4, count).astype(np.int32)

        def group(node: int, groups: np.ndarray = groups) -> int:
            return int(groups[node]) if groups[node] >= 0 else -1 - node

        expected = limited(np.flatnonzero(live).tolist(), group, most, 2 * limit)
        if has_vectors:
            expected.sort(key=lambda node: exact[node])
        expected = limited(expected, group, k, limit)
        own = vectors if has_vectors else np.empty((0, 0), np.float32)
        ranking = read_only(own), read_only(query), Metric.L2.code, most, 0.0
        results = ranked(sorted_keys(coarse, count), (count, count), live, k, ranking, (groups, limit))
        assert results.ids[0].tolist() == expected + [-1] * (k - len(expected))


def test_equal_distances_are_ranked_by_node() -> None:
    vectors = np.ones((20, 2), np.float32)
    query = np.zeros((1, 2))
    coarse = np.arange(20, 0, -1).astype(np.float32)  # the last node comes first
    ranking = read_only(vectors), read_only(query), Metric.L2.code, 20, 0.0
    results = ranked(sorted_keys(coarse, 20), (20, 20), np.ones(20, bool), 5, ranking)
    assert results.ids.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("has_vectors", [True, False])
def test_places_without_a_live_node_are_empty(has_vectors: bool) -> None:
    vectors = np.arange(12, dtype=np.float32)[:, None]
    coarse = np.arange(12, dtype=np.float32) + 0.5
    live = np.isin(np.arange(12), [2, 5, 11])
    own = vectors if has_vectors else np.empty((0, 0), np.float32)
    ranking = read_only(own), read_only(np.zeros((1, 1))), Metric.L2.code, 10, 1.0
    results = ranked(sorted_keys(coarse, 16), (10, 16), live, 5, ranking)
    assert results.ids.tolist() == [[2, 5, 11, -1, -1]]
    shift = 0.0 if has_vectors else 0.5
    assert results.distances.tolist() == [[2 + shift, 5 + shift, 11 + shift, np.inf, np.inf]]


NEAR, FAR, FARTHER = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
FROM_NEAR = NEAR[None].astype(np.float64)


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("first", [2, 3, 7, 20, 64, 100])
def test_a_beam_is_full_where_a_sample_of_its_farther_half_is_as_far_as_the_kth_result(
    first: int, metric: Metric
) -> None:
    """Tombstones are sampled, too; places that the beam had not at first are not."""
    k, count = 3, first + 9
    live = (np.random.default_rng(first).random(count) < 0.7) | (np.arange(count) < k)
    half = range(first // 2, first)
    sample = half[:: -max(1, len(half) // SAMPLED)]
    for odd in range(k, count):
        vectors = np.array([NEAR, *[FAR] * (count - 1)])
        vectors[odd] = FARTHER
        ranking = read_only(vectors), read_only(FROM_NEAR), metric.code, k, 0.0
        lists = sorted_keys(np.arange(count), count)
        assert ranked(lists, (first, count), live, k, ranking).work[0, 3] == (odd not in sample)


def test_a_beam_is_not_full_where_its_results_are_nearer_than_the_rest() -> None:
    vectors = np.array([NEAR, NEAR, *[FAR] * 10])
    ranking = read_only(vectors), read_only(FROM_NEAR), Metric.L2.code, 4, 0.0
    lists, live = sorted_keys(np.arange(12), 12), np.ones(12, bool)
    assert [int(ranked(lists, (12, 12), live, k, ranking).work[0, 3]) for k in (1, 2, 3, 4)] == [0, 0, 1, 1]


def test_a_beam_is_not_full_that_met_fewer_nodes_or_results_than_it_has_places_for() -> None:
    vectors = np.array([FAR] * 12)
    ranking = read_only(vectors), read_only(FROM_NEAR.repeat(2, axis=0)), Metric.L2.code, 3, 0.0
    lists, live = sorted_keys(np.arange(12), 16).repeat(2, axis=0), np.arange(12) < 9
    assert ranked(lists, (12, 16), live, 3, ranking).work[:, 3].tolist() == [1, 1]
    assert ranked(lists, (13, 16), live, 3, ranking).work[:, 3].tolist() == [0, 0]
    lists[1, :5], lists[1, 5:] = lists[0, 7:12], NO_KEY  # two live nodes, and three tombstones
    assert ranked(lists, (5, 16), live, 3, ranking).work[:, 3].tolist() == [1, 0]


def test_a_beam_whose_distances_are_the_best_there_are_is_never_full() -> None:
    ranking = read_only(np.empty((0, 0), np.float32)), read_only(FROM_NEAR), Metric.L2.code, 3, 0.0
    lists = sorted_keys(np.zeros(12), 12)
    assert ranked(lists, (12, 12), np.ones(12, bool), 3, ranking).work[0, 3] == 0


def test_a_wider_walk_replaces_answers_and_adds_its_work() -> None:
    results = Results.nothing(3, 2)
    assert (results.ids == -1).all()
    assert np.isinf(results.distances).all()
    assert not results.work.any()
    results.work[:] = [[1, 10, 100, 1]] * 3
    wider = Results(np.array([[8, 9]]), np.array([[0.5, 0.7]]), np.array([[2, 20, 200, 0]]))
    results.replace(np.array([1]), wider)
    assert results.ids.tolist() == [[-1, -1], [8, 9], [-1, -1]]
    assert results.distances[1].tolist() == [0.5, 0.7]
    assert results.work.tolist() == [[1, 10, 100, 1], [3, 30, 200, 0], [1, 10, 100, 1]]
