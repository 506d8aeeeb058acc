"""The image of a sketch of frequent texts: that of Apache DataSketches' `ItemsSketch` of strings.

Little-endian: u8 preamble longs, u8 serial version 1, u8 family 10, u8 log2 of the largest table, u8 log2 of this one,
u8 flags (5: empty), u16 0; then, unless it is empty (1 preamble long, not 4), u32 items, u32 0, i64 number of values,
i64 offset, the i64 lower bounds of the items, and per item i32 length and UTF-8. Source: `PreambleUtil` of
datasketches-java's package `frequencies`.

Written: readable by DataSketches. Read: images of this table size, of any writer.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from icepuffin.puffin.errors import BadBlobError

LG_TABLE = 9
CAPACITY = 3 * 2**LG_TABLE // 4
"""Items of a sketch, at most"""

_VERSION, _FAMILY, _EMPTY = 1, 10, 5
_MIN_LG = 3


@dataclass(frozen=True, slots=True)
class FrequentItems:
    """What a sketch of frequent texts keeps of a column."""

    total: int
    """Number of values"""
    offset: int
    """Most that a text's count is above its lower bound; a text that is not kept has at most so many"""
    lower_bounds: Mapping[str, int]
    """Least count of each text that is kept"""


def encode(items: FrequentItems) -> bytes:
    """The image of a sketch. The order of the texts is kept."""
    count = len(items.lower_bounds)
    lg_table = max(_MIN_LG, (-(-4 * count // 3) - 1).bit_length())
    if items.total == 0:
        return struct.pack("<BBBBBBH", 1, _VERSION, _FAMILY, LG_TABLE, lg_table, _EMPTY, 0)
    head = struct.pack(
        "<BBBBBBHIIqq", 4, _VERSION, _FAMILY, LG_TABLE, lg_table, 0, 0, count, 0, items.total, items.offset
    )
    texts = [text.encode() for text in items.lower_bounds]
    counts = struct.pack(f"<{count}q", *items.lower_bounds.values())
    return head + counts + b"".join(struct.pack("<i", len(text)) + text for text in texts)


def decode(image: bytes | bytearray | memoryview) -> FrequentItems:
    """Read an image. Raises BadBlobError on anything else, hostile bytes included."""
    data = memoryview(image).cast("B")
    if len(data) < 8:
        raise BadBlobError(f"a sketch of frequent texts has at least 8 bytes, these are {len(data)}")
    longs, version, family, lg_most, _, flags, _ = struct.unpack_from("<BBBBBBH", data)
    if (version, family, lg_most) != (_VERSION, _FAMILY, LG_TABLE):
        raise BadBlobError(
            f"bytes 1-3: serial version {version}, family {family}, table 2^{lg_most} are not read, only"
            f" {_VERSION}, {_FAMILY}, 2^{LG_TABLE}"
        )
    if longs == 1 and flags & _EMPTY and len(data) == 8:
        return FrequentItems(0, 0, {})
    if longs != 4 or flags & _EMPTY or len(data) < 32:
        raise BadBlobError(f"bytes 0 and 5: {longs} preamble longs, flags {flags:#x} in {len(data)} bytes")
    count, _, total, offset = struct.unpack_from("<IIqq", data, 8)
    if count > CAPACITY or len(data) < 32 + 12 * count:
        raise BadBlobError(f"byte 8: {count} items in {len(data)} bytes; there are {CAPACITY} at most")
    bounds = struct.unpack_from(f"<{count}q", data, 32)
    if offset < 0 or total < 1 or min(bounds, default=1) < 1 or sum(bounds) > total - offset:
        raise BadBlobError(f"bytes 16-31: {total} values, offset {offset} do not fit the items' bounds")
    texts = _texts(data, 32 + 8 * count, count)
    if len(set(texts)) != count:
        raise BadBlobError("a text is there twice")
    return FrequentItems(total, offset, dict(zip(texts, bounds, strict=True)))


def _texts(data: memoryview, start: int, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        (length,) = struct.unpack_from("<i", data, start) if start + 4 <= len(data) else (-1,)
        end = start + 4 + length
        if length < 0 or end > len(data):
            raise BadBlobError(f"byte {start}: a text of {length} bytes in {len(data)} bytes")
        try:
            texts.append(str(data[start + 4 : end], "utf-8"))
        except UnicodeDecodeError as error:
            raise BadBlobError(f"byte {start + 4}: {error}") from error
        start = end
    if start != len(data):
        raise BadBlobError(f"{len(data) - start} bytes are left over from byte {start} on")
    return texts
