"""Blob `icepuffin-ann-addresses-v1` (`ANNL`): where the rows of a shard lie, in place of what its own blob says.

A version whose rows have merely moved to other files names the old shard blob, and has this one beside it. Header:
magic `ANNL`, u32 version, nodes N, CRC-32 of the whole blob with this field 0, u64 raw bytes of the locations. Then
the locations, in zstd frames, as a shard blob has them. `docs/formats.md` is the normative text.
"""

import struct
import zlib

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs.formats import require_format
from icepuffin.puffin.blobs.shard_header import most_location_bytes
from icepuffin.puffin.blobs.shard_sections import compress_frames, decompress_frames
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from icepuffin.puffin.varint import decode_signed, encode_signed

MAGIC = b"ANNL"
VERSION = 1
_HEADER = struct.Struct("<4sIIIQ")
_CHECKSUM_AT = 12

Addresses = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""(file slots u32[N], row positions int64[N]) of the nodes"""


def encode(slots: npt.NDArray[np.uint32], rows: npt.NDArray[np.int64]) -> bytes:
    """The blob of nodes that lie in these file slots, u32[N], at these row positions, int64[N]."""
    raw = encode_locations(slots, rows)
    frames = compress_frames(raw)
    checksum = zlib.crc32(frames, zlib.crc32(_HEADER.pack(MAGIC, VERSION, len(slots), 0, len(raw))))
    return _HEADER.pack(MAGIC, VERSION, len(slots), checksum, len(raw)) + frames


def decode(data: bytes, count: int) -> Addresses:
    """Parse and check. `count`: nodes of the shard that it is for. Raises BadBlobError, ChecksumError."""
    if len(data) < _HEADER.size:
        raise BadBlobError(f"addresses blob of {len(data)} bytes has no header")
    magic, version, nodes, checksum, raw_length = _HEADER.unpack_from(data)
    require_format("addresses blob", (magic, version), (MAGIC, VERSION))
    frames = memoryview(data)[_HEADER.size :]
    unsealed = data[:_CHECKSUM_AT] + bytes(4) + data[_CHECKSUM_AT + 4 : _HEADER.size]
    if (computed := zlib.crc32(frames, zlib.crc32(unsealed))) != checksum:
        raise ChecksumError(f"addresses blob has CRC-32 {computed:08x}, {checksum:08x} is stored")
    if nodes != count:
        raise BadBlobError(f"addresses blob has {nodes:,} nodes, its shard {count:,}")
    if raw_length > most_location_bytes(nodes):
        raise BadBlobError(f"addresses blob declares {raw_length:,} bytes for {nodes:,} nodes")
    return decode_locations(decompress_frames(frames, raw_length, "addresses blob"), nodes)


def encode_locations(slots: npt.NDArray[np.uint32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Locations u8, not compressed: u64 length of the file slots; the slots, then the row positions."""
    of_slots, of_rows = encode_signed(slots.astype(np.int64)), encode_signed(rows)
    head = np.frombuffer(struct.pack("<Q", len(of_slots)), np.uint8)
    return np.concatenate([head, of_slots, of_rows])


def decode_locations(raw: npt.NDArray[np.uint8], count: int) -> Addresses:
    """Inverse of `encode_locations` for so many nodes. Raises BadBlobError."""
    split = int(raw[:8].view("<u8")[0]) if len(raw) >= 8 else 0
    if 8 + split > len(raw):
        raise BadBlobError("shard blob: the location map is cut off")
    slots = decode_signed(raw[8 : 8 + split], count, "shard blob: file slots")
    rows = decode_signed(raw[8 + split :], count, "shard blob: row positions")
    if len(slots) and (slots.min() < 0 or slots.max() >= 2**32 or rows.min() < 0):
        raise BadBlobError("shard blob: a file slot or a row position is out of range")
    return slots.astype(np.uint32), rows
