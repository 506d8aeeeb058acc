"""Rows that are searched for to measure the recall of cells, beside a plain comparison of all."""

import numpy as np
import pytest

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.tasks.written_cells import _Trial


@pytest.mark.parametrize("live", [0, 1, 2, 30])
def test_a_live_node_is_compared_with_the_nearest_others(live: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    trial = _Trial.from_vectors(vectors, np.arange(40) < live, Metric.L2, seed=0)
    assert trial.queries.tolist() == (list(range(live)) if live > 1 else [])
    for node, nearest, distances in zip(trial.queries, trial.nearest, trial.distances, strict=True):
        squares = np.square(vectors[:live].astype(float) - vectors[node]).sum(axis=1)
        squares[node] = np.inf
        expected = np.argsort(squares)[: min(10, live - 1)]
        assert nearest.tolist() == expected.tolist()
        assert distances == pytest.approx(np.sqrt(squares[expected]))
