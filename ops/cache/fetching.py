"""Fetching a shard from its store: decoded while it comes, into arrays that may be a file's.

It takes memory of the process for the pieces under way and for what is stored packed: `scratch_bytes` in all.
Vectors, neighbours and codes take none beside the arrays.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.allocation import in_memory
from icepuffin.ann_kernels.codes.coarse_codes import row_bytes
from icepuffin.ann_kernels.codes.code_sizes import rotated_bytes
from icepuffin.ann_kernels.codes.rotated_quantization import RotatedCodes
from icepuffin.ann_kernels.graphs.graph import Graph, PackedAdjacency, PackedGraph
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ops.cache.mapped_arrays import room_for
from icepuffin.ops.cache.ready_shard import Arrays, NodeAddresses, ReadyShard, from_arrays, to_arrays
from icepuffin.ops.model import ObjectRange, StorageConfig, StoredRun, StoredShard
from icepuffin.ops.shards.shard_codes import as_kernels_take
from icepuffin.ops.shards.shard_reader import RunsReader, differing_run
from icepuffin.ops.storage import open_storage
from icepuffin.puffin.blobs.shard_blob import ShardReader, require_finite
from icepuffin.puffin.blobs.shard_header import OF_CELLS, Section, ShardHeader, is_unknown, most_decoded
from icepuffin.puffin.blobs.shard_sections import SectionEntry
from icepuffin.puffin.errors import BadBlobError, BlobTooLargeError, ChecksumError
from icepuffin.puffin.sources import BytesSource
from icepuffin.puffin.transient import transient
from icepuffin.puffin.varint import load_decoders

_UNREAD = (*OF_CELLS, Section.CONTENT_HASHES)
"""Sections that no search in memory needs"""
_PIECES_AT_ONCE = 2
"""Pieces of one request, which an object store answers in parallel"""
_CODING_BYTES = 24
"""Bytes per row that making codes takes beside them: errors, and their order"""


class Room(Protocol):
    """Where the arrays of a shard get their memory."""

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array to be filled. Its memory is free again when nobody refers to it any more, unless it is kept."""
        ...

    def keep(self, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of the shard, where it lies in the room; else its copy there."""
        ...


class Memory:
    """Room in this process's memory."""

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """See Room."""
        return in_memory(shape, dtype)

    def keep(self, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Room. Kernels are compiled for arrays that may be written to, which those of bytes may not."""
        del key
        return np.require(array, requirements=["C", "W"])


Claim = Callable[[int], Room]
"""Function from a number of bytes to `Room` of at most that size"""
Scratch = Callable[[int], AbstractContextManager[None]]
"""Function from a number of bytes to a context that waits for that much memory, and releases it at the end"""


@dataclass(frozen=True, slots=True, eq=False)
class FetchedShard:
    """A shard whose arrays are in the room, without codes."""

    shard: ReadyShard
    room: Room

    @property
    def lacks_codes(self) -> bool:
        """Whether its vectors may get codes, by which searches are faster."""
        return self.shard.vectors is not None and self.shard.count >= MIN_CODED

    def without_codes(self) -> tuple[Arrays, dict[str, Any]]:
        """(arrays by name, plain values), as `ready_shard.from_arrays` takes them."""
        return _kept(self.shard, self.room)

    def with_codes(self, threads: int, scratch: Scratch) -> tuple[Arrays, dict[str, Any]]:
        """The same with codes, where these pay. They are made of the vectors, in the room."""
        with scratch(_CODING_BYTES * self.shard.count):
            return _kept(self.shard.with_codes(threads=threads, allocate=self.room.allocate), self.room)


def fetch(
    stored: StoredShard,
    sha256: bytes,
    storage: StorageConfig,
    *,
    compact: bool,
    claim: Claim,
    scratch: Scratch,
) -> FetchedShard:
    """A shard, in the compact layout or not.

    `sha256`: of the blob. Addresses that lie apart are not read. `claim` is called once, when the header is known.
    Raises StorageError, BadBlobError, ChecksumError.
    """
    where, runs = stored.blob, stored.runs
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as decoder:
        pieces = _pieces([where, *(run.location for run in runs)], storage, executor)
        first = next(pieces, b"")
        blob = _PassingBlob(first, where.length)
        reader = ShardReader(blob, vectors=RunsReader(runs, storage), checksums=False)
        header = reader.header
        with scratch(scratch_bytes(header, _piece_bytes(where, storage))):
            room = claim(most_bytes(header, where.length, compact=compact))
            shape = header.count, header.dims
            vectors = room.allocate(shape, np.float32) if _holds_vectors(header) else None
            load_decoders()  # takes a new process as long as 100 MB take a disk
            pieces = chain([first], pieces)
            _take(_first(where, pieces, storage), blob, header, where, sha256)
            # the vectors come while the rest is decoded
            decoding = decoder.submit(_decoded, reader, room, compact=compact)
            if vectors is not None and runs:
                _take_runs(runs, pieces, header, vectors.reshape(-1), storage)
            shard = decoding.result().with_vectors(header, vectors)
            return FetchedShard(from_arrays(*_kept(shard, room)), room)


def most_bytes(header: ShardHeader, size: int, *, compact: bool = False) -> int:
    """Bytes of the arrays of a shard blob of `size` bytes, at most, as a file."""
    count, dims = header.count, header.dims
    stored = header.find(Section.ADJACENCY)
    lists = min(4 * count * header.max_degree, most_decoded(size + header.vector_bytes))
    if compact and stored is not None:
        lists = stored.raw_length
    lengths = [lists, 4 * count, 4 * count + 4, 8 * count]
    if header.code_bits:
        planes = [count * header.code_dims // 2, count * header.code_dims * (header.code_bits - 4) // 8]
        lengths += [4 * dims, 16 * count, *planes]
    elif _holds_vectors(header):
        lengths.append(4 * count * dims)
        if count >= MIN_CODED:
            lengths += [count * (dims + -dims % BLOCK), 4 * count, 4 * count, 4 * dims, count, count * row_bytes(dims)]
    elif header.pq_m:
        lengths += [(4 << header.pq_bits) * dims, count * header.pq_bytes]
    return room_for(lengths)


def scratch_bytes(header: ShardHeader, piece_bytes: int) -> int:
    """Memory that fetching takes beside the room, about: pieces, lists as they are stored and raw, offsets; and codes
    that are stored, or else errors of those that are made.
    """
    lists = sum(entry.stored_length + entry.raw_length for entry in header.sections if entry.framed)
    codes = rotated_bytes(header.dims, header.code_bits) if header.code_bits else header.pq_bytes
    return 2 * _PIECES_AT_ONCE * piece_bytes + lists + header.count * (codes + 41)


def _holds_vectors(header: ShardHeader) -> bool:
    return header.vector_type is not None


def _pieces(ranges: Sequence[ObjectRange], storage: StorageConfig, executor: ThreadPoolExecutor) -> Iterator[bytes]:
    """The bytes of all ranges, in order, each in pieces of its own, read one request ahead.

    Raises BadBlobError where an object ends before its last byte.
    """

    def read(request: list[ObjectRange]) -> list[bytes]:
        path = request[0].path
        parts = open_storage(path, storage).read_ranges(path, [(part.offset, part.length) for part in request])
        for part, data in zip(request, parts, strict=True):
            if len(data) < part.length:
                raise BadBlobError(f"{path}: the shard is cut off at {part.offset + len(data)}")
        return parts

    pending: Future[list[bytes]] | None = None
    for request in _requests(ranges, storage):
        following = executor.submit(read, request)
        if pending is not None:
            yield from pending.result()
        pending = following
    if pending is not None:
        yield from pending.result()


def _requests(ranges: Sequence[ObjectRange], storage: StorageConfig) -> Iterator[list[ObjectRange]]:
    """The pieces of all ranges, those of one request together: they lie in one object."""
    request: list[ObjectRange] = []
    size = 0
    for range_ in ranges:
        most = _piece_bytes(range_, storage)
        for start in range(0, range_.length, most):
            piece = ObjectRange(range_.path, range_.offset + start, min(most, range_.length - start))
            if request and (size + piece.length > _PIECES_AT_ONCE * most or request[0].path != piece.path):
                yield request
                request, size = [], 0
            request.append(piece)
            size += piece.length
    if request:
        yield request


def _piece_bytes(range_: ObjectRange, storage: StorageConfig) -> int:
    return open_storage(range_.path, storage).piece_bytes


def _first(where: ObjectRange, pieces: Iterator[bytes], storage: StorageConfig) -> Iterator[bytes]:
    """The pieces of one range, which are the next ones."""
    return islice(pieces, -(-where.length // _piece_bytes(where, storage)))


class _PassingBlob(BytesSource):
    """A shard blob of which only some sections are kept while it passes. It has these and the header."""

    def __init__(self, head: bytes, size: int) -> None:
        super().__init__(head)
        self._size = size
        self._kept: dict[int, npt.NDArray[np.uint8]] = {}

    def size(self) -> int:
        return self._size

    def keep(self, entry: SectionEntry, start: int, part: memoryview) -> None:
        """Keep the part of a section that begins at its byte `start`."""
        if not start:
            self._kept[entry.offset] = transient(entry.stored_length)
        self._kept[entry.offset][start : start + len(part)] = part

    def view(self, offset: int, length: int) -> memoryview:
        """A section, once; or the header, which `head` has."""
        if offset == 0:
            return super().view(offset, length)
        # a section without a byte lies where the next one begins
        section = self._kept.pop(offset, None) if length else None
        return memoryview(b"") if section is None else section.data.toreadonly()


def _take(
    pieces: Iterator[bytes],
    blob: _PassingBlob,
    header: ShardHeader,
    where: ObjectRange,
    sha256: bytes,
) -> None:
    """Keep the sections, and check what has passed."""
    digest, offset = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        for entry in header.sections:
            low, high = max(entry.offset, offset), min(entry.offset + entry.stored_length, offset + len(piece))
            if low >= high or entry.kind in _UNREAD or is_unknown(entry):
                continue
            blob.keep(entry, low - entry.offset, memoryview(piece)[low - offset : high - offset])
        offset += len(piece)
    if digest.digest() != sha256:
        raise ChecksumError(f"{where.path}: the shard at {where.offset} does not have the sha256 of the routing blob")


def _take_runs(
    runs: Sequence[StoredRun],
    pieces: Iterator[bytes],
    header: ShardHeader,
    flat: npt.NDArray[np.float32],
    storage: StorageConfig,
) -> None:
    """Fill the vectors, and check what has passed."""
    filled = 0
    for run in runs:
        digest = hashlib.sha256()
        for piece in _first(run.location, pieces, storage):
            digest.update(piece)
            filled = _fill(flat, filled, memoryview(piece), header)
        if digest.digest() != run.sha256:
            raise differing_run(run)


def _fill(flat: npt.NDArray[np.float32], start: int, part: memoryview, header: ShardHeader) -> int:
    """Put the next numbers of the vectors where they belong; returns the index of the number after them.

    No number is cut in two: pieces begin at multiples of 64 bytes, runs at whole vectors.
    """
    numbers = np.frombuffer(part, header.vector_type)
    if numbers.dtype.itemsize == 2:
        require_finite(numbers)
    flat[start : start + len(numbers)] = numbers
    return start + len(numbers)


@dataclass(frozen=True, slots=True, eq=False)
class _ShardParts:
    """Everything of a shard but its vectors."""

    graph: Graph | PackedGraph
    addresses: NodeAddresses
    pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None
    rotated: RotatedCodes | None

    def with_vectors(self, header: ShardHeader, vectors: npt.NDArray[np.float32] | None) -> ReadyShard:
        """The shard, without codes that are made of its vectors, f32[N, D]."""
        return ReadyShard.from_graph(
            self.graph,
            Metric.of_code(header.metric),
            self.addresses,
            vectors=vectors,
            pq=self.pq if vectors is None else None,
            rotated=self.rotated,
            rounded=header.vector_format != 1,
        )


def _decoded(reader: ShardReader, room: Room, *, compact: bool) -> _ShardParts:
    addresses = NodeAddresses(*reader.read_locations())
    graph = _packed_graph(reader) if compact else _graph(reader, room)
    codebook, pq_codes = reader.read_pq()
    pq = None if codebook is None or pq_codes is None else (codebook, pq_codes)
    return _ShardParts(graph, addresses, pq, as_kernels_take(reader.read_codes()))


def _kept(shard: ReadyShard, room: Room) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a shard, all of them in the room, and its plain values."""
    arrays, values = to_arrays(shard)
    return {name: room.keep(name, array) for name, array in arrays.items()}, values


def _graph(reader: ShardReader, room: Room) -> Graph:
    neighbors, degrees = reader.read_graph(allocate=lambda shape: room.allocate(shape, np.int32))
    return Graph(neighbors, degrees, reader.header.medoid)


def _packed_graph(reader: ShardReader) -> PackedGraph:
    """The graph with its lists as they are stored."""
    lists, offsets, longest = reader.read_lists()
    if len(lists) >= 1 << 32:
        raise BlobTooLargeError(
            f"shard blob: {len(lists):,} bytes of neighbours are too many for the compact layout: set the layout of "
            "the shard cache to fast"
        )
    return PackedGraph(PackedAdjacency(lists, offsets.astype(np.uint32), longest), reader.header.medoid)
