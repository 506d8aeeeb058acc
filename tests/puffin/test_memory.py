"""Reading takes no more memory than 64 MiB and a small multiple of the bytes that are there, whatever they declare."""

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from puffin.blobs import shard
from puffin.blobs.shard import Shard
from puffin.errors import BlobTooLargeError, PuffinError
from tests.puffin import samples
from tests.puffin.test_ann_blobs import resealed, shard_bytes

ALWAYS = 64 << 20
A_BYTE = 8


def taken(read: Callable[[], Any]) -> tuple[int, Any]:
    """(bytes that were in use at most, what came of it: a value or the error)."""
    tracemalloc.start()
    try:
        result = read()
    except PuffinError as error:
        result = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, result


def sparse(count: int, *, longest: int = 1) -> Shard:
    """Each node leads to the next; the first to `longest` nodes. Says that lists may be as long as any."""
    neighbors = np.full((count, longest), -1, np.int32)
    neighbors[:, 0] = (np.arange(count) + 1) % count
    neighbors[0] = np.arange(1, longest + 1)
    degrees = np.ones(count, np.int32)
    degrees[0] = longest
    return Shard(
        metric=0, dims=1, max_degree=4_096, search_list=10, alpha=1.2, medoid=0, neighbors=neighbors, degrees=degrees,
        file_slots=np.zeros(count, np.uint32), row_positions=np.arange(count), vectors=np.zeros((count, 1), np.float16),
        content_hashes=np.zeros(count, np.uint64),
    )  # fmt: skip


def test_a_degree_that_no_list_has_takes_no_memory() -> None:
    data = shard_bytes(sparse(20_000))
    peak, read = taken(lambda: shard.decode(data))
    assert read.count == 20_000
    assert peak <= 8 << 20


def test_one_long_list_does_not_make_room_for_all() -> None:
    wide = sparse(20_000, longest=4_000)
    with pytest.raises(BlobTooLargeError, match="smaller max_degree, or with more shards"):
        shard_bytes(wide)
    data = hostile(wide)
    peak, error = taken(lambda: shard.decode(data))
    assert isinstance(error, BlobTooLargeError)
    assert peak <= ALWAYS + A_BYTE * len(data)


def hostile(value: Shard) -> bytes:
    """As a writer makes it that does not ask whether readers take it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "_require_readable", lambda *_: None)
        return shard_bytes(value)


def test_changed_shards_take_no_more_than_their_bytes_warrant() -> None:
    rng = random.Random(4)
    plain = [hostile(value) for value in (sparse(20_000), sparse(3_000, longest=2_900), samples.shard(400))]
    for _ in range(400):
        changed = bytearray(rng.choice(plain))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(464 if rng.random() < 0.8 else len(changed))
            changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        data = resealed(changed)
        peak, _ = taken(lambda data=data: shard.decode(data))
        assert peak <= ALWAYS + A_BYTE * len(data)
