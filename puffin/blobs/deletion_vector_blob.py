"""Blob `deletion-vector-v1`: a set of row positions, framed and checked.

u32 BE length of what follows up to the checksum; magic D1 D3 39 64; a 64-bit Roaring bitmap: u64 LE number of 32-bit
bitmaps, and for each, ascending, its u32 LE key (high half of the positions) and a portable 32-bit Roaring bitmap;
u32 BE CRC-32 of magic and bitmap. Source: Puffin spec, "deletion-vector-v1 blob type"; RoaringFormatSpec.

The tombstones of an index use the same framing: one codec for both.
"""

import struct
import zlib
from array import array

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from icepuffin.puffin.blobs.roaring import MAX_POSITIONS, decode_roaring64
from icepuffin.puffin.errors import BadBlobError, ChecksumError

MAGIC = b"\xd1\xd3\x39\x64"
_POSITION_END = np.uint64((2**31 - 1) << 32)


def encode(positions: npt.NDArray[np.int64]) -> bytes:
    """Frame ascending or unordered positions (0 <= position < 2^63; repeats count once)."""
    values = np.asarray(positions, dtype=np.int64)
    if not (values[1:] > values[:-1]).all():
        values = np.unique(values)
    if len(values) and values[0] < 0:
        raise BadBlobError(f"position {values[0]} is negative")
    body = MAGIC + encode_roaring64(values.view(np.uint64))
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(data: bytes, *, max_positions: int = MAX_POSITIONS) -> npt.NDArray[np.int64]:
    """Positions, int64, ascending. Raises BadBlobError (also for more than `max_positions`) or ChecksumError."""
    if len(data) < 12:
        raise BadBlobError(f"a deletion vector has at least 12 bytes, this one {len(data)}")
    (length,) = struct.unpack_from(">I", data)
    if length != len(data) - 8:
        raise BadBlobError(f"deletion vector of {len(data)} bytes declares {length} of magic and bitmap")
    body = data[4:-4]
    if body[:4] != MAGIC:
        raise BadBlobError(f"deletion vector starts with {body[:4].hex()}, not with {MAGIC.hex()}")
    (checksum,) = struct.unpack(">I", data[-4:])
    if zlib.crc32(body) != checksum:
        raise ChecksumError(f"deletion vector has CRC-32 {zlib.crc32(body):08x}, {checksum:08x} is stored")
    positions = decode_roaring64(body[4:], max_values=max_positions)
    if len(positions) and positions[-1] >= _POSITION_END:
        raise BadBlobError(f"position {positions[-1]} is over the largest that Iceberg allows")
    return positions.view(np.int64)


def encode_roaring64(values: npt.NDArray[np.uint64]) -> bytes:
    """Portable 64-bit Roaring of distinct ascending values."""
    bitmap = BitMap64(array("Q", values.tobytes()))  # of an array it is made without a Python number a value
    bitmap.run_optimize()
    return bytes(bitmap.serialize())
