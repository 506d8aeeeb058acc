"""How partitions become shards, and what probing fewer shards loses."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.index_layout import group_partitions
from icepuffin.ops.index.routing_recall import curve_in_sample
from tests.conftest import make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 3e38])
def test_partitions_are_halved_whatever_their_scale(scale: float) -> None:
    """Near float's largest number the means were infinite: `LinAlgError: SVD did not converge`."""
    codebook = np.random.default_rng(0).uniform(-1, 1, (32, 3))
    shards = group_partitions((scale * codebook).astype(np.float32), np.full(32, 10), 4)
    assert np.bincount(shards).tolist() == [8, 8, 8, 8]


def test_rows_of_a_centroid_that_equals_another_are_probed_for() -> None:
    """No query is led by it, so its shard is always probed: nothing that lies there is lost."""
    vectors = np.repeat(np.eye(3, 40, dtype=np.float32), 100, axis=0)
    codebook, to_shard = vectors[[0, 100, 200, 0]], np.array([0, 1, 1, 2], np.uint32)
    labels = np.where(np.arange(300) < 100, 3, np.arange(300) // 100).astype(np.int32)
    assert curve_in_sample(vectors, labels, vectors[::9], codebook, to_shard, Metric.L2).startswith("[[0.0,1.0,1.0]")


def test_an_index_of_many_partitions_is_built_and_takes_rows(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From thousands of partitions on rows are compared with those of near groups alone; here from ten on."""
    monkeypatch.setattr(kmeans, "MANY", 10)
    definition = replace(DEFINITION, max_deltas=0)
    table = table_factory()
    for first in (0, 600):
        table.append(make_rows(first, first + 600))
        report = index_head(table, definition)
        assert answer_with_recall(table, definition=definition)[1] >= 0.96
    assert sum(shard.inserted for shard in report.shard_reports) == 600
