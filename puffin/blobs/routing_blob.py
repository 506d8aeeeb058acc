"""Blob `flockdb-ann-routing-v1` (`ANNR`): the map of an index version. Read by every search, so kept small (zstd).

Header: magic `ANNR`, u32 version, dims D, partitions k, shards s, files f, i64 base snapshot id, u32 feature bits,
u32 CRC-32 of the whole blob with this field 0. Then: build id and definition (u32 length, UTF-8 each); codebook
f32[k][D]; u32[k], the shard of each partition;
per shard u32 count, u32 live, u32 medoid, f32 recall, u64 length, 32 bytes sha256, u32 length and a deletion-vector
frame of tombstoned nodes; u32 pack, u64 offset; u64 length and 32 bytes sha256 of an addresses blob; u32 number of
runs, and of each u32 pack, u64 offset, u64 length, u32 vectors, 32 bytes sha256;
per file u8 present, u64 rows, u64 live rows, 32 bytes delete fingerprint, path.
"""

import struct
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.blobs.cursor import Cursor, packed_text
from icepuffin.puffin.blobs.formats import COMMON, require_features, require_format
from icepuffin.puffin.errors import BadBlobError, ChecksumError

MAGIC = b"ANNR"
VERSION = 6
_HEADER = struct.Struct("<4s5IqII")
_RUN = struct.Struct("<IQQI32s")
_ALWAYS_ALLOWED = 16 << 20
"""Bytes of tombstones"""


@dataclass(frozen=True, slots=True)
class AddressesEntry:
    """What the blob says of the addresses blob of a shard."""

    length: int
    """Bytes of the addresses blob"""
    sha256: bytes


@dataclass(frozen=True, slots=True)
class VectorRun:
    """Vectors of nodes that follow each other, in one piece of a file."""

    pack: int
    """Number of the pack that they lie in, from 1; 0: the version's own file"""
    offset: int
    """Bytes of that file before them"""
    length: int
    """Bytes of the vectors"""
    count: int
    """Number of vectors"""
    sha256: bytes
    """sha256 of their bytes"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardEntry:
    """What the blob says of one shard."""

    count: int
    """Nodes, tombstones included."""
    live_rows: int
    medoid: int
    recall: float
    """recall@10 of this shard alone, measured when it was last written; NaN where it has no live rows."""
    length: int
    """Bytes of the shard blob."""
    sha256: bytes
    """sha256 of the shard blob"""
    tombstones: npt.NDArray[np.int64]
    """Node ids, ascending."""
    pack: int = 0
    """Number of the pack that the shard lies in, from 1; 0: it lies in the version's own file."""
    offset: int = 0
    """Bytes before the shard in its pack; 0 in the version's own file, whose footer tells."""
    addresses: AddressesEntry | None = None
    """Addresses blob in the version's own file, in place of the shard's own locations; None where those hold"""
    runs: tuple[VectorRun, ...] = ()
    """Vectors of the nodes, in order, where they lie apart from the shard blob; else empty"""

    @property
    def bytes_by_pack(self) -> dict[int, int]:
        """Bytes of the shard and of its vectors in each pack, and in the version's own file under 0."""
        size = Counter({self.pack: self.length})
        for run in self.runs:
            size[run.pack] += run.length
        return dict(size)

    @property
    def all_bytes(self) -> int:
        """Bytes of the shard and of its vectors, wherever they lie."""
        return self.length + sum(run.length for run in self.runs)

    @property
    def tombstone_ratio(self) -> float:
        return len(self.tombstones) / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class CoveredFile:
    """One slot of the file table. Slots keep their number across refreshes, so that shards need not be rewritten; one
    that no node lies in any more is free, for another file in a later version.
    """

    path: str
    """Path of the data file, relative to the table's location where it lies under it."""
    rows: int
    live_rows: int
    delete_fingerprint: bytes
    """32 bytes that tell one set of deletes from another; zeros for none."""
    present: bool
    """Whether the file is live in the base snapshot; else only tombstones still point at the slot."""


_NO_ADDRESSES = AddressesEntry(0, bytes(32))
NO_DELETES = bytes(32)
FREE_SLOT = CoveredFile("", 0, 0, NO_DELETES, present=False)


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Everything about an index version but the shards themselves."""

    base_snapshot_id: int
    build_id: str
    definition: str
    """The index definition, JSON."""
    codebook: npt.NDArray[np.float32]
    """f32[k, dims]"""
    partition_to_shard: npt.NDArray[np.uint32]
    """u32[k]"""
    shards: tuple[ShardEntry, ...]
    files: tuple[CoveredFile, ...]

    @property
    def packs(self) -> int:
        """Highest number of a pack; 0 where all shards and vectors lie in the version's own file."""
        return max((number for shard in self.shards for number in shard.bytes_by_pack), default=0)

    @property
    def routed_shards(self) -> int:
        """Number of shards that the codebook routes to; the shards after them are deltas: rows that came since."""
        return int(self.partition_to_shard.max()) + 1 if len(self.partition_to_shard) else len(self.shards)

    @property
    def dims(self) -> int:
        return int(self.codebook.shape[1])


def encode(routing: Routing) -> bytes:
    """Serialise; the caller stores it with codec zstd."""
    parts = [packed_text(routing.build_id), packed_text(routing.definition)]
    parts.append(np.ascontiguousarray(routing.codebook, "<f4").tobytes())
    parts.append(np.ascontiguousarray(routing.partition_to_shard, "<u4").tobytes())
    for shard in routing.shards:
        bitmap = deletion_vector_blob.encode(shard.tombstones)
        parts.append(struct.pack("<IIIfQ32s", *_shard_numbers(shard), shard.sha256))
        parts += [struct.pack("<I", len(bitmap)), bitmap]
        addresses = shard.addresses or _NO_ADDRESSES
        parts.append(
            struct.pack("<IQQ32sI", shard.pack, shard.offset, addresses.length, addresses.sha256, len(shard.runs))
        )
        parts += [_RUN.pack(run.pack, run.offset, run.length, run.count, run.sha256) for run in shard.runs]
    for file in routing.files:
        parts.append(struct.pack("<BQQ32s", file.present, file.rows, file.live_rows, file.delete_fingerprint))
        parts.append(packed_text(file.path))
    body = b"".join(parts)
    partitions, dims = routing.codebook.shape
    numbers = dims, partitions, len(routing.shards), len(routing.files), routing.base_snapshot_id, COMMON
    checksum = zlib.crc32(body, zlib.crc32(_HEADER.pack(MAGIC, VERSION, *numbers, 0)))
    return _HEADER.pack(MAGIC, VERSION, *numbers, checksum) + body


def _shard_numbers(shard: ShardEntry) -> tuple[int, int, int, float, int]:
    return shard.count, shard.live_rows, shard.medoid, shard.recall, shard.length


def decode(data: bytes, *, file_size: int | None = None) -> Routing:
    """Parse and check. Raises BadBlobError or ChecksumError.

    `file_size`: of the file that the blob lies in, and of its packs. The shards have no more nodes than an eighth of
    that, so neither have they more tombstones; where it is not known, no more than the blob's own bytes warrant.
    """
    if len(data) < _HEADER.size:
        raise BadBlobError(f"routing blob of {len(data)} bytes has no header")
    magic, version, dims, partitions, shards, files, base, features, checksum = _HEADER.unpack_from(data)
    require_format("routing blob", (magic, version), (MAGIC, VERSION))
    body = data[_HEADER.size :]
    if (computed := zlib.crc32(body, zlib.crc32(data[: _HEADER.size - 4] + bytes(4)))) != checksum:
        raise ChecksumError(f"routing blob has CRC-32 {computed:08x}, {checksum:08x} is stored")
    require_features("routing blob", features, COMMON)
    cursor = Cursor(body, "routing blob")
    build_id, definition = cursor.text("build id"), cursor.text("definition")
    allowed_bytes = _ALWAYS_ALLOWED + 2 * len(data) if file_size is None else file_size
    codebook = cursor.array("<f4", partitions * dims, "codebook").reshape(partitions, dims)
    to_shard = cursor.array("<u4", partitions, "partition table")
    routing = Routing(
        base_snapshot_id=base,
        build_id=build_id,
        definition=definition,
        codebook=codebook,
        partition_to_shard=to_shard,
        shards=_decode_shards(cursor, shards, allowed_bytes // 8),
        files=tuple(_decode_file(cursor, number) for number in range(files)),
    )
    cursor.finish()
    if partitions and int(to_shard.max()) >= shards:
        raise BadBlobError(f"routing blob: a partition goes to shard {int(to_shard.max())}, there are {shards}")
    if not np.isfinite(codebook).all():
        raise BadBlobError("routing blob: the codebook is not finite")
    return routing


def _decode_shards(cursor: Cursor, count: int, max_tombstones: int) -> tuple[ShardEntry, ...]:
    """Shard table; at most `max_tombstones` in all shards together: four bytes of a bitmap may stand for 65,536."""
    shards: list[ShardEntry] = []
    for number in range(count):
        shards.append(_decode_shard(cursor, number, max_tombstones))
        max_tombstones -= len(shards[-1].tombstones)
    return tuple(shards)


def _decode_shard(cursor: Cursor, number: int, max_tombstones: int) -> ShardEntry:
    part = f"shard {number}"
    count, live_rows, medoid, recall, length, sha256, size = cursor.unpack("IIIfQ32sI", part)
    tombstones = deletion_vector_blob.decode(bytes(cursor.take(size, part)), max_positions=max_tombstones)
    if len(tombstones) + live_rows != count or (len(tombstones) and tombstones[-1] >= count):
        raise BadBlobError(f"routing blob: {part} has {count} nodes, {live_rows} live and {len(tombstones)} tombstones")
    if count and medoid >= count:
        raise BadBlobError(f"routing blob: {part} has medoid {medoid} of {count} nodes")
    pack, offset = cursor.unpack("IQ", part)
    if offset and not pack:
        raise BadBlobError(f"routing blob: {part} lies in no pack and has offset {offset}")
    moved = AddressesEntry(*cursor.unpack("Q32s", part))
    if not moved.length and moved != _NO_ADDRESSES:
        raise BadBlobError(f"routing blob: {part} has a sha256 of no addresses")
    addresses = moved if moved.length else None
    runs = _decode_runs(cursor, part, count)
    return ShardEntry(count, live_rows, medoid, recall, length, sha256, tombstones, pack, offset, addresses, runs)


def _decode_runs(cursor: Cursor, part: str, count: int) -> tuple[VectorRun, ...]:
    number = cursor.unpack("I", part)[0]
    runs = tuple(VectorRun(*_RUN.unpack(bytes(cursor.take(_RUN.size, part)))) for _ in range(number))
    vectors = sum(run.count for run in runs)
    if runs and (vectors != count or not all(run.count for run in runs)):
        empty = sum(not run.count for run in runs)
        raise BadBlobError(
            f"routing blob: {part} has {count} nodes, and {number} runs of {vectors} vectors, {empty} without any"
        )
    if any(run.length * runs[0].count != run.count * runs[0].length for run in runs):
        raise BadBlobError(f"routing blob: {part} has runs whose vectors are not equally long")
    locations = sorted((run.pack, run.offset, run.length) for run in runs)
    if any(
        pack == other and offset + length > start for (pack, offset, length), (other, start, _) in pairwise(locations)
    ):
        raise BadBlobError(f"routing blob: {part} has runs that overlap")
    return runs


def _decode_file(cursor: Cursor, number: int) -> CoveredFile:
    part = f"file {number}"
    present, rows, live_rows, fingerprint = cursor.unpack("BQQ32s", part)
    if present > 1 or live_rows > rows:
        raise BadBlobError(f"routing blob: {part} has {live_rows} live rows of {rows}")
    fingerprint = NO_DELETES if fingerprint == NO_DELETES else fingerprint  # most are equal: one object serves
    return CoveredFile(cursor.text(part), rows, live_rows, fingerprint, bool(present))
