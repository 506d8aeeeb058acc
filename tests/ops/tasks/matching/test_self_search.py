"""Rows that are searched by their own vectors come back from sound shards, and do not from broken ones."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.codes.product_quantization import encode_pq, train_pq
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.verify.integrity import search_shards
from icepuffin.ops.index.verify.self_search_proof import fault_of
from icepuffin.ops.model import ObjectRange, StoredRun, StoredShard
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.tasks.matching.self_search import SelfSearchResult, SelfSearchTask, search_rows, self_search
from icepuffin.ops.tasks.recall_gate import measure_recall
from icepuffin.ops.tasks.task_runner import LocalRunner
from icepuffin.puffin.blobs import deletion_vector_blob, shard_blob
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.conftest import STORAGE
from tests.ops.cache.stored import coded

ROWS, DIMS = 1_500, 8
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def shard_of(vectors: Vectors, metric: Metric, kind: str = "f32") -> Shard:
    """A shard of two files, whose rows lie in no order."""
    params = vamana.VamanaParams(max_degree=24, search_list=40, alpha=1.2)
    graph = vamana.build(vectors, metric, params)
    order = np.random.default_rng(1).permutation(len(vectors))
    codebook = train_pq(vectors, 4, seed=0) if kind == "none" else None
    return Shard(
        metric=metric.code, dims=vectors.shape[1], max_degree=24, search_list=40, alpha=1.2, medoid=graph.medoid,
        neighbors=graph.neighbors, degrees=graph.degrees, file_slots=(order % 2).astype(np.uint32),
        row_positions=order // 2, content_hashes=np.zeros(len(vectors), np.uint64),
        vectors={"f32": vectors, "f16": vectors.astype(np.float16), "none": None}[kind],
        pq_codebook=codebook, pq_codes=None if codebook is None else encode_pq(vectors, codebook),
    )  # fmt: skip


def searched(shard: Shard, vectors: Vectors, nodes: Any, dead: Any = ()) -> SelfSearchResult:
    keys = addresses_of(shard.file_slots[nodes], shard.row_positions[nodes])
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


@pytest.mark.parametrize("kind", ["f32", "f16", "none"])
def test_a_shard_without_live_nodes_is_sound(kind: str) -> None:
    vectors = gaussian()
    result = searched(shard_of(vectors, Metric.L2, kind), vectors, NODES[:0], dead=range(ROWS))
    assert (result.rows, result.misplaced, result.returned) == (0, 0, 0)
    assert fault_of(result, 0.9) is None


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
    absent = search_rows(shard, np.empty(0, np.int64), np.array([addresses_of(7, np.int64(3))]), vectors[:1], threads=1)
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
    assert "came back" in (fault_of(result, 0.9) or "")


@pytest.mark.parametrize("kind", ["f32", "f16", "none"])
def test_neighbours_that_are_hard_to_reach_are_no_fault_of_a_graph_that_reaches_the_others(kind: str) -> None:
    """Rows of a sample lie side by side in the table: all of them may be of one cluster."""
    vectors = gaussian()
    sound = shard_of(vectors, Metric.L2, kind)
    cut = np.isin(sound.neighbors, np.arange(64))
    cut[:64] = False
    shard = replace(sound, neighbors=np.where(cut, sound.medoid, sound.neighbors).astype(np.int32))
    result = searched(shard, vectors, np.arange(64), dead=range(1_000, ROWS))
    assert (result.misplaced, fault_of(result, 0.9)) == (0, None)
    assert result.returned < 32
    assert result.drawn == 128
    assert result.drawn_returned > (90 if kind == "none" else 115)


@pytest.mark.parametrize("metric", list(Metric))
def test_a_node_with_the_code_of_another_row_is_misplaced(metric: Metric) -> None:
    vectors = gaussian(metric)
    shard = shard_of(vectors, metric, "none")
    assert shard.pq_codes is not None
    assert searched(replace(shard, pq_codes=np.roll(shard.pq_codes, 700, axis=0)), vectors, NODES).misplaced >= 118
    other, codebook = 100 + vectors, np.asarray(shard.pq_codebook)
    assert searched(replace(shard, pq_codes=encode_pq(other, codebook)), other, NODES).misplaced == 0, "no code is near"


def test_a_node_with_the_rotated_code_of_another_row_is_misplaced() -> None:
    vectors = gaussian()
    shard = coded(shard_of(vectors, Metric.L2), 4)
    assert shard.codes is not None
    assert searched(shard, vectors, NODES).misplaced == 0
    assert searched(shard, np.roll(vectors, 700, axis=0), NODES).misplaced >= 118


def test_recall_at_a_hundred_is_measured_where_a_row_has_a_hundred_others() -> None:
    vectors = gaussian()
    shard, few = shard_of(vectors, Metric.L2), np.arange(20)
    wide = [searched(shard, vectors, few, dead=range(rows, ROWS)).wide_queries for rows in (100, 101)]
    assert wide == [0, 20]
    result = searched(one_circle(shard), vectors, few)
    assert (result.queries, result.wide_queries) == (20, 20)
    assert result.recall != result.wide_recall


def test_codes_of_short_vectors_are_compared_at_their_scale() -> None:
    vectors = gaussian() * np.float32(1e-3)
    shard = shard_of(vectors, Metric.L2, "none")
    assert shard.pq_codes is not None
    assert searched(shard, vectors, NODES).misplaced == 0
    assert searched(replace(shard, pq_codes=np.roll(shard.pq_codes, 700, axis=0)), vectors, NODES).misplaced >= 118


@pytest.mark.parametrize("metric", list(Metric))
def test_a_graph_that_finds_as_much_as_its_definition_demands_is_sound(metric: Metric) -> None:
    """Few edges and narrow searches are a choice."""
    vectors = prepare(np.random.default_rng(0).standard_normal((4_000, 32)), metric)
    params = vamana.VamanaParams(max_degree=4, search_list=8, alpha=1.2)
    graph = vamana.build(vectors, metric, params)
    made = shard_of(vectors, metric)
    shard = replace(made, neighbors=graph.neighbors, degrees=graph.degrees, medoid=graph.medoid, search_list=8)
    result = searched(shard, vectors, np.arange(64))
    recall = measure_recall(shard, vectors, np.ones(4_000, np.bool_), seed=0, threads=2).recall
    assert recall < 0.5
    assert fault_of(result, recall) is None


@pytest.mark.parametrize("kind", ["f32", "f16", "none"])
def test_rows_with_one_vector_stand_for_each_other(kind: str) -> None:
    for different in (1, 8):
        vectors = np.repeat(gaussian()[:different], 400 // different, axis=0)
        result = searched(shard_of(vectors, Metric.L2, kind), vectors, np.arange(50))
        assert (result.misplaced, result.returned) == (0, 50)


def test_a_longer_vector_may_be_nearer_than_the_row_itself() -> None:
    vectors = gaussian(Metric.INNER_PRODUCT)
    vectors[:20] *= 1_000
    result = searched(shard_of(vectors, Metric.INNER_PRODUCT), vectors, NODES)
    assert result.misplaced == 0
    assert result.returned == result.rows


@pytest.mark.parametrize(("kind", "most"), [("f32", 1e-5), ("f16", 2.0**-10)])
@pytest.mark.parametrize(("share", "misplaced"), [(0.4, 0), (1.6, 120)])
def test_a_node_s_vector_is_its_row_s_but_for_rounding(kind: str, most: float, share: float, misplaced: int) -> None:
    """One component differs, by a share of what is let pass of the vector's largest component."""
    vectors = gaussian()
    shard = shard_of(vectors, Metric.L2, kind)
    moved = vectors.copy()
    moved[:, 0] += np.float32(share * most) * np.abs(vectors).max(axis=1)
    assert searched(shard, moved, NODES).misplaced == misplaced


def test_halves_of_small_numbers_are_their_vectors() -> None:
    vectors = gaussian()
    small = vectors * np.float32(1e-7)  # where halves have a fixed step
    shard = replace(shard_of(vectors, Metric.L2), vectors=small.astype(np.float16))
    assert searched(shard, small, NODES).misplaced == 0
    assert searched(shard, np.roll(small, 1, axis=0), NODES).misplaced > 60


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("rows", [1, 2, 5, 10, 11, 12, 30])
def test_a_search_gives_back_all_of_few_rows(rows: int, kind: str) -> None:
    vectors = gaussian()[:30]
    result = searched(shard_of(vectors, Metric.L2, kind), vectors, np.arange(rows), dead=np.arange(rows, 30))
    assert result == SelfSearchResult(rows, 0, rows, rows if rows > 1 else 0, 1.0)


def test_shards_count_by_their_queries() -> None:
    parts = [
        SelfSearchResult(10, 1, 8, 4, 0.5, wide_queries=2, wide_recall=0.25),
        SelfSearchResult(20, 2, 16, 12, 1.0, wide_queries=6, wide_recall=1.0),
        SelfSearchResult(5, 0, 5, 0, 1.0),
    ]
    joined = SelfSearchResult(35, 3, 29, 16, 0.875, wide_queries=8, wide_recall=0.8125)
    assert SelfSearchResult.joined(parts) == joined
    assert SelfSearchResult.joined([]) == SelfSearchResult(0, 0, 0, 0, 1.0)


@pytest.mark.parametrize("threads", [1, 3])
def test_shards_are_read_where_they_lie(tmp_path: Path, threads: int) -> None:
    """Two of them in one file, of which the second has lost a node."""
    vectors = gaussian()
    halves = [vectors[:700], vectors[700:]]
    shards = [shard_of(half, Metric.L2) for half in halves]
    blobs = [b"".join(bytes(part) for part in shard_blob.encode(shard)) for shard in shards]
    pieces = [bytes(shard_blob.stored_vectors(shard.vectors)) for shard in shards]
    (tmp_path / "f").write_bytes(b"PFA1" + blobs[0] + pieces[0] + blobs[1] + pieces[1])
    starts, dead = [4, 4 + len(blobs[0] + pieces[0])], [np.empty(0, np.int64), np.array([9])]
    nodes, path = np.arange(40), f"file://{tmp_path}/f"
    runs = [
        StoredRun(ObjectRange(path, start + len(blob), len(piece)), len(half), hashlib.sha256(piece).digest())
        for start, blob, piece, half in zip(starts, blobs, pieces, halves, strict=True)
    ]
    tasks = [
        SelfSearchTask(
            StoredShard(ObjectRange(path, start, len(blob)), runs=(run,)),
            deletion_vector_blob.encode(tombstones),
            addresses_of(shard.file_slots[nodes], shard.row_positions[nodes]),
            half[nodes],
            STORAGE,
            threads,
        )
        for start, blob, run, tombstones, shard, half in zip(starts, blobs, runs, dead, shards, halves, strict=True)
    ]
    parts = [
        searched(shard, half, nodes, tombstones) for shard, half, tombstones in zip(shards, halves, dead, strict=True)
    ]
    assert [part.misplaced for part in parts] == [0, 1]
    assert [self_search(task) for task in tasks] == parts
    assert search_shards(tasks, LocalRunner(threads)) == SelfSearchResult.joined(parts)
