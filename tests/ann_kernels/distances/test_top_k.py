"""The k nearest, against sorting in Python: small numbers, many ties, so that each comparison decides something."""

import math

import numpy as np
import pytest

from icepuffin.ann_kernels.distances.top_k import ExactTopK, exact_top_k, merge_top_k
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.metric import Metric


@pytest.mark.parametrize("seed", range(40))
def test_runs_are_merged_by_distance_then_id_then_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, k, queries = int(rng.integers(1, 8)), int(rng.integers(1, 12)), 2
    runs, expected = [], [[] for _ in range(queries)]
    for run in range(count):
        width = int(rng.integers(0 if count > 1 and run else 1, 5))
        ids, distances = np.full((queries, width), -1, np.int64), np.full((queries, width), np.inf)
        for query in range(queries):
            rows = sorted((float(rng.integers(3)), int(rng.integers(6))) for _ in range(rng.integers(width + 1)))
            expected[query] += [(*row, run) for row in rows]
            for place, (distance, name) in enumerate(rows):
                ids[query, place], distances[query, place] = name, distance
        runs.append((ids, distances))
    which, ids, distances = merge_top_k(runs, k)
    assert ids.shape == distances.shape == which.shape == (queries, k)
    for query in range(queries):
        rows = [*sorted(expected[query])[:k], *[(math.inf, -1, -1)] * k][:k]
        merged = zip(distances[query].tolist(), ids[query].tolist(), which[query].tolist(), strict=True)
        assert list(merged) == rows


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 40])
@pytest.mark.parametrize("seed", range(4))
def test_the_nearest_stay_whatever_the_order_and_ties_go_to_the_smaller_id(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-5, 6, (30, 1)).astype(np.float32)
    ids = rng.permutation(1_000)[:30].astype(np.int64)
    queries = np.array([[0.0], [3.0]])
    top = ExactTopK(queries, k, Metric.L2)
    top.update(vectors[:13], ids[:13])
    top.update(vectors[13:], lambda places: ids[13:][places])
    names, distances = top.result()
    for query, of_query, lengths in zip(queries, names.tolist(), distances.tolist(), strict=True):
        nearest = sorted(
            (abs(float(vector[0] - query[0])), int(name)) for vector, name in zip(vectors, ids, strict=True)
        )
        rows = [*nearest[:k], *[(math.inf, -1)] * (k - 30)]
        assert list(zip(lengths, of_query, strict=True)) == rows


@pytest.mark.parametrize("metric", Metric)
def test_a_crowd_is_thinned_out_without_a_loss(metric: Metric) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((300, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[:3].astype(np.float64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    live = rng.random(300) < 0.9
    ids, distances = exact_top_k(queries, vectors, 5, metric, is_live=live)
    products = queries @ vectors.astype(np.float64).T
    if metric is Metric.L2:
        exact = np.linalg.norm(queries[:, None] - vectors[None].astype(np.float64), axis=2)
    else:
        exact = 1 - products if metric is Metric.COSINE else -products
    exact[:, ~live] = np.inf
    assert (ids == np.argsort(exact, axis=1)[:, :5]).all()
    assert live[ids].all()
    everything = exact_top_k(queries, vectors, 5, metric, is_live=np.ones(300, np.bool_), ids=np.arange(300) + 7)
    assert (everything[0] - 7 == exact_top_k(queries, vectors, 5, metric)[0]).all()
    rows = np.flatnonzero(live)
    top = ExactTopK(queries, 5, metric)
    top.update(vectors, lambda places: places, rows=rows)
    assert (top.result()[0] == ids).all()
    assert np.allclose(top.result()[1], distances)


@pytest.mark.parametrize("k", [0, -1])
def test_no_neighbour_is_no_number_of_neighbours(k: int) -> None:
    with pytest.raises(KernelError, match=f"k is {k}; it must be at least 1"):
        ExactTopK(np.zeros((1, 2)), k, Metric.L2)


def test_vectors_of_other_dimensions_are_refused() -> None:
    with pytest.raises(DimensionError, match="queries have 2 dimensions, vectors 3"):
        ExactTopK(np.zeros((1, 2)), 1, Metric.L2).update(np.zeros((1, 3), np.float32), np.zeros(1, np.int64))
