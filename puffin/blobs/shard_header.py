"""The head of a shard blob: 128 bytes of numbers, and the section table. Bytes from outside are checked before use."""

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from icepuffin.puffin.blobs.formats import COMMON, require_features, require_format
from icepuffin.puffin.blobs.shard_sections import SectionEntry
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from icepuffin.puffin.sources import RangeSource
from icepuffin.puffin.types import MAX_DIMS, MAX_METRIC

MAGIC = b"DANN"
VERSION = 5
_CELLS_BIT = 2
"""Feature bit of shards that have cells"""
ALIGNMENT = 64
_FIELDS = struct.Struct("<4s7IfIIIIII68x")
_CHECKSUM_AT = 56
_MAX_DEGREE = 4_096
_PQ_BITS = 4, 8
MAX_SECTIONS = 32
"""Sections of a shard, optional ones included: header and table of any shard are read at once"""
_FIRST_OPTIONAL = 32_768
_ALWAYS_ALLOWED = 60 << 20
_DECODED_PER_BYTE = 7


class Section(enum.IntEnum):
    """What a section holds; sections are stored in this order. Kinds from 32,768 on are optional: a reader passes over
    those that it does not know.
    """

    PQ_CODEBOOK = 1
    PQ_CODES = 2
    ADJACENCY_OFFSETS = 3
    ADJACENCY = 4
    LOCATIONS = 6
    CONTENT_HASHES = 7
    ROTATION = 8
    CODE_TERMS = 9
    HIGH_CODES = 10
    LOW_CODES = 11
    CELLS = 12
    CELL_DIRECTORY = 13


_KINDS = frozenset(Section)
CODE_BITS = 4, 5, 8
"""Bits per dimension of rotated codes; they are vector formats, too"""
_OF_CODES = frozenset({Section.ROTATION, Section.CODE_TERMS, Section.HIGH_CODES, Section.LOW_CODES})
OF_CELLS = frozenset({Section.CELLS, Section.CELL_DIRECTORY})
"""Sections that a search of the whole shard does not need"""
VECTOR_FORMATS: dict[int, np.dtype[Any] | None] = {0: None, 1: np.dtype("<f4"), 2: np.dtype("<f2")}
"""Formats of vectors that are stored as numbers; none where there are none"""
_FORMATS = (*VECTOR_FORMATS, *CODE_BITS)


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """The fixed part of a shard blob."""

    dims: int
    count: int
    max_degree: int
    search_list: int
    metric: int
    medoid: int
    alpha: float
    pq_m: int
    pq_bits: int
    vector_format: int
    sections: tuple[SectionEntry, ...]

    @property
    def pq_bytes(self) -> int:
        """Bytes of the PQ codes of one vector."""
        return self.pq_m * self.pq_bits // 8

    @property
    def code_bits(self) -> int:
        """Bits per dimension of the rotated codes; 0 where there are none."""
        return self.vector_format if self.vector_format in CODE_BITS else 0

    @property
    def code_dims(self) -> int:
        """Dimensions of rotated codes: whole blocks of 128."""
        return self.dims + -self.dims % 128

    @property
    def vector_type(self) -> np.dtype[Any] | None:
        """Type of the numbers of its vectors, which lie apart from the blob; None where it has none."""
        return VECTOR_FORMATS.get(self.vector_format)

    @property
    def vector_bytes(self) -> int:
        """Bytes of its vectors; 0 where it has none."""
        return 0 if self.vector_type is None else self.count * self.dims * self.vector_type.itemsize

    @property
    def features(self) -> int:
        """Feature bits of the blob."""
        return COMMON | (_CELLS_BIT if self.find(Section.CELLS) else 0)

    def find(self, kind: Section) -> SectionEntry | None:
        return next((entry for entry in self.sections if entry.kind == kind), None)

    def to_bytes(self) -> bytes:
        """Header and section table, sealed with their checksum."""
        table = b"".join(entry.to_bytes() for entry in self.sections)
        return self._fields(zlib.crc32(self._fields(0) + table)) + table

    def _fields(self, checksum: int) -> bytes:
        graph = self.dims, self.count, self.max_degree, self.search_list, self.metric, self.medoid, self.alpha
        rest = self.pq_m, self.pq_bits, self.vector_format, len(self.sections), self.features
        return _FIELDS.pack(MAGIC, VERSION, *graph, *rest, checksum)


def start_of_sections(count: int) -> int:
    """Bytes before the first of so many sections."""
    return _FIELDS.size + SectionEntry.SIZE * count


def read_header(source: RangeSource) -> ShardHeader:
    """Raises BadBlobError, ChecksumError."""
    head = source.read_range(0, start_of_sections(MAX_SECTIONS))  # one request, whatever sections there are
    raw = head[: _FIELDS.size]
    if len(raw) < _FIELDS.size:
        raise BadBlobError(f"shard blob of {len(raw)} bytes has no header")
    magic, version, *graph, pq_m, nbits, fmt, sections, features, crc = _FIELDS.unpack(raw)
    dims, count, degree, search_list, metric, medoid, alpha = graph
    require_format("shard blob", (magic, version), (MAGIC, VERSION))
    if sections > MAX_SECTIONS:
        raise BadBlobError(f"shard blob declares {sections} sections, {MAX_SECTIONS} are the most")
    table = head[_FIELDS.size : start_of_sections(sections)]
    if len(table) < SectionEntry.SIZE * sections:
        raise BadBlobError("shard blob: the section table is cut off")
    unsealed = raw[:_CHECKSUM_AT] + bytes(_FIELDS.size - _CHECKSUM_AT)
    if zlib.crc32(unsealed + table) != crc or any(raw[_CHECKSUM_AT + 4 :]):
        raise ChecksumError(f"shard blob: header and section table do not have their checksum {crc:08x}")
    if not 1 <= dims <= MAX_DIMS or not 1 <= degree <= _MAX_DEGREE or count >= 2**31 or fmt not in _FORMATS:
        raise BadBlobError(
            f"shard blob: dims {dims}, degree {degree}, count {count} or vector format {fmt} is out of range"
        )
    require_features("shard blob", features, COMMON | _CELLS_BIT)
    if metric > MAX_METRIC:
        raise BadBlobError(f"shard blob: unknown metric {metric}")
    if (count and medoid >= count) or (pq_m and (dims % pq_m or nbits not in _PQ_BITS or pq_m * nbits % 8)):
        raise BadBlobError(f"shard blob: medoid {medoid} of {count} nodes, or PQ {pq_m} x {nbits} bits of {dims} dims")
    entries = tuple(SectionEntry.from_bytes(table, number) for number in range(sections))
    _check_sections(entries, source.size())
    header = ShardHeader(dims, count, degree, search_list, metric, medoid, alpha, pq_m, nbits, fmt, entries)
    _check_lengths(header, source.size() + header.vector_bytes)
    _check_codes(header)
    if header.features != features:
        raise BadBlobError(f"shard blob: feature bits {features:#b}, its sections are those of {header.features:#b}")
    return header


def is_unknown(entry: SectionEntry) -> bool:
    """Whether this reader does not know the kind of a section."""
    return entry.kind not in _KINDS


def section_name(entry: SectionEntry) -> str:
    """The name of a section's kind, or its number where this reader does not know it."""
    return str(entry.kind) if is_unknown(entry) else Section(entry.kind).name


def most_decoded(size: int) -> int:
    """Bytes that the graph of a shard of `size` bytes may take in memory, padded lists and all.

    `size`: of its blob and of its vectors.
    """
    return _ALWAYS_ALLOWED + _DECODED_PER_BYTE * size


def most_location_bytes(count: int) -> int:
    """Bytes that the locations of so many nodes take at most before they are compressed."""
    return 8 + 15 * count


def _check_lengths(header: ShardHeader, size: int) -> None:
    """Bound what the sections may take before any memory is taken.

    The hashes are stored as they are, 8 bytes per node: a blob cannot declare more nodes than an eighth of its bytes.
    Lists, which compress well where they are alike, may be a few times as long as the blob.
    """
    hashes = header.find(Section.CONTENT_HASHES)
    if hashes is None or hashes.raw_length != 8 * header.count:
        raise BadBlobError(f"shard blob: no content hashes, or not of {header.count} nodes")
    longest = {
        Section.ADJACENCY_OFFSETS: 10 * (header.count + 1),
        Section.ADJACENCY: min(5 * header.count * (header.max_degree + 1), most_decoded(size) // 3),
        Section.LOCATIONS: most_location_bytes(header.count),
    }
    for entry in header.sections:
        limit = None if is_unknown(entry) else longest.get(Section(entry.kind))
        if limit is None and entry.framed:
            raise BadBlobError(f"shard blob: section {entry.kind} is framed, it must be stored as it is")
        if limit is not None and entry.raw_length > limit:
            raise BadBlobError(
                f"shard blob: section {entry.kind} declares {entry.raw_length:,} bytes, {header.count:,} nodes of "
                f"degree {header.max_degree} need {limit:,} at most"
            )


def _check_codes(header: ShardHeader) -> None:
    """Rotated codes come with all of their sections, and take the place of vectors and PQ codes. So do cells come."""
    bits = header.code_bits
    expected = _OF_CODES - ({Section.LOW_CODES} if bits == min(CODE_BITS) else set()) if bits else frozenset()
    kinds = {Section(entry.kind) for entry in header.sections if not is_unknown(entry)}
    if kinds & OF_CELLS not in (frozenset(), OF_CELLS):
        raise BadBlobError("shard blob: cells without their directory, or the other way round")
    if kinds & _OF_CODES != expected or (bits and header.pq_m):
        raise BadBlobError(f"shard blob: sections {sorted(kinds)} do not fit vector format {header.vector_format}")


def _check_sections(entries: tuple[SectionEntry, ...], size: int) -> None:
    end, last = start_of_sections(len(entries)), 0
    for entry in entries:
        if entry.kind <= last or (is_unknown(entry) and entry.kind < _FIRST_OPTIONAL):
            raise BadBlobError(f"shard blob: section kind {entry.kind} after {last}")
        if entry.offset < end or entry.offset % ALIGNMENT or entry.offset + entry.stored_length > size:
            raise BadBlobError(f"shard blob: section {entry.kind} at {entry.offset} is misplaced in {size} bytes")
        end, last = entry.offset + entry.stored_length, entry.kind
    if end != size:
        raise BadBlobError(f"shard blob: {size - end} bytes follow the last section, which ends at {end}")
