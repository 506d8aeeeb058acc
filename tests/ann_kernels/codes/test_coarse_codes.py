"""Halves of codes, and the vectors that they rule out."""

import numpy as np
import pytest
from numba import njit

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.codes import coarse_codes
from icepuffin.ann_kernels.codes.coarse_codes import CoarseTable, arranged
from icepuffin.ann_kernels.codes.coded_distances import UNBOUNDED, bounds_within, coded_query
from icepuffin.ann_kernels.codes.scalar_quantization import encode
from icepuffin.ann_kernels.distances.candidate_list import new_candidates
from icepuffin.ann_kernels.distances.coarse_comparison import _bound, _choose, _keep, coarse_query, keep_nearest
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.byte_products import BLOCK, four_bit_dot
from icepuffin.ann_kernels.simd.sort_keys import key_node
from tests.ann_kernels.data import clustered, near_duplicates, widely_spread
from tests.ann_kernels.distances.test_coded_comparison import FLOATS, outliers
from tests.naive import codes as naive

COUNT = 1_500


@njit
def call_dot(rows, width, row, query):  # type: ignore[no-untyped-def]
    return four_bit_dot(rows, np.intp(row * width), query, np.intp(0), np.intp(width // BLOCK))


@njit
def call_node(key):  # type: ignore[no-untyped-def]
    return key_node(key)


@njit
def call_bounds(query, product, squares, error):  # type: ignore[no-untyped-def]
    return bounds_within(coarse_query(query), product, squares, error)


def coded(vectors: np.ndarray) -> CodedVectors:
    codes = encode(vectors)
    assert codes is not None
    return CodedVectors(vectors, codes)


def rows_of(table: CodedVectors) -> np.ndarray:
    """u8[N, P]."""
    return table.halves.reshape(len(table.vectors), -1)


def signed_codes(table: CodedVectors) -> np.ndarray:
    """int[N, D]."""
    own = table.codes.space.codes.reshape(len(table.vectors), -1)[:, : table.vectors.shape[1]]
    return own.astype(int) - 128


def stood_for(table: CodedVectors) -> np.ndarray:
    """f64[N, D]: what the halves stand for."""
    return table.codes.offset + table.codes.scale * (16.0 * naive.halves(signed_codes(table)) - 120.5)


@pytest.mark.parametrize("dims", [1, 2, 3, 64, 111, 112, 113, 240, 241])
def test_rows_have_halves_their_squares_and_errors_and_products_with_queries(dims: int) -> None:
    table = coded(clustered(60, dims) * np.float32(3) + np.float32(7))
    rows, halves = rows_of(table), naive.halves(signed_codes(table))
    assert rows.shape[1] == (BLOCK if dims <= 112 else 2 * BLOCK if dims <= 240 else 3 * BLOCK)
    assert rows.view(np.int32)[:, -2].tolist() == ((32 * halves - 241) ** 2).sum(axis=1).tolist()
    code = np.random.default_rng(dims).integers(-127, 128, dims).astype(np.int8)
    query = arranged(code, dims)
    products = [call_dot(table.halves, rows.shape[1], row, query) for row in range(len(rows))]
    assert products == (halves @ code.astype(int)).tolist()
    gaps = np.linalg.norm(table.vectors - stood_for(table), axis=1)
    bounded = table.errors.steps < UNBOUNDED
    errors = rows.view(np.float32)[:, -1]
    assert (errors >= gaps).all()
    assert (errors[bounded] < gaps[bounded] + 2.1 * table.errors.step * 255).all()
    assert np.isinf(errors[~bounded]).all()


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("make", [clustered, outliers, widely_spread])
def test_no_row_is_nearer_or_farther_than_its_bounds(metric: Metric, make) -> None:  # type: ignore[no-untyped-def]
    vectors, queries = prepare(make(COUNT, 20), metric), prepare(clustered(9, 20, seed=1), metric)
    table, inner = coded(vectors), metric is Metric.INNER_PRODUCT
    rows, halves = rows_of(table), naive.halves(signed_codes(table))
    for query in np.concatenate([queries, vectors[:3]]).astype(np.float64):
        code = np.zeros(table.codes.row_bytes, np.int8)
        own = coded_query(query, table.table, inner, code)
        of_rows = zip(halves @ code[:20].astype(int), rows.view(np.int32)[:, -2], rows.view(np.float32)[:, -1])  # noqa: B905
        least, most = np.array([call_bounds(own, *map(float, row)) for row in of_rows]).T
        gaps = vectors.astype(np.float64) - query
        true = -(vectors.astype(np.float64) @ query) if inner else np.linalg.norm(gaps, axis=1)
        assert (least <= true).all()
        assert (most >= true).all()
        if make is clustered:
            assert np.quantile(most - least, 0.9) < 0.8 * np.ptp(true), "they rule out nothing"


@pytest.mark.parametrize("low", [-8, 7])
def test_bounds_hold_where_all_codes_are_as_far_from_the_middle_as_they_can_be(low: int) -> None:
    """There the error of the halves is all along one direction, and queries farther along it are nearest to the row."""
    signs = np.random.default_rng(0).choice([-1, 1], (200, 64))
    rows = np.vstack([16 * signs + low, -16 * signs - low, np.full((2, 64), 127)]).astype(np.float32)
    rows[-1] *= -1
    table = coded(rows)
    assert table.codes.scale == 1
    middles = stood_for(table)
    for row in range(20):
        for step in (0.0, 1.0, 3.0):
            query, code = rows[row] + step * (rows[row] - middles[row]), np.zeros(64, np.int8)
            own = coded_query(query, table.table, False, code)
            product = float(naive.halves(signed_codes(table)[row : row + 1])[0] @ code.astype(int))
            terms = rows_of(table)[row]
            least, most = call_bounds(own, product, float(terms.view(np.int32)[-2]), float(terms.view(np.float32)[-1]))
            assert least <= np.linalg.norm(query - rows[row]) <= most


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize(
    ("make", "dims"), [(clustered, 20), (outliers, 20), (widely_spread, 20), (clustered, 250), (outliers, 128)]
)
def test_all_that_are_as_near_as_the_nearest_are_kept(  # type: ignore[no-untyped-def]
    metric: Metric, make, dims: int
) -> None:
    """Rows of one cache line, of three and of two."""
    vectors, queries = prepare(make(COUNT, dims), metric), prepare(clustered(9, dims, seed=1), metric)
    table, every = coded(vectors), np.arange(COUNT, dtype=np.uint32)
    for k in (1, 10, COUNT):
        true, distances = exact_top_k(queries, vectors, k, metric)
        for row, query in enumerate(queries.astype(np.float64)):
            kept = kept_rows(table, query, metric, every, k)
            assert set(true[row][distances[row] <= distances[row][k - 1]]) <= set(kept)
            assert len(kept) == COUNT or k < COUNT
            assert len(kept) < 0.5 * COUNT or k == COUNT or make is not clustered, "they rule out nothing"


@pytest.mark.parametrize("k", [1, 10, 100])
def test_rows_of_the_smallest_guesses_are_chosen(k: int) -> None:
    guesses = np.random.default_rng(k).permutation(300).astype(np.float32)
    guesses[5] = np.nan
    keys, limit = new_candidates(k), np.float32(np.inf)
    for first in (0, 170):
        limit = _choose(guesses[first : first + 170], first, keys, k, limit)
    assert sorted(call_node(key) for key in keys[:k]) == sorted(np.argsort(guesses)[:k])
    assert limit == np.sort(guesses)[k - 1]


def test_rows_up_to_the_limit_are_kept_and_those_of_which_nothing_is_known() -> None:
    least = np.array([3, 1, np.nan, 2, 2.5, -np.inf] * 50, np.float32)
    rows, kept = np.arange(7, 307, dtype=np.uint32), np.empty(300, np.uint32)
    count = _keep(rows, least, np.float32(2), kept)
    assert kept[:count].tolist() == rows[~(least > 2)].tolist()


@pytest.mark.parametrize("inner", [False, True])
def test_a_guess_is_in_the_middle_of_what_is_possible(inner: bool) -> None:
    """By the length of the query for an inner product, of which the error of a row is a part."""
    vectors = clustered(40, 20)
    table, code = coded(vectors), np.zeros(64, np.int8)
    own = coarse_query(coded_query(3 * vectors[0].astype(np.float64), table.table, inner, code))
    terms = rows_of(table).view(np.int32)[:, -2], rows_of(table).view(np.float32)[:, -1].copy()
    terms[1][7] = np.inf
    products = (naive.halves(signed_codes(table)) @ code[:20].astype(int)).astype(np.int32)
    least, guesses = np.empty(40, np.float32), np.empty(40, np.float32)
    _bound(own, products, np.ascontiguousarray(terms[0]), terms[1], least, guesses)
    known = np.isfinite(terms[1])
    weight = np.linalg.norm(3 * vectors[0]) if inner else 1.0
    np.testing.assert_allclose(guesses[known] - least[known], weight * terms[1][known], rtol=1e-3)
    assert (least[7], guesses[7]) == (-np.inf, np.inf)


def test_rows_whose_errors_are_unknown_are_kept() -> None:
    vectors = outliers(COUNT, 20)
    table = coded(vectors)
    unknown = np.flatnonzero(table.errors.steps == UNBOUNDED)
    assert len(unknown)
    every = np.arange(COUNT, dtype=np.uint32)
    for metric in (Metric.L2, Metric.INNER_PRODUCT):
        for query in (vectors[0].astype(np.float64), np.zeros(20)):
            assert set(unknown) <= set(kept_rows(table, query, metric, every, 3))
            own = coded_query(query, table.table, metric is Metric.INNER_PRODUCT, np.zeros(64, np.int8))
            assert call_bounds(own, 0.0, 1.0, np.inf) == (-np.inf, np.inf)


def test_equal_rows_are_kept_or_ruled_out_together() -> None:
    vectors = near_duplicates(COUNT, 12, 30, noise=0.0)
    table, every = coded(vectors), np.arange(COUNT, dtype=np.uint32)
    kept = kept_rows(table, vectors[70].astype(np.float64), Metric.L2, every, 5)
    assert set(range(60, 90)) <= set(kept)
    assert len(kept) % 30 == 0


def test_rows_are_the_same_for_any_number_of_threads() -> None:
    codes, errors = np.random.default_rng(0).integers(1, 256, (20_000, 64)).astype(np.uint8), np.arange(20_000) / 7
    one, two = (coarse_codes.encode(codes, 50, 0.5, errors.__getitem__, threads=threads) for threads in (1, 2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("dims", "row"), [(1, 64), (112, 64), (113, 72), (128, 72), (129, 128), (240, 128), (241, 136), (256, 136)]
)
def test_what_is_known_of_rows_lies_apart_where_that_saves_a_cache_line(dims: int, row: int) -> None:
    table = coded(clustered(60, dims))
    assert coarse_codes.scanned_bytes(dims) == row <= coarse_codes.row_bytes(dims)
    apart, rows = CoarseTable.of_scan(table.halves, dims), rows_of(table)
    assert np.array_equal(apart.halves.reshape(60, apart.width), rows[:, : apart.width])
    assert apart.squares[:: apart.step].tolist() == rows.view(np.int32)[:, -2].tolist()
    assert apart.errors[:: apart.step].tolist() == rows.view(np.float32)[:, -1].tolist()


def kept_rows(table: CodedVectors, query: np.ndarray, metric: Metric, rows: np.ndarray, k: int) -> list[int]:
    """Rows that are kept, the same by both forms of the halves."""
    dims = table.vectors.shape[1]
    by_row, apart = (
        _kept_rows(table, halves, query, metric, rows, k)
        for halves in (CoarseTable.from_rows(table.halves, dims), CoarseTable.of_scan(table.halves, dims))
    )
    assert by_row == apart
    return by_row


def _kept_rows(
    table: CodedVectors, halves: CoarseTable, query: np.ndarray, metric: Metric, rows: np.ndarray, k: int
) -> list[int]:
    code, kept = np.zeros(table.codes.row_bytes, np.int8), np.empty(len(rows), np.uint32)
    own = coded_query(query, table.table, metric is Metric.INNER_PRODUCT, code)
    count = keep_nearest(
        halves,
        own,
        code,
        read_only(table.vectors),
        read_only(query),
        metric.code,
        read_only(rows),
        k,
        kept,
    )
    return kept[:count].tolist()
