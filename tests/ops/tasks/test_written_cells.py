"""Rows that are searched for to measure the recall of cells, beside a plain comparison of all."""

import numpy as np
import pytest

from icepuffin.ann_kernels.codes import cells as kernels
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.tasks.written_cells import PROBES, _Trial, make_cells
from tests.ops.cache.stored import random_shard


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


def test_the_recall_of_cells_is_that_of_searches_through_them() -> None:
    """All cells are probed here, so that only codes lose neighbours; few bits lose more."""
    shard = random_shard(rows=400)
    assert shard.vectors is not None
    vectors, is_live = np.ascontiguousarray(shard.vectors, np.float32), np.arange(400) % 7 > 0
    recalls = []
    for bits in (8, 4):
        cells = make_cells(shard, vectors, is_live, bits, seed=0, threads=1)
        assert cells is not None
        recalls.append(cells.directory.recall)
    assert 1.0 >= recalls[0] >= recalls[1] > 0.5


@pytest.mark.parametrize("parts", [1, 10, 40, 400])
def test_so_many_cells_are_read_that_enough_of_the_nearest_rows_lie_in_them(parts: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((800, 4)).astype(np.float32)
    trial = _Trial.from_vectors(vectors, np.ones(800, np.bool_), Metric.L2, seed=0)
    cells = np.array_split(np.argsort(vectors[:, 0]), parts)
    centers = kernels.encode_centers(np.stack([vectors[nodes].mean(axis=0, dtype=np.float64) for nodes in cells]))
    nearest = [centers.ranked(vectors[node].astype(float), Metric.L2)[0].tolist() for node in trial.queries]
    cell_of = {node: number for number, nodes in enumerate(cells) for node in nodes.tolist()}
    ranks = [
        order.index(cell_of[other])
        for order, others in zip(nearest, trial.nearest.tolist(), strict=True)
        for other in others
    ]
    enough = [probes for probes in PROBES if np.mean([rank < probes for rank in ranks]) >= 0.985]
    assert trial.probes(cells, centers) == (enough[0] if enough else PROBES[-1])
