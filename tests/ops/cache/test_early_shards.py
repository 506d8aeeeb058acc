"""Shards that are searched before they have their codes."""

import gc
import logging
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icepuffin.ops.cache import CacheSettings, ReadyShard, ShardCache, ShardKey, disk
from icepuffin.ops.cache import shard_cache as shards
from icepuffin.ops.cache.fetching import FetchedShard
from icepuffin.ops.cache.ready_shard import Completion, to_arrays
from icepuffin.ops.cache.shard_cache import _Reservations
from icepuffin.ops.process.private_map import PrivateMap
from tests.ops.cache.stored import STORAGE, BusyDisk, answers, lean, random_shard, ready, stored
from tests.ops.cache.test_moved_rows import moved
from tests.patience import PATIENCE, until

SHARD = random_shard(rows=1_100)
"""Large enough for codes"""


@pytest.fixture
def key(tmp_path: Path) -> ShardKey:
    return stored(tmp_path, SHARD)


@pytest.fixture
def codes_begun() -> threading.Event:
    """Set when codes are about to be made; see `codes_may_come`."""
    return threading.Event()


@pytest.fixture
def codes_may_come(monkeypatch: pytest.MonkeyPatch, codes_begun: threading.Event) -> Iterator[threading.Event]:
    """Set when codes may be made."""
    event, real = threading.Event(), FetchedShard.with_codes

    def with_codes(self: FetchedShard, *args: object) -> object:
        codes_begun.set()
        assert event.wait(PATIENCE)
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FetchedShard, "with_codes", with_codes)
    yield event
    event.set()


def cache_in(folder: Path, memory: int = 1 << 30) -> ShardCache:
    return ShardCache(CacheSettings(folder / "cache", 1 << 30, memory))


def files_in(folder: Path) -> list[Path]:
    return [*(folder / "cache").glob("*/*.shard"), *(folder / "cache").glob("*/.*.draft")]


def waiting(shard: ReadyShard) -> Completion:
    assert shard.completion is not None
    return shard.completion


def same(one: ReadyShard, other: ReadyShard) -> bool:
    (arrays, values), (others, other_values) = to_arrays(one), to_arrays(other)
    return values == other_values and all(np.array_equal(arrays[name], others[name]) for name in arrays | others)


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_shard_is_searched_before_it_has_codes_and_gets_them(
    tmp_path: Path, key: ShardKey, codes_may_come: threading.Event, memory: int
) -> None:
    cache = cache_in(tmp_path, memory)
    early = cache.shard(key, STORAGE, early=True)
    assert early.searcher.codes is None
    assert early.completed() is early
    nodes, distances = answers(early)
    expected = ready(SHARD)
    np.testing.assert_array_equal(nodes, answers(expected)[0])
    np.testing.assert_array_equal(distances, answers(expected)[1])
    codes_may_come.set()
    assert waiting(early).ended.wait(PATIENCE)
    complete = early.completed()
    assert same(complete, expected)
    assert complete.searcher.codes is not None
    cache.flush()
    assert cache.shard(key, STORAGE, early=True).completion is None
    found = cache_in(tmp_path).find(key, STORAGE)
    assert found is not None
    assert same(found, expected)


def test_other_callers_wait_for_the_codes_of_an_early_shard(
    tmp_path: Path, key: ShardKey, codes_may_come: threading.Event
) -> None:
    cache, results = cache_in(tmp_path), list[ReadyShard]()
    assert cache.shard(key, STORAGE, early=True).completion is not None
    other = threading.Thread(target=lambda: results.append(cache.shard(key, STORAGE)))
    other.start()
    other.join(0.2)
    assert other.is_alive()
    codes_may_come.set()
    other.join(PATIENCE)
    assert same(results[0], ready(SHARD))
    assert results[0].completion is None


def test_nobody_waits_for_codes_that_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardCache, "_complete", None)  # else they might be there already
    for number, shard in enumerate((random_shard(), lean(SHARD))):
        key = stored(tmp_path, shard, f"shard-{number}")
        assert cache_in(tmp_path).shard(key, STORAGE, early=True).completion is None


def test_a_shard_whose_codes_cannot_be_made_is_searched_without(
    tmp_path: Path, key: ShardKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> object:
        raise MemoryError("no room for codes")

    cache = cache_in(tmp_path)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(FetchedShard, "with_codes", fail)
        early = cache.shard(key, STORAGE, early=True)
        cache.flush()
    assert "no room for codes" in caplog.text
    assert waiting(early).ended.is_set()
    assert early.completed() is early
    np.testing.assert_array_equal(answers(early)[0], answers(ready(SHARD))[0])
    assert files_in(tmp_path) == []
    assert cache.shard(key, STORAGE) is early
    assert same(cache_in(tmp_path).shard(key, STORAGE), ready(SHARD))  # nobody has its lock any more


def test_nobody_waits_for_the_codes_of_a_shard_whose_caller_was_interrupted(tmp_path: Path, key: ShardKey) -> None:
    cache = cache_in(tmp_path)
    permits, cache._unfinished = cache._unfinished, BusyDisk()
    with pytest.raises(KeyboardInterrupt):
        cache.shard(key, STORAGE, early=True)
    cache._unfinished = permits
    assert files_in(tmp_path) == []
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(cache.shard, key, STORAGE).result(PATIENCE)
        pool.submit(cache.flush).result(PATIENCE)
    np.testing.assert_array_equal(answers(result)[0], answers(ready(SHARD))[0])
    assert same(cache_in(tmp_path).shard(key, STORAGE), ready(SHARD))


def fetch_early(folder: Path, key: ShardKey) -> None:
    assert cache_in(folder).shard(key, STORAGE, early=True).completion is not None


def test_a_process_that_ends_makes_the_codes_of_its_early_shards(tmp_path: Path, key: ShardKey) -> None:
    process = multiprocessing.get_context("spawn").Process(target=fetch_early, args=(tmp_path, key))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    found = cache_in(tmp_path).find(key, STORAGE)
    assert found is not None
    assert same(found, ready(SHARD))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait for fetches so far: those that it may take, and once it has ended those that it took."""
    seconds, real = list[float](), _Reservations.wait_for_none

    def wait_for_none(self: _Reservations, most: float) -> None:
        place, begun = len(seconds), time.monotonic()
        seconds.append(most)
        real(self, most)
        seconds[place] = time.monotonic() - begun

    monkeypatch.setattr(_Reservations, "wait_for_none", wait_for_none)
    return seconds


@pytest.fixture
def slow_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[ShardCache], threading.Event]]:
    """Has a cache fetch a shard until the event is set."""
    monkeypatch.setattr(disk, "_STRIPES", 1 << 40)  # so that no shard waits for the lock of another one
    other, real = stored(tmp_path, random_shard(1, rows=1_100), "slow"), shards._fetch
    may_end, begun = threading.Event(), threading.Event()
    threads = list[threading.Thread]()

    def fetch(key: ShardKey, *args: object) -> object:
        if key is other:
            begun.set()
            assert may_end.wait(PATIENCE)
        return real(key, *args)  # type: ignore[arg-type]

    def begin(cache: ShardCache) -> threading.Event:
        monkeypatch.setattr(shards, "_fetch", fetch)
        threads.append(threading.Thread(target=cache.shard, args=(other, STORAGE), kwargs={"early": True}))
        threads[0].start()
        assert begun.wait(PATIENCE)
        return may_end

    yield begin
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE)


def test_codes_are_made_when_no_shard_is_fetched(
    tmp_path: Path,
    key: ShardKey,
    codes_begun: threading.Event,
    codes_may_come: threading.Event,
    slow_fetch: Callable[[ShardCache], threading.Event],
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that needs several shards would share the processors with the codes of those before."""
    monkeypatch.setattr(shards, "_LONGEST_PAUSE", 600.0)
    cache, another = cache_in(tmp_path), stored(tmp_path, random_shard(2, rows=1_100), "another")
    both = [cache.shard(each, STORAGE, early=True) for each in (key, another)]  # of one, codes may be made at once
    assert codes_begun.wait(PATIENCE)  # of one: it waits for no fetch any more
    may_end = slow_fetch(cache)
    codes_may_come.set()
    until(lambda: pauses[1:] == [600.0] or all(waiting(shard).ended.is_set() for shard in both))
    until(lambda: any(waiting(shard).ended.is_set() for shard in both))
    time.sleep(0.1)  # codes that do not wait would be there
    assert sum(waiting(shard).ended.is_set() for shard in both) == 1, "the fetch had not begun"
    assert pauses[1:] == [600.0], "the other waits for the fetch"
    may_end.set()
    assert all(waiting(shard).ended.wait(PATIENCE) for shard in both)


def test_codes_do_not_wait_for_ever_for_a_store_that_hangs(
    tmp_path: Path,
    key: ShardKey,
    monkeypatch: pytest.MonkeyPatch,
    slow_fetch: Callable[[ShardCache], threading.Event],
    pauses: list[float],
) -> None:
    """Other callers wait for them, and other processes for the shard."""
    monkeypatch.setattr(shards, "_LONGEST_PAUSE", 0.3)
    cache = cache_in(tmp_path)
    may_end = slow_fetch(cache)
    early = cache.shard(key, STORAGE, early=True)
    assert waiting(early).ended.wait(PATIENCE)
    assert not may_end.is_set()
    assert len(pauses) == 1
    assert pauses[0] >= 0.29, "they waited for the fetch before"
    assert same(cache.shard(key, STORAGE), ready(SHARD))


def test_a_complete_shard_keeps_nothing_of_the_early_one(
    tmp_path: Path, key: ShardKey, codes_may_come: threading.Event
) -> None:
    """A reader keeps hundreds: each early one would be a second mapping, with a file descriptor."""
    cache = cache_in(tmp_path)
    shard = cache.shard(key, STORAGE, early=True)
    mapping = weakref.ref(file_of(shard.vectors))
    codes_may_come.set()
    cache.flush()
    shard = shard.completed()
    assert shard.completion is None
    gc.collect()
    assert mapping() is None


def file_of(array: Any) -> PrivateMap:
    """The mapped file that an array lies in."""
    while not isinstance(array, PrivateMap):
        array = array.base
    return array


def test_an_early_shard_whose_rows_have_moved_gets_its_codes_and_keeps_its_addresses(
    tmp_path: Path, key: ShardKey, codes_may_come: threading.Event
) -> None:
    later, positions = moved(tmp_path, key, 7, SHARD.count)
    cache = cache_in(tmp_path)
    early = cache.shard(later, STORAGE, early=True)
    assert waiting(early)
    codes_may_come.set()
    cache.flush()
    for complete in (early.completed(), cache.shard(later, STORAGE, early=True)):
        assert complete.searcher.codes is not None
        np.testing.assert_array_equal(complete.row_positions, positions)
    np.testing.assert_array_equal(cache.shard(key, STORAGE).row_positions, SHARD.row_positions)
