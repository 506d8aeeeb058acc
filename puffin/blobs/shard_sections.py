"""Sections of a shard blob: their table entries, and zstd in frames that can be read one by one.

Framed section: u32 number of frames, u32 raw bytes per frame (the last may be shorter), u32 stored length of each,
then the frames.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import zstandard

from icepuffin.puffin.codec import decompress
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.transient import transient

FRAME_BYTES = 1 << 20
_LEVEL = 1
_ENTRY = struct.Struct("<IIQQQI12x")


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """One row of the section table, 48 bytes."""

    kind: int
    framed: bool
    """Whether the section is stored as zstd frames, and not as raw bytes."""
    offset: int
    """Bytes from the start of the blob."""
    stored_length: int
    raw_length: int
    checksum: int
    """CRC-32 of the stored bytes."""

    SIZE: ClassVar[int] = _ENTRY.size

    def to_bytes(self) -> bytes:
        return _ENTRY.pack(self.kind, int(self.framed), self.offset, self.stored_length, self.raw_length, self.checksum)

    @classmethod
    def from_bytes(cls, table: bytes, number: int) -> "SectionEntry":
        kind, codec, offset, stored, raw, checksum = _ENTRY.unpack_from(table, number * _ENTRY.size)
        if codec > 1:
            raise BadBlobError(f"shard blob: section {kind} has unknown codec {codec}")
        if not codec and stored != raw:
            raise BadBlobError(f"shard blob: section {kind} is stored raw in {stored} bytes but declares {raw}")
        return cls(kind, bool(codec), offset, stored, raw, checksum)


def compress_frames(raw: npt.NDArray[np.uint8]) -> bytes:
    """Compress `raw` u8 into frames."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    view = np.ascontiguousarray(raw).data
    frames = [compressor.compress(view[at : at + FRAME_BYTES]) for at in range(0, len(view), FRAME_BYTES)]
    head = struct.pack(f"<II{len(frames)}I", len(frames), FRAME_BYTES, *map(len, frames))
    return b"".join((head, *frames))


def decompress_frames(stored: bytes | memoryview, raw_length: int, what: str) -> npt.NDArray[np.uint8]:
    """Inverse of `compress_frames`, u8[raw_length]. Raises BadBlobError or BadCompressionError."""
    if len(stored) < 8:
        raise BadBlobError(f"{what}: {len(stored)} bytes hold no frame table")
    count, frame_bytes = struct.unpack_from("<II", stored)
    offset = 8 + 4 * count
    if not frame_bytes or count != -(-raw_length // frame_bytes) or offset > len(stored):
        raise BadBlobError(f"{what}: {count} frames of {frame_bytes} bytes do not make {raw_length}")
    lengths = np.frombuffer(stored, "<u4", count, 8)
    if (end := offset + int(lengths.sum(dtype=np.uint64))) != len(stored):
        raise BadBlobError(f"{what}: frames end at {end} of {len(stored)} bytes")
    out = transient(raw_length)
    for number in range(count):
        length = int(lengths[number])
        expected = min(frame_bytes, raw_length - number * frame_bytes)
        frame = decompress(
            bytes(stored[offset : offset + length]), "zstd", where=f"{what}, frame {number}", max_bytes=expected
        )
        if len(frame) != expected:
            raise BadBlobError(f"{what}: frame {number} holds {len(frame)} bytes, not {expected}")
        start = number * frame_bytes
        out[start : start + expected] = np.frombuffer(frame, np.uint8)
        offset += length
    out.flags.writeable = False  # as what is read from bytes: kernels are compiled for the one kind
    return out
