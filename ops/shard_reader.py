"""Reading a shard of a version: its blob, and the addresses that hold for its nodes. All of it is read through here."""

import hashlib
from functools import partial

from icepuffin.ops.model import StorageConfig, StoredAddresses, StoredShard
from icepuffin.ops.storage import PartSource, open_storage
from icepuffin.puffin.blobs.shard import ShardReader
from icepuffin.puffin.errors import ChecksumError
from icepuffin.puffin.sources import RangeSource


def open_shard(shard: StoredShard, storage: StorageConfig, *, blob: RangeSource | None = None) -> ShardReader:
    """A reader of a shard as its version has it.

    `blob`: the shard's bytes, where they are at hand. Raises StorageError, PuffinError.
    """
    source = PartSource(open_storage(shard.blob.path, storage), shard.blob) if blob is None else blob
    moved = shard.addresses
    return ShardReader(source, read_addresses=None if moved is None else partial(read_addresses, moved, storage))


def read_addresses(addresses: StoredAddresses, storage: StorageConfig) -> bytes:
    """An addresses blob, compared with its sha256. Raises StorageError, ChecksumError."""
    where = addresses.blob
    data = open_storage(where.path, storage).read_range(where.path, where.offset, where.length)
    if hashlib.sha256(data).digest() != addresses.sha256:
        raise ChecksumError(f"{where.path}: the addresses at {where.offset} do not have the sha256 of the routing blob")
    return data
