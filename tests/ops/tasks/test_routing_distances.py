"""Distances from queries to their nearest rows in one shard."""

import numpy as np
import pytest

from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.tasks.routing_distances import measure_distances
from tests.ops.tasks.searchable import searchable_shard


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
@pytest.mark.parametrize("rows", [1, 30, 2_000])
@pytest.mark.parametrize("dead", [0, 3])
def test_nearly_all_of_the_nearest_rows_are_measured(metric: Metric, rows: int, dead: int) -> None:
    """`dead`: of ten rows so many are gone."""
    shard, vectors = searchable_shard(metric, rows=rows)
    queries = vectors[:: max(1, rows // 100)]
    is_live = np.arange(rows) % 10 >= dead
    result = measure_distances(shard, vectors, is_live, queries, threads=1)
    assert len(result.nearest) == len(queries)
    assert len(result.wide_nearest) == -(-len(queries) // 2)
    everyone = np.tile(np.flatnonzero(is_live), len(queries))
    which = np.repeat(np.arange(len(queries)), is_live.sum())
    exact = np.sort(pair_distances(queries, vectors, which, everyone, metric).reshape(len(queries), -1), axis=1)
    for measured, k in ((result.nearest, 11), (result.wide_nearest, 101)):
        assert measured.shape[1] == k
        expected = np.pad(exact[: len(measured), :k], ((0, 0), (0, max(0, k - exact.shape[1]))), constant_values=np.inf)
        assert (measured >= expected).all(), "no row is nearer than it is"
        assert (measured == expected).mean() > 0.9
