"""Shards that an executor keeps from one task to the next: those that were used last, within a budget."""

from types import SimpleNamespace

import pytest
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings
from icepuffin.ops.model import LiveFiles, ShardId, SnapshotId
from icepuffin.ops.search.indexed.worker import SearchJob, SearchWorker
from tests.conftest import STORAGE

LIVE = LiveFiles("db.t", "uuid", "file:///t", SnapshotId(1), 1, 0, ())


@pytest.mark.parametrize(("budget", "kept"), [(100, [0, 1, 2]), (60, [0, 1, 2]), (59, [2, 1]), (30, [1]), (0, [1])])
def test_a_worker_keeps_the_shards_that_were_used_last_within_the_memory_of_the_cache(
    monkeypatch: pytest.MonkeyPatch, budget: int, kept: list[int]
) -> None:
    """Of ten, twenty and thirty bytes; the one that a task searches is kept, whatever it takes."""
    reads: list[int] = []

    def read(_: SearchWorker, shard_id: ShardId) -> SimpleNamespace:
        reads.append(shard_id)
        return SimpleNamespace(shard=SimpleNamespace(nbytes=10 * (shard_id + 1)))

    monkeypatch.setattr(SearchWorker, "_read", read)
    cache = CacheSettings(disk_bytes=0, memory_bytes=budget)
    worker = SearchWorker(SearchJob(LIVE, Schema(), 1, Metric.L2, STORAGE, None, cache=cache))
    for number in (0, 1, 2, 1):
        worker._shard(ShardId(number))
    reads.clear()
    for number in kept:
        worker._shard(ShardId(number))
    assert reads == []
    assert len(worker._shards) == len(kept)
