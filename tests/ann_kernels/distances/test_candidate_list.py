import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from icepuffin.ann_kernels.distances.candidate_list import new_candidates, next_unexpanded
from icepuffin.ann_kernels.simd.sort_keys import NO_KEY, insert_key, key_distance, key_node, sort_key


@njit
def call_keys(distances, nodes):  # type: ignore[no-untyped-def]
    keys = np.empty(nodes.size, np.int64)
    back = np.empty(nodes.size, np.float32)
    for i in range(nodes.size):
        keys[i] = sort_key(distances[i], nodes[i])
        back[i] = key_distance(keys[i])
    return keys, back


@njit
def fill(keys, width):  # type: ignore[no-untyped-def]
    """Offer keys to a candidate list. Returns (candidates, their number, place of each or -1 where it was too far)."""
    candidates = new_candidates(width)
    places = np.full(keys.size, -1)
    size = 0
    for i in range(keys.size):
        if keys[i] < candidates[width - 1]:
            places[i] = insert_key(candidates, min(size, width - 1), keys[i])
            size = min(size + 1, width)
    return candidates, size, places


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=30))
@settings(deadline=None, max_examples=60)
def test_sort_keys_rank_by_distance_then_node(values: list[float]) -> None:
    distances = np.array(values, np.float32)
    distances[distances == 0] = 0  # no -0, which would come before 0
    nodes = np.random.default_rng(0).permutation(len(values)).astype(np.int32)
    keys, back = call_keys(distances, nodes)
    assert (back == distances).all()
    assert [key_node(key) for key in keys] == nodes.tolist()
    assert (np.argsort(keys) == np.lexsort((nodes, distances))).all()


@given(st.integers(1, 40), st.lists(st.integers(-(2**63), 2**63 - 2), unique=True, max_size=120))
@settings(deadline=None, max_examples=150)
def test_a_candidate_list_holds_the_smallest_keys_in_order(width: int, values: list[int]) -> None:
    candidates, size, places = fill(np.array(values, np.int64), width)
    expected_keys: list[int] = []
    for value, place in zip(values, places, strict=True):
        expected = sum(other < value for other in expected_keys)
        assert place == (expected if expected < width else -1)
        expected_keys = sorted([*expected_keys, value])[:width]
    assert candidates[:size].tolist() == expected_keys
    assert (candidates[size:width] == NO_KEY).all()


def test_an_empty_place_counts_as_expanded() -> None:
    candidates, size, _ = fill(np.array([4, 9, 2]), 5)  # the lowest bit of 9 says that it was
    assert candidates[:size].tolist() == [2, 4, 9]
    assert [next_unexpanded(candidates, size, start) for start in range(4)] == [0, 1, 3, 3]
    assert NO_KEY & 1
