import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from icepuffin.ann_kernels.candidate_list import NO_KEY, insert, key_distance, key_node, new_pool, sort_key, unexpanded


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
    """Offer keys to a pool; -> (pool, its size, the place of each; -1 where it was too far)."""
    pool = new_pool(width)
    places = np.full(keys.size, -1)
    size = 0
    for i in range(keys.size):
        if keys[i] < pool[width - 1]:
            places[i] = insert(pool, min(size, width - 1), keys[i])
            size = min(size + 1, width)
    return pool, size, places


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
def test_a_pool_holds_the_smallest_keys_in_order(width: int, values: list[int]) -> None:
    pool, size, places = fill(np.array(values, np.int64), width)
    held: list[int] = []
    for value, place in zip(values, places, strict=True):
        expected = sum(other < value for other in held)
        assert place == (expected if expected < width else -1)
        held = sorted([*held, value])[:width]
    assert pool[:size].tolist() == held
    assert (pool[size:width] == NO_KEY).all()


def test_an_empty_place_counts_as_expanded() -> None:
    pool, size, _ = fill(np.array([4, 9, 2]), 5)  # the lowest bit of 9 says that it was
    assert pool[:size].tolist() == [2, 4, 9]
    assert [unexpanded(pool, size, start) for start in range(4)] == [0, 1, 3, 3]
    assert NO_KEY & 1
