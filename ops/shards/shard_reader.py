"""Reading a shard of a version: its blob, the addresses that hold for its nodes, vectors that lie apart from it. All
of it is read through here.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import StorageConfig, StoredAddresses, StoredRun, StoredShard
from icepuffin.ops.process.large_arrays import new_array
from icepuffin.ops.storage import PartSource, open_storage
from icepuffin.puffin.blobs.shard_blob import ShardReader
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from icepuffin.puffin.sources import RangeSource


def open_shard(shard: StoredShard, storage: StorageConfig, *, blob: RangeSource | None = None) -> ShardReader:
    """A reader of a shard as its version has it.

    `blob`: the shard's bytes, where they are at hand. Raises StorageError, PuffinError.
    """
    source = PartSource(open_storage(shard.blob.path, storage), shard.blob) if blob is None else blob
    moved = shard.addresses
    return ShardReader(
        source,
        read_addresses=None if moved is None else partial(read_addresses, moved, storage),
        vectors=RunsReader(shard.runs, storage),
    )


def check_shard(shard: StoredShard, storage: StorageConfig) -> None:
    """Compare all sections of a shard, and its vectors, with their checksums; nothing is decoded.

    Raises StorageError, PuffinError.
    """
    open_shard(shard, storage).check()
    for run in shard.runs:
        for _ in read_run(run, storage):
            pass


def read_addresses(addresses: StoredAddresses, storage: StorageConfig) -> bytes:
    """An addresses blob, compared with its sha256. Raises StorageError, ChecksumError."""
    where = addresses.blob
    return checked_addresses(
        addresses, open_storage(where.path, storage).read_range(where.path, where.offset, where.length)
    )


def checked_addresses(addresses: StoredAddresses, data: bytes) -> bytes:
    """The bytes of an addresses blob, compared with its sha256. Raises ChecksumError."""
    where = addresses.blob
    if hashlib.sha256(data).digest() != addresses.sha256:
        raise ChecksumError(f"{where.path}: the addresses at {where.offset} do not have the sha256 of the routing blob")
    return data


def read_run(run: StoredRun, storage: StorageConfig) -> Iterator[bytes]:
    """The vectors of a run, in pieces. Raises StorageError, BadBlobError, and ChecksumError at the end."""
    where, digest = run.location, hashlib.sha256()
    store = open_storage(where.path, storage)
    for start in range(0, where.length, store.piece_bytes):
        length = min(store.piece_bytes, where.length - start)
        part = store.read_range(where.path, where.offset + start, length)
        digest.update(part)
        if len(part) != length:
            raise BadBlobError(f"{where.path}: the vectors at {where.offset} are cut off")
        yield part
    if digest.digest() != run.sha256:
        raise differing_run(run)


def differing_run(run: StoredRun) -> ChecksumError:
    """The error for vectors that are not those of the routing blob."""
    where = run.location
    return ChecksumError(f"{where.path}: the vectors at {where.offset} do not have the sha256 of the routing blob")


@dataclass(frozen=True, slots=True)
class RunsReader:
    """Reader of the vectors that lie apart from a shard's blob."""

    runs: tuple[StoredRun, ...]
    storage: StorageConfig

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors."""
        return sum(run.location.length for run in self.runs)

    def read(self) -> npt.NDArray[np.uint8]:
        """All vectors, compared with their sha256. Raises StorageError, PuffinError."""
        vectors, end = new_array((self.nbytes,), np.uint8), 0
        for run in self.runs:
            for part in read_run(run, self.storage):
                vectors[end : end + len(part)] = np.frombuffer(part, np.uint8)
                end += len(part)
        return vectors
