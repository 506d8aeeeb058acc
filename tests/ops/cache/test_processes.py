"""The cache under real processes: several at once, and some that die."""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.cache import CacheSettings, ShardCache, ShardKey
from icepuffin.ops.cache import shard_cache as shards
from icepuffin.ops.cache.disk import DiskCache
from tests.ops.cache.stored import ROWS, STORAGE, kept_by, random_shard, stored
from tests.patience import PATIENCE, until

SPAWN = multiprocessing.get_context("spawn")
SHARDS = 6


def fetch_at_random(folder: Path, budget: int, keys: list[ShardKey], seed: int, rounds: int) -> None:
    """Fetch shards in any order, and read each as a search does; a wrong byte ends the process with an error."""
    rng = np.random.default_rng(seed)
    cache = ShardCache(CacheSettings(folder, budget, 0))
    for number in rng.integers(0, len(keys), rounds):
        result = cache.shard(keys[number], STORAGE)
        np.testing.assert_array_equal(result.row_positions, np.arange(ROWS) + 1000 * number)
        assert result.vectors is not None
        assert int(result.graph.neighbors.max()) < ROWS
        used = DiskCache(folder, budget).stored_bytes()
        assert used <= budget, used
    cache.flush()


def fetch_once(folder: Path, key: ShardKey, log: Path, start: Barrier) -> None:
    real = shards._fetch

    def logged(*args: object) -> object:
        with log.open("a") as stream:
            stream.write("fetched\n")
        return real(*args)  # type: ignore[arg-type]

    shards._fetch = logged  # type: ignore[assignment]
    start.wait(PATIENCE)
    ShardCache(CacheSettings(folder, 1 << 30, 0)).shard(key, STORAGE)


def hold_unfinished(folder: Path, budget: int, size: int, is_ready: Path) -> None:
    """Claim room for a file, and never write it."""
    cache = DiskCache(folder, budget)
    (folder / "owner").mkdir(exist_ok=True)
    claimed = cache._claim(folder / "owner" / ".unfinished.draft", size)
    assert claimed is not None
    is_ready.touch()
    time.sleep(PATIENCE)


def take_lock(folder: Path, name: str) -> None:
    with DiskCache(folder, 1 << 30).fetching("owner", name):
        pass


@pytest.fixture
def keys(tmp_path: Path) -> list[ShardKey]:
    return [stored(tmp_path, random_shard(seed), f"shard-{seed}") for seed in range(SHARDS)]


def one_file(folder: Path, key: ShardKey) -> int:
    kept_by(ShardCache(CacheSettings(folder, 1 << 30, 0)), key)
    return next(folder.glob("*/*.shard")).stat().st_size


def test_processes_that_crowd_each_other_out_read_what_was_stored(tmp_path: Path, keys: list[ShardKey]) -> None:
    budget = int(2.5 * one_file(tmp_path / "measure", keys[0]))
    folder = tmp_path / "cache"
    workers = [SPAWN.Process(target=fetch_at_random, args=(folder, budget, keys, seed, 40)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    assert not list(folder.glob("*/*.draft"))


def test_a_process_that_ends_has_written_what_it_fetched(tmp_path: Path, keys: list[ShardKey]) -> None:
    folder = tmp_path / "cache"
    alone = SPAWN.Barrier(1)
    worker = SPAWN.Process(target=fetch_once, args=(folder, keys[0], tmp_path / "log", alone))
    worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == 0
    assert len(list(folder.glob("*/*.shard"))) == 1


def test_processes_that_are_killed_leave_nothing_wrong_behind(tmp_path: Path, keys: list[ShardKey]) -> None:
    budget = int(2.5 * one_file(tmp_path / "measure", keys[0]))
    folder = tmp_path / "cache"
    for seed in range(2):
        worker = SPAWN.Process(target=fetch_at_random, args=(folder, budget, keys, seed, 10_000))
        worker.start()
        until(lambda: any(folder.glob("*/*.shard")))
        time.sleep(0.05 + 0.037 * seed)
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join(PATIENCE)
    fetch_at_random(folder, budget, keys, 9, 30)
    assert not list(folder.glob("*/*.draft"))


def test_one_of_many_that_miss_the_same_shard_fetches_it(tmp_path: Path, keys: list[ShardKey]) -> None:
    log = tmp_path / "log"
    args = (tmp_path / "cache", keys[0], log, SPAWN.Barrier(3))
    workers = [SPAWN.Process(target=fetch_once, args=args) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    assert log.read_text().splitlines() == ["fetched"]


def test_a_child_that_is_forked_meanwhile_keeps_no_lock(tmp_path: Path, keys: list[ShardKey]) -> None:
    """One that lives on, as Spark's workers do, would keep all others waiting."""
    folder = tmp_path / "cache"
    disk = DiskCache.opened(folder, 1 << 30)
    assert disk is not None
    with disk.fetching("owner", keys[0].name):
        child = os.fork()
        if not child:
            time.sleep(PATIENCE)
            os._exit(0)
    try:
        others = SPAWN.Process(target=take_lock, args=(folder, keys[0].name))
        others.start()
        others.join(PATIENCE)
        assert others.exitcode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_room_that_a_dead_writer_claimed_is_free_again(tmp_path: Path, keys: list[ShardKey]) -> None:
    size = one_file(tmp_path / "measure", keys[0])
    folder = tmp_path / "cache"
    ShardCache(CacheSettings(folder, size, 0))
    writer = SPAWN.Process(target=hold_unfinished, args=(folder, size, size, tmp_path / "ready"))
    writer.start()
    until((tmp_path / "ready").exists)
    kept_by(ShardCache(CacheSettings(folder, size, 0)), keys[0])
    assert not list(folder.glob("*/*.shard"))  # the room is somebody's
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join(PATIENCE)
    kept_by(ShardCache(CacheSettings(folder, size, 0)), keys[0])
    assert len(list(folder.glob("*/*.shard"))) == 1
