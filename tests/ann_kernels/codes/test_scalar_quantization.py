from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from icepuffin.ann_kernels.codes import scalar_quantization
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import (
    CodeSpace,
    FloatSpace,
    distance,
    new_code_scratch,
    node_computer,
    prefetch_node,
)
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.leaf_neighbors import nearest_by_blas, nearest_columns, new_nearest
from icepuffin.ann_kernels.graphs.neighbor_check import NeighborCheck, preserves_neighbors
from icepuffin.ann_kernels.graphs.reservoir import CandidatePairs, Reservoirs, offer_pairs
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.bits import trailing_zeros
from icepuffin.ann_kernels.simd.byte_products import BLOCK, dot
from icepuffin.ann_kernels.simd.lane_selection import at_most, bound_of_smallest
from tests.ann_kernels.data import clustered, near_duplicates, widely_spread
from tests.naive import codes as naive
from tests.naive import vectors as naive_vectors


@njit
def call_dot(a, b, blocks):  # type: ignore[no-untyped-def]
    return dot(a, np.intp(BLOCK), b, np.intp(0), np.intp(blocks))


@njit
def call_select(values, k):  # type: ignore[no-untyped-def]
    bound = bound_of_smallest(values, 0, values.size, k)
    matches = []
    for start in range(0, values.size, 16):
        bits = at_most(values, start, bound)
        while bits:
            matches.append(start + trailing_zeros(bits))
            bits = bits & (bits - np.uint32(1))
    return bound, matches


@njit
def fill_distances(space, node, others, scratch, out):  # type: ignore[no-untyped-def]
    computer = node_computer(space, node, scratch)
    for place in range(others.size):
        prefetch_node(computer, others[place])
        out[place] = distance(computer, others[place])


@pytest.mark.parametrize("blocks", [0, 1, 2, 7])
def test_byte_products_are_exact_at_their_extremes(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    size = BLOCK * blocks
    for a, b in (
        (rng.integers(0, 256, size), rng.integers(-128, 128, size)),
        (np.full(size, 255), np.full(size, -128)),
        (np.full(size, 255), np.full(size, 127)),
    ):
        codes_, query = np.concatenate([np.zeros(BLOCK), a]).astype(np.uint8), b.astype(np.int8)
        assert call_dot(codes_, query, blocks) == (a * b).sum()


@given(st.lists(st.integers(-(2**31), 2**31 - 2), min_size=16, max_size=16 * 4), st.integers(1, 16))
@settings(deadline=None, max_examples=60)
def test_the_bound_keeps_at_least_the_k_smallest(values: list[int], k: int) -> None:
    array = np.array(values[: len(values) // 16 * 16], np.int32)
    bound, found = call_select(array, k)
    assert found == np.flatnonzero(array <= bound).tolist()
    assert len(found) >= k


@pytest.mark.parametrize("dims", [1, 3, 64, 65, 200])
def test_codes_are_rounded_values_and_their_sums(dims: int) -> None:
    vectors = clustered(150, dims)
    coded = scalar_quantization.encode(vectors, threads=2)
    assert coded is not None
    signed = coded.space.codes.reshape(150, -1).astype(int) - 128
    assert (signed[:, :dims] == naive.encode(vectors, coded.offset, coded.scale)).all()
    assert (signed[:, dims:] == 0).all()
    assert coded.space.norms.tolist() == (signed**2).sum(axis=1).tolist()
    assert coded.space.sums.tolist() == signed.sum(axis=1).tolist()


def test_codes_are_refused_where_their_sums_would_not_fit() -> None:
    assert scalar_quantization.encode(np.ones((2, scalar_quantization.MAX_CODE_DIMS + 1), np.float32)) is None


def test_numbers_that_floats_hardly_tell_apart_have_no_codes() -> None:
    """The inverse of a code's width was infinite."""
    vectors = np.random.default_rng(0).standard_normal((300, 8))
    assert scalar_quantization.encode((1e-42 * vectors).astype(np.float32)) is None
    assert scalar_quantization.encode((1e-34 * vectors).astype(np.float32)) is not None


@pytest.mark.parametrize("dims", [2, 64, 1100])
@pytest.mark.parametrize("count", [1, 5, 6, 64, 65, 131])
def test_tiles_and_blas_find_the_nearest_in_a_leaf(count: int, dims: int) -> None:
    rng = np.random.default_rng(dims)
    vectors = rng.integers(-3, 4, (140, dims)).astype(np.float32)
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    signed = coded.space.codes.reshape(140, -1).astype(int) - 128
    rows = np.sort(rng.choice(140, count, replace=False)).astype(np.int32)
    others = rng.permutation(140)[:70].astype(np.int32)
    for columns, same in ((rows, True), (others, False)):
        nearest = new_nearest(count, 4)
        expected = naive.nearest(signed, rows.tolist(), columns.tolist(), 4, same=same)
        for way in (nearest_columns, nearest_by_blas):
            way(coded.space, rows, columns, nearest, same=same)
            for row in range(count):
                some = nearest.indices[row] >= 0
                assert list(zip(nearest.keys[row][some], nearest.indices[row][some], strict=True)) == expected[row]


@pytest.mark.parametrize("coded_dims", [0, 1, 3, 4, 61])
def test_dimensions_in_which_no_row_has_a_code_still_count_for_columns(coded_dims: int) -> None:
    """Products leave out what is zero for all rows; the norms of the columns do not."""
    rng = np.random.default_rng(coded_dims)
    vectors = rng.integers(-100, 101, (90, 64)).astype(np.float32)
    vectors[0], vectors[1] = -100, 100
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    codes = coded.space.codes.reshape(90, 64)
    codes[:20, coded_dims:] = 128
    signed = codes.astype(np.int32) - 128
    space = CodeSpace(coded.space.codes, (signed**2).sum(axis=1, dtype=np.int32), signed.sum(axis=1, dtype=np.int32))
    rows, columns = np.arange(20, dtype=np.int32), np.arange(15, 90, dtype=np.int32)
    nearest = new_nearest(20, 4)
    nearest_columns(space, rows, columns, nearest, same=False)
    expected = naive.nearest(signed.astype(int), rows.tolist(), columns.tolist(), 4, same=False)
    for row in range(20):
        assert list(zip(nearest.keys[row], nearest.indices[row], strict=True)) == expected[row]


def test_floats_find_the_nearest_in_a_leaf() -> None:
    vectors = clustered(90, 7)
    rows = np.arange(90, dtype=np.int32)
    nearest = new_nearest(90, 5)
    nearest_columns(FloatSpace(vectors), rows, rows, nearest, same=True)
    wanted = naive_vectors.nearest(vectors, vectors, 6, "l2")
    assert [sorted(places) for places in nearest.indices.tolist()] == [
        sorted(set(want) - {row}) for row, want in enumerate(wanted)
    ]


@given(st.integers(0, 2**31), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_reservoirs_do_not_depend_on_the_order_of_offers(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = rng.integers(0, 12, 40).astype(np.int32)
    neighbors = rng.integers(-1, 12, (40, 3)).astype(np.int32)
    neighbors[neighbors == nodes[:, None]] = -1
    neighbors = -np.sort(-neighbors, axis=1)
    weights = rng.integers(0, 6, (40, 3)).astype(np.uint16)
    pairs = [
        (int(node), int(other), int(weight))
        for node, others, row in zip(nodes, neighbors, weights, strict=True)
        for other, weight in zip(others, row, strict=True)
        if other >= 0
    ]
    expected = naive.reservoirs(pairs, 12, limit)
    for order in (np.arange(40), rng.permutation(40)):
        ids, kept = np.full((12, limit), -1, np.int32), np.full((12, limit), 65535, np.uint16)
        reservoirs = Reservoirs(ids, kept, np.zeros(12, np.int32), np.zeros(12, np.int16))
        for low, high in ((0, 5), (5, 12)):
            offer_pairs(CandidatePairs(nodes[order], neighbors[order], weights[order]), low, high, reservoirs)
        assert [set(row[:count].tolist()) for row, count in zip(ids, reservoirs.counts, strict=True)] == expected


@pytest.mark.parametrize(("vectors", "kind"), [(clustered(500, 16), CodeSpace), (widely_spread(500, 16), FloatSpace)])
def test_codes_are_used_only_where_they_rank_as_the_vectors_do(vectors: np.ndarray, kind: type) -> None:
    assert isinstance(vamana.build_space(vectors, Metric.L2, 1), kind)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_codes_that_cannot_tell_near_duplicates_apart_are_refused(metric: Metric, noise: float) -> None:
    vectors = prepare(near_duplicates(40_000, 8, 80, noise), metric)
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    assert not preserves_neighbors(coded, vectors, metric)


@pytest.mark.parametrize("metric", list(Metric))
def test_codes_of_what_is_spread_evenly_are_kept_however_many_there_are(metric: Metric) -> None:
    vectors = prepare(clustered(40_000, 64), metric)
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    assert preserves_neighbors(coded, vectors, metric)


def test_rows_as_far_as_the_tenth_stand_for_no_nearer_row_that_codes_misplace() -> None:
    exact = np.ones((4, 256))
    exact[:, 0] = 0.1
    candidates = np.tile(np.arange(256, dtype=np.int32), (4, 1))
    check = NeighborCheck(Metric.L2, np.zeros((4, 8), np.float32), candidates, exact)
    assert check.are_preserved
    misplaced = exact.copy()
    misplaced[:, -4:] = 0.5
    assert not replace(check, exact=misplaced).are_preserved


@pytest.mark.parametrize("count", [2, 50, 3_000])
@pytest.mark.parametrize("threads", [2, 3, 100])
def test_threads_check_the_same_rows(count: int, threads: int) -> None:
    vectors = clustered(count, 16)
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    alone = NeighborCheck.from_codes(coded, vectors, Metric.L2)
    assert (alone.candidates >= 0).all()
    np.testing.assert_array_equal(
        NeighborCheck.from_codes(coded, vectors, Metric.L2, threads=threads).candidates, alone.candidates
    )


@given(st.integers(2, 2_000), st.integers(1, 5), st.integers(0, 2**31))
@settings(deadline=None, max_examples=25, derandomize=True)
def test_codes_that_are_kept_rank_what_a_search_ranks(count: int, dims: int, seed: int) -> None:
    """Codes are kept by what 64 rows find. That is a sample, so the tables are the same in each run."""
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((count, dims)) * 10.0 ** rng.integers(-6, 7, dims)).astype(np.float32)
    coded = scalar_quantization.encode(vectors)
    assert coded is not None
    if not preserves_neighbors(coded, vectors, Metric.L2):
        return
    signed = coded.space.codes.reshape(count, -1)[:, :dims].astype(int)
    query_rows = rng.choice(count, min(count, 400), replace=False)
    for k in (1, 10):
        matches = []
        for row in query_rows:
            exact = ((vectors.astype(float) - vectors[row]) ** 2).sum(axis=1)
            rough = ((signed - signed[row]) ** 2).sum(axis=1)
            exact[row] = np.inf
            limit = np.sort(exact)[min(k, count - 1) - 1] * (1 + 1e-4)
            others = [node for node in np.lexsort((np.arange(count), rough)) if node != row]
            others = others[: scalar_quantization.ranked_exactly(k)]
            matches.append(min(k, int((exact[others] <= limit).sum())) / min(k, count - 1))
        assert np.mean(matches) > 0.93


def test_vectors_whose_differences_no_float_holds_have_no_codes() -> None:
    signs = np.random.default_rng(0).random((1500, 16)) < 0.6
    assert scalar_quantization.encode(np.where(signs, np.float32(3.3e38), np.float32(-3.3e38))) is None


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1.0, 1e25, 1e36])
def test_codes_are_judged_alike_where_squares_leave_the_range_of_floats(scale: float) -> None:
    for made, expected in ((clustered(4_000, 16), True), (near_duplicates(4_000, 8, 80, noise=1e-4), False)):
        vectors = (scale * made.astype(float)).astype(np.float32)
        coded = scalar_quantization.encode(vectors)
        assert coded is not None
        assert preserves_neighbors(coded, vectors, Metric.L2) is expected


def test_codes_of_more_than_two_gibibytes_are_compared_by_all_of_their_bytes() -> None:
    """Pages that are not written to take no memory."""
    width, count = 1_024, 2**31 // 1_024 + 4
    last = np.arange(count - 4, count, dtype=np.int32)
    rng = np.random.default_rng(0)
    few = scalar_quantization.encode(rng.standard_normal((4, width)).astype(np.float32))
    assert few is not None
    codes, norms, sums = np.zeros(count * width, np.uint8), np.zeros(count, np.int32), np.zeros(count, np.int32)
    codes.reshape(count, width)[last] = few.space.codes.reshape(4, width)
    norms[last], sums[last] = few.space.norms, few.space.sums
    many = CodeSpace(codes, norms, sums)
    own = np.arange(4, dtype=np.int32)
    expected, nearest = new_nearest(4, 3), new_nearest(4, 3)
    nearest_columns(few.space, own, own, expected, same=True)
    nearest_columns(many, last, last, nearest, same=True)
    assert np.array_equal(nearest.indices, expected.indices)
    assert np.array_equal(nearest.keys, expected.keys)
    distances = np.empty((4, 4), np.float32)
    for row, node in enumerate(last):
        fill_distances(many, node, last, new_code_scratch(few.space)[0], distances[row])
    for row in range(4):
        for rank, place in enumerate(nearest.indices[row]):
            assert distances[row, place] == nearest.keys[row, rank]
