"""Exact search is exact: whatever the vectors' offset, scale and clusters, and whatever else is compared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.distances import lower_bounds
from icepuffin.ann_kernels.distances.distance import prepare, prepare_exact, reported
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.top_k import ExactTopK, exact_top_k
from icepuffin.ann_kernels.errors import DimensionError, ZeroVectorError
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from tests.naive.vectors import assert_nearest, exact_distances

OFFSETS = [0.0, 1.0, 1e2, 1e4, 1e6, 1e9]
SCALES = [1e-20, 1e-8, 1.0, 1e8, 1e20]


def made(
    seed: int, count: int, dims: int, offset: float, scale: float, clusters: int, duplicates: int, dtype: type
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = 30 * rng.standard_normal((clusters, dims))
    vectors = offset + centers[np.sort(rng.integers(0, clusters, count))] + rng.standard_normal((count, dims))
    vectors = (vectors * scale).astype(dtype)
    vectors[rng.integers(0, count, duplicates)] = vectors[rng.integers(0, count)]
    return vectors


def top(queries: np.ndarray, vectors: np.ndarray, k: int, metric: Metric, rows: np.ndarray | None = None):  # type: ignore[no-untyped-def]
    """As a scan shows them: raw, and for cosine with their directions."""
    result = ExactTopK(prepare_exact(queries, metric), k, metric)
    ids = np.arange(len(vectors))
    if metric is Metric.COSINE:
        result.update(prepare(vectors, metric), ids, rows=rows, raw=vectors)
    else:
        result.update(vectors, ids, rows=rows)
    return result.result()


@given(
    seed=st.integers(0, 2**32), metric=st.sampled_from(list(Metric)), offset=st.sampled_from(OFFSETS),
    scale=st.sampled_from(SCALES), dims=st.sampled_from([1, 2, 7, 16, 17, 130]), count=st.integers(1, 600),
    clusters=st.sampled_from([1, 5, 40]), duplicates=st.sampled_from([0, 30]), k=st.sampled_from([1, 3, 10, 100]),
    dtype=st.sampled_from([np.float32, np.float64]), masked=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_nearest_are_those_of_float64_and_do_not_depend_on_the_batch(
    seed: int, metric: Metric, offset: float, scale: float, dims: int, count: int, clusters: int, duplicates: int,
    k: int, dtype: type, masked: bool,
) -> None:  # fmt: skip
    vectors = made(seed, count, dims, offset, scale, clusters, duplicates, dtype)
    rng = np.random.default_rng([seed, 1])
    queries = vectors[rng.integers(0, count, 25)].astype(np.float64)
    queries[10:] += rng.standard_normal((15, dims)) * scale
    live = rng.random(count) < 0.5 if masked else None
    rows = None if live is None else np.flatnonzero(live)
    ids, distances = top(queries, vectors, k, metric, rows)
    for number, query in enumerate(queries):
        some = ids[number] >= 0
        answer = ids[number][some].tolist(), distances[number][some].tolist()
        assert_nearest(*answer, query, vectors, k, metric.value, live)
    for size in (1, 2, 12):
        parts = [top(queries[at : at + size], vectors, k, metric, rows) for at in range(0, 24, size)]
        assert (np.concatenate([part[0] for part in parts]) == ids[:24]).all()
        assert (np.concatenate([part[1] for part in parts]) == distances[:24]).all()


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("order", ["shuffled", "nearest last", "nearest first"])
def test_a_thousand_queries_and_many_blocks_give_what_one_gives(metric: Metric, order: str) -> None:
    vectors = made(7, 9000, 24, 1e4, 1.0, 3, 50, np.float32)
    queries = made(8, 1000, 24, 1e4, 1.0, 3, 0, np.float32).astype(np.float64)
    far = exact_distances(queries[0], vectors, "l2")
    if order != "shuffled":
        vectors = vectors[np.argsort(far if order == "nearest first" else -far)]
    ids, distances = top(queries, vectors, 10, metric)
    for number in (0, 1, 500, 999):
        assert_nearest(ids[number].tolist(), distances[number].tolist(), queries[number], vectors, 10, metric.value)
        alone = top(queries[number : number + 1], vectors, 10, metric)
        assert (alone[0][0] == ids[number]).all()
        assert (alone[1][0] == distances[number]).all()


@given(
    seed=st.integers(0, 2**32), metric=st.sampled_from(list(Metric)), offset=st.sampled_from(OFFSETS),
    scale=st.sampled_from([*SCALES, 1e-38, 1e36]), dims=st.sampled_from([1, 3, 64, 1000]),
    mixed=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_bound_is_never_above_the_distance(
    seed: int, metric: Metric, offset: float, scale: float, dims: int, mixed: bool, dtype: type
) -> None:
    """The very distance of each row as the limit: no bound may rule the row out."""
    rng = np.random.default_rng(seed)
    offset = min(offset, 1.0) if scale in (1e-38, 1e36) else offset
    raw = made(seed, 60, dims, offset, scale, 4, 5, dtype)
    if mixed:
        raw[::3] *= np.float32(1e-12)
    raw[raw == 0] = scale
    queries = np.concatenate([raw[:5].astype(np.float64), raw[5:12] * (1 + 1e-7 * rng.standard_normal((7, dims)))])
    vectors = prepare(raw, metric) if metric is Metric.COSINE else raw
    ready = prepare_exact(queries, metric)
    for query_vectors in (ready[:3], ready):
        for rows, bound_of in lower_bounds.bounds_of(
            vectors, len(query_vectors), metric, rounded=metric is Metric.COSINE
        ):
            bound = bound_of(query_vectors)
            for row in rows:
                copies = np.full(len(query_vectors), row)
                distances = pair_distances(
                    query_vectors, raw, np.arange(len(query_vectors)), copies, metric, raw=metric is Metric.COSINE
                )
                assert bound.may_be_within(distances)[:, row].all()


@pytest.mark.parametrize("count", [2, 40])
def test_a_bound_of_rounded_rows_leaves_room_for_what_rounding_has_moved(count: int) -> None:
    raw = np.random.default_rng(0).standard_normal((40, 24)).astype(np.float32)
    queries = prepare_exact(raw[:count].astype(np.float64), Metric.COSINE)
    ((rows, bound_of),) = lower_bounds.bounds_of(prepare(raw, Metric.COSINE), count, Metric.COSINE, rounded=True)
    assert len(rows) == 40
    assert np.array_equal(bound_of(queries).may_be_within(np.zeros(count)), np.eye(count, 40)), "each finds itself"


@pytest.mark.parametrize(("rows", "query"), [(1e-24, 1e20), (1e20, 1e-30), (1e-30, 1e-8), (1e17, 1e-43)])
def test_a_bound_of_products_holds_where_squares_or_lengths_vanish(rows: float, query: float) -> None:
    """What is lost in the length of a row or of a query is not lost in their product."""
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((300, 1000)) * rows).astype(np.float32)
    query_vectors = (rng.standard_normal((3, 1000)) * query).astype(np.float32).astype(np.float64)
    for some, bound_of in lower_bounds.bounds_of(vectors, len(query_vectors), Metric.INNER_PRODUCT, rounded=False):
        bound = bound_of(query_vectors)
        for row in some:
            far = pair_distances(query_vectors, vectors, np.arange(3), np.full(3, row), Metric.INNER_PRODUCT)
            assert bound.may_be_within(far)[:, row].all()


def test_far_rows_are_ruled_out() -> None:
    """Bounds are near the distances, so that few rows are compared in float64, at any offset that float32 can hold."""
    for offset in (0.0, 1e3, 1e5):
        vectors = made(3, 4000, 32, offset, 1.0, 1, 0, np.float32)
        for count in (1, 40):
            query_vectors = vectors[:count].astype(np.float64)
            for rows, bound_of in lower_bounds.bounds_of(vectors, count, Metric.L2, rounded=False):
                kept = bound_of(query_vectors).may_be_within(np.full(count, 5.0)).sum()
                pairs = np.repeat(np.arange(count), len(rows)), np.tile(rows, count)
                assert kept <= 1.05 * (pair_distances(query_vectors, vectors, *pairs, Metric.L2) <= 5.0).sum() + 2


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("count", [300, 3000])
def test_a_beam_reports_the_distances_of_the_exact_search(metric: Metric, count: int) -> None:
    """To the last bit: rows of an index and rows that are scanned stand in one answer."""
    vectors = prepare(made(5, count, 19, 3.0, 1.0, 3, 20, np.float32), metric)
    queries = prepare_exact(made(6, 40, 19, 3.0, 1.0, 3, 0, np.float64), metric)
    graph = vamana.build(vectors, metric, vamana.VamanaParams(max_degree=16, search_list=40))
    ids, distances, _ = Searcher(graph, vectors, metric).search(queries, 10, search_list=40)
    query, place = np.nonzero(ids >= 0)
    assert (distances[query, place] == pair_distances(queries, vectors, query, ids[query, place], metric)).all()
    assert (np.diff(distances, axis=1) >= 0).all()


def test_ties_go_to_the_smaller_name() -> None:
    vectors = np.zeros((500, 4), np.float32)
    names = np.random.default_rng(0).permutation(500)
    for count in (1, 30):
        query_vectors = np.ones((count, 4))
        for ids in (names, lambda rows: names[rows]):
            found, _ = exact_top_k(query_vectors, vectors, 7, Metric.L2, ids=ids)
            assert (found == np.arange(7)).all()


@pytest.mark.parametrize("queries", [1, 20])
def test_what_squares_in_float32_cannot_hold_is_compared_all_the_same(queries: int) -> None:
    """All distances were infinite, none, or not numbers, and the first rows the nearest."""
    vectors = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    for scale in (1e-23, 1e20, 1e30):
        for metric in (Metric.L2, Metric.INNER_PRODUCT):
            ids, far = exact_top_k(np.full((queries, 8), scale), vectors * np.float32(scale), 3, metric)
            assert_nearest(
                ids[0].tolist(), far[0].tolist(), np.full(8, scale), vectors * np.float32(scale), 3, metric.value
            )


@pytest.mark.parametrize("scale", [1e-140, 1e-149, 1e-160, 1e-161, 1e-200])
def test_a_vector_too_short_for_doubles_has_no_direction(scale: float) -> None:
    """Its squares were rounded, and its distances wrong from the third digit on."""
    vectors = 10 * np.random.default_rng(0).standard_normal((50, 8)) * scale
    if scale < 1e-150:
        for direction in (prepare, prepare_exact):
            with pytest.raises(ZeroVectorError):
                direction(vectors, Metric.COSINE)
        return
    ids, distances = top(vectors[:3], vectors, 5, Metric.COSINE)
    for number in range(3):
        assert_nearest(ids[number].tolist(), distances[number].tolist(), vectors[number], vectors, 5, "cosine")


@pytest.mark.parametrize("dims", [7, 384, 8_200, 65_536])
def test_a_direction_does_not_depend_on_the_batch(dims: int) -> None:
    """Sums of NumPy do, over more dimensions than it takes at once."""
    vectors = np.random.default_rng(dims).standard_normal((40, dims))
    for direction in (prepare, prepare_exact):
        whole = direction(vectors, Metric.COSINE)
        assert all((whole[row] == direction(vectors[row : row + 1], Metric.COSINE)[0]).all() for row in range(40))


@pytest.mark.parametrize("dims", [3, 5])
def test_queries_of_other_dimensions_are_refused(dims: int) -> None:
    with pytest.raises(DimensionError, match=f"queries have {dims} dimensions, vectors 4"):
        exact_top_k(np.ones((2, dims), np.float32), np.ones((6, 4), np.float32), 1, Metric.L2)


def test_squares_that_rounding_made_negative_are_distances_of_zero() -> None:
    for metric, distances in (
        (Metric.L2, [0.0, 2.0]),
        (Metric.COSINE, [0.0, 2.0]),
        (Metric.INNER_PRODUCT, [-1e-9, 4.0]),
    ):
        assert reported(np.array([-1e-9, 4.0]), metric).tolist() == distances
