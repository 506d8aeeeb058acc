"""Blob `apache-datasketches-theta-v1`: the compact, ordered image of a theta sketch.

Little-endian: u8 preamble longs, u8 serial version 3, u8 family 3 (compact), u8 0, u8 0, u8 flags, u16 seed hash;
then, but for an empty sketch and one of a single exact hash, u32 count and f32 1.0; then, when estimating, u64 theta;
then the hashes, u64 ascending. Source: Puffin spec, "apache-datasketches-theta-v1 blob type"; datasketches-java's
PreambleUtil.

Written: byte for byte what Java writes for the same hashes. Read: serial version 3 of Java, C++ (Python, Bodo), Trino,
compact or not, ordered or not. Serial version 4 (bit-packed hashes) and versions before 3 are refused by name.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.errors import BadBlobError

MAX_THETA = 2**63 - 1
SEED_HASH = 0x93CC
"""First 16 bits of the hash of seed 9001: sketches of other seeds do not unite with these."""

_FAMILIES = {1: "alpha", 2: "quick-select", 3: "compact"}
_BIG_ENDIAN, _READ_ONLY, _EMPTY, _COMPACT, _ORDERED, _SINGLE = 1, 2, 4, 8, 16, 32
_FLAGS = _READ_ONLY | _COMPACT | _ORDERED


class ThetaImageError(BadBlobError):
    """Raised when bytes are no theta sketch that this reader takes; the message says which byte."""


@dataclass(frozen=True, slots=True, eq=False)
class ThetaSketch:
    """What a theta sketch keeps of a column."""

    theta: int
    """All hashes below it were kept; `MAX_THETA` when nothing was dropped."""
    hashes: npt.NDArray[np.uint64]
    """u64, ascending, distinct, each in 1 .. theta - 1."""

    def __post_init__(self) -> None:
        if not 0 < self.theta <= MAX_THETA:
            raise ThetaImageError(f"theta {self.theta} is not in 1 .. 2^63 - 1")
        if self.hashes.ndim != 1 or self.hashes.dtype != np.uint64:
            raise ThetaImageError(f"hashes are u64[N], not {self.hashes.dtype}{list(self.hashes.shape)}")
        if len(self.hashes) and (int(self.hashes[0]) == 0 or int(self.hashes[-1]) >= self.theta):
            raise ThetaImageError(f"a hash is 0 or not below theta {self.theta}")
        if bool(np.any(self.hashes[1:] <= self.hashes[:-1])):
            raise ThetaImageError("hashes do not ascend")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ThetaSketch):
            return NotImplemented
        return self.theta == other.theta and np.array_equal(self.hashes, other.hashes)

    __hash__ = None  # type: ignore[assignment]

    @property
    def exact(self) -> bool:
        return self.theta == MAX_THETA


def encode(sketch: ThetaSketch) -> bytes:
    """The image of a sketch, as Java's `CompactSketch.toByteArray` gives it."""
    count = len(sketch.hashes)
    if sketch.exact and count == 0:
        return struct.pack("<BBBBBBH", 1, 3, 3, 0, 0, _FLAGS | _EMPTY, 0)
    hashes = sketch.hashes.astype("<u8", copy=False).tobytes()
    if sketch.exact and count == 1:
        return struct.pack("<BBBBBBH", 1, 3, 3, 0, 0, _FLAGS | _SINGLE, SEED_HASH) + hashes
    head = struct.pack("<BBBBBBHIf", 2 if sketch.exact else 3, 3, 3, 0, 0, _FLAGS, SEED_HASH, count, 1.0)
    return head + (b"" if sketch.exact else struct.pack("<Q", sketch.theta)) + hashes


def decode(image: bytes | bytearray | memoryview) -> ThetaSketch:
    """Read an image of a sketch with seed 9001. Raises ThetaImageError on anything else, hostile bytes included."""
    data = memoryview(image).cast("B")
    if len(data) < 8:
        raise ThetaImageError(f"a theta sketch has at least 8 bytes, these are {len(data)}")
    preamble, version, family, _, lg_table, flags, seed_hash = struct.unpack_from("<BBBBBBH", data)
    longs = preamble & 0x3F  # the upper bits are the resize factor of an updatable sketch
    if version != 3:
        format_name = {4: " (bit-packed hashes)", 1: "", 2: ""}.get(version, ", not a theta sketch")
        raise ThetaImageError(f"byte 1: serial version {version}{format_name} is not read, only 3")
    if family not in _FAMILIES:
        raise ThetaImageError(f"byte 2: family {family} is no theta sketch ({_FAMILIES})")
    if flags & _BIG_ENDIAN:
        raise ThetaImageError("byte 5: a big-endian image")
    if longs not in (1, 2, 3) or 8 * longs > len(data):
        raise ThetaImageError(f"byte 0: {longs} preamble longs in {len(data)} bytes")
    if flags & _EMPTY:
        return ThetaSketch(MAX_THETA, np.empty(0, np.uint64))
    if seed_hash != SEED_HASH:
        raise ThetaImageError(f"bytes 6-7: seed hash {seed_hash:#06x}, not {SEED_HASH:#06x} (seed 9001)")
    count = 1 if longs == 1 else struct.unpack_from("<I", data, 8)[0]
    theta = struct.unpack_from("<Q", data, 16)[0] if longs == 3 else MAX_THETA
    if family == 3:
        return ThetaSketch(theta, _compact_hashes(data, 8 * longs, count, ordered=bool(flags & _ORDERED)))
    return ThetaSketch(theta, _table_hashes(data, 8 * longs, count, lg_table, theta))


def _compact_hashes(data: memoryview, start: int, count: int, *, ordered: bool) -> npt.NDArray[np.uint64]:
    if len(data) != start + 8 * count:
        raise ThetaImageError(
            f"{count} hashes from byte {start} on need {start + 8 * count} bytes, these are {len(data)}"
        )
    hashes = np.frombuffer(data, "<u8", count, start).astype(np.uint64)
    return hashes if ordered else np.sort(hashes)


def _table_hashes(data: memoryview, start: int, count: int, lg_table: int, theta: int) -> npt.NDArray[np.uint64]:
    """The hashes of an updatable sketch, which is stored as its hash table: empty slots are 0."""
    if lg_table > 26 or len(data) != start + (8 << lg_table):
        raise ThetaImageError(f"byte 4: a table of 2^{lg_table} hashes does not fit {len(data)} bytes")
    table = np.frombuffer(data, "<u8", 1 << lg_table, start).astype(np.uint64)
    hashes = np.sort(table[(table != 0) & (table < theta)])
    if len(hashes) != count:
        raise ThetaImageError(f"bytes 8-11: {count} hashes are promised, the table holds {len(hashes)}")
    return hashes
