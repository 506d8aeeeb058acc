"""Blob `flockdb-ann-index-v1` (`DANN`): one Vamana graph, with what is needed to search it and to find its rows.

Puffin codec none, so that a section can be read alone. Header (128 bytes), section table (48 bytes a section),
sections at 64-byte alignment in the order of `Section`. Vectors of f32 or f16 lie apart, in blobs
`icepuffin-ann-vectors-v1`, which are these numbers and nothing else. `docs/formats.md` is the normative text.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs import addresses_blob
from icepuffin.puffin.blobs.addresses_blob import Addresses, decode_locations, encode_locations
from icepuffin.puffin.blobs.cells_blob import CellDirectory, ShardCells
from icepuffin.puffin.blobs.shard_header import (
    ALIGNMENT,
    CODE_BITS,
    Section,
    ShardHeader,
    most_decoded,
    read_header,
    section_name,
    start_of_sections,
)
from icepuffin.puffin.blobs.shard_sections import SectionEntry, compress_frames, decompress_frames
from icepuffin.puffin.errors import BadBlobError, BlobTooLargeError, ChecksumError
from icepuffin.puffin.sources import BytesSource, RangeSource
from icepuffin.puffin.varint import (
    Allocate,
    check_adjacency,
    decode_adjacency,
    decode_signed,
    encode_adjacency,
    encode_signed,
    new_lists,
    padded_width,
)

_READ_AT_ONCE = 8 << 20
_HASHED_AT_ONCE = 256 << 10
_CHECKED_ROWS = 1_024
_LONGEST_CENTER = 9.1e18
"""Length of a center, at most: writers take vectors up to 9e18, and squares of distances stay in float's range"""
_HALF_EXPONENT = 0x7C00
"""Bits that are all set in an f16 that is infinite or NaN"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardCodes:
    """Rotated codes of the vectors of a shard, in place of these. D' is D padded to 128."""

    bits: int
    """Bits per dimension: 4, 5 or 8"""
    seed: int
    """Seed of the rotation"""
    center: npt.NDArray[np.float32]
    """f32[D]"""
    terms: npt.NDArray[np.float32]
    """f32[N, 4]: square of the length, two factors, and the deviation of a distance's error"""
    high: npt.NDArray[np.uint8]
    """u8[N * D' / 2], the highest four bits"""
    low: npt.NDArray[np.uint8]
    """u8[N * D' (bits - 4) / 8], the other bits"""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One shard in memory. N nodes, D dims, R largest degree; node ids are positions in these arrays."""

    metric: int
    dims: int
    max_degree: int
    search_list: int
    alpha: float
    medoid: int
    neighbors: npt.NDArray[np.int32]
    """int32[N, W], padded with -1; W is at most R"""
    degrees: npt.NDArray[np.int32]
    """int32[N]"""
    file_slots: npt.NDArray[np.uint32]
    """u32[N], into the routing blob's files"""
    row_positions: npt.NDArray[np.int64]
    """int64[N], absolute row position in the data file"""
    content_hashes: npt.NDArray[np.uint64]
    """u64[N], of the vectors as the table has them"""
    vectors: npt.NDArray[np.float32] | npt.NDArray[np.float16] | None = None
    """f32 or f16 [N, D], or None in a lean shard"""
    pq_codebook: npt.NDArray[np.float32] | None = None
    """f32[m, 256, D / m], or f32[m, 16, D / m] for codes of 4 bits"""
    pq_codes: npt.NDArray[np.uint8] | None = None
    """u8[N, m], or u8[N, m / 2] where two codes share a byte"""
    codes: ShardCodes | None = None
    """Rotated codes in place of vectors and PQ codes"""
    cells: ShardCells | None = None
    """Cells for readers that do not have the shard; None where the index has none"""

    @property
    def count(self) -> int:
        return len(self.degrees)

    @property
    def rounded(self) -> bool:
        """Whether it holds f16 vectors or codes, or neither, in place of the vectors that it was built over."""
        return self.vectors is None or self.vectors.dtype != np.float32


def encode(shard: Shard) -> Iterator[bytes | memoryview]:
    """Chunks of the blob, in order; large sections are not copied. Its vectors are stored elsewhere, as
    `stored_vectors` gives them. Raises BlobTooLargeError where lists are too uneven to be read again.
    """
    payloads = list(_payloads(shard))
    _require_readable(shard, payloads)
    position = start = start_of_sections(len(payloads))
    entries = []
    for kind, stored, raw_length, framed in payloads:
        position += -position % ALIGNMENT
        entries.append(SectionEntry(kind, framed, position, len(stored), raw_length, zlib.crc32(stored)))
        position += len(stored)
    yield _header(shard, entries).to_bytes()
    for entry, (_, stored, _, _) in zip(entries, payloads, strict=True):
        yield bytes(entry.offset - start)
        yield stored
        start = entry.offset + entry.stored_length


def _require_readable(shard: Shard, payloads: list[tuple[Section, memoryview, int, bool]]) -> None:
    size = sum(len(stored) for _, stored, _, _ in payloads)
    size += 0 if shard.vectors is None else shard.vectors.nbytes
    width = padded_width(shard.degrees, shard.max_degree)
    lists = next(raw_length for kind, _, raw_length, _ in payloads if kind == Section.ADJACENCY)
    room = most_decoded(size)
    if 4 * shard.count * width > lists_room(room, shard.count, lists) or lists > room // 3:
        raise BlobTooLargeError(
            f"a shard of {shard.count:,} rows with up to {width} neighbours each, stored in {size:,} bytes, takes more "
            "memory than readers give it: create the index with a smaller max_degree, or with more shards"
        )


def lists_room(room: int, count: int, raw_lists: int) -> int:
    """Bytes that padded lists may take beside what is in memory with them: offsets, degrees and locations."""
    return room - raw_lists - 24 * count


def _header(shard: Shard, sections: list[SectionEntry]) -> ShardHeader:
    return ShardHeader(
        dims=shard.dims,
        count=shard.count,
        max_degree=shard.max_degree,
        search_list=shard.search_list,
        metric=shard.metric,
        medoid=shard.medoid,
        alpha=shard.alpha,
        pq_m=0 if shard.pq_codebook is None else shard.pq_codebook.shape[0],
        pq_bits=0 if shard.pq_codebook is None else shard.pq_codebook.shape[1].bit_length() - 1,
        vector_format=_vector_format(shard),
        sections=tuple(sections),
    )


def _vector_format(shard: Shard) -> int:
    if shard.codes is not None:
        return shard.codes.bits
    return 0 if shard.vectors is None else 2 if shard.vectors.dtype == np.float16 else 1


def _payloads(shard: Shard) -> Iterator[tuple[Section, memoryview, int, bool]]:
    """(kind, stored bytes, raw length, whether zstd frames) of each section that the shard has."""
    if shard.pq_codebook is not None and shard.pq_codes is not None:
        yield _plain(Section.PQ_CODEBOOK, shard.pq_codebook, "<f4")
        yield _plain(Section.PQ_CODES, shard.pq_codes, "u1")
    lists, offsets = encode_adjacency(shard.neighbors, shard.degrees)
    yield _framed(Section.ADJACENCY_OFFSETS, encode_signed(offsets.view(np.int64)))
    yield _framed(Section.ADJACENCY, lists)
    yield _framed(Section.LOCATIONS, encode_locations(shard.file_slots, shard.row_positions))
    yield _plain(Section.CONTENT_HASHES, shard.content_hashes, "<u8")
    if (codes := shard.codes) is not None:
        seed, center = np.array([codes.seed], "<u8"), np.ascontiguousarray(codes.center, "<f4")
        yield _plain(Section.ROTATION, np.concatenate([seed.view(np.uint8), center.view(np.uint8)]), "u1")
        yield _plain(Section.CODE_TERMS, codes.terms, "<f4")
        yield _plain(Section.HIGH_CODES, codes.high, "u1")
        if codes.bits > min(CODE_BITS):
            yield _plain(Section.LOW_CODES, codes.low, "u1")
    if (cells := shard.cells) is not None:
        directory = memoryview(cells.directory.to_bytes())
        yield Section.CELLS, cells.cells, len(cells.cells), False
        yield Section.CELL_DIRECTORY, directory, len(directory), False


def stored_vectors(vectors: npt.NDArray[Any]) -> memoryview:
    """The bytes of f32 or f16 [n, D] as they are stored."""
    dtype = "<f2" if vectors.dtype == np.float16 else "<f4"
    return np.ascontiguousarray(vectors, dtype).reshape(-1).view(np.uint8).data


def _plain(kind: Section, array: npt.NDArray[Any], dtype: str) -> tuple[Section, memoryview, int, bool]:
    stored = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data
    return kind, stored, len(stored), False


def _framed(kind: Section, raw: npt.NDArray[np.uint8]) -> tuple[Section, memoryview, int, bool]:
    return kind, memoryview(compress_frames(raw)), len(raw), True


class VectorsApart(Protocol):
    """The vectors of a shard that lie apart from its blob."""

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors."""
        ...

    def read(self) -> npt.NDArray[np.uint8]:
        """All vectors, as they are stored. It may raise what is its own."""
        ...


class ShardReader:
    """Reads a shard blob by sections out of `source` (the blob alone, from its first byte).

    `read_addresses`: gives the addresses blob that takes the place of the shard's own locations; None where these hold.
    It is called when locations are read, and may raise what is its own. `vectors`: those of the shard, where it has
    any. `checksums`: whether sections are compared with their checksums; not needed for bytes whose sha256 was right.
    No more memory is taken than 64 MiB and 8 times the bytes of the blob and of `vectors`. Raises BadBlobError where
    these are not as many as the shard has nodes.
    """

    def __init__(
        self,
        source: RangeSource,
        *,
        read_addresses: Callable[[], bytes] | None = None,
        vectors: VectorsApart | None = None,
        checksums: bool = True,
    ) -> None:
        self.source = source
        self._read_addresses = read_addresses
        self._vectors = vectors
        self._checksums = checksums
        self.header = read_header(source)
        require_vectors(self.header, vectors.nbytes if vectors else 0)

    def read_section(self, kind: Section) -> npt.NDArray[np.uint8]:
        """Raw bytes u8 of one section, checksum checked. Raises BadBlobError where the shard has none."""
        entry = self.header.find(kind)
        if entry is None:
            raise BadBlobError(f"shard blob has no section {kind.name}")
        read = self.source.view if isinstance(self.source, BytesSource) else self.source.read_range
        stored = read(entry.offset, entry.stored_length)
        self._compare(entry, len(stored), zlib.crc32(stored) if self._checksums else entry.checksum)
        if entry.framed:
            return decompress_frames(stored, entry.raw_length, f"section {kind.name}")
        return np.frombuffer(stored, np.uint8)

    def check(self) -> None:
        """Compare every section with its checksum, holding 8 MiB at a time; nothing is decoded.

        Raises BadBlobError, ChecksumError.
        """
        start = start_of_sections(len(self.header.sections))
        for _ in self.checked(start, self.source.size() - start):
            pass

    def checked(self, offset: int, length: int) -> Iterator[bytes | memoryview]:
        """The stored bytes from `offset`, where a section or the gap before one starts, read in parts of 8 MiB and
        given in smaller ones, which are still in the processor's cache when the caller hashes them; all sections among
        them, which must be whole, are compared with their checksums. Raises BadBlobError, ChecksumError.
        """
        for entry in self.header.sections:
            if not offset <= entry.offset < offset + length:
                continue
            end = entry.offset + entry.stored_length
            gap, checksum, read = entry.offset - offset, 0, 0
            while offset < end:
                part = memoryview(self.source.read_range(offset, min(_READ_AT_ONCE, end - offset)))
                if not part:
                    break
                for at in range(0, len(part), _HASHED_AT_ONCE):
                    piece = part[at : at + _HASHED_AT_ONCE]
                    body = piece[gap:]
                    checksum, read, gap = zlib.crc32(body, checksum), read + len(body), max(0, gap - len(piece))
                    yield piece
                offset, length = offset + len(part), length - len(part)
            self._compare(entry, read, checksum)
        if length:  # the gap after them
            yield self.source.read_range(offset, length)

    def _compare(self, entry: SectionEntry, length: int, checksum: int) -> None:
        if length != entry.stored_length:
            raise BadBlobError(f"shard blob: section {section_name(entry)} is cut off at {entry.offset + length}")
        if checksum != entry.checksum:
            raise ChecksumError(
                f"shard blob: section {section_name(entry)} does not have its checksum {entry.checksum:08x}"
            )

    def read(self) -> Shard:
        """The whole shard, every id and length checked."""
        head = self.header
        slots, rows = self.read_locations()
        neighbors, degrees = self.read_graph()
        codebook, codes = self.read_pq()
        return Shard(
            metric=head.metric,
            dims=head.dims,
            max_degree=head.max_degree,
            search_list=head.search_list,
            alpha=head.alpha,
            medoid=head.medoid,
            neighbors=neighbors,
            degrees=degrees,
            file_slots=slots,
            row_positions=rows,
            content_hashes=self.read_content_hashes(),
            vectors=self.read_vectors(),
            pq_codebook=codebook,
            pq_codes=codes,
            codes=self.read_codes(),
            cells=self.read_cells(),
        )

    def read_graph(self, *, allocate: Allocate = new_lists) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """(neighbors int32[N, W] padded with -1, degrees int32[N]); W is at most R. `allocate` gives the array of the
        neighbours for its shape.

        Raises BlobTooLargeError where a few long lists would make all of them so wide that the bytes of the blob do not
        warrant it.
        """
        lists, offsets = self._stored_lists()
        room = most_decoded(self.source.size() + self.header.vector_bytes)
        room = lists_room(room, self.header.count, len(lists))
        return decode_adjacency(lists, offsets, self.header.max_degree, max_bytes=room, allocate=allocate)

    def read_lists(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], int]:
        """The graph as it is stored: (lists of varints u8[..], bytes before each u64[N + 1], length of the longest).

        Every id and length is checked, as by `read_graph`.
        """
        lists, offsets = self._stored_lists()
        return lists, offsets, check_adjacency(lists, offsets, self.header.max_degree)

    def _stored_lists(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        offsets = self._signed(Section.ADJACENCY_OFFSETS, self.header.count + 1).view(np.uint64)
        return self.read_section(Section.ADJACENCY), offsets

    def _array(self, kind: Section, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self._shaped(self.read_section(kind), f"section {kind.name} has", dtype, shape)

    def _shaped(self, raw: npt.NDArray[np.uint8], part: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if len(raw) != size:
            raise BadBlobError(f"shard blob: {part} {len(raw)} bytes, {shape} {dtype} needs {size}")
        array = raw.view(dtype).reshape(shape)
        return np.require(array, array.dtype.newbyteorder("="), ["ALIGNED"])

    def _signed(self, kind: Section, count: int) -> npt.NDArray[np.int64]:
        return decode_signed(self.read_section(kind), count, f"shard blob: section {kind.name}")

    def read_locations(self) -> Addresses:
        """(file slots u32[N], row positions int64[N]) of the nodes."""
        if self._read_addresses is not None:
            return addresses_blob.decode(self._read_addresses(), self.header.count)
        return decode_locations(self.read_section(Section.LOCATIONS), self.header.count)

    def read_content_hashes(self) -> npt.NDArray[np.uint64]:
        """u64[N] of the nodes."""
        return self._array(Section.CONTENT_HASHES, "<u8", (self.header.count,))

    def read_pq(self) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.uint8] | None]:
        """(codebook f32[m, 2^bits, D / m], codes u8[N, m bits / 8]), or None twice where the shard has none."""
        head = self.header
        if not head.pq_m:
            return None, None
        codebook = self._array(Section.PQ_CODEBOOK, "<f4", (head.pq_m, 1 << head.pq_bits, head.dims // head.pq_m))
        if not np.isfinite(codebook).all():
            raise BadBlobError("shard blob: the PQ codebook is not finite")
        return codebook, self._array(Section.PQ_CODES, "u1", (head.count, head.pq_bytes))

    def read_vectors(self) -> npt.NDArray[Any] | None:
        """f32 or f16 [N, D]; None in a lean shard. Raises BadBlobError where rounding to f16 has made one infinite."""
        dtype = self.header.vector_type
        if dtype is None:
            return None
        stored = self._vectors.read() if self._vectors else np.empty(0, np.uint8)
        vectors = self._shaped(stored, "vectors have", dtype.str, (self.header.count, self.header.dims))
        if dtype.itemsize == 2:
            for start in range(0, len(vectors), _CHECKED_ROWS):
                require_finite(vectors[start : start + _CHECKED_ROWS])
        return vectors

    def read_codes(self) -> ShardCodes | None:
        """The rotated codes; None in a shard that has none. Raises BadBlobError where a number is not finite, a
        length or deviation negative, or the center too long.
        """
        head = self.header
        if not head.code_bits:
            return None
        rotation = self._array(Section.ROTATION, "u1", (8 + 4 * head.dims,))
        center = np.require(rotation[8:].copy().view("<f4"), np.float32)
        terms = self._array(Section.CODE_TERMS, "<f4", (head.count, 4))
        if not (np.isfinite(center).all() and np.isfinite(terms).all() and (terms[:, [0, 3]] >= 0).all()):
            raise BadBlobError("shard blob: the numbers of rotated codes are not finite, or negative")
        if np.linalg.norm(center.astype(np.float64)) > _LONGEST_CENTER:
            raise BadBlobError(f"shard blob: the center of rotated codes is longer than {_LONGEST_CENTER:g}")
        size = head.count * head.code_dims
        low = np.empty(0, np.uint8)
        if head.code_bits > min(CODE_BITS):
            low = self._array(Section.LOW_CODES, "u1", (size * (head.code_bits - 4) // 8,))
        high = self._array(Section.HIGH_CODES, "u1", (size // 2,))
        return ShardCodes(head.code_bits, int(rotation[:8].view("<u8")[0]), center, terms, high, low)

    def read_directory(self) -> CellDirectory | None:
        """The directory of the cells; None in a shard without."""
        head, cells = self.header, self.header.find(Section.CELLS)
        if cells is None:
            return None
        data = self.read_section(Section.CELL_DIRECTORY)
        return CellDirectory.parse(data.data, head.dims, head.count, cells.stored_length)

    def read_cells(self) -> ShardCells | None:
        """All cells, each node in one, with its address in this blob; None in a shard without."""
        directory = self.read_directory()
        if directory is None:
            return None
        cells = ShardCells(directory, self.read_section(Section.CELLS).data)
        cells.check(*decode_locations(self.read_section(Section.LOCATIONS), self.header.count))
        return cells


def require_vectors(header: ShardHeader, size: int) -> None:
    """Raises BadBlobError where a shard has not as many vectors as nodes. `size`: of all vectors, in bytes."""
    if size != header.vector_bytes:
        raise BadBlobError(
            f"shard blob: vectors have {size:,} bytes, {header.count:,} x {header.dims} need {header.vector_bytes:,}"
        )


def require_finite(vectors: npt.NDArray[np.float16]) -> None:
    """Raises BadBlobError where rounding to f16 has made a value infinite."""
    exponents = vectors.view(np.uint16) & np.uint16(_HALF_EXPONENT)
    if (exponents == _HALF_EXPONENT).any():
        raise BadBlobError(
            "shard blob: an f16 vector is not finite, it was too large for half precision; create the "
            "index with vectors = 'f32', or 'none'"
        )


def decode(data: bytes | memoryview, vectors: VectorsApart | None = None) -> Shard:
    """Parse and check a whole blob; codes stay where they are in it. `vectors` as for `ShardReader`. Raises
    BadBlobError, ChecksumError.
    """
    return ShardReader(BytesSource(data), vectors=vectors).read()
