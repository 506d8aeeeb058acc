"""Blobs of included columns: `icepuffin-ann-included-v1` (`ANNC`) has the locations of a column's values by data file,
and `icepuffin-ann-included-values-v1` the values.

Header of `ANNC`, 20 bytes: magic, then u32 version, field id, entries, CRC-32 of the whole blob (with this field 0). An
entry per data file follows. The values of a file are blocks of rows, each readable alone, and behind them an index of
the blocks. A data file never changes, so its values are copied as they are, or shared in a pack, from version to
version.
"""

import struct
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from icepuffin.puffin import codec
from icepuffin.puffin.blobs.cursor import Cursor, packed_text
from icepuffin.puffin.blobs.formats import require_format
from icepuffin.puffin.errors import BadBlobError, ChecksumError

MAGIC = b"ANNC"
MAGIC_OF_WORDS = b"ANNX"
VERSION = 1
MAX_BLOCK_ROWS = 4096
"""Rows of a block, at most: a reader that needs one row decodes its block"""
_HEADER = struct.Struct("<4s4I")
_ENTRY = struct.Struct("<IQIIIQQI")


@dataclass(frozen=True, slots=True)
class IncludedEntry:
    """The values of one column in one data file: where they lie, and how they are laid out."""

    slot: int
    """File slot in the version"""
    rows: int
    """Rows of the file, deleted ones included"""
    kind: str
    """Iceberg type of the values"""
    reading: str
    """How the writer read the column: an entry serves where the same would be written"""
    left_out: str = ""
    """Reason why the values are not stored; empty where they are"""
    block_rows: int = 0
    """Rows of each block but the last"""
    width: int = 0
    """Bytes of each value; 0 where values have lengths of their own"""
    pack: int = 0
    """Number of the pack that they lie in, from 1; 0: the version's own file"""
    offset: int = 0
    """Bytes of that file before them"""
    length: int = 0
    """Bytes of all blocks and of the block index"""
    checksum: int = 0
    """CRC-32 of the block index"""

    per_block: ClassVar[int] = 12
    """Bytes of the block index per block"""

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows) if self.block_rows else 0

    @property
    def index_length(self) -> int:
        """Bytes of the block index, which is the end of the values."""
        return self.per_block * self.blocks

    def rows_of(self, block: int) -> int:
        """Number of the rows of a block."""
        return min(self.block_rows, self.rows - block * self.block_rows)

    def moved(self, pack: int, offset: int) -> "IncludedEntry":
        """The same with the values in another location."""
        return replace(self, pack=pack, offset=offset)


@dataclass(frozen=True, slots=True)
class WordsEntry(IncludedEntry):
    """The same of the words of a column. Blocks are ranges of rows, as `words_blob` lays them out, and `block_rows` is
    their number.
    """

    per_block: ClassVar[int] = 20

    @property
    def blocks(self) -> int:
        return self.block_rows


@dataclass(frozen=True, slots=True, eq=False)
class IncludedBlob:
    """All that a version has of one included column."""

    field_id: int
    entries: tuple[IncludedEntry, ...]
    magic: ClassVar[bytes] = MAGIC

    @property
    def bytes_by_pack(self) -> dict[int, int]:
        """Bytes of the values in each pack, and in the version's own file under 0, where there are some."""
        size = Counter[int]()
        for entry in self.entries:
            size[entry.pack] += entry.length
        return {pack: size[pack] for pack in sorted(size) if size[pack]}


@dataclass(frozen=True, slots=True, eq=False)
class WordsBlob(IncludedBlob):
    """All that a version has of the words of one column."""

    magic: ClassVar[bytes] = MAGIC_OF_WORDS


@dataclass(frozen=True, slots=True, eq=False)
class ValueBlock:
    """Values of consecutive rows."""

    present: npt.NDArray[np.bool_]
    """bool[rows]: whether a row's value is not null"""
    values: bytes
    """The values, one after the other; of a null zeros, or nothing"""
    offsets: npt.NDArray[np.uint32] | None
    """u32[rows + 1], bytes of `values` before each; None where all values are equally long"""

    @property
    def nbytes(self) -> int:
        return self.present.nbytes + len(self.values) + (0 if self.offsets is None else self.offsets.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """Locations and checksums of the blocks of one file's values."""

    starts: npt.NDArray[np.int64]
    """int64[blocks]: bytes of the values before each block"""
    lengths: npt.NDArray[np.uint32]
    """u32[blocks]: stored bytes"""
    raw_lengths: npt.NDArray[np.uint32]
    """u32[blocks]: bytes; a block is a zstd frame where they are others than the stored ones"""
    checksums: npt.NDArray[np.uint32]
    """u32[blocks]: CRC-32 of the stored bytes"""

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.lengths.nbytes + self.raw_lengths.nbytes + self.checksums.nbytes


def raw_block(block: ValueBlock) -> bytes:
    """The bytes of a block before compression. Equal values have equal bytes."""
    parts = [np.packbits(block.present, bitorder="little").tobytes()]
    if block.offsets is not None:
        parts.append(np.ascontiguousarray(block.offsets, "<u4").tobytes())
    return b"".join([*parts, block.values])


class BlockEncoder:
    """Writer of the values of one column in one data file: `add` each block in order, then `index`."""

    def __init__(self) -> None:
        self._index: list[tuple[int, int, int]] = []

    def add(self, raw: bytes) -> bytes:
        """The stored form of a block: a zstd frame, unless it is no shorter, or would expand further than readers
        take.
        """
        stored, name = codec.encode(raw, "zstd")
        if name is None or len(stored) >= len(raw):
            stored = raw
        self._index.append((len(stored), len(raw), zlib.crc32(stored)))
        return stored

    def index(self) -> bytes:
        """The block index."""
        return np.array(self._index, "<u4").reshape(-1, 3).T.tobytes()


def block_index(entry: IncludedEntry, data: bytes) -> BlockIndex:
    """Parse and check the block index of an entry's values. Raises BadBlobError, ChecksumError."""
    where = _where(entry)
    if len(data) != entry.index_length:
        raise BadBlobError(f"{where}: a block index of {len(data)} bytes for {entry.blocks} blocks")
    if zlib.crc32(data) != entry.checksum:
        raise ChecksumError(f"{where}: the block index has another CRC-32 than is stored")
    lengths, raw_lengths, checksums = np.frombuffer(data, "<u4").reshape(3, -1).astype(np.uint32)
    ends = np.cumsum(lengths, dtype=np.int64)
    if (ends[-1] if len(ends) else 0) + entry.index_length != entry.length or (lengths > raw_lengths).any():
        raise BadBlobError(f"{where}: the lengths of its blocks are not possible")
    return BlockIndex(ends - lengths, lengths, raw_lengths, checksums)


def decode_block(entry: IncludedEntry, index: BlockIndex, number: int, stored: bytes) -> ValueBlock:
    """Parse and check one block. Raises BadBlobError, BadCompressionError, ChecksumError."""
    where, rows = f"{_where(entry)}, block {number}", entry.rows_of(number)
    if zlib.crc32(stored) != index.checksums[number]:
        raise ChecksumError(f"{where}: it has another CRC-32 than is stored")
    raw_length = int(index.raw_lengths[number])
    is_packed = len(stored) != raw_length
    raw = codec.decompress(stored, "zstd" if is_packed else None, where=where, max_bytes=raw_length)
    if len(raw) != raw_length:
        raise BadBlobError(f"{where}: {len(raw)} bytes, {raw_length} were declared")
    cursor = Cursor(raw, where)
    bits = np.unpackbits(cursor.array("<u1", -(-rows // 8), "presence"), bitorder="little")
    if bits[rows:].any():
        raise BadBlobError(f"{where}: more rows are present than there are")
    present = bits[:rows].view(np.bool_)
    if entry.width:
        values = bytes(cursor.take(rows * entry.width, "values"))
        cursor.finish()
        return ValueBlock(present, values, None)
    offsets = cursor.array("<u4", rows + 1, "offsets")
    lengths = np.diff(offsets.astype(np.int64))
    if offsets[0] or (lengths < 0).any() or lengths[~present].any():
        raise BadBlobError(f"{where}: the offsets of its values are not possible")
    values = bytes(cursor.take(int(offsets[-1]), "values"))
    cursor.finish()
    return ValueBlock(present, values, offsets)


def encode(blob: IncludedBlob) -> bytes:
    """Serialise the locations of a column's values."""
    table = b"".join(map(_packed, blob.entries))
    numbers = VERSION, blob.field_id, len(blob.entries)
    checksum = zlib.crc32(table, zlib.crc32(_HEADER.pack(blob.magic, *numbers, 0)))
    return _HEADER.pack(blob.magic, *numbers, checksum) + table


def _packed(entry: IncludedEntry) -> bytes:
    numbers = _ENTRY.pack(
        entry.slot, entry.rows, entry.block_rows, entry.width, entry.pack, entry.offset, entry.length, entry.checksum
    )
    return numbers + b"".join(map(packed_text, (entry.kind, entry.reading, entry.left_out)))


def decode(data: bytes) -> IncludedBlob:
    """Parse and check. Raises BadBlobError, ChecksumError, LaterFormatError."""
    if len(data) < _HEADER.size:
        raise BadBlobError(f"blob of an included column: {len(data)} bytes are no header")
    magic, version, field_id, count, checksum = _HEADER.unpack_from(data)
    of_words = magic == MAGIC_OF_WORDS
    require_format("blob of an included column", (magic, version), (MAGIC_OF_WORDS if of_words else MAGIC, VERSION))
    table = memoryview(data)[_HEADER.size :]
    if zlib.crc32(table, zlib.crc32(data[: _HEADER.size - 4] + bytes(4))) != checksum:
        raise ChecksumError("blob of an included column: it has another CRC-32 than is stored")
    cursor = Cursor(table, "blob of an included column")
    entries, slots = [], set[int]()
    for number in range(count):
        part = f"entry {number}"
        slot, rows, block_rows, width, pack, offset, length, index_checksum = cursor.unpack("IQIIIQQI", part)
        kind, reading, left_out = (cursor.text(part) for _ in range(3))
        entry = (WordsEntry if of_words else IncludedEntry)(
            slot, rows, kind, reading, left_out, block_rows, width, pack, offset, length, index_checksum
        )
        if slot in slots or not _is_possible(entry):
            raise BadBlobError(f"blob of an included column: {part} is not possible")
        slots.add(slot)
        entries.append(entry)
    cursor.finish()
    return (WordsBlob if of_words else IncludedBlob)(field_id, tuple(entries))


def _is_possible(entry: IncludedEntry) -> bool:
    if entry.left_out:
        return not any((entry.block_rows, entry.width, entry.pack, entry.offset, entry.length, entry.checksum))
    if isinstance(entry, WordsEntry):
        return entry.blocks <= entry.rows and not entry.width and entry.length >= entry.index_length
    return 0 < entry.block_rows <= MAX_BLOCK_ROWS and entry.length >= entry.index_length + entry.blocks


def _where(entry: IncludedEntry) -> str:
    return f"included values of file slot {entry.slot}"
