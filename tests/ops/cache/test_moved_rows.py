"""Shards whose rows have moved: the cache keeps the blob and the addresses apart, and never confuses addresses."""

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.cache import CacheSettings, ShardCache, ShardKey
from icepuffin.ops.model import ObjectRange, StoredAddresses
from icepuffin.ops.storage import ObjectMissingError
from icepuffin.puffin.blobs import addresses_blob
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from tests.ops.cache.stored import ROWS, STORAGE, answers, kept_by, random_shard, stored


def moved(folder: Path, key: ShardKey, seed: int, rows: int = ROWS) -> tuple[ShardKey, np.ndarray]:
    """(key of the shard with other addresses, their row positions)."""
    rng = np.random.default_rng(seed)
    slots, positions = rng.integers(0, 9, rows).astype(np.uint32), rng.permutation(1000 * rows)[:rows]
    data = addresses_blob.encode(slots, positions)
    path = folder / f"{Path(key.where.path).name}-addresses-{seed}"
    path.write_bytes(bytes(7) + data)
    where = ObjectRange(f"file://{path}", 7, len(data))
    of_rows = StoredAddresses(where, hashlib.sha256(data).digest())
    return replace(key, stored=replace(key.stored, addresses=of_rows)), positions


def cache_in(folder: Path, *, disk: int = 1 << 30, memory: int = 1 << 30) -> ShardCache:
    return ShardCache(CacheSettings(folder / "cache", disk, memory))


@pytest.mark.parametrize(("disk", "memory"), [(1 << 30, 0), (0, 1 << 30), (1 << 30, 1 << 30), (0, 0), (40_000, 9_000)])
def test_every_key_gets_its_own_addresses_in_any_order(tmp_path: Path, disk: int, memory: int) -> None:
    expected: list[tuple[ShardKey, np.ndarray]] = []
    for number in range(3):
        key = stored(tmp_path, random_shard(number), f"shard-{number}")
        expected.append((key, np.arange(ROWS) + 1000 * number))
        expected += [moved(tmp_path, key, seed) for seed in (1 + number, 5)]  # 5: equal ones for all shards
    rng = random.Random(3)
    cache = cache_in(tmp_path, disk=disk, memory=memory)
    for _ in range(60):
        if rng.random() < 0.2:
            cache = cache_in(tmp_path, disk=disk, memory=memory)
        key, positions = rng.choice(expected)
        shard = kept_by(cache, key)
        np.testing.assert_array_equal(shard.row_positions, positions)
        plain = kept_by(cache, replace(key, stored=replace(key.stored, addresses=None)))
        np.testing.assert_array_equal(answers(shard)[1], answers(plain)[1])
    cache.flush()


def test_only_addresses_are_read_where_the_rows_of_a_shard_have_moved(tmp_path: Path) -> None:
    key = stored(tmp_path, random_shard())
    later, positions = moved(tmp_path, key, 1)
    kept_by(cache_in(tmp_path), key)
    (tmp_path / "shard").unlink()
    for _ in range(2):
        np.testing.assert_array_equal(kept_by(cache_in(tmp_path), later).row_positions, positions)
    Path(later.stored.addresses.blob.path.removeprefix("file://")).unlink()  # type: ignore[union-attr]
    np.testing.assert_array_equal(kept_by(cache_in(tmp_path), later).row_positions, positions)
    with pytest.raises(ObjectMissingError):
        kept_by(cache_in(tmp_path, disk=0), later)


def test_a_shard_is_in_memory_when_its_addresses_are_too(tmp_path: Path) -> None:
    key = stored(tmp_path, random_shard())
    later, _ = moved(tmp_path, key, 1)
    cache = cache_in(tmp_path)
    kept_by(cache, key)
    assert cache.holds(key, STORAGE)
    assert not cache.holds(later, STORAGE)
    size = cache.bytes_in_memory
    kept_by(cache, later)
    assert cache.holds(later, STORAGE)
    assert cache.bytes_in_memory == size + 12 * ROWS, "the shard is there once"


def test_addresses_that_are_not_those_of_the_routing_blob_are_refused_and_not_kept(tmp_path: Path) -> None:
    key = stored(tmp_path, random_shard())
    later, positions = moved(tmp_path, key, 1)
    other, _ = moved(tmp_path, key, 2)
    assert later.stored.addresses is not None
    assert other.stored.addresses is not None
    wrong = replace(
        later,
        stored=replace(key.stored, addresses=replace(later.stored.addresses, sha256=other.stored.addresses.sha256)),
    )
    cache = cache_in(tmp_path)
    with pytest.raises(ChecksumError, match="do not have the sha256"):
        cache.shard(wrong, STORAGE)
    assert not cache.holds(other, STORAGE)
    np.testing.assert_array_equal(kept_by(cache, later).row_positions, positions)


def test_addresses_of_another_number_of_nodes_are_refused(tmp_path: Path) -> None:
    key = stored(tmp_path, random_shard())
    for rows in (ROWS - 1, ROWS + 1):
        later, _ = moved(tmp_path, key, rows, rows)
        for _ in range(2):
            with pytest.raises(BadBlobError, match="nodes"):
                cache_in(tmp_path).shard(later, STORAGE)
