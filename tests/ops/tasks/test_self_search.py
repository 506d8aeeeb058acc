"""Rows that are searched by their own vectors come back from sound shards, and do not from broken ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels import vamana
from icepuffin.ann_kernels.distance import prepare
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.product_quantization import encode_pq, train_pq
from icepuffin.ops.addresses import pack
from icepuffin.ops.tasks.self_search import SelfSearchResult, search_rows
from icepuffin.puffin.blobs.shard import Shard

ROWS, DIMS = 1_500, 8
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def shard_of(vectors: Vectors, metric: Metric, kind: str = "f32") -> Shard:
    """A shard of two files, whose rows lie in no order."""
    params = vamana.VamanaParams(max_degree=24, search_list=40, alpha=1.2)
    graph = vamana.build(vectors, metric, params)
    order = np.random.default_rng(1).permutation(len(vectors))
    codebook = train_pq(vectors, 4, seed=0) if kind == "none" else None
    return Shard(
        metric=int(metric), dims=vectors.shape[1], max_degree=24, search_list=40, alpha=1.2, medoid=graph.medoid,
        neighbors=graph.neighbors, degrees=graph.degrees, file_slots=(order % 2).astype(np.uint32),
        row_positions=order // 2, content_hashes=np.zeros(len(vectors), np.uint64),
        vectors={"f32": vectors, "f16": vectors.astype(np.float16), "none": None}[kind],
        pq_codebook=codebook, pq_codes=None if codebook is None else encode_pq(vectors, codebook),
    )  # fmt: skip


def searched(shard: Shard, vectors: Vectors, nodes: Any, dead: Any = ()) -> SelfSearchResult:
    keys = pack(shard.file_slots[nodes], shard.row_positions[nodes])
    return search_rows(shard, np.array(dead, np.int64), keys, vectors[nodes], threads=2)


def gaussian(metric: Metric = Metric.L2) -> Vectors:
    return prepare(np.random.default_rng(0).standard_normal((ROWS, DIMS)), metric)


NODES = np.random.default_rng(2).choice(ROWS, 120, replace=False)


@pytest.mark.parametrize("kind", ["f32", "f16", "none"])
@pytest.mark.parametrize("metric", list(Metric))
def test_rows_come_back_from_a_sound_shard(metric: Metric, kind: str) -> None:
    vectors = gaussian(metric)
    result = searched(
        shard_of(vectors, metric, kind), vectors, NODES, dead=[node for node in range(300, 400) if node not in NODES]
    )
    assert (result.rows, result.misplaced) == (120, 0)
    assert result.returned >= (90 if kind == "none" else 115)
    assert result.queries == (0 if kind == "none" else 120)
    assert result.recall >= 0.9


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_node_with_the_vector_of_another_row_is_misplaced(kind: str) -> None:
    vectors = gaussian()
    sound = shard_of(vectors, Metric.L2, kind)
    assert sound.vectors is not None
    swapped = sound.vectors.copy()
    first, second = NODES[:2]
    swapped[[first, second]] = swapped[[second, first]]
    result = searched(replace(sound, vectors=swapped), vectors, NODES)
    assert (result.misplaced, result.rows) == (2, 120)


def test_a_row_without_a_live_node_is_misplaced() -> None:
    vectors = gaussian()
    shard = shard_of(vectors, Metric.L2)
    assert searched(shard, vectors, NODES, dead=[NODES[5]]).misplaced == 1
    absent = search_rows(shard, np.empty(0, np.int64), np.array([pack(7, np.int64(3))]), vectors[:1], threads=1)
    assert (absent.misplaced, absent.returned, absent.queries) == (1, 0, 0)


def one_circle(shard: Shard) -> Shard:
    """The graph is a circle: each node leads to the next one."""
    following = (np.arange(shard.count, dtype=np.int32)[:, None] + 1) % shard.count
    return replace(shard, neighbors=following.astype(np.int32), degrees=np.ones(shard.count, np.int32))


@pytest.mark.parametrize("kind", ["f32", "none"])
def test_rows_do_not_come_back_from_a_broken_graph(kind: str) -> None:
    vectors = gaussian()
    result = searched(one_circle(shard_of(vectors, Metric.L2, kind)), vectors, NODES)
    assert result.misplaced == 0
    assert result.returned < 60


@pytest.mark.parametrize("kind", ["f32", "f16", "none"])
def test_rows_with_one_vector_stand_for_each_other(kind: str) -> None:
    vectors = np.tile(gaussian()[:1], (400, 1))
    result = searched(shard_of(vectors, Metric.L2, kind), vectors, np.arange(50))
    assert (result.misplaced, result.returned) == (0, 50)


def test_a_longer_vector_may_be_nearer_than_the_row_itself() -> None:
    vectors = gaussian(Metric.INNER_PRODUCT)
    vectors[:20] *= 1_000
    result = searched(shard_of(vectors, Metric.INNER_PRODUCT), vectors, NODES)
    assert result.misplaced == 0
    assert result.returned == result.rows
