"""Codes of four bits per dimension, and the searches that walk by them."""

import numpy as np
import pytest
from numba import njit

from icepuffin.ann_kernels.codes import four_bit_quantization
from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS, FourBitCodes
from icepuffin.ann_kernels.codes.scalar_quantization import MAX_CODE_DIMS, ScalarCodes
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import distance, query_computer
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED, Searcher
from icepuffin.ann_kernels.graphs.walk_codes import walk_codes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.byte_products import BLOCK, four_bit_dot
from tests.ann_kernels.data import clustered, near_duplicates


@njit
def call_dot(codes, query, blocks):  # type: ignore[no-untyped-def]
    return four_bit_dot(codes, np.intp(BLOCK), query, np.intp(0), np.intp(blocks))


@njit
def call_distances(queries, row, out):  # type: ignore[no-untyped-def]
    computer = query_computer(queries, row)
    for node in range(out.size):
        out[node] = distance(computer, node)


def unpacked(codes: FourBitCodes) -> np.ndarray:
    """int64[N, 2 P]: the codes in the order of their dimensions."""
    packed = codes.space.codes.reshape(len(codes.space.norms), -1, BLOCK).astype(np.int64)
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


@pytest.mark.parametrize("blocks", [0, 1, 2, 7])
def test_products_of_half_bytes_are_exact_at_their_extremes(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    size = 2 * BLOCK * blocks
    for codes, query in (
        (rng.integers(0, 16, size), rng.integers(-128, 128, size)),
        (np.full(size, 15), np.full(size, -128)),
        (np.full(size, 15), np.full(size, 127)),
    ):
        low, high = codes.reshape(blocks, 2, BLOCK).transpose(1, 0, 2)
        packed = np.concatenate([np.zeros(BLOCK), (low | high << 4).ravel()]).astype(np.uint8)
        assert call_dot(packed, query.astype(np.int8), blocks) == (codes * query).sum()


@pytest.mark.parametrize("dims", [256, 300, 384, 385])
def test_distances_are_those_of_what_the_codes_stand_for(dims: int) -> None:
    rng = np.random.default_rng(dims)
    vectors = (clustered(150, dims) * rng.uniform(0.5, 2, dims) + 3).astype(np.float32)
    codes = four_bit_quantization.encode(vectors, threads=2)
    assert codes is not None
    widths = codes.scale * codes.widths.astype(np.float64)
    levels = unpacked(codes)
    assert not levels[:, dims:].any()
    nearest = np.clip(np.rint((vectors - codes.offset) / widths + 7.5), 0, 15)
    assert (np.abs(levels[:, :dims] - nearest) <= 1).all()
    assert (levels[:, :dims] == nearest).mean() > 0.999  # but for ties of rounding
    stood_for = codes.offset + widths * (levels[:, :dims] - 7.5)
    queries = vectors[:4] + rng.standard_normal((4, dims)).astype(np.float32) / 10
    out = np.empty(len(vectors), np.float32)
    for row, query in enumerate(queries.astype(np.float64)):
        call_distances(codes.queries(queries, Metric.L2), row, out)
        exact = ((stood_for - query) ** 2).sum(axis=1)
        assert np.corrcoef(out, exact)[0, 1] > 0.9999  # but for a factor, a constant, and the rounding of the query


@pytest.mark.parametrize(
    "vectors",
    [
        np.ones((5, MIN_DIMS - 1), np.float32),
        np.ones((2, MAX_CODE_DIMS + 1), np.float32),
        np.ones((9, MIN_DIMS), np.float32),
        np.empty((0, MIN_DIMS), np.float32),
        np.random.default_rng(0).standard_normal((9, MIN_DIMS)).astype(np.float32) * np.float32(1e-35),
    ],
    ids=["few dimensions", "many dimensions", "equal rows", "no rows", "tiny values"],
)
def test_there_are_no_codes_where_they_would_not_be_numbers(vectors: np.ndarray) -> None:
    assert four_bit_quantization.encode(vectors) is None


def test_a_dimension_that_is_the_same_in_all_rows_does_no_harm() -> None:
    vectors = clustered(200, MIN_DIMS)
    vectors[:, 7] = 5
    codes = four_bit_quantization.encode(vectors)
    assert codes is not None
    assert np.isfinite(codes.space.norms).all()
    assert isinstance(walk_codes(vectors, Metric.L2), FourBitCodes)


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_codes_that_cannot_tell_near_duplicates_apart_are_refused(noise: float) -> None:
    vectors = prepare(near_duplicates(8_000, MIN_DIMS, 80, noise), Metric.L2)
    assert not isinstance(walk_codes(vectors, Metric.L2), FourBitCodes)


def test_vectors_of_few_dimensions_are_walked_by_bytes() -> None:
    assert isinstance(walk_codes(clustered(500, 16), Metric.L2), ScalarCodes)


@pytest.mark.parametrize("metric", list(Metric))
def test_a_search_by_four_bits_finds_what_brute_force_finds(metric: Metric) -> None:
    vectors = clustered(3 * MIN_CODED, MIN_DIMS)
    if metric is Metric.HAMMING:
        vectors = (vectors > 0).astype(np.float32)
    vectors = prepare(vectors, metric)
    queries = prepare(vectors[:100] + np.float32(0.05) * vectors[100:200], metric)
    searcher = Searcher(vamana.build(vectors, metric, vamana.VamanaParams()), vectors, metric)
    assert isinstance(searcher.codes, ScalarCodes if metric is Metric.INNER_PRODUCT else FourBitCodes)
    expected, limits = exact_top_k(queries, vectors, 10, metric)
    ids, distances, _ = searcher.search(queries, 10, search_list=100)
    assert recalls_of(distances, limits, 1e-9 * np.abs(limits[:, -1])).mean() >= 0.98
    exact = dict(zip(expected[0].tolist(), limits[0].tolist(), strict=True))
    assert [exact[node] for node in ids[0].tolist() if node in exact] == pytest.approx(
        [value for node, value in zip(ids[0].tolist(), distances[0].tolist(), strict=True) if node in exact]
    )


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
def test_a_cluster_that_is_tighter_than_the_codes_is_ranked_whole(metric: Metric) -> None:
    """Four bits hardly tell its rows apart, and it is too rare to be seen when the codes are checked."""
    rng = np.random.default_rng(3)
    vectors = clustered(3 * MIN_CODED, MIN_DIMS)
    family = np.arange(1_001, 1_041)
    vectors[family] = vectors[1_001] + 0.05 * vectors.std() * rng.standard_normal((40, MIN_DIMS))
    vectors = prepare(vectors.astype(np.float32), metric)
    searcher = Searcher(vamana.build(vectors, metric, vamana.VamanaParams()), vectors, metric)
    assert isinstance(searcher.codes, FourBitCodes)
    expected, _ = exact_top_k(vectors[family], vectors, 10, metric)
    ids, _, _ = searcher.search(vectors[family], 10, search_list=64)
    hits = [len(set(one) & set(other)) for one, other in zip(ids.tolist(), expected.tolist(), strict=True)]
    assert np.mean(hits) >= 0.99 * 10
