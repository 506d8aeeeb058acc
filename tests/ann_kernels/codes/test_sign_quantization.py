"""Signs beside codes of four bits, and the nodes that walks rule out by them."""

from collections.abc import Callable

import numpy as np
import pytest
from numba import njit

from icepuffin.ann_kernels.codes import four_bit_quantization, sign_quantization
from icepuffin.ann_kernels.codes.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import FourBitQueries, keep_near, query_computer
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph import Graph
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.neighbor_check import NeighborCheck
from icepuffin.ann_kernels.graphs.walk_codes import MIN_SIGNED_DIMS, walk_codes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.bits import bits_of
from icepuffin.ann_kernels.simd.sign_products import PLANES, WORDS, sum_of_chosen
from tests.ann_kernels.codes.test_four_bit_quantization import call_distances, unpacked
from tests.ann_kernels.data import clustered, recall
from tests.naive import signs as naive


@njit
def call_bits(values, first, mask):  # type: ignore[no-untyped-def]
    return bits_of(values, np.intp(first), np.uint8(mask))


@njit
def call_sum(words, first, planes, blocks):  # type: ignore[no-untyped-def]
    return sum_of_chosen(words, np.intp(first), planes, np.intp(blocks))


@njit
def call_keep(queries, row, nodes, farthest):  # type: ignore[no-untyped-def]
    return keep_near(query_computer(queries, row), nodes, nodes.size, np.float32(farthest))


def coded(vectors: np.ndarray) -> FourBitCodes:
    codes = four_bit_quantization.encode(vectors)
    assert codes is not None
    return codes.with_signs()


def uneven(count: int, dims: int, seed: int = 0) -> np.ndarray:
    """Clusters whose dimensions are of unlike spread, off the origin."""
    widths = np.random.default_rng(dims).uniform(0.3, 2, dims)
    return (clustered(count, dims, seed) * widths + 3).astype(np.float32)


def spanned(count: int, dims: int, seed: int = 0) -> np.ndarray:
    """Vectors that thirty directions span, but for noise, as embeddings are."""
    directions = np.random.default_rng(dims).standard_normal((30, dims))
    noise = 0.5 * np.random.default_rng(seed).standard_normal((count, dims))
    return (clustered(count, 30, seed) @ directions + noise).astype(np.float32)


def stood_for(codes: FourBitCodes) -> np.ndarray:
    """f64[N, D]: what the codes stand for, from the offset on, in units of the scale."""
    return (unpacked(codes)[:, : len(codes.widths)] - 7.5) * codes.widths.astype(np.float64)


def signed_queries(codes: FourBitCodes, queries: np.ndarray) -> FourBitQueries:
    made = codes.queries(queries, Metric.L2)
    assert made.planes.size
    return made


def least_distances(codes: FourBitCodes, queries: FourBitQueries, row: int, deviations: float) -> np.ndarray:
    """f64[N]: what the distances from one query are at least, as far as signs tell."""
    values, code = stood_for(codes), queries.queries[row].astype(float)
    factors, errors = naive.terms(values, codes.widths.astype(np.float64))
    integers = naive.integers(code)
    signs = np.where(unpacked(codes) >= 8, 1, -1)
    rounding = np.square(code - 8 * integers).sum()
    doubt = deviations * np.sqrt(np.square(code).sum() + 3 * rounding)
    products = factors * (signs @ (8 * integers)) + 7.5 * code.sum() + errors * doubt
    return np.asarray(np.square(values).sum(axis=1) - queries.dot_weights[row] * products)


@pytest.mark.parametrize("mask", [1, 8, 0x80, 0xFF])
def test_bits_are_those_of_the_values_that_the_mask_meets(mask: int) -> None:
    values = np.random.default_rng(mask).integers(0, 256, 100).astype(np.uint8)
    for first in (0, 3, 36):
        expected = sum(1 << i for i in range(64) if values[first + i] & mask)
        assert int(call_bits(values, first, mask)) == expected


@pytest.mark.parametrize("blocks", [0, 1, 2, 7])
def test_sums_of_chosen_integers_are_exact_at_their_extremes(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    size = blocks * WORDS * 64
    for integers, chosen in (
        (rng.integers(-16, 16, size), rng.integers(0, 2, size)),
        (np.full(size, -16), np.ones(size, int)),
        (np.full(size, 15), np.ones(size, int)),
        (np.full(size, 15), np.zeros(size, int)),
    ):
        bits = (integers[:, None] >> np.arange(PLANES) & 1).reshape(blocks, 64 * WORDS, PLANES).transpose(0, 2, 1)
        planes = np.packbits(bits.reshape(-1).astype(np.uint8), bitorder="little").view(np.uint64)
        words = np.packbits(chosen.astype(np.uint8), bitorder="little").view(np.uint64)
        behind = np.concatenate([np.full(3, 2**64 - 1, np.uint64), words])
        assert call_sum(behind, 3, planes, blocks) == (integers * chosen).sum()


@pytest.mark.parametrize("dims", [256, 300, 512, 1024, 1100])
def test_signs_are_the_highest_bits_of_codes(dims: int) -> None:
    codes = coded(uneven(40, dims))
    assert codes.signs is not None
    words = codes.signs.words.reshape(40, -1)
    assert words.ctypes.data % 64 == 0
    assert words.shape[1] * 64 == dims + -dims % 512
    bits = naive.unpacked(words)
    np.testing.assert_array_equal(bits[:, :dims], unpacked(codes)[:, :dims] >= 8)
    assert not bits[:, dims:].any()
    factors, errors = naive.terms(stood_for(codes), codes.widths.astype(np.float64))
    np.testing.assert_allclose(codes.signs.terms[:, 0], factors, rtol=1e-4)
    np.testing.assert_allclose(codes.signs.terms[:, 1], errors, rtol=1e-3)


def test_threads_do_not_change_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = four_bit_quantization.encode(uneven(300, 256))
    assert codes is not None
    alone = codes.with_signs().signs
    monkeypatch.setattr(sign_quantization, "ROWS_PER_TASK", 64)
    together = codes.with_signs(threads=3).signs
    assert alone is not None
    assert together is not None
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dims", [256, 1100])
def test_planes_hold_a_query_rounded_to_five_bits(dims: int) -> None:
    codes = coded(uneven(100, dims))
    queries = signed_queries(codes, uneven(6, dims, seed=5))
    bits = naive.unpacked(queries.planes.reshape(6, -1, PLANES, WORDS))
    integers = (bits * np.array([1, 2, 4, 8, -16])[:, None]).sum(axis=2).reshape(6, -1)
    expected = naive.integers(queries.queries)
    np.testing.assert_array_equal(integers[:, : expected.shape[1]], expected)
    assert not integers[:, expected.shape[1] :].any()
    own = queries.queries.astype(np.int64)[:, : expected.shape[1]]
    gaps = own - (expected.astype(np.int64) << sign_quantization._SHIFT)
    doubts = np.sqrt((own**2).sum(axis=1) + sign_quantization._FACTOR_SQUARED * (gaps**2).sum(axis=1))
    np.testing.assert_allclose(queries.query_terms[:, 2] / doubts, sign_quantization.DEVIATIONS, rtol=1e-5)
    assert (np.abs(queries.queries) == 127).any()  # the largest integer is 15, not 16


@pytest.mark.parametrize("dims", [256, 300, 1100])
def test_what_is_left_out_is_what_the_estimate_puts_beyond_the_bound(dims: int) -> None:
    codes = coded(uneven(200, dims))
    queries = signed_queries(codes, uneven(3, dims, seed=5))
    for row in range(3):
        least = least_distances(codes, queries, row, sign_quantization.DEVIATIONS)
        middle = np.sort(least)[::20]
        for farthest in (middle[1:] + middle[:-1]) / 2:
            nodes = np.random.default_rng(7).permutation(200).astype(np.int32)
            clear = np.abs(least - farthest) > 1e-3 * np.abs(least).max()
            expected = [node for node in nodes if least[node] <= farthest and clear[node]]
            kept = nodes[: call_keep(queries, row, nodes, farthest)]
            assert [node for node in kept if clear[node]] == expected
            assert 0 < len(kept) < 200


def test_an_infinite_bound_leaves_nothing_out() -> None:
    codes = coded(uneven(50, 256))
    nodes = np.arange(50, dtype=np.int32)
    assert call_keep(signed_queries(codes, uneven(1, 256, seed=5)), 0, nodes, np.inf) == 50
    np.testing.assert_array_equal(nodes, np.arange(50))


@pytest.mark.parametrize("dims", [256, 1100])
def test_few_distances_are_below_the_estimate(dims: int) -> None:
    """Errors of two standard deviations on one side: one in forty, were they normally distributed."""
    codes = coded(uneven(600, dims))
    queries = signed_queries(codes, uneven(8, dims, seed=5))
    below, error, deviation = [], [], []
    for row in range(8):
        least = least_distances(codes, queries, row, 2)
        middle = least_distances(codes, queries, row, 0)
        out = np.empty(600, np.float32)
        call_distances(queries, row, out)
        below.append((out < least).mean())
        error.append(np.square(out - middle).mean())
        deviation.append(np.square(middle - least).mean() / 4)
    assert np.mean(below) < 0.04
    assert 0.3 < np.sqrt(np.mean(error) / np.mean(deviation)) < 1.1


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return spanned(3_000, MIN_SIGNED_DIMS)


@pytest.fixture(scope="module")
def graph(many: np.ndarray) -> Graph:
    return vamana.build(many, Metric.L2, vamana.VamanaParams())


def test_with_infinite_deviations_answers_are_those_without_signs(
    many: np.ndarray, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = four_bit_quantization.encode(many)
    assert codes is not None
    queries = spanned(50, many.shape[1], seed=5)
    expected = Searcher(graph, many, Metric.L2, codes=codes).search(queries, 10, search_list=20)
    signed = Searcher(graph, many, Metric.L2, codes=codes.with_signs())
    assert (signed.search(queries, 10, search_list=20)[2].distances < 0.8 * expected[2].distances).all()
    monkeypatch.setattr(sign_quantization, "DEVIATIONS", np.inf)
    found = signed.search(queries, 10, search_list=20)
    for one, other in zip((*found[:2], found[2].distances), (*expected[:2], expected[2].distances), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", [20, 50])
def test_recall_is_that_without_signs(many: np.ndarray, graph: Graph, width: int) -> None:
    codes = four_bit_quantization.encode(many)
    assert codes is not None
    without, with_signs = [], []
    for seed in range(5, 9):
        queries = spanned(100, many.shape[1], seed=seed)
        true, _ = exact_top_k(queries, many, 10, Metric.L2)
        for hits, kind in ((without, codes), (with_signs, codes.with_signs())):
            ids, _, _ = Searcher(graph, many, Metric.L2, codes=kind).search(queries, 10, search_list=width)
            hits.append(recall(ids, true))
    assert np.mean(with_signs) > np.mean(without) - 0.002


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
def test_a_cluster_that_is_tighter_than_the_codes_is_ranked_whole(many: np.ndarray, metric: Metric) -> None:
    rng = np.random.default_rng(3)
    vectors, family = many.copy(), np.arange(1_001, 1_041)
    vectors[family] = vectors[1_001] + 0.05 * vectors.std() * rng.standard_normal((40, vectors.shape[1]))
    vectors = prepare(vectors.astype(np.float32), metric)
    searcher = Searcher(vamana.build(vectors, metric, vamana.VamanaParams()), vectors, metric)
    assert isinstance(searcher.codes, FourBitCodes)
    assert searcher.codes.signs is not None
    expected, _ = exact_top_k(vectors[family], vectors, 10, metric)
    ids, _, _ = searcher.search(vectors[family], 10, search_list=64)
    assert recall(ids, expected) >= 0.99


def test_zero_vectors_and_equal_rows_are_found(many: np.ndarray) -> None:
    vectors = many - many.mean(axis=0)
    vectors[500:520] = 0
    vectors[700:720] = vectors[700]
    searcher = Searcher(vamana.build(vectors, Metric.L2, vamana.VamanaParams()), vectors, Metric.L2)
    assert isinstance(searcher.codes, FourBitCodes)
    assert searcher.codes.signs is not None
    for query, rows in ((np.zeros_like(vectors[0]), range(500, 520)), (vectors[700], range(700, 720))):
        ids, distances, _ = searcher.search(query[None], 10, search_list=50)
        assert set(ids[0].tolist()) <= set(rows)
        assert (distances == 0).all()


def test_codes_of_many_dimensions_get_signs_but_for_the_inner_product(many: np.ndarray) -> None:
    codes = walk_codes(many, Metric.L2)
    assert isinstance(codes, FourBitCodes)
    assert codes.signs is not None
    fewer = walk_codes(np.ascontiguousarray(many[:, : MIN_SIGNED_DIMS - 1]), Metric.L2)
    assert isinstance(fewer, FourBitCodes)
    assert fewer.signs is None
    assert not isinstance(walk_codes(many, Metric.INNER_PRODUCT), FourBitCodes)


def skewed(seed: int = 0) -> np.ndarray:
    """Most numbers are small, and some large: a vector's length says more than its signs."""
    directions = np.random.default_rng(1).standard_normal((10, MIN_SIGNED_DIMS))
    return np.exp(clustered(1_500, 10, seed) @ directions / 7).astype(np.float32)


def constant_by_block(seed: int = 0) -> np.ndarray:
    """Sixteen numbers, each in as many dimensions: errors of their signs add up."""
    return np.repeat(clustered(1_500, 16, seed), MIN_SIGNED_DIMS // 16, axis=1)


@pytest.mark.parametrize("make", [skewed, constant_by_block])
def test_codes_get_no_signs_that_rule_out_the_nearest(make: Callable[..., np.ndarray]) -> None:
    vectors, queries = make(), make(seed=5)[:150]
    codes = walk_codes(vectors, Metric.L2)
    assert isinstance(codes, FourBitCodes)
    assert codes.signs is None
    check = NeighborCheck.from_codes(codes, vectors, Metric.L2)
    assert check.are_kept(codes), "there is nothing to rule out by"
    assert not check.are_kept(codes.with_signs())
    true, _ = exact_top_k(queries, vectors, 10, Metric.L2)
    graph = vamana.build(vectors, Metric.L2, vamana.VamanaParams())
    without, with_signs = (
        recall(Searcher(graph, vectors, Metric.L2, codes=kind).search(queries, 10, search_list=20)[0], true)
        for kind in (codes, codes.with_signs())
    )
    assert without > with_signs + 0.01
