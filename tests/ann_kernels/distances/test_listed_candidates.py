"""The nearest of each query's own candidates, against comparing these alone."""

import numpy as np
import pytest

from icepuffin.ann_kernels.codes.scalar_quantization import encode
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.listed_candidates import nearest_listed
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from tests.ann_kernels.data import clustered, near_duplicates
from tests.ann_kernels.distances.test_coded_comparison import FLOATS, outliers

COUNT = 1_500


def drawn(queries: int, seed: int, first: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """(starts, candidates, own vectors of each query): none, few, and many; some of other spans of numbers."""
    rng = np.random.default_rng(seed)
    shares = rng.choice([0.0, 0.002, 0.01, 0.3, 1.0], queries)
    own = [np.flatnonzero(rng.random(COUNT) < share) for share in shares]
    others = [np.concatenate([rows + first, rng.integers(0, first, 3) if first else rows[:0]]) for rows in own]
    others = [rng.permutation(np.append(rows, first + COUNT)) for rows in others]
    starts = np.cumsum([0, *map(len, others)]).astype(np.int64)
    return starts, np.concatenate(others).astype(np.uint32), own


@pytest.mark.parametrize("metric", FLOATS)
@pytest.mark.parametrize("make", [clustered, outliers])
@pytest.mark.parametrize("coded", [True, False])
def test_the_nearest_of_own_candidates_are_the_nearest(metric: Metric, make, coded: bool) -> None:  # type: ignore[no-untyped-def]
    vectors, queries = prepare(make(COUNT, 20), metric), prepare(make(12, 20, seed=1), metric).astype(np.float64)
    codes = encode(vectors)
    assert codes is not None
    table = CodedVectors(vectors, codes) if coded else vectors
    for k, first in ((1, 0), (10, 0), (10, 70), (COUNT + 5, 0)):
        starts, candidates, own = drawn(len(queries), k, first)
        nearest = nearest_listed(table, metric, queries, (starts, candidates), k, first=first)
        assert nearest.compared.tolist() == [len(rows) for rows in own]
        for place, rows in enumerate(own):
            own_places = nearest.queries == place
            nodes, distances = nearest.nodes[own_places], nearest.distances[own_places]
            order = np.lexsort((nodes, distances))[:k]
            is_live = np.zeros(COUNT, np.bool_)
            is_live[rows] = True
            true, true_distances = exact_top_k(queries[place : place + 1], vectors, k, metric, is_live=is_live)
            expected = true[0] >= 0
            assert nodes[order].tolist() == true[0][expected].tolist()
            assert distances[order].tolist() == true_distances[0][expected].tolist()


@pytest.mark.parametrize("coded", [True, False])
def test_all_of_several_that_are_equally_near_are_there(coded: bool) -> None:
    vectors = near_duplicates(COUNT, 12, 300, noise=0.0)
    codes = encode(vectors)
    assert codes is not None
    table = CodedVectors(vectors, codes) if coded else vectors
    candidates = np.arange(COUNT, dtype=np.uint32)
    query = vectors[:1].astype(np.float64)
    nearest = nearest_listed(table, Metric.L2, query, (np.array([0, COUNT]), candidates), 3)
    true = exact_top_k(query, vectors, COUNT, Metric.L2)
    equal = true[1][0] <= true[1][0, 2]
    assert equal.sum() > 3
    assert sorted(nearest.nodes.tolist()) == sorted(true[0][0][equal].tolist())


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("doubt", [1e-6, 0.01, 0.2])
def test_directions_in_doubt_are_there(coded: bool, doubt: float) -> None:
    vectors = prepare(clustered(COUNT, 20), Metric.COSINE)
    queries = prepare(clustered(12, 20, seed=1), Metric.COSINE).astype(np.float64)
    codes = encode(vectors)
    assert codes is not None
    table = CodedVectors(vectors, codes) if coded else vectors
    starts, candidates, own = drawn(len(queries), 5, 0)
    nearest = nearest_listed(table, Metric.COSINE, queries, (starts, candidates), 4, doubt=doubt)
    for place, rows in enumerate(own):
        is_live = np.zeros(COUNT, np.bool_)
        is_live[rows] = True
        _, distances = exact_top_k(queries[place : place + 1], vectors, COUNT, Metric.COSINE, is_live=is_live)
        euclidean = np.sqrt(2 * distances[0, : len(rows)])
        within = int((euclidean <= euclidean[:4][-1] + doubt).sum()) if len(rows) else 0
        assert np.count_nonzero(nearest.queries == place) == within
