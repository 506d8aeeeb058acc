"""Graphs of vectors of which most are equally far from one another."""

import numpy as np

from icepuffin.ann_kernels import vamana
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.tie_order import tie_order
from icepuffin.ann_kernels.vamana import VamanaParams
from tests.naive import vectors as naive

KINDS = 128


def test_ties_make_no_hubs() -> None:
    """Where ties went to the smaller id, a few nodes were everyone's neighbours, and most nobody's."""
    kinds = np.eye(4 * KINDS, dtype=np.float32)
    graph = vamana.build(kinds, Metric.L2, VamanaParams(max_degree=16, search_list=32))
    incoming = np.bincount(graph.neighbors[graph.neighbors >= 0], minlength=len(kinds))
    assert np.median(incoming) >= 8
    assert incoming.max() < len(kinds) // 2


def test_each_node_orders_all_others_in_its_own_way() -> None:
    for node in (0, 1, 2**31 - 2):
        order = [int(tie_order(np.int32(node), np.int32(other))) for other in range(200)]
        assert order == [naive.tie_order(node, other) for other in range(200)]
        assert len(set(order)) == 200
    first = {min(range(200), key=lambda other: naive.tie_order(node, other)) for node in range(200)}
    assert len(first) > 100
