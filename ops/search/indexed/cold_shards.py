"""Cells of shards that this process does not have: the nearest ones are read, and no shard.

It takes two rounds of requests, and a third one where shards hold vectors, by which the last candidates are compared;
and one more where directories are longer than expected, however many shards are searched.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.codes.cells import ROWS, CodedCenters
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import ObjectRange, ShardId, StorageConfig
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.shards.cell_rows import CellRows, are_coded, chosen_cells, nearest_first
from icepuffin.ops.shards.masked_shards import ShardMasker
from icepuffin.ops.shards.shard_reader import checked_addresses
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.storage.prefetch import coalesced
from icepuffin.puffin import BytesSource
from icepuffin.puffin.blobs import addresses_blob
from icepuffin.puffin.blobs.addresses_blob import Addresses
from icepuffin.puffin.blobs.cells_blob import CellDirectory, directory_bytes
from icepuffin.puffin.blobs.shard_header import MAX_SECTIONS, Section, ShardHeader, read_header, start_of_sections
from icepuffin.puffin.blobs.shard_sections import SectionEntry
from icepuffin.puffin.errors import BadBlobError, ChecksumError, PuffinError

MAX_QUERIES = 8
"""Queries of one search, at most: for more, shards pay"""
MAX_ROWS = 100
"""Candidates per query, at most"""
_DIRECTORY_BYTES = 7 << 19
"""Limit of the bytes of directories that one search reads, unless its nearest shards alone have more; with those of
cells it reads less than 8 MB"""
_ADDRESSES_BYTES = 1 << 20
"""Bytes of new addresses of moved rows, per shard, up to which they are read whole"""
_MORE_CELLS = 1.5
"""Cells of a shard, as a multiple of those that it has where all are full; 1.39 to 1.62 in shards of 800,000 rows"""
_GAP = 16 << 10
"""Largest gap between two ranges, in bytes, that one request reads over"""


@dataclass(slots=True)
class ColdReads:
    """What was read for one search of shards that this process does not have."""

    shards: int = 0
    """Shards whose cells were searched"""
    left_out: int = 0
    """Shards, farther than these, that were not searched"""
    cells: int = 0
    bytes: int = 0
    requests: int = 0
    rounds: int = 0
    """Rounds of requests, each of which needs the one before"""
    recall: float = 1.0
    """recall@10 through the cells, as it was measured when the shards were written; the mean over their rows"""
    rows: int = 0
    """Rows of the shards whose cells were searched, deleted ones included"""

    def plus(self, other: "ColdReads") -> "ColdReads":
        """What was read for two searches, one after the other, of other shards."""
        rows = self.rows + other.rows
        return ColdReads(
            shards=self.shards + other.shards,
            left_out=self.left_out + other.left_out,
            cells=self.cells + other.cells,
            bytes=self.bytes + other.bytes,
            requests=self.requests + other.requests,
            rounds=self.rounds + other.rounds,
            recall=(self.recall * self.rows + other.recall * other.rows) / rows,
            rows=rows,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _ColdShard:
    """A shard whose directory of cells has been read."""

    header: ShardHeader
    directory: CellDirectory
    centers: CodedCenters
    addresses: Addresses | None
    """Addresses of rows that have moved; None where those in the cells hold"""
    offset: int
    """Bytes of the shard's blob before its cells"""


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """The first bytes of a shard's blob, and the last ones of the directory of its cells. Only sections that are
    unknown lie behind that.
    """

    header: ShardHeader
    entry: SectionEntry
    """Entry of the directory"""
    tail: bytes
    """Last bytes of the directory, and what lies before a short one"""
    addresses: Addresses | None

    def missing(self, blob: ObjectRange) -> ObjectRange:
        """The part of the directory before the tail; of no bytes where there is none."""
        length = max(0, self.entry.stored_length - len(self.tail))
        return ObjectRange(blob.path, blob.offset + self.entry.offset, length)

    def cold_shard(self, start: bytes) -> _ColdShard:
        """The shard, by the part of the directory before the tail. Raises BadBlobError, ChecksumError."""
        header, cells = self.header, self.header.find(Section.CELLS)
        if cells is None:
            raise BadBlobError("a shard has a directory of cells, and no cells")
        data = (start + self.tail)[-self.entry.stored_length :]
        directory = CellDirectory.checked(data, self.entry.checksum, header.dims, header.count, cells.stored_length)
        centers = CodedCenters(directory.origin, directory.scales, directory.centers)
        return _ColdShard(header, directory, centers, self.addresses, cells.offset)


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """Rows of one query that are compared exactly, of several shards."""

    shards: I64
    """int64[n]"""
    numbers: I64
    """int64[n]: file numbers"""
    rows: CellRows


@dataclass(eq=False)
class _Search:
    """The cells that one search has read so far."""

    reads: ColdReads = field(default_factory=ColdReads)
    cells: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Bytes of the cells, by shard and cell"""


class ColdShards:
    """The cells of a version's shards, for a snapshot whose rows are live as its routing blob says. Thread-safe.

    Directories that were read stay in memory. Methods raise IndexUnavailableError for what cannot be read.
    """

    def __init__(self, opened: OpenVersion, masker: ShardMasker, storage: StorageConfig) -> None:
        self._opened = opened
        self._masker = masker
        self._storage = storage
        self._shards: dict[int, _ColdShard | None] = {}
        """Directories, by shard; None for a shard that has no cells, or too many new addresses"""
        self._opening = ProcessLock()
        self._path = opened.bound.puffin_path

    def search(
        self, shards: Sequence[int], ranks: Mapping[int, int], queries: F64, count: int
    ) -> tuple[Candidates, ColdReads, list[int]]:
        """(up to `count` of the nearest rows of each query, what was read, shards that have to be searched otherwise).

        `ranks`: of the shards by distance from the queries, where it is known; `queries` f64[Q, D], prepared.
        """
        search = _Search()
        try:
            searched = self._nearest_shards(shards, ranks, count)
            with self._opening:
                self._read_directories(searched, search.reads)
            cold = [shard for shard in searched if self._shards[shard] is not None]
            chosen = [self._rows_of(query, cold, count, search) for query in queries] if cold else []
            candidates = self._compared(queries, chosen, count, search.reads)
        except (PuffinError, StorageError) as error:
            raise IndexUnavailableError(f"{self._path}: cells cannot be read: {error}") from error
        reads, read_shards = search.reads, [self._cold_shard(shard) for shard in cold]
        reads.shards, reads.left_out, reads.cells = len(cold), len(shards) - len(searched), len(search.cells)
        if read_shards:
            weights = [shard.header.count for shard in read_shards]
            reads.rows = sum(weights)
            reads.recall = float(np.average([shard.directory.recall for shard in read_shards], weights=weights))
        return candidates, reads, [shard for shard in searched if self._shards[shard] is None]

    def _cold_shard(self, shard: int) -> _ColdShard:
        cold_shard = self._shards[shard]
        if cold_shard is None:
            raise ValueError(f"shard {shard} has no cells")
        return cold_shard

    def _nearest_shards(self, shards: Sequence[int], ranks: Mapping[int, int], count: int) -> list[int]:
        """The nearest shards whose directories together are small enough, by shard id. In any case deltas, whose
        distance is not known, the nearest shard of each query, and so many shards that they have `count` live rows.
        """
        ordered = sorted(shards, key=lambda shard: (ranks.get(shard, -1), shard))
        sizes = np.cumsum([self._directory_bytes(shard) for shard in ordered])
        rows = np.cumsum([self._opened.routing.shards[shard].live_rows for shard in ordered])
        nearest = sum(ranks.get(shard, -1) <= 0 for shard in ordered)
        return sorted(ordered[: max(nearest, int((sizes <= _DIRECTORY_BYTES).sum()), int((rows < count).sum()) + 1)])

    def _directory_bytes(self, shard: int) -> int:
        """Bytes that a directory has in general; ones with more cells take one more round of requests."""
        cells = int(_MORE_CELLS * self._opened.routing.shards[shard].count / ROWS) + 8
        return directory_bytes(cells, self._opened.routing.dims)

    def _read_directories(self, shards: Sequence[int], reads: ColdReads) -> None:
        """Read heads, directories and new addresses of the shards that have not been read yet."""
        missing = [shard for shard in shards if shard not in self._shards]
        ranges: list[ObjectRange] = []
        for shard in missing:
            stored = self._opened.shards[shard]
            head = start_of_sections(MAX_SECTIONS)
            blob, tail = stored.blob, min(stored.blob.length, self._directory_bytes(shard))
            ranges.append(ObjectRange(blob.path, blob.offset, min(head, blob.length)))
            ranges.append(ObjectRange(blob.path, blob.offset + blob.length - tail, tail))
            if stored.addresses and stored.addresses.blob.length <= _ADDRESSES_BYTES:
                ranges.append(stored.addresses.blob)
        parts = iter(self._read(ranges, reads))
        ends = {}
        for shard in missing:
            head_bytes, tail_bytes, moved = next(parts), next(parts), self._opened.shards[shard].addresses
            addresses = None
            if moved and moved.blob.length <= _ADDRESSES_BYTES:
                data = checked_addresses(moved, next(parts))
                addresses = addresses_blob.decode(data, self._opened.routing.shards[shard].count)
            header = self._header(shard, head_bytes)
            entry = header.find(Section.CELL_DIRECTORY)
            if entry is None or (moved and addresses is None):
                self._shards[shard] = None
            else:
                behind = self._opened.shards[shard].blob.length - entry.offset - entry.stored_length
                ends[shard] = _Ends(header, entry, tail_bytes[: max(0, len(tail_bytes) - behind)], addresses)
        starts = {shard: end.missing(self._opened.shards[shard].blob) for shard, end in ends.items()}
        longer = [shard for shard, start in starts.items() if start.length]
        read = dict(zip(longer, self._read([starts[shard] for shard in longer], reads), strict=True))
        for shard, end in ends.items():
            self._shards[shard] = end.cold_shard(read.get(shard, b""))

    def _header(self, shard: int, head: bytes) -> ShardHeader:
        """The header of a shard by the first bytes of its blob. Raises BadBlobError."""
        routing = self._opened.routing
        header = read_header(_Head(head, self._opened.shards[shard].blob.length))
        expected = routing.shards[shard].count, routing.dims, self._opened.definition.metric.code
        if (header.count, header.dims, header.metric) != expected:
            raise BadBlobError(f"shard {shard} has other nodes, dimensions or metric than its routing blob says")
        return header

    def _rows_of(self, query: F64, shards: Sequence[int], count: int, search: _Search) -> _Chosen:
        """The rows of the nearest cells that are worth an exact comparison; more cells where these have too few."""
        ranked = [self._cold_shard(shard).centers.ranked(query, self._opened.definition.metric) for shard in shards]
        owners = np.repeat(shards, [len(cells) for cells, _ in ranked])
        cells, scores = (np.concatenate(part) for part in zip(*ranked, strict=True))
        order = np.argsort(scores, kind="stable")
        owners, cells = owners[order], cells[order]
        by_shard = {shard: self._cold_shard(shard).directory.lengths for shard in shards}
        lengths = np.array([by_shard[shard][cell] for shard, cell in zip(owners.tolist(), cells.tolist(), strict=True)])
        start, end = 0, chosen_cells(lengths, max(self._cold_shard(shard).directory.probes for shard in shards))
        parts: list[_Chosen] = []
        while start < end:
            self._read_cells(owners[start:end], cells[start:end], search)
            parts += [
                self._live_rows(shard, cell, query, search)
                for shard, cell in zip(owners[start:end].tolist(), cells[start:end].tolist(), strict=True)
            ]
            enough = sum(len(part.numbers) for part in parts) >= count
            start, end = end, end if enough else min(len(cells), 2 * end)
        joined = _joined(parts)
        bits = max(self._cold_shard(shard).directory.bits for shard in shards)
        nearest = nearest_first(joined.rows, count, bits)
        return _Chosen(joined.shards[nearest], joined.numbers[nearest], joined.rows.take(nearest))

    def _read_cells(self, owners: I64, cells: I64, search: _Search) -> None:
        """Read those of some cells that this search has not read yet."""
        pairs = zip(owners.tolist(), cells.tolist(), strict=True)
        missing = [pair for pair in pairs if pair not in search.cells]
        ranges = []
        for shard, cell in missing:
            cold_shard, blob = self._cold_shard(shard), self._opened.shards[shard].blob
            start = blob.offset + cold_shard.offset + int(cold_shard.directory.offsets[cell])
            ranges.append(ObjectRange(blob.path, start, int(cold_shard.directory.lengths[cell])))
        search.cells.update(zip(missing, self._read(ranges, search.reads), strict=True))

    def _live_rows(self, shard: int, cell: int, query: F64, search: _Search) -> _Chosen:
        """The live rows of a cell that was read."""
        cold_shard = self._cold_shard(shard)
        read = cold_shard.directory.cell(cell, search.cells[shard, cell])
        rows = CellRows.from_cell(read, query, self._opened.definition.metric, cold_shard.directory.bits)
        if cold_shard.addresses is not None:
            rows = rows.moved(*cold_shard.addresses)
        numbers = self._masker.live_numbers(ShardId(shard), rows.nodes, rows.file_slots, rows.row_positions)
        live = np.flatnonzero(numbers >= 0)
        return _Chosen(np.full(len(live), shard), numbers[live], rows.take(live))

    def _compared(self, queries: F64, chosen: Sequence[_Chosen], count: int, reads: ColdReads) -> Candidates:
        """The nearest `count` of the chosen rows of each query, by the vectors of the shards where they hold some."""
        if not chosen:
            return Candidates.none(len(queries), count)
        if self._opened.definition.holds_vectors:
            distances = self._exact(queries, chosen, reads)
        else:
            distances = [of_query.rows.distances for of_query in chosen]
        width = max(count, *(len(of_query.numbers) for of_query in chosen))
        files, positions = (np.full((len(queries), width), -1, np.int64) for _ in range(2))
        table = np.full((len(queries), width), np.inf)
        for query, (of_query, values) in enumerate(zip(chosen, distances, strict=True)):
            filled = slice(0, len(values))
            files[query, filled], positions[query, filled] = of_query.numbers, of_query.rows.row_positions
            table[query, filled] = values
        return Candidates(files, positions, table).ordered(count)

    def _exact(self, queries: F64, chosen: Sequence[_Chosen], reads: ColdReads) -> list[F64]:
        """f64[n] of each query: distances of its rows by vectors, which must be what the codes stand for."""
        ranges = [
            self._vector_range(shard, node)
            for of_query in chosen
            for shard, node in zip(of_query.shards.tolist(), of_query.rows.nodes.tolist(), strict=True)
        ]
        dtype = np.dtype("<f4" if self._opened.definition.vectors == "f32" else "<f2")
        parts = iter(self._read(ranges, reads))
        out = []
        for number, of_query in enumerate(chosen):
            data = b"".join(next(parts) for _ in range(len(of_query.numbers)))
            vectors = np.frombuffer(data, dtype).astype(np.float32).reshape(-1, self._opened.routing.dims)
            if not are_coded(vectors, of_query.rows.vectors, of_query.rows.roundings[:, None]):  # they have no checksum
                raise ChecksumError("a vector is not what its codes in the cells stand for")
            every = np.arange(len(vectors))
            metric = self._opened.definition.metric
            out.append(pair_distances(queries[number : number + 1], vectors, np.zeros_like(every), every, metric))
        return out

    def _vector_range(self, shard: int, node: int) -> ObjectRange:
        """Where the vector of a node lies, apart from the shard's blob. Raises BadBlobError where there is none."""
        for run in self._opened.shards[shard].runs:
            if node < run.count:
                return run.part(node, 1)
            node -= run.count
        raise BadBlobError(f"shard {shard} does not have the vectors of all of its nodes")

    def _read(self, ranges: Sequence[ObjectRange], reads: ColdReads) -> list[bytes]:
        """The bytes of all ranges, by one round of requests; neighbouring ones by one request."""
        by_path: dict[str, list[ObjectRange]] = {}
        for range_ in ranges:
            by_path.setdefault(range_.path, []).append(range_)
        if not by_path:
            return []
        planned = {
            path: coalesced([(item.offset, item.length) for item in parts], gap=_GAP) for path, parts in by_path.items()
        }
        reads.rounds += 1
        reads.requests += sum(map(len, planned.values()))
        reads.bytes += sum(length for spans in planned.values() for _, length in spans)

        def read(path: str) -> list[bytes]:
            return open_storage(path, self._storage).read_ranges(path, planned[path])

        with ThreadPoolExecutor(len(planned)) as pool:
            data = dict(zip(planned, pool.map(read, planned), strict=True))
        return [_cut(range_, planned[range_.path], data[range_.path]) for range_ in ranges]


@dataclass(frozen=True, slots=True)
class _Head:
    """The first bytes of a blob, as a `RangeSource` of all of it."""

    data: bytes
    length: int

    def size(self) -> int:
        return self.length

    def read_range(self, offset: int, length: int) -> bytes:
        return BytesSource(self.data).read_range(offset, length)


def _cut(range_: ObjectRange, spans: Sequence[tuple[int, int]], data: Sequence[bytes]) -> bytes:
    """One range out of the spans that were read of its object. Raises BadBlobError where the object ends before."""
    number = int(np.searchsorted([offset for offset, _ in spans], range_.offset, side="right")) - 1
    start = range_.offset - spans[number][0]
    part = data[number][start : start + range_.length]
    if len(part) < range_.length:
        raise BadBlobError(f"{range_.path} is cut off at {range_.offset + len(part)}")
    return part


def _joined(parts: Sequence[_Chosen]) -> _Chosen:
    shards, numbers = (np.concatenate([getattr(part, name) for part in parts]) for name in ("shards", "numbers"))
    return _Chosen(shards, numbers, CellRows.joined([part.rows for part in parts]))
