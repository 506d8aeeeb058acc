"""Blob `deletion-vector-v1`: a set of row positions, framed and checked.

u32 BE length of what follows up to the checksum; magic D1 D3 39 64; a 64-bit Roaring bitmap: u64 LE number of 32-bit
bitmaps, and for each, ascending, its u32 LE key (high half of the positions) and a portable 32-bit Roaring bitmap;
u32 BE CRC-32 of magic and bitmap. Source: Puffin spec, "deletion-vector-v1 blob type"; RoaringFormatSpec.

The tombstones of an index use the same framing: one codec for both.
"""

import struct
import zlib

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from puffin.errors import BadBlobError, ChecksumError

MAGIC = b"\xd1\xd3\x39\x64"
_POSITION_END = np.uint64((2**31 - 1) << 32)


def encode(positions: npt.NDArray[np.int64]) -> bytes:
    """Frame ascending or unordered positions (0 <= position < 2^63; repeats count once)."""
    values = np.unique(np.asarray(positions, dtype=np.int64))
    if len(values) and values[0] < 0:
        raise BadBlobError(f"position {values[0]} is negative")
    body = MAGIC + encode_roaring64(values.view(np.uint64))
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(data: bytes) -> npt.NDArray[np.int64]:
    """Positions, int64, ascending. Raises BadBlobError or ChecksumError."""
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
    positions = decode_roaring64(body[4:])
    if len(positions) and positions[-1] >= _POSITION_END:
        raise BadBlobError(f"position {positions[-1]} is over the largest that Iceberg allows")
    return positions.view(np.int64)


def encode_roaring64(values: npt.NDArray[np.uint64]) -> bytes:
    """Portable 64-bit Roaring of distinct ascending values."""
    high = values >> np.uint64(32)
    keys, starts = np.unique(high, return_index=True)
    parts = [struct.pack("<Q", len(keys))]
    for key, start, end in zip(keys, starts, [*starts[1:], len(values)][: len(keys)], strict=True):
        bitmap = BitMap((values[start:end] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        bitmap.run_optimize()
        parts += [struct.pack("<I", int(key)), bitmap.serialize()]
    return b"".join(parts)


def decode_roaring64(data: bytes) -> npt.NDArray[np.uint64]:
    """Inverse of `encode_roaring64`; every byte must be used."""
    if len(data) < 8:
        raise BadBlobError(f"64-bit Roaring bitmap of {len(data)} bytes has no count")
    (count,) = struct.unpack_from("<Q", data)
    at, last_key = 8, -1
    parts = [np.empty(0, np.uint64)]
    for number in range(count):
        if at + 4 > len(data):
            raise BadBlobError(f"Roaring bitmap {number} of {count} starts past the end, at byte {at}")
        (key,) = struct.unpack_from("<I", data, at)
        if key <= last_key:
            raise BadBlobError(f"Roaring bitmap {number}: key {key} after {last_key}")
        end = at + 4 + _roaring32_length(data, at + 4, number)
        parts.append(_decode_roaring32(data[at + 4 : end], number) | np.uint64(key << 32))
        at, last_key = end, key
    if at != len(data):
        raise BadBlobError(f"{len(data) - at} bytes follow the last of {count} Roaring bitmaps")
    return np.concatenate(parts)


def _decode_roaring32(data: bytes, number: int) -> npt.NDArray[np.uint64]:
    try:
        bitmap = BitMap.deserialize(data)
    except ValueError as error:
        raise BadBlobError(f"Roaring bitmap {number}: {error}") from error
    low = np.array(bitmap.to_array(), dtype=np.uint64)
    if (low[1:] <= low[:-1]).any():
        raise BadBlobError(f"Roaring bitmap {number}: values are not ascending")
    return low


def _roaring32_length(data: bytes, at: int, number: int) -> int:
    """Stored bytes of the 32-bit bitmap at `at`, from its container headers alone."""
    try:
        length = _walk_containers(memoryview(data)[at:])
    except (struct.error, IndexError) as error:
        raise BadBlobError(f"Roaring bitmap {number} at byte {at} is cut off") from error
    if at + length > len(data):
        raise BadBlobError(f"Roaring bitmap {number} at byte {at} needs {length} bytes, {len(data) - at} are left")
    return length


def _walk_containers(view: memoryview) -> int:
    (cookie,) = struct.unpack_from("<I", view)
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = bytes(view[4 : 4 + (count + 7) // 8])
        at = 4 + len(runs)
        has_offsets = count >= _NO_OFFSET_THRESHOLD
    elif cookie == _COOKIE_PLAIN:
        (count,) = struct.unpack_from("<I", view, 4)
        runs, at, has_offsets = bytes((min(count, _MAX_CONTAINERS) + 7) // 8), 8, True
    else:
        raise BadBlobError(f"Roaring cookie {cookie:#x} is unknown")
    if count > _MAX_CONTAINERS:
        raise BadBlobError(f"a 32-bit Roaring bitmap has at most {_MAX_CONTAINERS} containers, this one {count}")
    cards = [struct.unpack_from("<HH", view, at + 4 * i)[1] + 1 for i in range(count)]
    at += int(8 * count if has_offsets else 4 * count)
    for i, card in enumerate(cards):
        if runs[i // 8] >> (i % 8) & 1:
            at += 2 + 4 * int(struct.unpack_from("<H", view, at)[0])
        else:
            at += 8192 if card > _MAX_ARRAY else 2 * card
    return at


_COOKIE_PLAIN = 12346
_COOKIE_WITH_RUNS = 12347
_NO_OFFSET_THRESHOLD = 4
_MAX_ARRAY = 4096
_MAX_CONTAINERS = 65536
