"""Blobs `icepuffin-ann-attributes-v1` (`ANNA`) and `icepuffin-ann-tokens-v1` (`ANNT`): the values of one column, which
is one of lists in the latter, by data file and row position.

Header, 24 bytes: magic, then u32 version, field id, entries, bytes of the table, CRC-32 of header (with this field 0)
and table. The table has an entry per data file; the bodies of the entries follow, in the same order. A body has the
file's distinct values, and a code per row; or the distinct elements of its lists, and the rows of each. A data file
never changes, so a body is copied as it is from version to version.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.puffin import codec
from icepuffin.puffin.blobs.cursor import Cursor, packed_text
from icepuffin.puffin.blobs.formats import require_format
from icepuffin.puffin.errors import BadBlobError, ChecksumError

MAGIC = b"ANNA"
MAGIC_OF_LISTS = b"ANNT"
VERSION = 1
WHOLE, WITH_NULL, NULL = range(3)
"""States of a list: without a null element, with one, and null"""
_HEADER = struct.Struct("<4s5I")
_ENTRY = struct.Struct("<IQQQBI")
_BODY = struct.Struct("<4I")
_CODES = {1: "<u1", 2: "<u2", 4: "<u4"}
_ALWAYS_EXPANDED = (1 << 16) + _BODY.size
_EXPANDED_PER_ROW = 128
"""Bytes per row of a data file that the body of its entry may expand to, beside `_ALWAYS_EXPANDED`: readers hold the
bodies of all files at once, so that no fixed allowance may be large"""


@dataclass(frozen=True, slots=True, eq=False)
class FileValues:
    """The values of one column in one data file: its distinct values, and a code per row."""

    count: int
    """Number of distinct values, nulls not counted"""
    width: int
    """Bytes of each value; 0 where values have lengths of their own"""
    values: bytes
    """The values, one after the other"""
    offsets: npt.NDArray[np.uint32] | None
    """u32[count + 1], bytes of `values` before each; None where all values are equally long"""
    codes: npt.NDArray[np.unsignedinteger]
    """u8, u16 or u32 [rows]: index of each row's value, or `count` for null"""


@dataclass(frozen=True, slots=True, eq=False)
class FileTokens:
    """The lists of one column in one data file: the distinct elements, and the rows whose lists have each."""

    tokens: FileValues
    """The distinct elements; without codes"""
    states: npt.NDArray[np.uint8]
    """u8[rows], of each row's list: `WHOLE`, `WITH_NULL` or `NULL`"""
    starts: npt.NDArray[np.uint32]
    """u32[elements + 1], numbers of `rows` before those of each element"""
    rows: npt.NDArray[np.uint32]
    """u32, positions of the rows whose lists have an element, ascending per element"""


@dataclass(frozen=True, slots=True, eq=False)
class AttributeEntry:
    """One data file's part of a blob."""

    slot: int
    """File slot in the version"""
    rows: int
    """Rows of the file, deleted ones included"""
    kind: str
    """Iceberg type of the values"""
    reading: str
    """How the writer read the column: an entry serves where the same would be written"""
    left_out: str
    """Reason why the values are not here; empty where they are"""
    stored: bytes | memoryview = b""
    """The body as it is stored"""
    raw_length: int = 0
    """Bytes of the body"""
    packed: bool = False
    """Whether the body is stored as a zstd frame"""


@dataclass(frozen=True, slots=True, eq=False)
class AttributeBlob:
    """All that a version has of one column."""

    field_id: int
    entries: tuple[AttributeEntry, ...]
    of_lists: bool = False
    """Whether the column is one of lists"""

    @property
    def magic(self) -> bytes:
        return MAGIC_OF_LISTS if self.of_lists else MAGIC


def entry_of(slot: int, rows: int, kind: str, reading: str, values: FileValues) -> AttributeEntry:
    """An entry that holds values."""
    parts = [_BODY.pack(values.count, values.width, values.codes.dtype.itemsize, 0)]
    if values.offsets is not None:
        parts.append(np.ascontiguousarray(values.offsets, "<u4").tobytes())
    codes = values.codes.astype(values.codes.dtype.newbyteorder("<"), copy=False)
    return _entry_of(slot, rows, kind, reading, b"".join([*parts, values.values, codes.tobytes()]))


def list_entry_of(slot: int, rows: int, kind: str, reading: str, lists: FileTokens) -> AttributeEntry:
    """An entry that holds the elements of lists."""
    tokens = lists.tokens
    parts = [_BODY.pack(tokens.count, tokens.width, len(lists.rows), 0)]
    if tokens.offsets is not None:
        parts.append(np.ascontiguousarray(tokens.offsets, "<u4").tobytes())
    steps = np.diff(lists.rows, prepend=np.uint32(0))
    first = lists.starts[:-1][np.diff(lists.starts) > 0]
    steps[first] = lists.rows[first]
    arrays = (np.ascontiguousarray(array, "<u4").tobytes() for array in (lists.starts, steps))
    return _entry_of(slot, rows, kind, reading, b"".join([*parts, tokens.values, lists.states.tobytes(), *arrays]))


def _entry_of(slot: int, rows: int, kind: str, reading: str, body: bytes) -> AttributeEntry:
    stored, name = codec.encode(body, "zstd")
    return AttributeEntry(slot, rows, kind, reading, "", stored, len(body), name is not None)


def encoded_bytes(entries: Iterable[AttributeEntry]) -> int:
    """Bytes of the blob that `encode` makes, or a few more."""
    return _HEADER.size + sum(
        _ENTRY.size + 12 + 4 * (len(entry.kind) + len(entry.reading) + len(entry.left_out)) + len(entry.stored)
        for entry in entries
    )


def encode(blob: AttributeBlob) -> bytes:
    """Serialise; the caller stores it as it is."""
    rows = []
    for entry in blob.entries:
        length, checksum = len(entry.stored), zlib.crc32(entry.stored)
        rows.append(_ENTRY.pack(entry.slot, entry.rows, length, entry.raw_length, entry.packed, checksum))
        rows += [packed_text(text) for text in (entry.kind, entry.reading, entry.left_out)]
    table = b"".join(rows)
    numbers = VERSION, blob.field_id, len(blob.entries), len(table)
    checksum = zlib.crc32(table, zlib.crc32(_HEADER.pack(blob.magic, *numbers, 0)))
    return b"".join([_HEADER.pack(blob.magic, *numbers, checksum), table, *(entry.stored for entry in blob.entries)])


def decode(data: bytes) -> AttributeBlob:
    """Parse and check; bodies stay as they are stored. Raises BadBlobError, ChecksumError, LaterFormatError."""
    if len(data) < _HEADER.size:
        raise BadBlobError(f"attribute blob of {len(data)} bytes has no header")
    magic, version, field_id, count, length, checksum = _HEADER.unpack_from(data)
    require_format("attribute blob", (magic, version), (MAGIC_OF_LISTS if magic == MAGIC_OF_LISTS else MAGIC, VERSION))
    cursor = Cursor(memoryview(data)[_HEADER.size :], "attribute blob")
    table = cursor.take(length, "table")
    if zlib.crc32(table, zlib.crc32(data[: _HEADER.size - 4] + bytes(4))) != checksum:
        raise ChecksumError("attribute blob: its table has another CRC-32 than is stored")
    rows = Cursor(table, "attribute blob")
    entries, slots = [], set[int]()
    for number in range(count):
        part = f"entry {number}"
        slot, file_rows, stored, raw_length, packed, body_checksum = rows.unpack("IQQQBI", part)
        kind, reading, left_out = (rows.text(part) for _ in range(3))
        body = cursor.take(stored, part)
        if packed > 1 or slot in slots or bool(left_out) == bool(stored) or (not packed and raw_length != stored):
            raise BadBlobError(f"attribute blob: {part} is not possible")
        if zlib.crc32(body) != body_checksum:
            raise ChecksumError(f"attribute blob: {part} has another CRC-32 than is stored")
        slots.add(slot)
        entries.append(AttributeEntry(slot, file_rows, kind, reading, left_out, body, raw_length, bool(packed)))
    rows.finish()
    cursor.finish()
    return AttributeBlob(field_id, tuple(entries), of_lists=magic == MAGIC_OF_LISTS)


def values_of(entry: AttributeEntry) -> FileValues:
    """The values of an entry that has some. Raises BadBlobError, BadCompressionError."""
    cursor, where = _body_of(entry)
    count, width, code_bytes, reserved = cursor.unpack("4I", "head")
    if reserved or code_bytes not in _CODES or count >= 1 << 8 * code_bytes:
        raise BadBlobError(f"{where}: {count} values with codes of {code_bytes} bytes")
    offsets, values = _distinct(cursor, count, width, where)
    codes = cursor.array(_CODES[code_bytes], entry.rows, "codes")
    cursor.finish()
    if len(codes) and int(codes.max()) > count:
        raise BadBlobError(f"{where}: code {int(codes.max())} of {count} values")
    return FileValues(count, width, values, offsets, codes)


def lists_of(entry: AttributeEntry) -> FileTokens:
    """The lists of an entry that has some. Raises BadBlobError, BadCompressionError."""
    cursor, where = _body_of(entry)
    count, width, pairs, reserved = cursor.unpack("4I", "head")
    offsets, values = _distinct(cursor, count, width, where)
    states = cursor.array("<u1", entry.rows, "states")
    starts = cursor.array("<u4", count + 1, "starts")
    steps = cursor.array("<u4", pairs, "rows")
    cursor.finish()
    numbers = starts.astype(np.int64)
    if reserved or starts[0] or starts[-1] != pairs or (np.diff(numbers) <= 0).any() or (states > NULL).any():
        raise BadBlobError(f"{where}: the rows of its elements are not possible")
    total = np.cumsum(steps, dtype=np.int64)
    before = np.append(0, total)[numbers[:-1]]
    rows = total - np.repeat(before, np.diff(numbers))
    first = np.zeros(pairs, np.bool_)
    first[numbers[:-1]] = True
    if (rows >= entry.rows).any() or (steps[~first] == 0).any() or (states[rows] == NULL).any():
        raise BadBlobError(f"{where}: the rows of its elements are not possible")
    tokens = FileValues(count, width, values, offsets, np.empty(0, np.uint8))
    return FileTokens(tokens, states, starts, rows.astype(np.uint32))


def _body_of(entry: AttributeEntry) -> tuple[Cursor, str]:
    """(the body of an entry, what to call it in messages)."""
    where = f"attributes of file slot {entry.slot}"
    stored = bytes(entry.stored)
    most = codec.EXPANDED_PER_BYTE * len(stored) + _EXPANDED_PER_ROW * entry.rows + _ALWAYS_EXPANDED
    max_bytes = min(entry.raw_length, most)
    body = codec.decompress(stored, "zstd" if entry.packed else None, where=where, max_bytes=max_bytes)
    if len(body) != entry.raw_length:
        raise BadBlobError(f"{where}: {len(body)} bytes, {entry.raw_length} were declared")
    return Cursor(body, where), where


def _distinct(cursor: Cursor, count: int, width: int, where: str) -> tuple[npt.NDArray[np.uint32] | None, bytes]:
    """(offsets of the distinct values, where they have lengths of their own; the values)."""
    if width:
        return None, bytes(cursor.take(width * count, "values"))
    offsets = cursor.array("<u4", count + 1, "offsets")
    if offsets[0] or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise BadBlobError(f"{where}: offsets of its values descend")
    return offsets, bytes(cursor.take(int(offsets[-1]), "values"))
