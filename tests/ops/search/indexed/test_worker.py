"""Shards that an executor keeps from one task to the next: those that were used last, within a budget."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings, process_cache, use_settings
from icepuffin.ops.model import LiveFiles, ShardId, SnapshotId
from icepuffin.ops.search.indexed.worker import SearchJob, SearchWorker
from tests.conftest import STORAGE
from tests.patience import PATIENCE

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


def test_a_thread_gets_its_shard_although_another_one_drops_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    done, other = threading.Event(), list[threading.Thread]()

    class Shard:
        """Its size is looked at when one is to be dropped: another thread gets a shard just then."""

        @property
        def nbytes(self) -> int:
            if not other:
                other.append(threading.Thread(target=lambda: (worker._shard(ShardId(2)), done.set())))
                other[0].start()
                done.wait(0.2)  # it may have to wait itself
            return 10

    monkeypatch.setattr(SearchWorker, "_read", lambda *_: SimpleNamespace(shard=Shard()))
    cache = CacheSettings(disk_bytes=0, memory_bytes=10)
    worker = SearchWorker(SearchJob(LIVE, Schema(), 1, Metric.L2, STORAGE, None, cache=cache))
    first, second = (worker._shard(ShardId(number)) for number in range(2))
    assert first is not second
    other[0].join(PATIENCE)
    assert done.is_set()
    assert [*worker._shards] == [2], "the one that was used last"


def test_a_job_sets_up_the_cache_of_the_process_that_runs_it_and_shows_no_secret() -> None:
    storage = replace(STORAGE, properties={"s3.secret-access-key": "canary0sings"})
    cache = CacheSettings(disk_bytes=0, memory_bytes=12_345)
    job = SearchJob(LIVE, Schema(), 1, Metric.L2, storage, None, cache=cache)
    assert process_cache().settings != cache
    assert job.serialize().worker().job.storage == storage
    assert process_cache().settings == cache
    assert "canary" not in repr(job) + repr(job.serialize())
    use_settings(None)
