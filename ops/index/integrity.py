"""Whether the file of an index version is what its routing blob says: all of it, or a sample."""

import hashlib
from dataclasses import dataclass

from pyiceberg.table import Table

from ops.catalog.versions import DerivedVersion, tag_target, versions
from ops.index.versions import OpenVersion
from ops.model import StorageConfig
from ops.storage import PartSource, StorageError, normalize, open_storage
from puffin import PuffinReader
from puffin.blobs import centroid, routing, shard
from puffin.blobs.shard import ShardReader
from puffin.errors import ChecksumError, PuffinError
from puffin.types import CENTROID_V1, ROUTING_V1, SHARD_V1

ONE_IN = 16
"""Shards that a refresh copies unread, of which it checks one: 1 to 3 % of what copying them takes"""


@dataclass(frozen=True, slots=True)
class Integrity:
    """What the check read, and every fault that it found."""

    path: str
    bytes_read: int
    shards: int
    faults: tuple[str, ...]


def tagged_version(table: Table, index: str) -> DerivedVersion | None:
    """The version that tag `ann_<index>` points at."""
    target = tag_target(table, f"ann_{index}")
    return next((v for v in versions(table, "ann", index) if v.derived_snapshot_id == target), None)


def remedy(table: str, index: str, version: DerivedVersion) -> str:
    """What to do where it has faults."""
    command = f"icepuffin refresh {table} --index {index} --snapshot {version.base_snapshot_id} --verify"
    return f"make it anew with: {command}"


def check_integrity(version: DerivedVersion, storage: StorageConfig) -> Integrity:
    """Read the file, compare each shard with its checksum, decode and validate it. One shard in memory at a time.

    Where the checksum of a whole shard is not known, decoding compares those of its sections.
    """
    faults: list[str] = []
    read = shards = 0
    try:
        reader = PuffinReader(open_storage(version.puffin_path, storage).source(version.puffin_path))
        blobs = reader.footer.blobs
        known = routing.decode(reader.read_blob(next(blob for blob in blobs if blob.type == ROUTING_V1)))
        for blob in (blob for blob in blobs if blob.type == CENTROID_V1):
            centroid.decode(reader.read_blob(blob))
        shard_blobs = [blob for blob in blobs if blob.type == SHARD_V1]
        if len(shard_blobs) != len(known.shards):
            faults.append(f"{len(shard_blobs)} shard blobs, but the routing blob names {len(known.shards)}")
        if known.base_snapshot_id != version.base_snapshot_id:
            faults.append(f"made for snapshot {known.base_snapshot_id}, bound to {version.base_snapshot_id}")
        for number, (blob, entry) in enumerate(zip(shard_blobs, known.shards, strict=False)):
            data = reader.read_blob(blob)
            read += len(data)
            shards += 1
            if fault := _fault(data, entry):
                faults.append(f"shard {number} at {blob.offset}: {fault}")
    except (PuffinError, StorageError) as error:
        faults.append(f"{type(error).__name__}: {error}")
    except StopIteration:
        faults.append("no routing blob")
    return Integrity(version.puffin_path, read, shards, tuple(faults))


def _fault(data: bytes, entry: routing.ShardEntry) -> str:
    """What is wrong with a shard; empty where nothing is."""
    if entry.sha256 != routing.UNKNOWN_SHA256 and hashlib.sha256(data).digest() != entry.sha256:
        return "the bytes are not those that were published"
    try:
        count = shard.decode(data).count
    except PuffinError as error:
        return str(error)
    return "" if count == entry.count else "the node count is not the routing blob's"


def spot_check(base: OpenVersion, build_id: str, storage: StorageConfig) -> None:
    """Compare the sections of a shard with their checksums before a refresh copies it: one that chance, `build_id`,
    takes out of ONE_IN or of as many as there are. What rots on a disk is thus found some refreshes later, and not
    handed on for ever. Object stores look after that themselves, and reading from them is not free.

    Raises ChecksumError, StorageError.
    """
    number = int(build_id, 16) % max(ONE_IN, len(base.shards))
    if number >= len(base.shards) or not normalize(base.shards[number].path).startswith("file:"):
        return
    part = base.shards[number]
    try:
        ShardReader(PartSource(open_storage(part.path, storage), part)).check()
    except PuffinError as error:
        raise ChecksumError(f"{part.path}, shard {number}: {error}; `icepuffin refresh --verify` mends it") from error
