"""Codes of rotated vectors: the vectors that they stand for, estimates of distances, and searches by codes alone."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from icepuffin.ann_kernels.codes import rotation
from icepuffin.ann_kernels.codes.code_sizes import rotated_dims
from icepuffin.ann_kernels.codes.rotated_quantization import (
    ERROR,
    FACTOR,
    NORM,
    WALK_FACTOR,
    RotatedCodes,
    center_of,
    decode,
    encode,
    interval,
)
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import distance, query_computer
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from tests.ann_kernels.data import clustered
from tests.chance import FALSE_ALARM, largest_gap, most_hits
from tests.naive import rotated as naive

METRICS = (Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT)
EXAMPLES = 30


@njit
def call_distances(queries, row, out):  # type: ignore[no-untyped-def]
    computer = query_computer(queries, row)
    for node in range(out.size):
        out[node] = distance(computer, node)


def coded(vectors: np.ndarray, bits: int, seed: int = 3) -> RotatedCodes:
    return encode(vectors, bits, center_of(vectors), seed=seed, threads=2)


def all_distances(codes: RotatedCodes, queries: np.ndarray, metric: Metric) -> np.ndarray:
    """f64[Q, N], as reported."""
    graph = vamana.Graph(np.full((codes.count, 1), -1, np.int32), np.zeros(codes.count, np.int32), 0)
    ids, distances, _ = Searcher(graph, None, metric, rotated=codes).search(
        queries, codes.count, search_list=codes.count
    )
    return np.take_along_axis(distances, np.argsort(ids, axis=1), axis=1)


def exact_distances(vectors: np.ndarray, queries: np.ndarray, metric: Metric) -> np.ndarray:
    rows = np.tile(np.arange(len(vectors)), len(queries))
    own = np.repeat(np.arange(len(queries)), len(vectors))
    return pair_distances(queries, vectors, own, rows, metric).reshape(len(queries), len(vectors))


@pytest.mark.parametrize("dims", [1, 64, 128, 200, 640])
def test_vectors_are_rotated_as_by_the_matrix_and_back(dims: int) -> None:
    vectors = clustered(40, dims) + np.float32(2)
    center = center_of(vectors)
    signs = rotation.signs(rotated_dims(dims), 11)
    turned = rotation.rotate(vectors, center, signs)
    np.testing.assert_allclose(turned, naive.rotated(vectors, center, 11), atol=2e-5)
    np.testing.assert_allclose(rotation.rotate_back(turned, center, signs), vectors, atol=2e-5)


def test_a_vector_of_one_dimension_is_spread_over_all() -> None:
    turned = rotation.rotate(np.eye(384, dtype=np.float32), np.zeros(384, np.float32), rotation.signs(384, 0))
    values = np.sort((turned * np.sqrt(384)).ravel())
    assert np.abs(values).max() < 6
    normal = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
    steps = np.arange(values.size + 1) / values.size
    gap = max(np.abs(normal - steps[1:]).max(), np.abs(normal - steps[:-1]).max())
    assert gap < largest_gap(values.size), "as of a normal distribution"


@pytest.mark.parametrize("moved_rows", ["one", "some", "none"])
def test_vectors_far_away_do_not_draw_the_center_to_them(moved_rows: str) -> None:
    """Of 800 rows one is a million times as long, or a hundredth of the rows."""
    vectors = clustered(800, 32)
    center = center_of(vectors)
    assert np.array_equal(center, vectors.mean(axis=0, dtype=np.float64).astype(np.float32))
    vectors[{"one": slice(5, 6), "some": slice(3, None, 100), "none": slice(0, 0)}[moved_rows]] *= np.float32(1e6)
    assert np.linalg.norm(center_of(vectors) - center) < 0.05 * np.linalg.norm(vectors - center, axis=1).min()
    queries = clustered(20, 32)
    estimated, exact = (
        all_distances(coded(vectors, 4), queries, Metric.L2),
        exact_distances(vectors, queries, Metric.L2),
    )
    nearest = np.argsort(exact, axis=1)[:, :10]
    found = np.argsort(estimated, axis=1)[:, :10]
    assert np.mean([len({*own} & {*true}) for own, true in zip(found, nearest, strict=True)]) > 8


@pytest.mark.parametrize("metric", [Metric.L2, Metric.INNER_PRODUCT])
def test_of_equal_rows_the_first_are_ranked_first(metric: Metric) -> None:
    vectors = np.repeat(clustered(5, 32), 4, axis=0)
    codes, nodes = coded(vectors, 4), np.random.default_rng(2).permutation(20)[None]
    for k in (20, 8):
        ids, distances = np.empty((1, k), np.int64), np.empty((1, k))
        codes.nearest(codes.queries(vectors[:1].astype(np.float64), metric), nodes, ids, distances)
        assert (np.diff(ids.reshape(-1, 4)) == 1).all()
        assert (np.diff(distances) >= 0).all()


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("dims", [8, 200])
def test_codes_and_their_terms_are_those_of_the_best_direction(bits: int, dims: int) -> None:
    vectors = (clustered(60, dims) * np.random.default_rng(1).uniform(0.2, 3, dims) + 5).astype(np.float32)
    vectors[7] = center_of(vectors)  # nearly so
    codes = coded(vectors, bits)
    turned = naive.rotated(vectors, codes.center, 3)
    own = naive.levels(codes.high, codes.low, bits, turned.shape[1]) - (2**bits - 1) / 2
    high = naive.levels(codes.high, codes.low, 4, turned.shape[1]) - 7.5
    norms, products = (turned**2).sum(axis=1), (own * turned).sum(axis=1)
    np.testing.assert_allclose(codes.terms[:, NORM], norms, rtol=1e-4)
    np.testing.assert_allclose(codes.terms[:, FACTOR], norms / products, rtol=1e-4)
    np.testing.assert_allclose(codes.terms[:, WALK_FACTOR], norms / (high * turned).sum(axis=1), rtol=1e-4)
    rests = codes.terms[:, FACTOR, None] * own - turned
    errors = np.sqrt((rests**2).sum(axis=1) / (turned.shape[1] - 1))
    np.testing.assert_allclose(codes.terms[:, ERROR], errors, rtol=0.02)
    fits = products / np.sqrt((own**2).sum(axis=1) * norms)
    for width in np.linspace(0.7, 1.35, 14):  # no width of the grid keeps the direction better
        steps = {4: 0.3352, 5: 0.1881, 8: 0.0308}[bits] * width * np.sqrt(norms / turned.shape[1])
        other = np.clip(np.floor(turned / steps[:, None] + 2**bits / 2), 0, 2**bits - 1) - (2**bits - 1) / 2
        assert (fits >= (other * turned).sum(axis=1) / np.sqrt((other**2).sum(axis=1) * norms) - 1e-5).all()
    stood_for = codes.terms[:, FACTOR, None] * own @ naive.rotation(turned.shape[1], 3).T
    np.testing.assert_allclose(decode(codes), stood_for[:, :dims] + codes.center, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_estimates_are_those_of_the_codes(bits: int, metric: Metric) -> None:
    vectors = prepare(clustered(150, 200) + np.float32(0.3), metric)
    codes, queries = coded(vectors, bits), prepare(clustered(3, 200) + np.float32(0.1), metric).astype(np.float64)
    own = naive.levels(codes.high, codes.low, bits, 256) - (2**bits - 1) / 2
    turned = naive.rotated(queries, codes.center * (metric is not Metric.INNER_PRODUCT), 3)
    products = (turned @ own.T) * codes.terms[:, FACTOR]
    if metric is Metric.INNER_PRODUCT:
        expected = -(products + (queries @ codes.center)[:, None])
    else:
        expected = codes.terms[:, NORM] + ((queries - codes.center) ** 2).sum(axis=1)[:, None] - 2 * products
        expected = np.sqrt(np.maximum(expected, 0)) if metric is Metric.L2 else np.maximum(expected, 0) / 2
    np.testing.assert_allclose(all_distances(codes, queries, metric), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_a_walk_measures_by_the_highest_bits(bits: int, metric: Metric) -> None:
    vectors = prepare(clustered(150, 200) + np.float32(0.3), metric)
    codes, queries = coded(vectors, bits), prepare(clustered(3, 200) + np.float32(0.1), metric).astype(np.float64)
    high = naive.levels(codes.high, codes.low, 4, 256) - 7.5
    turned = naive.rotated(queries, codes.center * (metric is not Metric.INNER_PRODUCT), 3)
    products = (turned @ high.T) * codes.terms[:, WALK_FACTOR]
    expected = -products if metric is Metric.INNER_PRODUCT else codes.terms[:, NORM] - 2 * products
    out, prepared = np.empty(len(vectors), np.float32), codes.queries(queries, metric)
    for row in range(len(queries)):
        call_distances(prepared.walked, row, out)
        out *= prepared.shifts[row, 2] if metric is Metric.INNER_PRODUCT else 1
        rounding = np.abs(turned[row]).max() / 127 * np.sqrt((high**2).sum(axis=1)) * codes.terms[:, WALK_FACTOR] * 4
        assert (np.abs(out - expected[row]) <= rounding + 1e-5).all()


def excesses(dims: int, bits: int, metric: Metric, shape: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(how far 1,200 distances lie outside of their intervals, widths of these)."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((200, dims))
    if shape == "one dimension has all the spread":
        rows[:, rng.integers(dims)] *= 100
    elif shape == "shifted":
        rows += 50
    elif shape == "few values":
        rows = rng.integers(0, 3, rows.shape) + 0.01
    elif shape == "near duplicates":
        rows = rows[np.arange(200) % 4] + 1e-3 * rows
    vectors = prepare(rows.astype(np.float32), metric)
    near, far = vectors[:3] + 1e-3 * rng.standard_normal((3, dims)), rng.standard_normal((3, dims))
    queries = prepare(np.concatenate([near, far]), metric).astype(np.float64)
    codes = coded(vectors, bits, seed)
    estimated = all_distances(codes, queries, metric)
    deviations = np.broadcast_to(codes.terms[:, ERROR].astype(np.float64), estimated.shape)
    lowest, highest = interval(estimated, deviations, metric, np.linalg.norm(queries, axis=1))
    exact = exact_distances(vectors, queries, metric)
    rounding = 1e-5 * np.maximum(1, np.abs(vectors).max()) ** (1 if metric is Metric.L2 else 2)
    return np.maximum(lowest - exact, exact - highest) - rounding, highest - lowest


@settings(max_examples=EXAMPLES)
@example(dims=384, bits=4, metric=Metric.L2, shape="plain", seed=0)
@given(
    dims=st.sampled_from([8, 17, 128, 384]),
    bits=st.sampled_from([4, 5, 8]),
    metric=st.sampled_from(METRICS),
    shape=st.sampled_from(["plain", "shifted", "near duplicates"]),
    seed=st.integers(0, 2**31 - 1),
)
def test_distances_lie_in_their_intervals(dims: int, bits: int, metric: Metric, shape: str, seed: int) -> None:
    """But for one of two million, as the page says. Near duplicates, of four rows, err together: they count once."""
    excess, widths = excesses(dims, bits, metric, shape, seed)
    assert (excess <= widths).all()
    apart = excess.reshape(len(excess), -1, 4).max(axis=1) if shape == "near duplicates" else excess
    assert (apart > 0).sum() <= most_hits(apart.size, 1 / 2e6, FALSE_ALARM / EXAMPLES)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", ["one dimension has all the spread", "few values"])
@pytest.mark.parametrize(("dims", "largest_share"), [(8, 0.03), (17, 0.03), (128, 0.002), (384, 0.002)])
def test_some_distances_lie_outside_of_their_intervals_where_errors_are_not_normal(
    dims: int, largest_share: float, shape: str, metric: Metric
) -> None:
    """How many is stated nowhere, so the vectors are the same in each run. In few dimensions errors may be large."""
    for bits, seed in ((4, 128283), (5, 1), (8, 2), (4, 3), (5, 4), (8, 5)):
        excess, widths = excesses(dims, bits, metric, shape, seed)
        assert (excess > 0).mean() <= largest_share
        assert (excess <= widths).all()


def test_errors_have_the_deviation_that_terms_name() -> None:
    """Errors of many nodes have the deviation that the terms name: with a wider one too many rows would be read."""
    vectors = clustered(2_000, 384)
    queries = clustered(8, 384).astype(np.float64)
    codes = coded(vectors, 4)
    estimated, exact = (np.square(f) for f in (all_distances(codes, queries, Metric.L2),
                                               exact_distances(vectors, queries, Metric.L2)))  # fmt: skip
    turned = naive.rotated(queries, codes.center, 3)
    own = naive.rotated(vectors, codes.center, 3)
    cosines = (turned @ own.T) ** 2 / ((turned**2).sum(axis=1)[:, None] * (own**2).sum(axis=1))
    across = np.sqrt((turned**2).sum(axis=1)[:, None] * (1 - cosines))
    errors = (exact - estimated) / (2 * across * codes.terms[:, ERROR])
    assert abs(errors.mean()) < 0.05
    assert 0.9 < errors.std() < 1.1


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("metric", METRICS)
def test_a_search_by_codes_finds_most_of_the_nearest(bits: int, metric: Metric) -> None:
    vectors = prepare(clustered(3_000, 96), metric)
    queries = prepare(clustered(3_040, 96)[3_000:], metric)
    graph = vamana.build(vectors, metric, vamana.VamanaParams(max_degree=24, search_list=40))
    codes = encode(vectors, bits, center_of(vectors), seed=0)
    searcher = Searcher(graph, None, metric, rotated=codes)
    ids, distances, _ = searcher.search(queries, 10, search_list=60)
    assert (np.diff(distances, axis=1) >= 0).all()
    np.testing.assert_allclose(distances[0], all_distances(codes, queries[:1].astype(float), metric)[0, ids[0]])
    exact, _ = exact_top_k(queries, vectors, 10, metric)

    def recall(answers: np.ndarray) -> float:
        return np.mean([len({*a} & {*b}) / 10 for a, b in zip(answers.tolist(), exact.tolist(), strict=True)])

    by_vectors = recall(Searcher(graph, vectors, metric).search(queries, 10, search_list=60)[0])
    assert recall(ids) > by_vectors - {4: 0.15, 5: 0.13, 8: 0.08}[bits], "what the graph does not lead to is not lost"
    by_all = recall(searcher.search(queries, 10, search_list=3_000)[0])
    assert by_all > {4: 0.85, 5: 0.9, 8: 0.98}[bits], "all are compared"
    few = np.arange(0, 3_000, 400)
    nodes, _, _ = searcher.masked(Bitmap.from_mask(np.isin(np.arange(3_000), few))).search(
        queries, 10, search_list=60, widest=60, meeting=30
    )
    assert (np.sort(nodes, axis=1)[:, 2:] == few).all(), "where few nodes are live, all are compared"
    assert (nodes[:, 8:] == -1).all()


def test_vectors_that_are_inserted_keep_rotation_and_center() -> None:
    vectors = clustered(90, 40)
    codes = coded(vectors[:60], 5)
    whole = codes.joined(encode(vectors[60:], 5, codes.center, seed=codes.seed))
    again = encode(vectors, 5, codes.center, seed=codes.seed)
    for name in ("terms", "high", "low"):
        assert np.array_equal(getattr(whole, name), getattr(again, name))
    rows = np.array([3, 71])
    assert np.array_equal(decode(whole.take(rows)), decode(whole)[rows])


def test_rows_that_are_all_alike_are_their_center() -> None:
    vectors = np.full((5, 30), 0.7, np.float32)
    codes = coded(vectors, 4)
    assert np.array_equal(decode(codes), vectors)
    assert np.array_equal(all_distances(codes, vectors[:1].astype(float), Metric.L2), np.zeros((1, 5)))


def test_what_has_no_codes_is_refused() -> None:
    with pytest.raises(KernelError, match="4, 5 or 8 bits, not 6"):
        encode(np.zeros((1, 4), np.float32), 6, np.zeros(4, np.float32), seed=0)
    for dims in (7, 16_385):
        with pytest.raises(DimensionError, match="rotated codes take 8 to 16,384"):
            encode(np.zeros((1, dims), np.float32), 4, np.zeros(dims, np.float32), seed=0)


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_no_vectors_have_codes(bits: int) -> None:
    codes = coded(np.zeros((0, 30), np.float32), bits)
    assert decode(codes.take(np.empty(0, np.int64))).shape == (0, 30)


@pytest.mark.parametrize("metric", [Metric.L2, Metric.INNER_PRODUCT])
@pytest.mark.parametrize("length", [1e-40, 1e36, 2e38])
def test_queries_of_any_length_have_distances(metric: Metric, length: float) -> None:
    codes = coded(clustered(20, 40), 8)
    query = length * np.ones((1, 40))
    decoded = decode(codes).astype(np.float64)
    expected = np.sqrt(np.square(query - decoded).sum(axis=1)) if metric is Metric.L2 else -(decoded @ query[0])
    np.testing.assert_allclose(all_distances(codes, query, metric)[0], expected, rtol=1e-2)
