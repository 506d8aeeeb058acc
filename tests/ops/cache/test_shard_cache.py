import hashlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS, FourBitCodes
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.graphs.walk_codes import MIN_SIGNED_DIMS
from icepuffin.ops.cache import CacheSettings, ReadyShard, ShardCache, ShardKey, disk, mapped_arrays
from icepuffin.ops.cache import shard_cache as shards
from icepuffin.ops.cache.disk import DiskCache, DraftFile
from icepuffin.ops.cache.fetching import Claim, FetchedShard
from icepuffin.ops.cache.ready_shard import to_arrays
from icepuffin.ops.model import StorageConfig, StoredShard
from icepuffin.ops.process.private_map import PrivateMap
from icepuffin.ops.storage import ObjectMissingError, StorageError, open_storage, principal
from icepuffin.puffin.blobs.shard_blob import Shard
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from tests.open_files import open_files_in
from tests.ops.cache.stored import (
    DIMS,
    STORAGE,
    BusyDisk,
    answers,
    coded,
    kept_by,
    lean,
    random_shard,
    ready,
    stored,
)
from tests.patience import PATIENCE

SHARD = random_shard()
ONE = ready(SHARD).nbytes
OTHER = StorageConfig({"s3.endpoint": "http://elsewhere", "s3.access-key-id": "b", "s3.secret-access-key": "c"})


def cache_in(folder: Path, *, disk: int = 1 << 30, memory: int = 0) -> ShardCache:
    """Without memory, so that every question goes to the disk."""
    return ShardCache(CacheSettings(folder / "cache", disk, memory))


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*/*.shard"))


def same(one: ReadyShard, other: ReadyShard) -> bool:
    (arrays, values), (others, other_values) = to_arrays(one), to_arrays(other)
    return values == other_values and all(np.array_equal(arrays[name], others[name]) for name in arrays | others)


def is_mapped(array: Any) -> bool:
    """Whether an array lies in a mapped file."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return isinstance(array, PrivateMap)


@pytest.mark.parametrize(
    "shard",
    [SHARD, lean(SHARD), coded(SHARD, 4), coded(SHARD, 5), replace(SHARD, vectors=SHARD.vectors.astype(np.float16))],
)
def test_a_shard_comes_out_as_it_went_in(tmp_path: Path, shard: Shard) -> None:
    key = stored(tmp_path, shard)
    fresh = ShardCache(CacheSettings.off()).shard(key, STORAGE)
    for _ in range(2):
        kept = kept_by(cache_in(tmp_path), key)
        assert same(kept, fresh)
        for answer, wanted in zip(answers(kept), answers(fresh), strict=True):
            np.testing.assert_array_equal(answer, wanted)


def test_what_was_kept_in_another_layout_is_not_looked_for(tmp_path: Path) -> None:
    """It let codes pass that do not tell near-duplicates apart."""
    cache, key = cache_in(tmp_path), stored(tmp_path, SHARD)
    first_layout = hashlib.sha256(f"1\0True\0{key.sha256.hex()}".encode()).hexdigest()
    disk = DiskCache.opened(tmp_path / "cache", 1 << 30)
    assert disk is not None
    disk.put(principal(key.where.path, STORAGE), first_layout, *to_arrays(ready(random_shard(seed=1))))
    assert same(kept_by(cache, key), ready(SHARD))


@pytest.mark.parametrize(
    ("dims", "kind"), [(DIMS, ScalarCodes), (MIN_DIMS, FourBitCodes), (MIN_SIGNED_DIMS, FourBitCodes)]
)
def test_codes_are_kept_and_not_made_again(tmp_path: Path, dims: int, kind: type) -> None:
    key = stored(tmp_path, random_shard(rows=1_100, dims=dims))
    decoded = kept_by(cache_in(tmp_path), key)
    kept = kept_by(cache_in(tmp_path), key)
    assert isinstance(decoded.searcher.codes, kind)
    assert isinstance(kept.searcher.codes, kind)
    assert same(kept, decoded)
    for codes in (decoded.searcher.codes, kept.searcher.codes):
        assert (getattr(codes, "signs", None) is not None) == (dims >= MIN_SIGNED_DIMS)


def test_what_is_kept_on_disk_is_not_read_from_the_store_again(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (tmp_path / "shard").unlink()
    assert same(kept_by(cache_in(tmp_path), key), ready(SHARD))
    with pytest.raises(ObjectMissingError):
        ShardCache(CacheSettings.off()).shard(key, STORAGE)


def test_memory_answers_before_the_disk(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    cache = cache_in(tmp_path, memory=2 * ONE)
    assert not cache.holds(key, STORAGE)
    cache.shard(key, STORAGE)
    assert cache.holds(key, STORAGE)
    cache.flush()
    first = cache.shard(key, STORAGE)
    assert cache.shard(key, STORAGE) is first


def test_a_shard_is_looked_for_in_memory_and_on_disk_alone(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    cache = cache_in(tmp_path, memory=2 * ONE)
    assert cache.find(key, STORAGE) is None
    kept = kept_by(cache, key)
    assert cache.find(key, STORAGE) is kept
    on_disk = cache_in(tmp_path).find(key, STORAGE)
    assert on_disk is not None
    assert same(on_disk, kept)


def test_an_answer_does_not_wait_for_the_disk_but_the_seventh_fetch_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [stored(tmp_path, random_shard(seed), f"shard-{seed}") for seed in range(7)]
    monkeypatch.setattr(disk, "_STRIPES", 1 << 40)  # so that no shard waits for the lock of another one
    cache = cache_in(tmp_path, memory=8 * ONE)
    may_write, real = threading.Event(), DraftFile.publish

    def publish(*args: Any) -> None:
        assert may_write.wait(PATIENCE)
        real(*args)

    monkeypatch.setattr(DraftFile, "publish", publish)
    first, *_ = (cache.shard(key, STORAGE) for key in keys[:6])
    assert not files_of(tmp_path)
    other = threading.Thread(target=cache.shard, args=(keys[6], STORAGE))
    other.start()
    other.join(0.2)
    assert other.is_alive()  # else all shards of a large index would be held until a slow disk has them
    may_write.set()
    other.join(PATIENCE)
    cache.flush()
    assert len(files_of(tmp_path)) == 7
    again = cache.shard(keys[0], STORAGE)
    assert all(is_mapped(array) for shard in (first, again) for array in to_arrays(shard)[0].values())
    assert same(again, first)
    assert same(again, ready(random_shard(0)))
    assert cache.bytes_in_memory == sum(cache.shard(key, STORAGE).nbytes for key in keys)


def test_few_shards_share_a_lock(tmp_path: Path) -> None:
    """One waits for the codes of the other."""
    cache = DiskCache.opened(tmp_path, 1 << 30)
    assert cache is not None
    for number in range(6 * 50):
        with cache.fetching("owner", f"shard-{number}"):
            pass
    assert 280 < len(list((tmp_path / "locks").iterdir())) < 300, "locks are of a number"


def test_memory_stays_within_its_budget_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    keys = [stored(tmp_path, random_shard(seed), f"shard-{seed}") for seed in range(3)]
    cache = cache_in(tmp_path, memory=2 * ONE)
    for number in (0, 1, 0, 2):
        cache.shard(keys[number], STORAGE)
    assert [cache.holds(key, STORAGE) for key in keys] == [True, False, True]
    assert cache.bytes_in_memory <= 2 * ONE


def test_a_shard_over_the_budget_leaves_the_others_in_memory(tmp_path: Path) -> None:
    small, large = stored(tmp_path, SHARD, "small"), stored(tmp_path, random_shard(1, 4 * SHARD.count), "large")
    cache = cache_in(tmp_path, memory=2 * ONE)
    for key in (small, large):
        cache.shard(key, STORAGE)
    assert cache.holds(small, STORAGE)
    assert not cache.holds(large, STORAGE)


def test_a_shard_that_a_refresh_copied_is_recognised(tmp_path: Path) -> None:
    kept_by(cache_in(tmp_path), stored(tmp_path, SHARD, "old"))
    copied = stored(tmp_path, SHARD, "new")
    (tmp_path / "new").unlink()
    assert kept_by(cache_in(tmp_path), copied).count == SHARD.count


def test_bytes_that_are_not_what_the_routing_blob_says_do_not_enter(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    other = stored(tmp_path, random_shard(1), "other")
    with pytest.raises(ChecksumError, match="sha256"):
        kept_by(cache_in(tmp_path), ShardKey(other.stored, key.sha256))
    assert not files_of(tmp_path)


def test_files_of_another_layout_have_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = stored(tmp_path, SHARD)
    name = key.name
    monkeypatch.setattr(shards, "_LAYOUT", shards._LAYOUT + 1)
    assert key.name != name


def test_a_blob_that_is_not_valid_does_not_enter(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    (tmp_path / "shard").write_bytes(b"nothing" * 100)
    with pytest.raises(BadBlobError):
        kept_by(cache_in(tmp_path), key)
    assert not files_of(tmp_path)


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 0x40


def cut(data: bytearray, at: int) -> None:
    del data[at:]


def grow(data: bytearray, at: int) -> None:
    data.extend(bytes(at % 9 + 1))


def zero(data: bytearray, at: int) -> None:
    data[at : at + 64] = bytes(len(data[at : at + 64]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(harm=st.sampled_from([flip, cut, grow, zero]), place=st.integers(0, 1 << 30))
def test_a_damaged_file_is_seen_and_fetched_again(
    tmp_path: Path, harm: Callable[[bytearray, int], None], place: int
) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (file,) = files_of(tmp_path)
    data = bytearray(file.read_bytes())
    harm(data, place % len(data))
    file.write_bytes(data)
    assert same(kept_by(cache_in(tmp_path), key), ready(SHARD))
    (file,) = files_of(tmp_path)
    assert same(kept_by(cache_in(tmp_path), key), ready(SHARD))


def test_a_file_that_was_checked_is_checked_again_once_the_machine_has_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash leaves of it may have the time of the whole file."""
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (file,) = files_of(tmp_path)
    data, status = bytearray(file.read_bytes()), file.stat()
    zero(data, len(data) - 64)
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(mapped_arrays, "_BOOT_ID", tmp_path / "boot")
    assert same(kept_by(cache_in(tmp_path), key), ready(SHARD))
    marks = [status.st_mtime_ns, files_of(tmp_path)[0].stat().st_mtime_ns]
    assert all(10**18 <= mark < 11 * 10**17 for mark in marks), "in 2001 or soon after, when there was no such file"


def test_a_file_under_another_ones_name_is_not_taken_for_it(tmp_path: Path) -> None:
    kept_by(cache_in(tmp_path), stored(tmp_path, SHARD))
    (first,) = files_of(tmp_path)
    key = stored(tmp_path, random_shard(1), "other")
    first.rename(first.with_name(f"{key.name}.shard"))
    assert kept_by(cache_in(tmp_path), key).row_positions[0] == 1000


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(room=st.floats(0.5, 3.5), requested=st.lists(st.integers(0, 4), max_size=12), by_one=st.booleans())
def test_the_disk_stays_within_its_budget_and_drops_the_least_recently_used(
    tmp_path_factory: pytest.TempPathFactory, room: float, requested: list[int], by_one: bool
) -> None:
    folder = tmp_path_factory.mktemp("budget")
    keys = [stored(folder, random_shard(seed), f"shard-{seed}") for seed in range(5)]
    size = 1 + max(file_size(key, folder) for key in keys[:1])
    budget = int(room * size)
    recent: list[int] = []
    cache = cache_in(folder, disk=budget)
    for number in requested:
        cache = cache if by_one else cache_in(folder, disk=budget)
        kept_by(cache, keys[number])
        fits = budget // (size - 1)
        recent = [*(item for item in recent if item != number), number][-fits:] if fits else []
        held = files_of(folder)
        assert sum(file.stat().st_size for file in held) <= budget
        assert {file.stem for file in held} == {keys[item].name for item in recent}


def test_files_are_listed_once_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard listed those before it: 1,000 took 12.5 s of CPU, and 500 took 3.3."""
    keys = [stored(tmp_path, random_shard(seed), f"shard-{seed}") for seed in range(6)]
    size, listings, through = 1 + file_size(keys[0], tmp_path), list[int](), DiskCache._files

    def files(cache: DiskCache) -> Any:
        listings.append(len(files_of(tmp_path)))
        return through(cache)

    monkeypatch.setattr(DiskCache, "_files", files)
    cache, other = cache_in(tmp_path, disk=4 * size), cache_in(tmp_path, disk=4 * size)
    for each, key in zip((cache, cache, other, cache), keys, strict=False):
        kept_by(each, key)
    assert listings == [0, 2], "each process listings once"
    kept_by(cache, keys[4])
    assert {file.stem for file in files_of(tmp_path)} == {key.name for key in keys[1:5]}
    (tmp_path / "cache" / ".lock").write_bytes(b"cut off")
    kept_by(cache, keys[5])
    assert {file.stem for file in files_of(tmp_path)} == {key.name for key in keys[2:]}
    assert listings == [0, 2, 4, 4]


def test_a_shard_over_the_budget_leaves_the_others_on_the_disk(tmp_path: Path) -> None:
    small, large = stored(tmp_path, SHARD, "small"), stored(tmp_path, random_shard(1, 4 * SHARD.count), "large")
    cache = cache_in(tmp_path, disk=2 * file_size(small, tmp_path))
    for key in (small, large):
        kept_by(cache, key)
    assert {file.stem for file in files_of(tmp_path)} == {small.name}


def file_size(key: ShardKey, folder: Path) -> int:
    cache = ShardCache(CacheSettings(folder / "measure", 1 << 30, 0))
    kept_by(cache, key)
    return next((folder / "measure").glob("*/*.shard")).stat().st_size


@pytest.mark.services
def test_what_one_principal_fetched_is_not_served_to_another(tmp_path: Path, s3: StorageConfig) -> None:
    local = stored(tmp_path, lean(SHARD))
    path = f"s3://lake/cache/{tmp_path.name}"
    open_storage(path, s3).create(path, (tmp_path / "shard").read_bytes())
    key = ShardKey(StoredShard(replace(local.where, path=path)), local.sha256)
    cache = cache_in(tmp_path, memory=10 * ONE)
    cache.shard(key, s3)
    stranger = StorageConfig({**s3.properties, "s3.secret-access-key": "wrong"})
    assert not cache.holds(key, stranger)
    with pytest.raises(StorageError, match="refuses access"):
        cache.shard(key, stranger)
    open_storage(path, s3).delete(path)
    assert cache_in(tmp_path).shard(key, s3).count == SHARD.count


def test_principals_are_told_apart_by_all_that_reaches_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    key_sets = [
        {"s3.access-key-id": "a", "s3.secret-access-key": "b"},
        {"s3.access-key-id": "a", "s3.secret-access-key": "c"},
        {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "t"},
        {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.endpoint": "http://x"},
        {"s3.anonymous": "true"},
    ]
    matches = {principal("s3://b/k", StorageConfig(keys)) for keys in key_sets}
    assert len(matches) == len(key_sets)
    assert principal("s3a://b/other", StorageConfig(key_sets[0])) in matches
    assert not any(secret in name for name in matches for secret in ("access", "secret"))


def test_principals_of_the_environment_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = set()
    for secret in ("one", "two"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        matches.add(principal("s3://b/k", StorageConfig({"s3.region": f"r-{secret}"})))
    assert len(matches) == 2


def test_nobody_else_may_look_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    kept_by(cache_in(tmp_path), stored(tmp_path, SHARD))
    (file,) = files_of(tmp_path)
    locks = tmp_path / "cache" / "locks"
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "cache", locks, file.parent, file)]
    assert modes == [0o700, 0o700, 0o700, 0o600]


def test_a_folder_that_has_other_things_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    (tmp_path / "cache" / "notes.txt").write_text("for everyone")
    for _ in range(2):
        kept_by(cache_in(tmp_path), stored(tmp_path, SHARD))
    (file,) = files_of(tmp_path)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "cache", file.parent, file)]
    assert modes == [0o755, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_files_in_a_folder_that_others_could_write_to_are_not_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (planted,) = files_of(tmp_path)
    (tmp_path / "cache").chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert kept_by(cache_in(tmp_path), key).count == SHARD.count
    assert "could be written by other users" in caplog.text
    assert "empty it, or name another folder" in caplog.text
    assert planted.exists()
    assert (tmp_path / "cache").stat().st_mode & 0o777 == mode


def test_locks_that_others_could_hold_leave_shards_in_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever holds one lets others wait without end."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "locks").mkdir()
    (tmp_path / "cache" / "locks").chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert kept_by(cache_in(tmp_path), stored(tmp_path, SHARD)).count == SHARD.count
    assert f"{tmp_path}/cache/locks is not this user's alone" in caplog.text
    assert caplog.messages[-1].endswith("; remove it")
    assert files_of(tmp_path) == []


def test_nothing_is_written_into_a_folder_of_one_owner_that_others_could_write_to(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (file,) = files_of(tmp_path)
    file.unlink()
    file.parent.chmod(0o777)
    assert kept_by(cache_in(tmp_path), key).count == SHARD.count
    assert list(file.parent.iterdir()) == []


def test_an_empty_folder_is_taken_whatever_its_mode_was(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    kept_by(cache_in(tmp_path), stored(tmp_path, SHARD))
    assert len(files_of(tmp_path)) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("inside", ["folder", "file", "link"])
def test_a_file_that_others_could_have_written_is_not_mapped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inside: str
) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (tmp_path / "shard").unlink()
    (file,) = files_of(tmp_path)
    if inside == "link":
        (tmp_path / "moved").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "moved")
    else:
        (file if inside == "file" else file.parent).chmod(0o777)
    with caplog.at_level(logging.WARNING), pytest.raises(ObjectMissingError):
        cache_in(tmp_path).shard(key, STORAGE)
    assert str(file.parent) in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("inside", ["cache", "folder", "file"])
def test_what_somebody_else_owns_is_not_mapped(tmp_path: Path, inside: str) -> None:
    key = stored(tmp_path, SHARD)
    kept_by(cache_in(tmp_path), key)
    (tmp_path / "shard").unlink()
    (file,) = files_of(tmp_path)
    os.chown({"file": file, "folder": file.parent, "cache": file.parents[1]}[inside], 65_534, 65_534)
    with pytest.raises(ObjectMissingError):
        cache_in(tmp_path).shard(key, STORAGE)


def test_an_interrupt_while_the_disk_is_busy_leaves_no_unfinished_file(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache._unfinished = BusyDisk()
    with pytest.raises(KeyboardInterrupt):
        cache.shard(stored(tmp_path, SHARD), STORAGE)
    assert not list((tmp_path / "cache").glob("*/.*.draft"))


def test_without_another_thread_a_shard_is_written_before_it_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [stored(tmp_path, random_shard(seed), f"shard-{seed}") for seed in range(2)]
    cache = cache_in(tmp_path, memory=4 * ONE)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fetch(key: ShardKey, storage: StorageConfig, claim: Claim, *_: object) -> FetchedShard:
        return FetchedShard(ready(SHARD), claim(1 << 20))

    result = None
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # has its thread
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(threading.Thread, "start", start)
            patch.setattr("icepuffin.ops.cache.shard_cache._fetch", fetch)
            result = [pool.submit(cache.shard, key, STORAGE).result(PATIENCE) for key in keys]
            pool.submit(cache.flush).result(PATIENCE)
    assert len(result) == len(files_of(tmp_path)) == 2
    assert all(same(one, ready(SHARD)) for one in result)
    assert "before it is searched" in caplog.text


def test_a_folder_that_cannot_be_used_is_reported_and_nothing_is_kept_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        assert kept_by(cache_in(tmp_path), stored(tmp_path, SHARD)).count == SHARD.count
    assert "not a folder of this user" in caplog.text
    (tmp_path / "cache").unlink()
    (tmp_path / "cache").write_text("a file")
    with caplog.at_level(logging.WARNING):
        cache_in(tmp_path)
    assert "not kept on disk" in caplog.text


def test_a_folder_that_goes_away_costs_no_answer(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert cache.shard(stored(tmp_path, SHARD), STORAGE).count == SHARD.count


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", str(tmp_path))
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_DISK_MB", "5")
    assert CacheSettings.from_environment() == CacheSettings(tmp_path, 5 << 20)
    others = {"MEMORY_MB": "6", "TAIL_MB": "7", "ROWS_MB": "8", "LAYOUT": "", "PREFETCH": "never"}
    with monkeypatch.context() as patch:
        for name, value in others.items():
            patch.setenv(f"ICEPUFFIN_SHARD_CACHE_{name}", value)
        every = CacheSettings(tmp_path, 5 << 20, 6 << 20, "auto", 7 << 20, 8 << 20, "never")
        assert CacheSettings.from_environment() == every
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    assert CacheSettings.from_environment() == CacheSettings.off()
    monkeypatch.delenv("ICEPUFFIN_SHARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CacheSettings.from_environment().folder == tmp_path / "icepuffin" / "shards"
    assert CacheSettings.off().disk_bytes == 0
    assert os.environ["XDG_CACHE_HOME"]
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_DISK_MB", "5G")
    with pytest.raises(ValueError, match="variable ICEPUFFIN_SHARD_CACHE_DISK_MB takes a whole number of MiB"):
        CacheSettings.from_environment()


def test_a_cache_that_is_off_has_its_layout_and_prefetching_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """They say how shards lie in memory while they are searched, too."""
    for name, value in (("", "off"), ("_LAYOUT", "compact"), ("_PREFETCH", "never")):
        monkeypatch.setenv(f"ICEPUFFIN_SHARD_CACHE{name}", value)
    assert CacheSettings.from_environment() == replace(CacheSettings.off(), layout="compact", prefetch="never")


@pytest.mark.parametrize("budget", ["disk_bytes", "memory_bytes", "tail_bytes", "rows_bytes"])
def test_no_budget_of_the_cache_is_negative(budget: str) -> None:
    assert getattr(CacheSettings(**{budget: 0}), budget) == 0
    with pytest.raises(ValueError, match="budgets of the shard cache are bytes, 0 for none"):
        CacheSettings(**{budget: -1})


def test_the_cache_counts_where_shards_came_from(tmp_path: Path) -> None:
    key = stored(tmp_path, SHARD)
    first = cache_in(tmp_path, memory=1 << 30)
    for _ in range(3):
        first.shard(key, STORAGE)
    first.flush()
    assert first.reads == {"memory": 2, "disk": 0, "store": 1}
    second = cache_in(tmp_path)
    second.shard(key, STORAGE)
    assert second.reads == {"memory": 0, "disk": 1, "store": 0}


def test_a_draft_that_cannot_be_deleted_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = stored(tmp_path, SHARD)
    damaged = replace(key, sha256=bytes(range(32)))
    real = Path.unlink

    def refused(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".draft":
            raise PermissionError(13, "the folder is read-only")
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    cache = ShardCache(CacheSettings(tmp_path / "cache", disk_bytes=1 << 30))
    with caplog.at_level(logging.WARNING), pytest.raises(ChecksumError):
        cache.shard(damaged, STORAGE)
    assert "cannot be deleted: [Errno 13] the folder is read-only" in caplog.text
    assert cache.shard(key, STORAGE).count == SHARD.count


def test_shards_that_are_searched_keep_no_file_open(tmp_path: Path) -> None:
    """A process may have 1,024 open files, sockets included, and an index more shards."""
    keys = [stored(tmp_path, random_shard(seed=number), str(number)) for number in range(8)]
    settings = CacheSettings(tmp_path / "cache", disk_bytes=1 << 30)
    others = set(threading.enumerate())
    fetched = [ShardCache(settings).shard(key, STORAGE) for key in keys]
    for thread in set(threading.enumerate()) - others:  # these write them
        thread.join()
    assert open_files_in(tmp_path) == []
    read = [ShardCache(settings).shard(key, STORAGE) for key in keys]
    assert open_files_in(tmp_path) == []
    assert all(is_mapped(shard.vectors) for shard in fetched + read)
