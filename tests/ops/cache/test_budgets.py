"""Budgets of the shard cache: those of its settings, and the memory of decoders at work."""

import os
import threading
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.cache import CacheSettings, ShardCache, disk, fetching
from icepuffin.ops.cache.mapped_arrays import room_for
from icepuffin.ops.model import MIB
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.puffin.blobs import shard_blob
from icepuffin.puffin.blobs.shard_blob import Shard
from icepuffin.puffin.blobs.shard_header import ShardHeader
from tests.ops.cache.stored import STORAGE, coded, lean, random_shard, stored
from tests.ops.cache.test_fetching import header_of
from tests.patience import PATIENCE

_AT_ONCE = 256 * MIB
"""Memory that decoders take together, as docs/operations.md has it"""


def test_budgets_are_those_of_the_documentation() -> None:
    default = CacheSettings()
    budgets = default.disk_bytes, default.memory_bytes, default.tail_bytes, default.rows_bytes
    assert [size / MIB for size in budgets] == [20_480, 2_048, 512, 4_096]
    assert CacheSettings.off() == CacheSettings(disk_bytes=0, memory_bytes=0, tail_bytes=0, rows_bytes=0)


@pytest.mark.parametrize("budget", ["disk_bytes", "memory_bytes", "tail_bytes", "rows_bytes"])
def test_a_budget_is_not_negative(budget: str) -> None:
    with pytest.raises(ValueError, match="budgets of the shard cache are bytes"):
        replace(CacheSettings(), **{budget: -1})


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/somebody")
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "~/shards")
    assert CacheSettings.from_environment().folder == Path("/srv/somebody/shards")
    assert CacheSettings(Path("~/shards")).folder == Path("/srv/somebody/shards")


SHARD = random_shard(rows=40, dims=100)


def _header(shard: Shard) -> ShardHeader:
    return header_of(bytearray(b"".join(map(bytes, shard_blob.encode(shard)))))


@pytest.mark.parametrize(
    ("shard", "code"), [(SHARD, 0), (lean(SHARD), _header(lean(SHARD)).pq_bytes), (coded(SHARD, 8), 144)]
)
def test_decoding_takes_memory_for_lists_and_for_codes_of_each_node(shard: Shard, code: int) -> None:
    header = _header(shard)
    before = fetching.scratch_bytes(header, MIB)
    assert fetching.scratch_bytes(header, 2 * MIB) == before + 4 * MIB
    assert fetching.scratch_bytes(replace(header, count=header.count + 1_000), MIB) - before == 1_000 * (code + 41)
    lists = sum(entry.stored_length + entry.raw_length for entry in header.sections if entry.framed)
    assert fetching.scratch_bytes(replace(header, sections=header.sections * 2), MIB) - before == lists > 0


def test_a_fetch_reserves_what_its_store_and_its_shard_take(tmp_path: Path) -> None:
    key, sizes = stored(tmp_path, SHARD), list[int]()

    def scratch(size: int) -> nullcontext[None]:
        sizes.append(size)
        return nullcontext()

    fetched = fetching.fetch(
        key.stored, key.sha256, STORAGE, compact=False, claim=lambda _: fetching.Memory(), scratch=scratch
    )
    fetched.with_codes(1, scratch)
    assert sizes == [fetching.scratch_bytes(_header(SHARD), LocalStorage.piece_bytes), 24 * SHARD.count]


@pytest.mark.parametrize(("first", "second", "waits"), [(100, 156, False), (100, 157, True), (1, 256, True)])
def test_decoders_wait_for_each_other_where_they_take_more_than_the_budget(
    first: int, second: int, waits: bool
) -> None:
    scratch = ShardCache(CacheSettings.off())._scratch
    entered = threading.Event()

    def decode() -> None:
        with scratch.reserve(second * MIB):
            entered.set()

    thread = threading.Thread(target=decode)
    with ExitStack() as work:
        work.enter_context(scratch.reserve(first * MIB))
        thread.start()
        assert entered.wait(0.2 if waits else PATIENCE) is not waits
    assert entered.wait(PATIENCE)
    thread.join()


def test_a_decoder_alone_may_take_more_than_the_budget() -> None:
    scratch = ShardCache(CacheSettings.off())._scratch
    for size in (_AT_ONCE + 1, _AT_ONCE):
        with scratch.reserve(size):
            assert scratch._reserved == size
        assert scratch._reserved == 0


def test_a_count_of_bytes_that_was_cut_off_is_none(tmp_path: Path) -> None:
    """A process that is killed may have written a part of it, or one half over another."""
    path = tmp_path / "lock"
    with path.open("w+b") as lock:
        assert disk._read_count(lock.fileno()) is None
        disk._write_count(lock.fileno(), 5 << 30)
        assert disk._read_count(lock.fileno()) == 5 << 30
        whole = path.read_bytes()
        for broken in (whole[:-1], (6 << 30).to_bytes(8, "little") + whole[8:]):
            path.write_bytes(broken)
            assert disk._read_count(lock.fileno()) is None


def test_files_may_fill_the_budget_and_the_one_that_was_used_first_goes(tmp_path: Path) -> None:
    arrays = {"a": np.arange(100)}
    size = room_for([arrays["a"].nbytes])
    for count in (1, 2):
        cache = disk.DiskCache.opened(tmp_path / str(count), count * size)
        assert cache is not None
        for number in range(3):
            cache.put("owner", f"s{number}", arrays, {})
            if cache.has("owner", "s0"):
                os.utime(tmp_path / str(count) / "owner" / "s0.shard", (1, 1))
        assert [cache.has("owner", f"s{number}") for number in range(3)] == [False, count == 2, True]
        cache.put("owner", "large", {"a": np.arange(1000)}, {})
        assert [cache.has("owner", name) for name in ("s2", "large")] == [True, False], "for nothing, none makes room"


def test_a_file_that_is_being_written_is_not_cleared_away_and_one_of_another_form_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, other = (disk.DiskCache.opened(tmp_path / "cache", MIB) for _ in range(2))
    assert cache is not None
    assert other is not None
    draft = cache.draft("owner", "new", room_for([40]))
    assert draft is not None
    other.put("owner", "old", {"a": np.arange(3)}, {})  # which lists all files first
    draft.arrays.keep("a", np.arange(5))
    draft.publish({"b": 1})
    assert cache.get("owner", "new", lambda arrays, values: ([*arrays["a"]], values)) == ([0, 1, 2, 3, 4], {"b": 1})
    for error in (TypeError("no b"), KeyError("b"), ValueError("b")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        assert cache.get("owner", "old", fail) is None
        assert f"old.shard is damaged and is fetched again: {error}" in caplog.text
        assert not cache.has("owner", "old")
        cache.put("owner", "old", {"a": np.arange(3)}, {})
