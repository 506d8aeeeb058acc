"""Comparing by codes first gives what comparing the vectors gives."""

import numpy as np
import pytest

from icepuffin.ann_kernels.codes.coded_distances import UNBOUNDED, CodeTable, coded_query, distance_bounds
from icepuffin.ann_kernels.codes.scalar_quantization import encode
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors, CodeErrors
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from tests.ann_kernels.data import clustered, near_duplicates, widely_spread

FLOATS = [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT]
COUNT = 1_500


def outliers(count: int, dims: int, seed: int = 0) -> np.ndarray:
    """Vectors of which one in fifty is far out of the range of the codes, and some are equal."""
    vectors = clustered(count, dims, seed) + np.float32(300)
    vectors[::50] *= np.float32(40)
    vectors[7:200:3] = vectors[7]
    return vectors


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("make", [clustered, outliers, widely_spread])
def test_the_nearest_by_codes_first_are_the_nearest(metric: Metric, make) -> None:  # type: ignore[no-untyped-def]
    vectors, queries = prepare(make(COUNT, 20), metric), prepare(make(9, 20, seed=1), metric)
    codes = encode(vectors)
    assert codes is not None
    coded = CodedVectors(vectors, codes)
    for share in (0.002, 0.3, 1.0):
        is_live = np.random.default_rng(2).random(COUNT) < share
        for k in (1, 10):
            true, true_distances = exact_top_k(queries, vectors, k, metric, is_live=is_live)
            for row, query in enumerate(queries.astype(np.float64)):
                nodes, distances = coded.nearest(query, k, metric, Bitmap.from_mask(is_live))
                order = np.lexsort((nodes, distances))[:k]
                expected = true[row] >= 0
                assert np.array_equal(nodes[order], true[row][expected])
                assert np.array_equal(distances[order], true_distances[row][expected])


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("make", [clustered, outliers])
def test_no_row_is_nearer_or_farther_than_its_bounds(metric: Metric, make) -> None:  # type: ignore[no-untyped-def]
    vectors, queries = prepare(make(COUNT, 20), metric), prepare(clustered(9, 20, seed=1), metric)
    codes = encode(vectors)
    assert codes is not None
    errors = CodeErrors.from_codes(codes, vectors)
    assert 0 < (errors.steps == UNBOUNDED).mean() < 0.01
    space, inner = codes.space, metric is Metric.INNER_PRODUCT
    coded = CodeTable(space.codes, space.norms, codes.offset, codes.scale, errors.steps, errors.step)
    for query in queries.astype(np.float64):
        code = np.zeros(codes.row_bytes, np.int8)
        own = coded_query(query, coded, inner, code)
        products = space.codes.reshape(COUNT, -1).astype(np.int64) @ code
        pairs = zip(products.tolist(), space.norms.tolist(), errors.steps.tolist(), strict=True)
        least, most = np.array([distance_bounds(own, *of_row) for of_row in pairs]).T
        gaps = vectors.astype(np.float64) - query
        true = -(vectors.astype(np.float64) @ query) if inner else np.linalg.norm(gaps, axis=1)
        assert (least <= true).all()
        assert (most >= true).all()
        if make is clustered:  # else directions are hardly apart
            assert np.quantile(most - least, 0.9) < 0.2 * np.ptp(true), "they rule out nothing"


@pytest.mark.parametrize("excess", np.geomspace(1e-9, 1e-5, 9))
def test_bounds_hold_where_query_and_row_have_the_same_code(excess: float) -> None:
    """There the distance of the codes is all rounding."""
    rows = np.random.default_rng(0).integers(-127, 128, (200, 64)).astype(np.float32)
    rows[:, 0] = 127
    vectors = np.vstack([rows, -rows])
    codes = encode(vectors)
    assert codes is not None
    assert codes.scale == 1
    space = codes.space
    coded = CodeTable(space.codes, space.norms, codes.offset, 1.0, np.zeros(400, np.uint8), 1.0)
    for row, squares in zip(rows[:20].astype(np.float64), space.norms, strict=False):
        query, code = row * (1 + excess), np.zeros(codes.row_bytes, np.int8)
        own = coded_query(query, coded, False, code)
        product = int((128 + row).astype(np.int64) @ code[:64])
        least, most = distance_bounds(own, product, int(squares), 0)
        assert least <= np.linalg.norm(query - row) <= most


def test_equal_errors_of_all_codes_are_bounded() -> None:
    vectors = np.repeat(np.array([[0.0, 1.0, 0.3]], np.float32), 200, axis=0) * np.resize([1, -1], (200, 1))
    codes = encode(vectors.astype(np.float32))
    assert codes is not None
    assert (CodeErrors.from_codes(codes, vectors.astype(np.float32)).steps < UNBOUNDED).all()


def test_rows_that_are_equally_near_come_by_their_ids() -> None:
    vectors = near_duplicates(COUNT, 12, 300, noise=0.0)
    graph = vamana.build(vectors, Metric.L2, VamanaParams(8, 12))
    searcher = Searcher(graph, vectors, Metric.L2, coded_from=COUNT + 1)
    coded = Searcher(graph, vectors, Metric.L2, codes=encode(vectors))
    assert searcher.codes is None
    ids = np.arange(COUNT)[::-1].copy()
    for names in (None, ids, lambda places: ids[places]):
        one, other = (own.compare(vectors[:3], 20, ids=names) for own in (searcher, coded))
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])


def test_fewer_rows_than_wanted_are_all_and_none_is_none() -> None:
    vectors = clustered(COUNT, 8)
    searcher = Searcher(vamana.build(vectors, Metric.L2, VamanaParams(8, 12)), vectors, Metric.L2)
    assert searcher.codes is not None
    few = searcher.masked(Bitmap.of_rows([3, 5], COUNT)).compare(vectors[5:6], 4)
    assert few[0].tolist() == [[5, 3, -1, -1]]
    assert np.isinf(few[1][0, 2:]).all()
    assert searcher.masked(Bitmap.of_rows([], COUNT)).compare(vectors[:1], 2)[0].tolist() == [[-1, -1]]
    with pytest.raises(KernelError, match="k is 0"):
        searcher.compare(vectors[:1], 0)
    assert searcher.compare(vectors[5:6], 1)[1].tolist() == [[0]]
