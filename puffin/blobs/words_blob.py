"""The words of a column in a range of rows of one data file: in blobs `icepuffin-ann-words-v1`, one range after the
other, and behind them an index of the ranges. Blobs `icepuffin-ann-text-v1` (`ANNX`) have the locations, as
`included_columns_blob` has them.

A range has a head, which is a zstd frame or its raw bytes: u32 rows, u32 terms, u64 bytes of lists, u8 bytes of a
length, three bytes 0; the lengths of rows in words; u32 ties of rows; of each term, in ascending order of their bytes,
u16 bytes of it, u32 rows that have it, u32 bytes of its list; the bytes of the terms; a CRC-32 of each page of the
lists. The lists of the terms follow the head, one after the other, packed as `ann_kernels.text.term_lists` says: each
is read alone, by the pages that it lies in.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.puffin import codec
from icepuffin.puffin.blobs.cursor import Cursor
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.errors import BadBlobError, ChecksumError

PAGE = 1 << 14
"""Bytes of lists that have a checksum of their own"""
_HEAD = struct.Struct("<IIQB3x")
_LENGTHS = {1: "<u1", 2: "<u2", 4: "<u4"}
_EXPANDED_PER_ROW = 64
"""Bytes per row that a head may expand to, beside 8 times its stored bytes: a file may have as many heads as rows"""


@dataclass(frozen=True, slots=True, eq=False)
class WordsHead:
    """What a range of rows has beside the lists of its terms."""

    lengths: npt.NDArray[np.unsignedinteger]
    """u8, u16 or u32 [rows]: words of each row"""
    ties: npt.NDArray[np.uint32]
    """u32[rows]: hash of the row's text, by which rows of one score are ordered"""
    terms: bytes
    """All terms one after the other"""
    term_ends: npt.NDArray[np.uint32]
    """u32[terms + 1]: bytes of `terms` before each, and before the end"""
    row_counts: npt.NDArray[np.uint32]
    """u32[terms]: rows that have each"""
    list_ends: npt.NDArray[np.uint32]
    """u32[terms + 1]: bytes of lists before that of each, and before the end"""
    checksums: npt.NDArray[np.uint32]
    """u32: CRC-32 of each page of the lists"""

    def find(self, term: bytes) -> int | None:
        """The number of a term; None where no row has it."""
        low, high = 0, len(self.row_counts)
        while low < high:
            middle = (low + high) // 2
            if self._term(middle) < term:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self.row_counts) and self._term(low) == term else None

    def _term(self, number: int) -> bytes:
        return self.terms[self.term_ends[number] : self.term_ends[number + 1]]

    @property
    def nbytes(self) -> int:
        arrays = (self.lengths, self.ties, self.term_ends, self.row_counts, self.list_ends, self.checksums)
        return len(self.terms) + sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True)
class RangeLocation:
    """Where the words of one range of rows lie within those of the file."""

    first_row: int
    offset: int
    rows: int
    head_length: int
    """Stored bytes of the head"""
    raw_length: int
    """Bytes of the head; it is a zstd frame where they are others than the stored ones"""
    checksum: int
    """CRC-32 of the stored head"""
    lists_length: int


class WordsEncoder:
    """Writer of the words of one column in one data file: `add` each range of rows in order, then `index`."""

    def __init__(self) -> None:
        self._index: list[tuple[int, int, int, int, int]] = []

    def add(
        self,
        lengths: npt.NDArray[np.int64],
        ties: npt.NDArray[np.uint32],
        terms: Sequence[bytes],
        row_counts: npt.NDArray[np.int64],
        lists: npt.NDArray[np.uint8],
        list_ends: npt.NDArray[np.int64],
    ) -> tuple[bytes, bytes]:
        """(head, lists) as they are stored. `lengths` int64[N]; `terms` ascending, `row_counts` int64[T]; `lists` u8,
        `list_ends` int64[T]: bytes before the end of each.
        """
        width = next(width for width in _LENGTHS if width == 4 or lengths.max(initial=0) < 1 << 8 * width)
        parts = [_HEAD.pack(len(lengths), len(terms), len(lists), width)]
        arrays = (
            (lengths, _LENGTHS[width]), (ties, "<u4"), ([len(term) for term in terms], "<u2"), (row_counts, "<u4"),
            (np.diff(list_ends, prepend=0), "<u4"),
        )  # fmt: skip
        parts += [np.asarray(array).astype(kind).tobytes() for array, kind in arrays]
        body = lists.tobytes()
        pages = [zlib.crc32(body[first : first + PAGE]) for first in range(0, len(body), PAGE)]
        raw = b"".join([*parts, *terms, np.array(pages, "<u4").tobytes()])
        stored = codec.compress(raw, "zstd")
        if not len(stored) < len(raw) <= _most_expanded(len(stored), len(lengths)):
            stored = raw
        self._index.append((len(lengths), len(stored), len(raw), zlib.crc32(stored), len(body)))
        return stored, body

    def index(self) -> bytes:
        """The index of the ranges."""
        return np.array(self._index, "<u4").reshape(-1, 5).tobytes()


def range_locations(entry: WordsEntry, data: bytes) -> tuple[RangeLocation, ...]:
    """Parse and check the index of the ranges of an entry's words. Raises BadBlobError, ChecksumError."""
    where = words_of(entry)
    if zlib.crc32(data) != entry.checksum:
        raise ChecksumError(f"{where}: the index of its ranges has another CRC-32 than is stored")
    if len(data) != entry.index_length:
        raise BadBlobError(f"{where}: an index of {len(data)} bytes for {entry.blocks} ranges")
    table = np.frombuffer(data, "<u4").reshape(-1, 5).astype(np.int64)
    rows, sizes = table[:, 0], table[:, 1] + table[:, 4]
    if rows.sum() != entry.rows or not rows.all() or sizes.sum() + len(data) != entry.length:
        raise BadBlobError(f"{where}: the rows or lengths of its ranges are not possible")
    firsts = zip((np.cumsum(rows) - rows).tolist(), (np.cumsum(sizes) - sizes).tolist(), strict=True)
    return tuple(RangeLocation(*first, *row) for first, row in zip(firsts, table.tolist(), strict=True))


def words_of(entry: WordsEntry) -> str:
    """What to call the words of an entry in messages."""
    return f"words of file slot {entry.slot}"


def decode_head(stored: bytes, location: RangeLocation, where: str) -> WordsHead:
    """Parse and check the head of a range. Raises BadBlobError, BadCompressionError, ChecksumError."""
    if zlib.crc32(stored) != location.checksum:
        raise ChecksumError(f"{where}: a head has another CRC-32 than is stored")
    rows, is_packed = location.rows, len(stored) != location.raw_length
    limit = min(location.raw_length, _most_expanded(len(stored), rows))
    cursor = Cursor(codec.decompress(stored, "zstd" if is_packed else None, where=where, max_bytes=limit), where)
    own_rows, terms, lists_length, width = cursor.unpack("IIQB3x", "head")
    if own_rows != rows or width not in _LENGTHS or lists_length != location.lists_length:
        raise BadBlobError(f"{where}: a head of {own_rows} rows for {rows}")
    lengths = cursor.array(_LENGTHS[width], rows, "lengths of rows")
    ties = cursor.array("<u4", rows, "ties")
    term_ends = _ends(cursor.array("<u2", terms, "lengths of terms"), where)
    row_counts = cursor.array("<u4", terms, "rows of terms")
    list_ends = _ends(cursor.array("<u4", terms, "lengths of lists"), where)
    names = bytes(cursor.take(int(term_ends[-1]), "terms"))
    checksums = cursor.array("<u4", -(-lists_length // PAGE), "checksums")
    cursor.finish()
    if list_ends[-1] != lists_length or (row_counts > rows).any() or not row_counts.all():
        raise BadBlobError(f"{where}: the lists of its terms are not possible")
    return WordsHead(lengths, ties, names, term_ends, row_counts, list_ends, checksums)


def _most_expanded(stored: int, rows: int) -> int:
    return min(codec.most_expanded(stored), codec.EXPANDED_PER_BYTE * stored + _EXPANDED_PER_ROW * rows)


def _ends(lengths: npt.NDArray[np.unsignedinteger], where: str) -> npt.NDArray[np.uint32]:
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    if ends[-1] >= 1 << 32:
        raise BadBlobError(f"{where}: the lists of its terms are not possible")
    return ends.astype(np.uint32)


def pages_of(head: WordsHead, term: int) -> tuple[int, int]:
    """(bytes of lists before the pages that a term's list lies in, bytes before their end)."""
    begin, end = int(head.list_ends[term]), int(head.list_ends[term + 1])
    return begin // PAGE * PAGE, min(-(-end // PAGE) * PAGE, int(head.list_ends[-1]))


def list_of(head: WordsHead, term: int, pages: bytes, where: str) -> npt.NDArray[np.uint8]:
    """u8: the packed list of a term, from the bytes of `pages_of`. Raises ChecksumError."""
    first, _ = pages_of(head, term)
    for offset in range(0, len(pages), PAGE):
        if zlib.crc32(pages[offset : offset + PAGE]) != head.checksums[(first + offset) // PAGE]:
            raise ChecksumError(f"{where}: a page of lists has another CRC-32 than is stored")
    begin, end = int(head.list_ends[term]) - first, int(head.list_ends[term + 1]) - first
    return np.frombuffer(pages, np.uint8)[begin:end]
